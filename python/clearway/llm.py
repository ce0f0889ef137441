"""Text from a model."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Union

from . import _clearway
from ._progress import Bar
from .errors import PromptError
from .outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, Piece, RequestOutput
from .sampling import SamplingParams, _Native

__all__ = ["LLM", "TextStream"]

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Message = Mapping[str, Any]
Lora = Union[str, "os.PathLike[str]", tuple[Union[str, "os.PathLike[str]"], float]]
"""An adapter: a file, or a file and a factor on what it changes."""
LoraRequest = Union[str, None, Sequence[Union[str, None]]]
"""The name of an adapter for all prompts, or one for each; ``None`` for the model itself."""

UNBOUNDED = 1 << 40


class _Options:
    """What the native part is told about a load."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


class LLM:
    """A model on a device that writes many texts at once.

    >>> from clearway import LLM, SamplingParams
    >>> llm = LLM("smollm2:135m", device="cpu")
    >>> [output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
    >>> "Paris" in output.outputs[0].text
    True
    >>> llm.close()

    Calls may come from any thread; texts of all of them are written together. The interpreter is released meanwhile, and
    Ctrl-C ends a call and the texts it waits for.

    Args:
        model: a GGUF file, ``smollm2:135m``, or a repository of the Hugging Face hub: ``hf:user/repo[:FILE]``. A model that
            is not in the cache is fetched once, with a bar on standard error.
        device: ``auto``, ``cpu``, ``vulkan``, ``vulkan:N``, ``wgpu`` or ``wgpu:N``.
        threads: threads of the CPU; all cores without it.
        max_model_len: tokens of one text at most, prompt included; what the model allows and memory holds without it.
        max_num_seqs: texts that are written at once. More wait.
        cache_tokens: tokens of the KV cache, which all texts share.
        kv_cache_dtype: ``f16``, ``f32``, or ``q8_0`` for about half the memory of ``f16``.
        deterministic: every step has the same number of rows, so that a text is the same bit for bit whatever else is written
            at the same time. Slower.
        max_queue: texts that may wait; more are refused with a :class:`~clearway.QueueFullError`. ``None`` for any number.
        lora_modules: adapters of the weights (LoRA, GGUF files) by name, for example ``{"sql": "sql.gguf", "poems": ("poems.gguf", 0.8)}``
            with a factor on what one changes; those of a list act together. A call chooses one with ``lora_request``.
        progress: whether to show bars.
    """

    def __init__(
        self,
        model: str = "smollm2:135m",
        *,
        device: str = "auto",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        cache_tokens: int | None = None,
        kv_cache_dtype: str = "f16",
        deterministic: bool = False,
        max_queue: int | None = None,
        lora_modules: Mapping[str, Lora | list[Lora]] | None = None,
        progress: bool = True,
    ) -> None:
        if kv_cache_dtype not in ("f16", "f32", "q8_0"):
            raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}; f16, f32 and q8_0 are supported")
        if not 1 <= max_num_seqs <= 1024:
            raise ValueError(f"max_num_seqs is {max_num_seqs}; a number from 1 to 1024 is needed")
        if threads is not None and not 1 <= threads <= 1024:
            raise ValueError(f"threads is {threads}; a number from 1 to 1024 is needed")
        options = _Options(
            device=device,
            threads=threads,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            cache_tokens=cache_tokens,
            kv_cache_dtype=kv_cache_dtype,
            deterministic=deterministic,
            max_queue=UNBOUNDED if max_queue is None else max_queue,
            lora_modules=_adapters(lora_modules or {}),
            progress=Bar() if progress else None,
        )
        self._engine = _clearway.Engine(str(model), options)
        self._adapters = {name: index for index, name in enumerate(self._engine.adapters)}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoraRequest = None,
    ) -> list[RequestOutput]:
        """Continues prompts as they are, all of them at once, and waits for all.

        A prompt is text, a list of tokens, or ``{"prompt": ...}`` or ``{"prompt_token_ids": ...}``. One row of parameters is for
        all prompts; a list has one for each, and so it is with names of ``lora_modules``.

        >>> llm = LLM("smollm2:135m", device="cpu")
        >>> outputs = llm.generate(["One, two,", "A, B,"], SamplingParams(temperature=0, max_tokens=4))
        >>> [len(output.outputs[0].token_ids) for output in outputs]
        [4, 4]
        """
        listed = _prompts(prompts)
        rows = _rows(sampling_params, len(listed))
        return self._write([self._encode(prompt) for prompt in listed], rows, lora_request)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        lora_request: LoraRequest = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or several at once.

        >>> llm = LLM("smollm2:135m", device="cpu")
        >>> [answer] = llm.chat([{"role": "user", "content": "Say hello."}], SamplingParams(max_tokens=8))
        >>> answer.outputs[0].finish_reason in ("stop", "length")
        True
        """
        several = len(messages) > 0 and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        rows = _rows(sampling_params, len(conversations))
        asked: list[tuple[str | None, list[int]]] = []
        for conversation in conversations:
            prompt = self.apply_chat_template(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
            )
            asked.append((prompt, self._engine.encode_chat(prompt)))
        return self._write(asked, rows, lora_request)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
    ) -> TextStream:
        """One text as it is written: for ``for`` and for ``async for``. A list of messages is a conversation.

        >>> llm = LLM("smollm2:135m", device="cpu")
        >>> text = "".join(str(piece) for piece in llm.stream("Once upon a time", SamplingParams(max_tokens=8)))
        >>> len(text) > 0
        True
        """
        row = sampling_params or SamplingParams()
        if _is_conversation(prompt):
            text = self.apply_chat_template(prompt)
            return self._begin(text, self._engine.encode_chat(text), row, lora_request)
        given, tokens = self._encode(prompt)
        return self._begin(given, tokens, row, lora_request)

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> list[EmbeddingRequestOutput]:
        """The vectors of texts, each of length 1: the mean over a text's tokens or the last of them, as the file says.

        >>> llm = LLM("smollm2:135m", device="cpu")
        >>> cat, kitten, tax = (output.outputs.embedding for output in llm.embed(["a cat", "a kitten", "the tax of 1913"]))
        >>> similar = lambda one, other: sum(a * b for a, b in zip(one, other))
        >>> similar(cat, kitten) > similar(cat, tax)
        True
        """
        asked = [self._encode(prompt)[1] for prompt in _prompts(prompts)]
        if not asked:
            return []
        return [
            EmbeddingRequestOutput(EmbeddingOutput(vector), tokens)
            for vector, tokens in zip(self._engine.embed(asked), asked)
        ]

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
    ) -> str:
        """The prompt that the model's chat template makes of a conversation."""
        if not messages:
            raise PromptError("a conversation has at least one message")
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise PromptError('a message is a dict such as {"role": "user", "content": "Hi"}')
        variables = [] if tools is None else [("tools", [dict(tool) for tool in tools])]
        listed = [dict(message) for message in messages]
        return self._engine.render(listed, variables, add_generation_prompt, enable_thinking)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return self._engine.decode(list(token_ids), skip_special_tokens)

    def stats(self) -> dict[str, Any]:
        """Counters of the engine, and times in seconds with count, mean, median and 99th percentile.

        >>> llm = LLM("smollm2:135m", device="cpu")
        >>> llm.stats()["slots"]
        64
        """
        return self._engine.stats()

    def drain(self, timeout: float = 30.0) -> bool:
        """Takes no more requests and waits for those under way, at most so many seconds. Whether all ended by themselves."""
        return self._engine.drain(timeout)

    def close(self) -> None:
        """Cancels what is under way and gives the memory of the device back. More calls do nothing."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, device={self.device!r})"

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._engine.name

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._engine.device[0]

    @property
    def device_description(self) -> str:
        """One line about the device."""
        return self._engine.device[1]

    @property
    def max_model_len(self) -> int:
        """Tokens of one text at most, prompt included."""
        return self._engine.context

    @property
    def lora_names(self) -> list[str]:
        """Names of adapters that ``lora_request`` takes."""
        return list(self._adapters)

    @property
    def closed(self) -> bool:
        """Whether the model was closed."""
        return self._engine.closed

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._engine.encode(prompt, True)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if "prompt" in prompt:
                return self._encode(prompt["prompt"])
            raise PromptError('a prompt that is a dict has "prompt" or "prompt_token_ids"')
        return None, [int(token) for token in prompt]

    def _adapter(self, name: str | None) -> int | None:
        if name is None:
            return None
        if name not in self._adapters:
            raise ValueError(f"there is no adapter {name!r}; lora_modules has: {', '.join(self._adapters) or 'none'}")
        return self._adapters[name]

    def _begin(self, text: str | None, tokens: list[int], row: SamplingParams, lora_request: str | None = None) -> TextStream:
        return TextStream(self._engine, text, tokens, row, self._adapter(lora_request))

    def _write(
        self, asked: list[tuple[str | None, list[int]]], rows: list[SamplingParams], lora_request: LoraRequest
    ) -> list[RequestOutput]:
        """Asks for the texts after all prompts at once and waits for all."""
        one = lora_request is None or isinstance(lora_request, str)
        names = [lora_request] * len(asked) if one else list(lora_request)
        if len(names) != len(asked):
            raise ValueError(f"there are {len(asked)} prompts, but {len(names)} names of adapters")
        natives: list[_Native] = []
        known: dict[tuple[int, int | None], int] = {}
        which = []
        for row, adapter in zip(rows, map(self._adapter, names)):
            index = known.setdefault((id(row), adapter), len(natives))
            if index == len(natives):
                natives.append(_Native(row, adapter))
            which.append(index)
        outputs = [_empty(text, tokens, row) for (text, tokens), row in zip(asked, rows)]
        stream = self._engine.submit_all([tokens for _, tokens in asked], natives, which)
        try:
            events = iter(stream.collect())
        except BaseException:
            stream.cancel()
            raise
        for output, row in zip(outputs, rows):
            for index in range(row.n):
                _add(self._engine, row, output, output.outputs[index], next(events))
        return outputs


class TextStream:
    """The texts after one prompt as they are written. Iterate with ``for`` or ``async for``; :attr:`output` has all so far.

    Leaving it alone cancels what is still to come, and so does :meth:`close`.
    """

    def __init__(
        self, engine: Any, prompt: str | None, tokens: list[int], row: SamplingParams, adapter: int | None = None
    ) -> None:
        self._engine = engine
        self._stream = engine.submit(tokens, _Native(row, adapter))
        self._row = row
        self.output = _empty(prompt, tokens, row)

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        event = self._stream.next()
        if event is None:
            raise StopIteration
        return self._add(event)

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            more = loop.create_future()

            def arrived(more: Any = more) -> None:
                if not more.done():
                    more.set_result(None)

            ready, event = self._stream.poll_next(lambda: loop.call_soon_threadsafe(arrived))
            if ready:
                if event is None:
                    raise StopAsyncIteration
                return self._add(event)
            await more

    def result(self) -> RequestOutput:
        """Waits for the end of all texts."""
        for event in self._stream.collect():
            self._add(event)
        return self.output

    async def aresult(self) -> RequestOutput:
        """Waits for the end of all texts, in an event loop."""
        async for _ in self:
            pass
        return self.output

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, event: Any) -> Piece:
        return _add(self._engine, self._row, self.output, self.output.outputs[event.choice], event)


def _empty(prompt: str | None, tokens: list[int], row: SamplingParams) -> RequestOutput:
    """What comes back, before anything has come."""
    wanted = row.logprobs is not None
    outputs = [
        CompletionOutput(index, "", [], None, None, [] if wanted else None, 0.0 if wanted else None)
        for index in range(row.n)
    ]
    return RequestOutput(prompt, tokens, outputs)


def _add(engine: Any, row: SamplingParams, whole: RequestOutput, output: CompletionOutput, event: Any) -> Piece:
    """Adds what has come to a text."""
    text, token_ids = event.text, event.token_ids
    output.text += text
    output.token_ids += token_ids
    whole.num_cached_tokens = max(whole.num_cached_tokens, event.cached)
    if output.logprobs is not None:
        for found in event.logprobs:
            _add_logprobs(engine, row, output, found)
    if event.finish_reason is not None:
        output.finish_reason = event.finish_reason
        output.stop_reason = event.stop_token if event.stop_string is None else event.stop_string
    return Piece(text, output.index, token_ids, event.finish_reason)


def _add_logprobs(
    engine: Any, row: SamplingParams, output: CompletionOutput, of_token: tuple[int, float, list[tuple[int, float]]]
) -> None:
    token, chosen, top = of_token
    found: dict[int, Logprob] = {}
    for rank, (one, logprob) in enumerate(top, 1):
        if one == token or rank <= (row.logprobs or 0):
            found[one] = Logprob(logprob, rank, engine.decode([one], False))
    if token not in found:
        found[token] = Logprob(chosen, None, engine.decode([token], False))
    assert output.logprobs is not None and output.cumulative_logprob is not None
    output.logprobs.append(found)
    output.cumulative_logprob += chosen


def _adapters(modules: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Name, file and factor of each adapter. Those of one name act together."""
    found = []
    for name, given in modules.items():
        for one in given if isinstance(given, list) else [given]:
            path, scale = one if isinstance(one, tuple) else (one, 1.0)
            if not math.isfinite(scale):
                raise ValueError(f"the factor of adapter {name!r} is {scale}; a finite number is needed")
            found.append((name, os.fspath(path), float(scale)))
    return found


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _prompts(prompts: Any) -> list[Any]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = list(prompts)
    # A list of numbers is one prompt of tokens.
    return [listed] if listed and not isinstance(listed[0], (str, Mapping, Sequence)) else listed


def _rows(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    rows = list(params)
    if len(rows) != count:
        raise ValueError(f"there are {count} prompts, but {len(rows)} rows of sampling parameters")
    return rows
