"""What comes back: texts, pieces of them, log probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "Logprob", "Piece", "RequestOutput"]


@dataclass(frozen=True)
class Logprob:
    """The log probability of a token, before temperature and the choice of candidates."""

    logprob: float
    rank: int | None
    """1 for the likeliest; ``None`` where the token is none of those that were asked for."""
    decoded_token: str


@dataclass
class CompletionOutput:
    """One text."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """``stop``, ``length``, or ``abort`` where it was cancelled."""
    stop_reason: int | str | None = None
    """The token or the string that ended it."""
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token the likeliest ones and itself."""
    cumulative_logprob: float | None = None


@dataclass
class RequestOutput:
    """The texts after one prompt."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not read since the cache had them."""

    @property
    def finished(self) -> bool:
        """Whether all texts have ended."""
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(frozen=True)
class EmbeddingOutput:
    """The vector of a text, of length 1."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(frozen=True)
class EmbeddingRequestOutput:
    """The vector of one text, and its tokens."""

    outputs: EmbeddingOutput
    prompt_token_ids: list[int]

    @property
    def finished(self) -> bool:
        """True: a vector comes at once or not at all."""
        return True


@dataclass(frozen=True)
class Piece:
    """Some whole characters of a text, as they were written. ``str(piece)`` is the text."""

    text: str
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """Set in the last piece of a text."""

    def __str__(self) -> str:
        return self.text
