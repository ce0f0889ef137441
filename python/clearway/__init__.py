"""Language models and compute graphs on any GPU and on the CPU.

>>> from clearway import LLM
>>> llm = LLM("smollm2:135m", device="cpu")
>>> for piece in llm.stream([{"role": "user", "content": "Why is the sky blue?"}]):
...     print(piece, end="")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._clearway import __version__
from .errors import (
    ClearwayError,
    ClosedError,
    DeviceError,
    FetchError,
    GenerationError,
    GrammarError,
    GraphError,
    ModelError,
    ModelNotFoundError,
    OutOfMemoryError,
    PromptError,
    QueueFullError,
)
from .llm import LLM, TextStream
from .outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, Piece, RequestOutput
from .sampling import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from .graphs import DTYPES, Array, Device, Graph, Recording, Report, Tensor

__all__ = [
    "DTYPES",
    "LLM",
    "Array",
    "ClearwayError",
    "ClosedError",
    "CompletionOutput",
    "Device",
    "DeviceError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "FetchError",
    "GenerationError",
    "GrammarError",
    "Graph",
    "GraphError",
    "Logprob",
    "ModelError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "Piece",
    "PromptError",
    "QueueFullError",
    "Recording",
    "Report",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tensor",
    "TextStream",
    "__version__",
    "devices",
]


def devices() -> list[dict[str, Any]]:
    """What there is to run on: name, description, bytes of memory.

    >>> [device["name"] for device in devices()][-1]
    'cpu'
    """
    from . import _clearway

    keys = ("name", "description", "memory_bytes")
    return [dict(zip(keys, row)) for row in _clearway.devices()]


def __getattr__(name: str) -> Any:
    # numpy takes longer to import than all of this package: only graphs need it.
    if name in ("Array", "DTYPES", "Device", "Graph", "Recording", "Report", "Tensor"):
        from . import graphs

        return getattr(graphs, name)
    raise AttributeError(f"module 'clearway' has no attribute {name!r}")
