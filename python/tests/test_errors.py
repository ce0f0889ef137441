"""Errors have a class of their own, the facts, and what to do."""

from __future__ import annotations

import pytest

import clearway
from clearway import LLM, SamplingParams, StructuredOutputsParams


def test_models_that_are_not_there():
    with pytest.raises(clearway.ModelNotFoundError, match=r"no file missing\.gguf") as caught:
        LLM("missing.gguf", progress=False)
    assert isinstance(caught.value, FileNotFoundError) and caught.value.path == "missing.gguf"
    with pytest.raises(clearway.ModelNotFoundError, match="no model name"):
        LLM("hf:", progress=False)


def test_files_that_are_no_models(tmp_path, tiny_file):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(clearway.ModelError):
        LLM(str(broken), progress=False)
    broken.write_bytes(tiny_file.read_bytes()[:-2000])
    with pytest.raises(clearway.ModelError):
        LLM(str(broken), progress=False)


def test_devices_that_are_not_there(tiny_file):
    for name in ("gpu", "cpu:0", "vulkan:x", "vulkan:99"):
        with pytest.raises(clearway.DeviceError):
            LLM(str(tiny_file), device=name, progress=False)
    with pytest.raises(RuntimeError, match="devices are auto, cpu"):
        clearway.Device("tpu")


def test_memory_that_is_not_there(tiny_file):
    with pytest.raises(clearway.OutOfMemoryError) as caught:
        LLM(str(tiny_file), device="cpu", max_model_len=1 << 31, progress=False)
    assert isinstance(caught.value, MemoryError)


def test_prompts_that_do_not_fit(small: LLM):
    with pytest.raises(clearway.PromptError, match="max_model_len") as caught:
        small.generate("x" * 200)
    assert (caught.value.tokens, caught.value.context) == (200, 128)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(clearway.PromptError):
        small.generate("")
    with pytest.raises(clearway.PromptError, match="token 99999"):
        small.generate([[99999]])
    with pytest.raises(clearway.PromptError, match="at least one message"):
        small.chat([])
    with pytest.raises(clearway.PromptError, match='"role"'):
        small.chat([{"content": "Hi"}])
    assert small.generate("still works", SamplingParams(max_tokens=2))[0].finished


def test_grammars_that_cannot_be_enforced(small: LLM):
    def refuse(**given):
        with pytest.raises(clearway.GrammarError) as caught:
            small.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(**given)))
        return caught.value

    assert refuse(json={"type": "array", "uniqueItems": True}).keyword == "uniqueItems"
    assert "no JSON" in str(refuse(json="{"))
    refuse(regex="(")
    refuse(grammar="start: missing")
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams(regex="a", json_object=True)


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"temperature": -1}, {"top_p": 1.5}, {"min_p": -0.1}, {"seed": -1}, {"max_tokens": 0}, {"logprobs": -1}, {"top_k": -2}],
)
def test_parameters_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_rows_and_prompts_must_agree(small: LLM):
    with pytest.raises(ValueError, match="2 prompts, but 1 row"):
        small.generate(["a", "b"], [SamplingParams()])


def test_a_closed_model_says_so(tiny_file):
    llm = LLM(str(tiny_file), device="cpu", progress=False)
    stream = llm.stream("abc", SamplingParams(max_tokens=100, ignore_eos=True))
    llm.close()
    llm.close()
    assert llm.closed
    with pytest.raises(clearway.ClosedError):
        llm.generate("x")
    with pytest.raises(clearway.ClosedError):
        llm.stats()
    assert stream.result().outputs[0].finish_reason in ("abort", "length")


def test_a_full_queue_refuses(tiny_file):
    with LLM(str(tiny_file), device="cpu", max_num_seqs=1, max_queue=2, progress=False) as llm:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        streams = []
        with pytest.raises(clearway.QueueFullError) as caught:
            for _ in range(50):
                streams.append(llm.stream("abc", params))
        assert caught.value.waiting >= 2 and caught.value.retry_after > 0
        assert all(stream.result().finished for stream in streams)


def test_a_drained_model_takes_nothing_more(tiny_file):
    with LLM(str(tiny_file), device="cpu", progress=False) as llm:
        stream = llm.stream("abc", SamplingParams(max_tokens=50, ignore_eos=True))
        assert llm.drain(30)
        assert stream.result().outputs[0].finish_reason == "length"
        with pytest.raises(clearway.ClosedError):
            llm.generate("x")
