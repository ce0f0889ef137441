"""How tokens are chosen."""

from __future__ import annotations

import json as _json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["SamplingParams", "StructuredOutputsParams"]


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What an answer must look like. Exactly one of the fields is given.

    Only tokens that keep the answer valid can be chosen. What cannot be enforced is refused before anything is
    computed, with a :class:`~clearway.GrammarError`.

    >>> StructuredOutputsParams(json={"type": "object", "properties": {"age": {"type": "integer"}}})  # doctest: +ELLIPSIS
    StructuredOutputsParams(json=...)
    """

    json: Mapping[str, Any] | str | None = None
    """A JSON schema."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression for the whole answer."""
    grammar: str | None = None
    """A grammar in Lark's notation."""

    def __post_init__(self) -> None:
        given = [self.json is not None, self.json_object, self.regex is not None, self.grammar is not None]
        if sum(given) != 1:
            raise ValueError("give exactly one of json, json_object, regex and grammar")

    def _native(self) -> tuple[str, str]:
        if self.json is not None:
            return ("json", self.json if isinstance(self.json, str) else _json.dumps(self.json))
        if self.regex is not None:
            return ("regex", self.regex)
        if self.grammar is not None:
            return ("lark", self.grammar)
        return ("json_object", "")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a text are chosen, what ends it and how long it may be.

    Names are those of vLLM. The defaults are those of the command line, so that the same prompt and seed give the same
    text in both.

    >>> SamplingParams(temperature=0, max_tokens=32).temperature
    0
    """

    n: int = 1
    """Texts after the same prompt. Text ``i`` has the seed plus ``i``."""
    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int = 40
    """Only so many of the likeliest tokens; 0 or -1 for all."""
    top_p: float = 0.95
    """Only the likeliest tokens that together have this probability; 1 for all."""
    min_p: float = 0.05
    """Only tokens at least this likely, relative to the likeliest; 0 for all."""
    seed: int = 0
    """The same seed gives the same text on the same device."""
    max_tokens: int = 256
    """Tokens of the text at most."""
    stop: str | Sequence[str] = ()
    """Strings that end the text. They are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside those of the vocabulary."""
    ignore_eos: bool = False
    """The tokens that end a text by the vocabulary do not end it."""
    repetition_penalty: float = 1.0
    """Positive logits of recent tokens are divided and others multiplied by this; 1 for none."""
    presence_penalty: float = 0.0
    """Taken from the logit of a recent token once."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a recent token for each time it is there."""
    penalty_window: int = 64
    """Tokens that count as recent, those of the prompt included."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """What is added to the logits of single tokens."""
    allowed_token_ids: Sequence[int] | None = None
    """Tokens that may come; ``None`` for all."""
    logprobs: int | None = None
    """How many of the likeliest tokens are returned with each token; 0 for the chosen one alone."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the text must look like."""
    priority: int = 0
    """A larger one goes first."""

    def __post_init__(self) -> None:
        def check(good: bool, what: str) -> None:
            if not good:
                raise ValueError(what)

        check(self.n >= 1, f"n is {self.n}; at least 1 is needed")
        check(self.temperature >= 0, f"temperature is {self.temperature}; it cannot be negative")
        check(self.top_k >= -1, f"top_k is {self.top_k}; 0 stands for all tokens")
        check(0 <= self.top_p <= 1, f"top_p is {self.top_p}; a number from 0 to 1 is needed")
        check(0 <= self.min_p <= 1, f"min_p is {self.min_p}; a number from 0 to 1 is needed")
        check(0 <= self.seed < 1 << 64, f"seed is {self.seed}; it has 64 bits and no sign")
        check(self.max_tokens >= 1, f"max_tokens is {self.max_tokens}; at least 1 is needed")
        check(self.repetition_penalty > 0, f"repetition_penalty is {self.repetition_penalty}; it must be above 0")
        check(self.logprobs is None or self.logprobs >= 0, f"logprobs is {self.logprobs}; it cannot be negative")

    def replace(self, **changes: Any) -> SamplingParams:
        """The same with some fields changed."""
        return replace(self, **changes)


class _Native:
    """The attributes that the native part reads."""

    __slots__ = ("_params", "adapter", "grammar", "logit_bias", "stop", "stop_token_ids", "top_k")

    def __init__(self, params: SamplingParams, adapter: int | None = None) -> None:
        self._params = params
        self.adapter = adapter
        self.stop = [params.stop] if isinstance(params.stop, str) else list(params.stop)
        self.stop_token_ids = list(params.stop_token_ids)
        self.logit_bias = list(params.logit_bias.items())
        self.top_k = max(params.top_k, 0)
        outputs = params.structured_outputs
        self.grammar = None if outputs is None else outputs._native()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._params, name)
