"""Clearway on Ray, for those who outgrow one machine.

Two parts, both with Ray as it comes from PyPI (``pip install 'clearway[ray]'``):

* :func:`generate` is a stage of Ray Data. An actor per device holds the model; rows go through its many-sequence engine in
  batches. Rows that a dead worker had in its hands are computed again by another.
* :func:`deployment` is an application of Ray Serve: replicas with the engine in process, the routes of the OpenAI API,
  streams, health checks, draining and back pressure.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from . import LLM, SamplingParams, StructuredOutputsParams
from .errors import ClosedError, GrammarError, PromptError, QueueFullError

if TYPE_CHECKING:
    import ray.data
    from ray import serve

__all__ = ["deployment", "device_of_actor", "generate"]


def device_of_actor() -> str:
    """The device that Ray gave this actor: ``vulkan:N`` for GPU ``N`` of the node, ``cpu`` where it gave none.

    Vulkan counts the cards of a node in the order of their PCI addresses, as Ray does.
    """
    import ray

    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"vulkan:{gpus[0]}" if gpus else "cpu"


class _Stage:
    """One actor of :func:`generate`."""

    def __init__(
        self,
        model: str,
        params: dict[str, Any],
        lora_request: str | None,
        prompt_column: str,
        output_column: str,
        engine: dict[str, Any],
    ) -> None:
        options = {"progress": False, **engine}
        options.setdefault("device", device_of_actor())
        self._llm = LLM(model, **options)
        self._params = SamplingParams(**params)
        self._lora_request = lora_request
        self._prompt_column = prompt_column
        self._output_column = output_column

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        prompts = list(batch[self._prompt_column])
        if prompts and not isinstance(prompts[0], str):
            conversations = [list(map(dict, prompt)) for prompt in prompts]
            outputs = self._llm.chat(conversations, self._params, lora_request=self._lora_request)
        else:
            outputs = self._llm.generate(list(map(str, prompts)), self._params, lora_request=self._lora_request)
        batch[self._output_column] = [output.outputs[0].text for output in outputs]
        batch[f"{self._output_column}_tokens"] = [len(output.outputs[0].token_ids) for output in outputs]
        batch[f"{self._output_column}_finish_reason"] = [output.outputs[0].finish_reason for output in outputs]
        return batch


def generate(
    dataset: ray.data.Dataset,
    model: str = "smollm2:135m",
    *,
    sampling_params: Mapping[str, Any] | None = None,
    lora_request: str | None = None,
    prompt_column: str = "prompt",
    output_column: str = "text",
    concurrency: int | tuple[int, int] = 1,
    batch_size: int = 64,
    num_cpus: float = 1,
    num_gpus: float = 0,
    engine: Mapping[str, Any] | None = None,
    **ray_remote_args: Any,
) -> ray.data.Dataset:
    """A stage of Ray Data that writes a text after each row's prompt.

    ::

        import ray
        import clearway.ray

        rows = ray.data.from_items([{"prompt": f"A poem about {what}:"} for what in ("rain", "snow")])
        texts = clearway.ray.generate(rows, "smollm2:135m", sampling_params={"max_tokens": 32}, concurrency=2)
        texts.write_parquet("texts")

    The columns ``text``, ``text_tokens`` and ``text_finish_reason`` are added. A prompt is text, or a list of messages.

    Args:
        lora_request: the adapter that acts on all rows, a name of ``lora_modules`` of the engine.
        concurrency: actors, each with a model of its own; a pair for a pool that grows.
        batch_size: rows that an actor gets at once. As many as ``max_num_seqs`` of the engine or more keep it busy.
        num_gpus: 1 for an actor per GPU, which takes the GPU that Ray gave it.
        engine: what :class:`~clearway.LLM` is told. ``deterministic=True`` makes a row's text independent of the rows around it,
            so that it is the same when it is computed again elsewhere.
    """
    from ray.data import ActorPoolStrategy

    if isinstance(concurrency, int):
        actors = ActorPoolStrategy(size=concurrency)
    else:
        actors = ActorPoolStrategy(min_size=concurrency[0], max_size=concurrency[1])
    return dataset.map_batches(
        _Stage,
        fn_constructor_kwargs={
            "model": model,
            "params": dict(sampling_params or {}),
            "lora_request": lora_request,
            "prompt_column": prompt_column,
            "output_column": output_column,
            "engine": dict(engine or {}),
        },
        compute=actors,
        batch_size=batch_size,
        batch_format="numpy",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        **ray_remote_args,
    )


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


_FIELDS = {
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "stop",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos",
}  # fmt: skip
_OTHERS = {"model", "stream", "stream_options", "user", "max_completion_tokens", "logit_bias", "logprobs", "top_logprobs", "response_format", "return_token_ids"}


def _params(body: dict[str, Any], prompts: set[str]) -> SamplingParams:
    """The row of a request. A field that is not known is refused by its name."""
    unknown = set(body) - _FIELDS - _OTHERS - prompts
    if unknown:
        raise _Refused(400, f"`{min(unknown)}` is not supported", "unsupported_parameter")
    given = {name: body[name] for name in _FIELDS if body.get(name) is not None}
    if body.get("max_completion_tokens") is not None:
        given["max_tokens"] = body["max_completion_tokens"]
    if body.get("logit_bias"):
        given["logit_bias"] = {int(token): float(bias) for token, bias in body["logit_bias"].items()}
    shape = body.get("response_format") or {"type": "text"}
    kind = shape.get("type")
    if kind == "json_schema":
        given["structured_outputs"] = StructuredOutputsParams(json=shape["json_schema"]["schema"])
    elif kind == "json_object":
        given["structured_outputs"] = StructuredOutputsParams(json_object=True)
    elif kind != "text":
        raise _Refused(400, f"response_format {kind!r} is not supported", "unsupported_parameter")
    asked = body.get("logprobs")
    if asked is not None and asked is not False:
        given["logprobs"] = int(body.get("top_logprobs") or 0) if asked is True else int(asked)
    try:
        return SamplingParams(**given)
    except (TypeError, ValueError) as problem:
        raise _Refused(400, str(problem)) from None


class _Replica:
    """One replica of :func:`deployment`: an ASGI application over an engine."""

    def __init__(self, model: str, name: str, engine: dict[str, Any], drain: float) -> None:
        from ray import serve

        options = {"progress": False, "max_queue": 128, **engine}
        options.setdefault("device", device_of_actor())
        self._llm = LLM(model, **options)
        self._name = name
        self._drain = drain
        self._created = int(time.time())
        self._replica = f"{serve.get_replica_context().replica_id.unique_id}/{os.getpid()}"

    def check_health(self) -> None:
        """Called by Ray Serve; a replica that raises is replaced."""
        self._llm.stats()

    def __del__(self) -> None:
        # Ray Serve calls this when requests have ended or its own patience has.
        llm = getattr(self, "_llm", None)
        if llm is not None and not llm.closed:
            llm.drain(self._drain)
            llm.close()

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            response = await self._route(request)
        except _Refused as refused:
            error = {"message": str(refused), "type": "invalid_request_error", "code": refused.code}
            headers = {} if refused.retry_after is None else {"Retry-After": str(max(1, round(refused.retry_after)))}
            response = JSONResponse({"error": error}, refused.status, headers)
        response.headers["X-Clearway-Replica"] = self._replica
        return response

    async def _route(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        path, method = request.url.path, request.method
        if (method, path) == ("GET", "/health"):
            return JSONResponse({"status": "ok"})
        if (method, path) == ("GET", "/v1/models"):
            about = {"object": "model", "created": self._created, "owned_by": "clearway"}
            rows = [{"id": name, **about} for name in (self._name, *self._llm.lora_names)]
            return JSONResponse({"object": "list", "data": rows})
        if (method, path) == ("GET", "/stats"):
            return JSONResponse(self._llm.stats())
        chat = path == "/v1/chat/completions"
        if method != "POST" or not (chat or path == "/v1/completions"):
            raise _Refused(404, f"there is no {method} {path}")
        try:
            body = json.loads(await request.body())
            assert isinstance(body, dict)
        except (ValueError, AssertionError):
            raise _Refused(400, "the body is no JSON object") from None
        params = _params(body, {"messages", "tools"} if chat else {"prompt"})
        return await self._answer(body, params, chat)

    async def _answer(self, body: dict[str, Any], params: SamplingParams, chat: bool) -> Any:
        from starlette.responses import JSONResponse, StreamingResponse

        loop = asyncio.get_running_loop()
        try:
            # Templates, tokens and grammars take time that the loop has not.
            stream = await loop.run_in_executor(None, self._begin, body, params, chat)
        except QueueFullError as full:
            raise _Refused(429, str(full), "queue_full", full.retry_after) from None
        except ClosedError as closed:
            raise _Refused(503, str(closed), "closing", 1.0) from None
        except (PromptError, GrammarError) as problem:
            raise _Refused(400, str(problem)) from None
        kind = "chatcmpl" if chat else "cmpl"
        head = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.get("model") or self._name}
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            ids = bool(body.get("return_token_ids"))
            return StreamingResponse(self._events(stream, head, chat, usage, ids), media_type="text/event-stream")
        output = await stream.aresult()
        choices = []
        for one in output.outputs:
            choice: dict[str, Any] = {"index": one.index, "finish_reason": one.finish_reason}
            if chat:
                choice["message"] = {"role": "assistant", "content": one.text}
            else:
                choice["text"] = one.text
            if one.logprobs is not None:
                rows = zip(one.token_ids, one.logprobs)
                choice["logprobs"] = {"content": [_logprob(token, row) for token, row in rows]}
            if body.get("return_token_ids"):
                choice["token_ids"] = list(one.token_ids)
            choices.append(choice)
        kind = "chat.completion" if chat else "text_completion"
        return JSONResponse({**head, "object": kind, "choices": choices, "usage": _usage(output)})

    def _adapter(self, body: dict[str, Any]) -> str | None:
        """The adapter that a request names in place of the model."""
        name = body.get("model")
        if name is None or name == self._name:
            return None
        if name not in self._llm.lora_names:
            known = ", ".join((self._name, *self._llm.lora_names))
            raise _Refused(404, f"there is no model `{name}`; served are: {known}", "model_not_found")
        return name

    def _begin(self, body: dict[str, Any], params: SamplingParams, chat: bool) -> Any:
        adapter = self._adapter(body)
        if not chat:
            return self._llm.stream(body.get("prompt", ""), params, lora_request=adapter)
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise PromptError("messages is a list")
        prompt = self._llm.apply_chat_template(messages, tools=body.get("tools"))
        return self._llm._begin(prompt, self._llm._engine.encode_chat(prompt), params, adapter)

    async def _events(self, stream: Any, head: dict[str, Any], chat: bool, usage: bool, ids: bool) -> AsyncIterator[str]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        begun: set[int] = set()
        with stream:
            async for piece in stream:
                choice: dict[str, Any] = {"index": piece.index, "finish_reason": piece.finish_reason}
                if chat:
                    delta: dict[str, Any] = {} if piece.index in begun else {"role": "assistant"}
                    begun.add(piece.index)
                    choice["delta"] = {**delta, "content": piece.text} if piece.text or delta else delta
                else:
                    choice["text"] = piece.text
                if ids:
                    choice["token_ids"] = list(piece.token_ids)
                yield _event({**head, "object": kind, "choices": [choice]})
            if usage:
                yield _event({**head, "object": kind, "choices": [], "usage": _usage(stream.output)})
            yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _usage(output: Any) -> dict[str, Any]:
    prompt, written = len(output.prompt_token_ids), sum(len(one.token_ids) for one in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
    }


def _logprob(token: int, row: dict[int, Any]) -> dict[str, Any]:
    def entry(one: Any) -> dict[str, Any]:
        data = one.decoded_token.encode()
        return {"token": one.decoded_token, "logprob": one.logprob, "bytes": list(data)}

    top = [entry(one) for one in row.values() if one.rank is not None]
    return {**entry(row[token]), "top_logprobs": top}


def deployment(
    model: str = "smollm2:135m",
    *,
    name: str | None = None,
    replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    max_ongoing_requests: int = 64,
    max_queued_requests: int = 256,
    drain: float = 30.0,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """An application of Ray Serve with the routes of the OpenAI API.

    ::

        from ray import serve
        import clearway.ray

        serve.run(clearway.ray.deployment("smollm2:135m", replicas=2))

    ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``, ``/health`` and ``/stats`` answer on port 8000. A field that is not
    supported is a 400 that names it. Requests choose adapters (``lora_modules`` of the engine) as models. ``clearway serve`` has more
    routes and needs no Ray. The header ``X-Clearway-Replica`` names the replica that answered, and its process.

    Args:
        replicas: replicas, each with a model of its own.
        num_gpus: 1 for a replica per GPU.
        max_ongoing_requests: requests of one replica at once. The proxy holds ``max_queued_requests`` more and refuses others with 503.
        drain: seconds that requests under way get when a replica is told to end.
        engine: what :class:`~clearway.LLM` is told.
        options: what ``ray.serve.deployment`` is told besides, such as ``autoscaling_config``.
    """
    from ray import serve

    decorate = serve.deployment(
        name="clearway",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        max_ongoing_requests=max_ongoing_requests,
        max_queued_requests=max_queued_requests,
        health_check_period_s=2,
        graceful_shutdown_timeout_s=drain,
        **options,
    )
    return decorate(_Replica).bind(model, name or model, dict(engine or {}), drain)
