"""Graphs against numpy: arrays in and out, ops, kernels, reports."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import clearway
from clearway import DTYPES, Array, Device

CPU = Device("cpu", threads=2)
RANDOM = np.random.default_rng(1)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_goes_in_and_out(dtype):
    shape = (3, 512)
    values = RANDOM.integers(0, 1 << 32, shape, np.uint32) if dtype == "u32" else floats(*shape)
    array = CPU.array(values, dtype)
    assert (array.dtype, array.shape) == (dtype, shape)
    found = array.numpy()
    tolerance = {"f32": 0, "u32": 0, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.05}.get(dtype, 1.0)
    if tolerance == 0:
        assert np.array_equal(found, values)
    else:
        error = np.abs(found.astype(np.float32) - values)
        assert error.max() < tolerance * max(1.0, np.abs(values).max()), f"{dtype}: {error.max()}"
        assert error.mean() < 0.35, f"{dtype}: {error.mean()}"
    # Bytes as they are go in and out too.
    raw = array.tobytes()
    again = CPU.zeros(shape, dtype)
    again.write(raw)
    assert again.tobytes() == raw and len(raw) == array.nbytes
    assert np.array_equal(again.numpy(), found)


def test_arrays_of_the_cpu_are_views():
    array = CPU.zeros((2, 3))
    view = array.numpy()
    assert np.shares_memory(view, array.numpy()) and view.flags.writeable
    view[1, 2] = 7
    assert array.numpy()[1, 2] == 7
    assert np.shares_memory(np.asarray(array), view)
    assert not np.shares_memory(np.array(array), view)
    capsule = np.from_dlpack(array)
    assert np.shares_memory(capsule, view) and capsule[1, 2] == 7
    # A view outlives its array, and a capsule that nobody takes is freed.
    del array
    array_again = CPU.zeros((4,), "u32")
    array_again.__dlpack__()
    assert view[1, 2] == 7 and capsule[1, 2] == 7
    assert array_again.__dlpack_device__() == (1, 0)
    # Writing an array with its own view changes nothing.
    own = CPU.array(floats(64))
    before = own.numpy().copy()
    own.write(own.numpy())
    assert np.array_equal(own.numpy(), before)


def test_arrays_of_other_layouts_are_copied_right():
    values = floats(4, 6)
    assert np.array_equal(CPU.array(values.T).numpy(), values.T)
    assert np.array_equal(CPU.array(values[::2, ::3]).numpy(), values[::2, ::3])
    assert np.array_equal(CPU.array([[1, 2], [3, 4]]).numpy(), [[1, 2], [3, 4]])
    assert CPU.array(np.float64([0.5])).dtype == "f32"


def test_wrong_arrays_are_refused():
    array = CPU.zeros((2, 3))
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        array.write(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="bytes"):
        array.write(b"123")
    with pytest.raises(ValueError, match="no dtype"):
        CPU.zeros((2,), "f8")
    with pytest.raises(ValueError, match="astype"):
        CPU.zeros((2,), "u32").write(np.array([0.5, 1.5]))
    with pytest.raises(ValueError, match="fit uint32"):
        CPU.array([-1, 2])
    with pytest.raises(clearway.GraphError):
        CPU.zeros((2, 31), "q8_0")
    with pytest.raises(BufferError):
        CPU.zeros((2, 32), "q8_0").__dlpack__()


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_a_graph_computes_what_numpy_does():
    weight, values = floats(4), floats(2, 4)
    record = CPU.record()
    x = record.input((2, 4))
    y = record.rms_norm(x, 1e-5) * CPU.array(weight) + record.silu(x)
    graph = record.compile(y)
    assert graph.stats["fusions"] == 2 and graph.stats["groups"] == 2
    for scale in (1.0, 3.0):
        given = values * np.float32(scale)
        norm = given / np.sqrt((given**2).mean(1, keepdims=True) + 1e-5)
        assert np.allclose(graph(given), norm * weight + silu(given), atol=1e-5)
    assert np.shares_memory(graph.view(y).numpy(), graph.view(y).numpy())
    # What is written through a view of the input is what the next run reads.
    x.array.numpy()[:] = 0
    graph.run()
    assert np.array_equal(graph.view(y).numpy(), np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_k"])
def test_products_with_weights_of_model_files(dtype):
    values, weights = floats(5, 256), floats(7, 256)
    array = CPU.array(weights, dtype)
    record = CPU.record()
    x = record.input((5, 256))
    graph = record.compile(record.matmul(x, array))
    expected = values @ array.numpy().astype(np.float32).T
    assert np.abs(graph(values) - expected).max() < 0.5
    assert np.corrcoef(graph(values).ravel(), expected.ravel())[0, 1] > 0.999


def test_several_results_and_kept_arrays():
    record = CPU.record()
    x = record.input((2, 8))
    values, ids = record.top_k(x, 3)
    best = record.arg_max(x)
    total = CPU.zeros((2, 8))
    record.copy_into(record.add(total, x), total)
    graph = record.compile([values, ids, best])
    given = floats(2, 8)
    for runs in (1, 2, 3):
        found, order, first = graph(given)
        assert np.array_equal(found, -np.sort(-given, axis=1)[:, :3])
        assert np.array_equal(order, np.argsort(-given, axis=1, kind="stable")[:, :3])
        assert np.array_equal(first, given.argmax(1))
        assert np.allclose(total.numpy(), runs * given, atol=1e-5)


def test_attention_over_a_cache():
    heads, dim, rows = 2, 16, 6
    k, v, q = floats(rows, heads, dim), floats(rows, heads, dim), floats(1, heads, dim)
    record = CPU.record()
    x = record.input((1, heads, dim))
    positions = CPU.array(np.array([rows - 1], np.uint32))
    y = record.attention(x, CPU.array(k), CPU.array(v), positions, scale=dim**-0.5)
    found = record.compile(y)(q)
    scores = np.einsum("thd,shd->hts", q, k) * dim**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.allclose(found, np.einsum("hts,shd->thd", weights, v), atol=1e-4)


def test_calls_that_do_not_fit_are_refused_and_the_recording_goes_on():
    record, other = CPU.record(), CPU.record()
    x, foreign = record.input((2, 4)), other.input((2, 4))
    with pytest.raises(clearway.GraphError, match="matmul"):
        record.matmul(x, CPU.zeros((3, 5)))
    with pytest.raises(clearway.GraphError, match="another recording"):
        record.add(x, foreign)
    with pytest.raises(TypeError, match="Tensor or an Array"):
        record.add(x, np.zeros(4))
    y = record.silu(x)
    graph = record.compile(y)
    with pytest.raises(clearway.GraphError, match="no output"):
        graph.view(record.silu(x))
    with pytest.raises(ValueError, match="1 inputs, but 0"):
        graph()
    assert np.allclose(graph(np.ones((2, 4))), silu(np.ones((2, 4))))


SQUARE = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < P.o1.shape.w) {
        let x = get_o0(id.x);
        put_o1(id.x, argf(0u) * x * x);
    }
}
"""


