"""Adapters of the weights: chosen by each call, equal to the command line's, refused by name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from conftest import lacking

import clearway
from clearway import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "over the sea"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return tiny.write_adapter(folder / "a.gguf", seed=1), tiny.write_adapter(folder / "b.gguf", seed=2)


@pytest.fixture(scope="module")
def adapted(tiny_file: Path, files: tuple[Path, Path]) -> Iterator[LLM]:
    a, b = files
    modules = {"a": a, "b": str(b), "none": (a, 0.0), "both": [(a, 0.5), b]}
    with LLM(str(tiny_file), device="cpu", threads=1, max_num_seqs=4, progress=False, lora_modules=modules) as model:
        yield model


def tokens(llm: LLM, name: str | None) -> list[int]:
    return llm.generate(PROMPT, PARAMS, lora_request=name)[0].outputs[0].token_ids


def test_a_call_chooses_its_adapter(adapted: LLM, small: LLM):
    assert adapted.lora_names == ["a", "b", "none", "both"] and small.lora_names == []
    plain = tokens(small, None)
    assert tokens(adapted, None) == tokens(adapted, "none") == plain
    texts = [tokens(adapted, name) for name in (None, "a", "b", "both")]
    assert len({tuple(text) for text in texts}) == 4, "each has a text of its own"
    # Prompts of one call with an adapter each, more than there are slots.
    names = [None, "a", "b", "both", "none", "a"]
    together = adapted.generate([PROMPT] * 6, PARAMS, lora_request=names)
    assert [output.outputs[0].token_ids for output in together] == [*texts, plain, texts[1]]
    streamed = adapted.stream(PROMPT, PARAMS, lora_request="b").result()
    assert streamed.outputs[0].token_ids == texts[2]
    messages = [{"role": "user", "content": "Hi"}]
    answers = [adapted.chat(messages, PARAMS, lora_request=name)[0].outputs[0].token_ids for name in (None, "a")]
    assert answers[0] != answers[1]
    assert adapted.stream(messages, PARAMS, lora_request="a").result().outputs[0].token_ids == answers[1]


def test_a_text_with_an_adapter_is_the_command_lines(adapted: LLM, tiny_file: Path, files: tuple[Path, Path]):
    program = os.environ.get("CLEARWAY_BIN")
    if not program:
        lacking("golden", "CLEARWAY_BIN does not name the command line")
    a, b = files
    flags = ["-p", PROMPT, "--raw", "--device", "cpu", "-n", "12", "--temp", "0"]
    for name, adapters in (("a", [a]), ("both", [f"{a}:0.5", b])):
        loras = [word for adapter in adapters for word in ("--lora", str(adapter))]
        done = subprocess.run([program, "run", "-m", str(tiny_file), *flags, *loras], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        [output] = adapted.generate(PROMPT, PARAMS.replace(ignore_eos=False), lora_request=name)
        assert done.stdout.decode() == output.outputs[0].text + "\n", name


def test_adapters_that_cannot_be_used(adapted: LLM, tiny_file: Path, files: tuple[Path, Path], tmp_path: Path):
    with pytest.raises(ValueError, match="no adapter 'sql'; lora_modules has: a, b, none, both"):
        adapted.generate("x", PARAMS, lora_request="sql")
    with pytest.raises(ValueError, match="2 prompts, but 1 names"):
        adapted.generate(["x", "y"], PARAMS, lora_request=["a"])
    wide = tiny.write_adapter(tmp_path / "wide.gguf", embd=64)
    for path, said in ((tiny_file, "no adapter"), (wide, "attn_q"), (tmp_path / "missing.gguf", "missing")):
        with pytest.raises(clearway.ModelError, match=said):
            LLM(str(tiny_file), device="cpu", progress=False, lora_modules={"x": path})
    with pytest.raises(ValueError, match="finite"):
        LLM(str(tiny_file), device="cpu", progress=False, lora_modules={"x": (files[0], float("inf"))})
    with pytest.raises(clearway.ModelError, match='adapter for models of "llama"'):
        LLM(str(files[0]), device="cpu", progress=False)
