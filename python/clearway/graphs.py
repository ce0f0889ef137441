"""Compute graphs: record ops on arrays, compile once, run again and again.

>>> import numpy as np
>>> from clearway import Device
>>> device = Device("cpu")
>>> weight = device.array(np.array([1, 2, 3, 4], np.float32))
>>> record = device.record()
>>> x = record.input((2, 4))
>>> y = record.rms_norm(x, 1e-5) * weight + record.silu(x)
>>> graph = record.compile(y)
>>> graph(np.ones((2, 4), np.float32)).shape
(2, 4)

Nothing runs while ops are recorded. An op checks its operands when it is called; a :class:`~clearway.GraphError` names the op,
the operand and what was expected.

Arrays of the CPU are views: ``array.numpy()`` and ``numpy.from_dlpack(array)`` share the memory that graphs read and write, so
nothing is copied. Such a view must not be used while a graph runs in another thread.
"""

from __future__ import annotations

import html as _html
import json as _json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from . import _clearway

__all__ = ["DTYPES", "Array", "Device", "Graph", "Recording", "Report", "Tensor"]

DTYPES: tuple[str, ...] = (
    "f32", "f16", "bf16", "u32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
)  # fmt: skip
"""Element types. numpy has those of f32, f16 and u32; bf16 and the block formats of model files are floats to it."""