def square(device: Device, **parts) -> np.ndarray:
    device.kernel("square", {"x": "read", "y": "write"}, **parts)
    record = device.record()
    x, y = record.input((100,)), record.empty((100,))
    record.call("square", [x, y], [10.0])
    graph = record.compile(record.scale(y, 0.5))
    return graph(np.arange(100, dtype=np.float32))


def test_a_kernel_in_wgsl(vulkan):
    found = square(vulkan, wgsl=SQUARE, workgroups=lambda shapes, params: (-(-shapes[1][-1] // 64),))
    assert np.allclose(found, 5 * np.arange(100.0) ** 2)


def test_a_kernel_in_numpy():
    device = Device("cpu")
    found = square(device, cpu=lambda x: 10 * x * x, wgsl=SQUARE, workgroups=lambda shapes, params: (2,))
    assert np.allclose(found, 5 * np.arange(100.0) ** 2)
    with pytest.raises(clearway.GraphError, match="square"):
        device.kernel("square", {"x": "read", "y": "write"}, cpu=lambda x: x)


def test_what_a_kernel_raises_comes_out():
    for wrong, match in [(lambda x: 1 // 0, "division"), (lambda x: x[:3], "returned shape"), (lambda x: (x, x), "2 arrays")]:
        with pytest.raises((ZeroDivisionError, ValueError), match=match):
            square(Device("cpu"), cpu=wrong)
    with pytest.raises(clearway.GraphError, match="square"):
        square(Device("cpu"), wgsl=SQUARE, workgroups=lambda shapes, params: (2,))


def test_wgsl_that_is_wrong_says_why(vulkan):
    device = Device(vulkan.name)
    with pytest.raises(clearway.GraphError):
        square(device, wgsl="fn main( {", workgroups=lambda shapes, params: (1,))
    with pytest.raises(KeyError):
        square(Device(vulkan.name), wgsl=SQUARE, workgroups=lambda shapes, params: {}["x"])


def test_a_report_explains(tmp_path):
    record = CPU.record()
    x = record.input((4, 64))
    record.label("gate")
    y = record.add(record.silu(x), record.scale(x, 2.0))
    graph = record.compile(record.matmul(y, CPU.array(floats(8, 64), "q8_0")))
    report = graph.explain()
    assert report.page.startswith("<!doctype html>")
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "&lt;!doctype html&gt;" in shown
    report.save(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == report.page
    assert len(graph.barriers) == graph.stats["barriers"] > 0
    hazard = next(barrier for barrier in graph.barriers if barrier["reason"] == "hazard")
    assert hazard["hazard"] == "RAW" and hazard["p0"] < hazard["p1"]
    assert report.dispatches[hazard["later"]]["group"] > report.dispatches[hazard["earlier"]]["group"]
    assert "gate" in str(report) or "gate" in report.page
    unfused = record.compile([], fuse=False, reorder=False)
    assert unfused.stats["fusions"] == 0


def test_graphs_run_in_threads():
    record = CPU.record()
    x = record.input((64, 256))
    graphs = []
    weight = CPU.array(floats(256, 256))
    for _ in range(4):
        record = CPU.record()
        x = record.input((64, 256))
        graphs.append(record.compile(record.matmul(x, weight)))
    values = [floats(64, 256) for _ in graphs]
    expected = [graph(given) for graph, given in zip(graphs, values)]
    found: list[np.ndarray | None] = [None] * 4

    def work(index: int) -> None:
        for _ in range(20):
            found[index] = graphs[index](values[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))


def test_on_a_gpu(vulkan):
    values, weights = floats(3, 64), floats(5, 64)
    array = vulkan.array(weights)
    assert isinstance(array, Array) and not array.on_host
    assert np.array_equal(array.numpy(), weights), "a copy"
    with pytest.raises(BufferError):
        array.__dlpack_device__()
    record = vulkan.record()
    graph = record.compile(record.matmul(record.input((3, 64)), array))
    assert np.allclose(graph(values), values @ weights.T, atol=0.05)
