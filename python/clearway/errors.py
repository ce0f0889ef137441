"""What can go wrong. Facts of an error are attributes of it."""

from __future__ import annotations

__all__ = [
    "ClearwayError",
    "ModelError",
    "FetchError",
    "ModelNotFoundError",
    "DeviceError",
    "OutOfMemoryError",
    "PromptError",
    "GrammarError",
    "GenerationError",
    "GraphError",
    "QueueFullError",
    "ClosedError",
]


class ClearwayError(Exception):
    """Any error of this package."""


class ModelError(ClearwayError):
    """A model file is broken, or of a kind that is not supported."""


class FetchError(ClearwayError):
    """A model could not be fetched."""


class ModelNotFoundError(FetchError, FileNotFoundError):
    """There is no such model file, or the name names none. ``path`` or ``name`` says what was asked for."""


class DeviceError(ClearwayError, RuntimeError):
    """There is no such device, or it failed."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The device has too little memory: ``weights``, ``cache``, ``memory`` or ``wanted``, ``available``, in bytes."""


class PromptError(ClearwayError, ValueError):
    """A prompt cannot be taken. ``tokens`` and ``context`` say how long it is and how long it may be."""

    tokens: int | None = None
    context: int | None = None


class GrammarError(ClearwayError, ValueError):
    """A schema or grammar cannot be enforced. ``keyword`` names the part of a schema that is to blame."""

    keyword: str | None = None


class GenerationError(ClearwayError, RuntimeError):
    """A text could not go on."""


class GraphError(ClearwayError, ValueError):
    """An op was called with operands that do not fit, or a graph cannot be compiled."""


class QueueFullError(ClearwayError):
    """Too many texts wait. ``waiting`` of them do; ``retry_after`` is in seconds."""

    waiting: int | None = None
    retry_after: float | None = None


class ClosedError(ClearwayError):
    """The model was closed."""