_NUMPY = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "u32": np.dtype(np.uint32)}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def _dtype(dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        return _NAMES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise ValueError(f"there is no dtype {dtype!r}; there are {', '.join(DTYPES)}") from None


class Array:
    """A dense tensor in the memory of a device."""

    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, the innermost last."""
        return self._native.shape

    @property
    def dtype(self) -> str:
        """Element type, one of :data:`DTYPES`."""
        return self._native.dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return self._native.nbytes

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._native.device

    @property
    def on_host(self) -> bool:
        """Whether it lies in the memory of this process, so that views need no copy."""
        return self._native.on_host

    def numpy(self) -> np.ndarray:
        """Its elements: a view where memory allows (f32, f16 and u32 on the CPU), a copy elsewhere.

        bf16 and block formats come as float32.

        >>> array = Device("cpu").zeros((3,))
        >>> array.numpy()[1] = 5.0  # writes the memory of the array itself
        >>> array.numpy().tolist()
        [0.0, 5.0, 0.0]
        """
        native = _NUMPY.get(self.dtype)
        if native is None:
            floats = np.empty(self.shape, np.float32)
            self._native.read_floats(floats)
            return floats
        if self.on_host:
            return np.asarray(self._native)
        copy = np.empty(self.shape, native)
        self._native.read(copy)
        return copy

    def tobytes(self) -> bytes:
        """Its bytes as the device has them."""
        raw = np.empty(self.nbytes, np.uint8)
        self._native.read(raw)
        return raw.tobytes()

    def write(self, values: Any) -> None:
        """Copies elements of the same shape to the device: anything that numpy can read, or ``bytes`` as they are."""
        if isinstance(values, (bytes, bytearray, memoryview)):
            self._native.write(np.frombuffer(values, np.uint8))
            return
        found = np.shape(values)
        if tuple(found) != tuple(self.shape):
            raise ValueError(f"the array has shape {tuple(found)}, but {tuple(self.shape)} is needed")
        native = _NUMPY.get(self.dtype)
        if native is None:
            self._native.write_floats(np.ascontiguousarray(values, np.float32))
            return
        given = np.asarray(values)
        if native.kind == "u" and given.dtype.kind == "i":
            # Whole numbers fit or do not; their type says nothing.
            if given.size and not 0 <= given.min() <= given.max() < 1 << 32:
                raise ValueError(f"elements from {given.min()} to {given.max()} do not all fit {native}")
        elif given.dtype != native and not np.can_cast(given.dtype, native, "same_kind"):
            raise ValueError(f"elements are {given.dtype}, but {native} is needed; convert them with astype")
        self._native.write(np.ascontiguousarray(given, native))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        owned = self.dtype not in _NUMPY or not self.on_host
        if copy is False and (owned or (dtype is not None and values.dtype != dtype)):
            raise ValueError("the elements cannot be had without a copy")
        if dtype is not None and values.dtype != dtype:
            return values.astype(dtype)
        return values.copy() if copy and not owned else values

    def __dlpack__(self, **options: Any) -> Any:
        return self._native.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._native.__dlpack_device__()

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.numpy())

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Array({'x'.join(map(str, self.shape))} {self.dtype} on {self.device})"


class Device:
    """A device that graphs run on.

    >>> Device("cpu").name
    'cpu'
    """

    def __init__(self, name: str = "auto", *, threads: int | None = None) -> None:
        self._native = _clearway.Device(name, threads)

    @property
    def name(self) -> str:
        """Name the command line uses."""
        return self._native.name

    @property
    def description(self) -> str:
        """One line for people."""
        return self._native.description

    def zeros(self, shape: Sequence[int] | int, dtype: Any = "f32") -> Array:
        """An array of zeros."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return Array(self._native.zeros(_dtype(dtype), list(shape)))

    def array(self, values: Any, dtype: Any = None) -> Array:
        """An array with these elements. Floats are rounded to ``dtype``, which may be a block format.

        >>> import numpy as np
        >>> weights = Device("cpu").array(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "q8_0")
        >>> weights.nbytes
        68
        """
        values = np.asarray(values)
        if dtype is None:
            default = {"f": "f32", "i": "u32", "u": "u32"}.get(values.dtype.kind)
            dtype = _NAMES.get(values.dtype, default)
        made = self.zeros(values.shape, dtype)
        made.write(values)
        return made

    def record(self) -> Recording:
        """A recording without ops."""
        return Recording(self)

    def kernel(
        self,
        name: str,
        operands: Mapping[str, str],
        *,
        wgsl: str | None = None,
        workgroups: Callable[[list[tuple[int, ...]], list[int]], Sequence[int]] | None = None,
        cpu: Callable[..., Any] | None = None,
    ) -> None:
        """Adds a kernel of your own. Recordings call it with :meth:`Recording.call`.

        ``operands`` gives each operand its role: ``read``, ``write`` or ``readwrite``. That is all the runtime needs to order the
        kernel and to share memory around it.

        ``wgsl`` is its text for GPUs, with the entry point ``main``. ``get_o0(i)`` and ``put_o1(i, v)`` reach element ``i`` of operand 0
        and 1, ``P.o0.shape`` has four extents with the innermost in ``w``, ``argf(k)`` is constant ``k``. ``workgroups`` gets the
        shapes of the operands and the constants. ``cpu`` gets the operands that are read as numpy arrays and returns those that are
        written.

        >>> import numpy as np
        >>> device = Device("cpu")
        >>> device.kernel("double", {"x": "read", "y": "write"}, cpu=lambda x: 2 * x)
        >>> record = device.record()
        >>> x, y = record.input((3,)), record.empty((3,))
        >>> record.call("double", [x, y])
        >>> record.compile(y)(np.array([1, 2, 3], np.float32)).tolist()
        [2.0, 4.0, 6.0]
        """
        if wgsl is None and cpu is None:
            raise ValueError("a kernel needs wgsl, cpu or both")
        if wgsl is not None and workgroups is None:
            raise ValueError("wgsl needs workgroups: a function of the shapes and constants")

        def groups(shapes: list[list[int]], params: list[int]) -> list[int]:
            assert workgroups is not None
            found = workgroups([tuple(shape) for shape in shapes], params)
            return [int(found)] if isinstance(found, int) else [int(count) for count in found]

        native_cpu = None if cpu is None else _cpu_kernel(name, cpu)
        self._native.kernel(name, list(operands.items()), None if wgsl is None else (wgsl, groups), native_cpu)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


def _cpu_kernel(name: str, function: Callable[..., Any]) -> Callable[..., list[bytes]]:
    """A function of bytes and layouts for the native part."""

    def call(inputs: list[Any], outputs: list[Any]) -> list[bytes]:
        arrays = []
        for data, (shape, dtype) in inputs:
            if dtype not in _NUMPY:
                raise TypeError(f"kernel {name!r} gets an operand of {dtype}, which numpy does not have")
            arrays.append(np.frombuffer(data, _NUMPY[dtype]).reshape(shape))
        results = function(*arrays)
        results = results if isinstance(results, (tuple, list)) else (results,)
        if len(results) != len(outputs):
            raise ValueError(f"kernel {name!r} returned {len(results)} arrays where {len(outputs)} are written")
        found = []
        for result, (shape, dtype) in zip(results, outputs):
            result = np.asarray(result)
            if result.shape != tuple(shape):
                raise ValueError(f"kernel {name!r} returned shape {result.shape} where {tuple(shape)} is written")
            found.append(np.ascontiguousarray(result, _NUMPY[dtype]).tobytes())
        return found

    return call


class Tensor:
    """A tensor of a recording: an input, an array, or the result of an op."""

    def __init__(self, recording: Recording, native: Any, array: Array | None = None) -> None:
        self._recording = recording
        self._native = native
        self.array = array
        """The array that it lies in; ``None`` for results."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, the innermost last."""
        return self._native.shape

    @property
    def dtype(self) -> str:
        """Element type."""
        return self._native.dtype

    def __add__(self, other: Operand) -> Tensor:
        return self._recording.add(self, other)

    def __mul__(self, other: Operand | float) -> Tensor:
        if isinstance(other, (int, float)):
            return self._recording.scale(self, other)
        return self._recording.mul(self, other)

    __rmul__ = __mul__

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape."""
        return self._recording.reshape(self, shape)

    def __repr__(self) -> str:
        return f"Tensor({'x'.join(map(str, self.shape))} {self.dtype})"


Operand = Union[Tensor, Array]


class Recording:
    """Op calls. Nothing runs before :meth:`compile`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._native = _clearway.Recorder(device._native)
        self._bound: dict[int, Tensor] = {}
        self._inputs: list[Tensor] = []

    def input(self, shape: Sequence[int], dtype: Any = "f32", name: str | None = None) -> Tensor:
        """A tensor that the host writes before runs. It keeps its elements from run to run."""
        array = self.device.zeros(shape, dtype)
        tensor = self.use(array, name or f"input{len(self._inputs)}")
        self._inputs.append(tensor)
        return tensor

    def use(self, array: Array, name: str | None = None) -> Tensor:
        """An array as an operand. Ops take arrays as they are, too."""
        found = self._bound.get(id(array))
        if found is None:
            native = self._native.bind(name or f"array{len(self._bound)}", array._native)
            found = self._bound[id(array)] = Tensor(self, native, array)
        return found

    def empty(self, shape: Sequence[int], dtype: Any = "f32") -> Tensor:
        """Memory for the result of a kernel of your own."""
        return Tensor(self, self._native.declare(_dtype(dtype), list(shape)))

    def label(self, text: str) -> None:
        """Names the ops that follow, for people."""
        self._native.label(text)

    def _tensors(self, operands: Sequence[Operand]) -> list[Any]:
        found = []
        for operand in operands:
            if isinstance(operand, Array):
                operand = self.use(operand)
            if not isinstance(operand, Tensor):
                raise TypeError(f"an operand is a Tensor or an Array, not {type(operand).__name__}")
            found.append(operand._native)
        return found

    def _op(
        self, name: str, operands: Sequence[Operand], floats: Sequence[float] = (), ints: Sequence[int] = ()
    ) -> list[Tensor]:
        found = self._native.op(name, self._tensors(operands), list(floats), list(ints))
        return [Tensor(self, native) for native in found]

    def gather(self, table: Operand, ids: Operand, scale: float = 1.0) -> Tensor:
        """Rows of ``table`` picked by ``ids``, times ``scale``."""
        return self._op("gather", [table, ids], [scale])[0]

    def rms_norm(self, x: Operand, eps: float = 1e-5) -> Tensor:
        """Rows divided by their root mean square."""
        return self._op("rms_norm", [x], [eps])[0]

    def layer_norm(self, x: Operand, weight: Operand, bias: Operand, eps: float = 1e-5) -> Tensor:
        """Rows with mean 0 and variance 1, times ``weight``, plus ``bias``."""
        return self._op("layer_norm", [x, weight, bias], [eps])[0]

    def add(self, a: Operand, b: Operand) -> Tensor:
        """Sum; ``b`` has the shape of ``a`` or is one row, repeated."""
        return self._op("add", [a, b])[0]

    def mul(self, a: Operand, b: Operand) -> Tensor:
        """Product; ``b`` has the shape of ``a`` or is one row, repeated."""
        return self._op("mul", [a, b])[0]

    def scale(self, x: Operand, factor: float) -> Tensor:
        """``x * factor``."""
        return self._op("scale", [x], [factor])[0]

    def silu(self, x: Operand) -> Tensor:
        """``x * sigmoid(x)``."""
        return self._op("silu", [x])[0]

    def gelu(self, x: Operand) -> Tensor:
        """GELU, tanh form."""
        return self._op("gelu", [x])[0]

    def silu_mul(self, gate: Operand, up: Operand) -> Tensor:
        """``silu(gate) * up``."""
        return self._op("silu_mul", [gate, up])[0]

    def gelu_mul(self, gate: Operand, up: Operand) -> Tensor:
        """``gelu(gate) * up``."""
        return self._op("gelu_mul", [gate, up])[0]

    def relu_squared(self, x: Operand) -> Tensor:
        """The square of ``x`` where it is above zero, and zero elsewhere."""
        return self._op("relu_squared", [x])[0]

    def soft_cap(self, x: Operand, cap: float) -> Tensor:
        """``cap * tanh(x / cap)``."""
        return self._op("soft_cap", [x], [cap])[0]

    def matmul(self, x: Operand, weight: Operand) -> Tensor:
        """``x[T,K]`` times ``weight[N,K]`` transposed: ``[T,N]``. The weight may have a block format."""
        return self._op("matmul", [x, weight])[0]

    def matmul_experts(self, x: Operand, weights: Operand, ids: Operand) -> Tensor:
        """The product with the matrices of the experts ``ids[T,k]``: ``[T,k,N]``."""
        return self._op("matmul_experts", [x, weights, ids])[0]

    def expert_sum(self, x: Operand, weights: Operand) -> Tensor:
        """``x[T,k,N]`` summed over the experts by ``weights[T,k]``."""
        return self._op("expert_sum", [x, weights])[0]

    def router_top_k(
        self, logits: Operand, used: int, mode: str = "softmax", *, renormalise: bool = True, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The best experts of each row and their weights. ``mode``: ``softmax``, ``softmax_chosen`` or ``sigmoid``."""
        number = ["softmax", "softmax_chosen", "sigmoid"].index(mode)
        ids, weights = self._op("router_top_k", [logits], [scale], [used, number, int(renormalise)])
        return ids, weights

    def softmax(self, x: Operand, mask: Operand, scale: float = 1.0) -> Tensor:
        """``softmax(x * scale + mask)`` of each row."""
        return self._op("softmax", [x, mask], [scale])[0]

    def rope(
        self,
        x: Operand,
        positions: Operand,
        factors: Operand,
        *,
        n_dims: int,
        halves: bool = False,
        base: float = 10000.0,
        scale: float = 1.0,
    ) -> Tensor:
        """Rotary position embedding of ``x[T,H,D]``; ``factors`` divide the frequencies."""
        return self._op("rope", [x, positions, factors], [base, scale], [n_dims, int(halves)])[0]

    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        positions: Operand,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """Causal grouped-query attention of ``q[T,H,D]`` over caches ``k`` and ``v`` ``[S,Hkv,D]``."""
        return self._op("attention", [q, k, v, positions], [scale, softcap], [window])[0]

    def kv_write(self, x: Operand, positions: Operand, cache: Operand) -> None:
        """Writes ``x[T,Hkv,D]`` into the rows ``positions`` of a cache."""
        self._op("kv_write", [x, positions, cache])

    def concat(self, a: Operand, b: Operand) -> Tensor:
        """``a`` and ``b`` joined along the innermost dimension."""
        return self._op("concat", [a, b])[0]

    def arg_max(self, x: Operand) -> Tensor:
        """Index of the largest element of each row."""
        return self._op("arg_max", [x])[0]

    def top_k(self, x: Operand, k: int) -> tuple[Tensor, Tensor]:
        """The ``k`` largest elements of each row in falling order, and their indices."""
        values, ids = self._op("top_k", [x], [], [k])
        return values, ids

    def copy(self, x: Operand, dtype: Any = "f32") -> Tensor:
        """A dense copy in another element type."""
        return Tensor(self, self._native.copy(self._tensors([x])[0], _dtype(dtype)))

    def copy_into(self, x: Operand, target: Operand) -> None:
        """Copies into an array of yours."""
        self._op("copy_into", [x, target])

    def fill(self, value: float, shape: Sequence[int], dtype: Any = "f32") -> Tensor:
        """A tensor with every element ``value``."""
        return Tensor(self, self._native.fill(value, _dtype(dtype), list(shape)))

    def reshape(self, x: Operand, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape."""
        return Tensor(self, self._native.reshape(self._tensors([x])[0], list(shape)))

    def call(self, kernel: str, operands: Sequence[Operand], params: Sequence[float | int] = ()) -> None:
        """Calls a kernel of your own with all its operands. Constants are floats or unsigned integers."""
        words = [param if isinstance(param, int) else struct.unpack("<I", struct.pack("<f", param))[0] for param in params]
        self._native.call_kernel(kernel, self._tensors(operands), words)

    def compile(
        self,
        outputs: Tensor | Sequence[Tensor] = (),
        *,
        fuse: bool = True,
        quantise: bool = True,
        reorder: bool = True,
        elide: bool = True,
        reuse: bool = True,
    ) -> Graph:
        """Fuses, orders, places, proves and lowers what was recorded. Each stage can be switched off."""
        listed = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        natives = [output._native for output in listed]
        native = self._native.compile(natives, [fuse, quantise, reorder, elide, reuse])
        return Graph(native, list(self._inputs), listed, single=isinstance(outputs, Tensor))


class Graph:
    """A compiled graph: proven, lowered once, run again and again."""

    def __init__(self, native: Any, inputs: list[Tensor], outputs: list[Tensor], *, single: bool) -> None:
        self._native = native
        self.inputs = inputs
        self.outputs = outputs
        self._single = single

    def write(self, tensor: Tensor, values: Any) -> None:
        """Writes an input."""
        if tensor.array is None:
            raise ValueError("the tensor is a result: only inputs and arrays are written")
        tensor.array.write(values)

    def run(self, times: int = 1) -> None:
        """Runs it so many times, one after another, and waits. The interpreter is released meanwhile."""
        self._native.run(times)

    def read(self, tensor: Tensor) -> np.ndarray:
        """A copy of an output of the last run."""
        return np.array(self.view(tensor).numpy())

    def view(self, tensor: Tensor) -> Array:
        """An output of the last run where it lies. On the CPU ``view(y).numpy()`` copies nothing; the next run writes it anew."""
        if tensor.array is not None:
            return tensor.array
        return Array(self._native.output(tensor._native))

    def __call__(self, *values: Any) -> Any:
        """Writes the inputs in the order in which they were recorded, runs once and returns copies of the outputs."""
        if len(values) != len(self.inputs):
            raise ValueError(f"the graph has {len(self.inputs)} inputs, but {len(values)} were given")
        for tensor, given in zip(self.inputs, values):
            self.write(tensor, given)
        self.run()
        found = tuple(self.read(output) for output in self.outputs)
        return found[0] if self._single else found

    @property
    def stats(self) -> dict[str, Any]:
        """What the stages did, and times in seconds."""
        return self._native.stats()

    @property
    def barriers(self) -> list[dict[str, Any]]:
        """Each barrier with its reason: the dispatches, the hazard and the bytes that they share."""
        return self.explain(compare=False).barriers

    def text(self) -> str:
        """The list in execution order with the reason of each barrier."""
        return self._native.text()

    def explain(self, *, compare: bool = True) -> Report:
        """What was fused, ordered, packed and proven, and why. A notebook shows the page of the inspector.

        ``compare`` adds the same list without each optimisation.
        """
        return Report(*self._native.report(compare))

    def __repr__(self) -> str:
        stats = self.stats
        return f"Graph({stats['dispatches']} dispatches in {stats['groups']} groups, {stats['barriers']} barriers)"


class Report:
    """What the runtime decided about a graph: data, text, and a page."""

    def __init__(self, json: str, page: str, text: str) -> None:
        self.data: dict[str, Any] = _json.loads(json)
        """All of it, as ``clearway inspect --json`` writes it."""
        self.page = page
        """A page that works from disk."""
        self._text = text

    @property
    def barriers(self) -> list[dict[str, Any]]:
        """Barriers in execution order, each with its reason."""
        return self.data["barrier_list"]

    @property
    def dispatches(self) -> list[dict[str, Any]]:
        """The final list in execution order."""
        return self.data["dispatch_list"]

    @property
    def refused_fusions(self) -> list[dict[str, Any]]:
        """Fusions that were possible by their ops and were refused, with the reason."""
        return self.data["refused_fusions"]

    def save(self, path: str) -> None:
        """Writes the page to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.page)

    def _repr_html_(self) -> str:
        # A frame keeps the styles and scripts of the page and those of the notebook apart.
        return f'<iframe srcdoc="{_html.escape(self.page)}" style="width:100%;height:720px;border:0"></iframe>'

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Report({len(self.dispatches)} dispatches, {len(self.barriers)} barriers)"
