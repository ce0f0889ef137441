"""What the tests share. CLEARWAY_BIN names the command line to compare with; without it such tests are skipped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny

import clearway

MODEL = "smollm2:135m"


def lacking(need: str, reason: str) -> None:
    """Skips a test, or fails it where CLEARWAY_NEED demands what it needs."""
    if need in os.environ.get("CLEARWAY_NEED", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


COUNTED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def counted(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """Tells the end of the run how much of something was done."""
    lines = request.config.stash.setdefault(COUNTED, [])
    return lambda what, number: lines.append(f"counted: {what}: {number}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(COUNTED, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def llm() -> Iterator[clearway.LLM]:
    with clearway.LLM(MODEL, device="cpu", max_model_len=512, max_num_seqs=8, progress=False) as model:
        yield model


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture()
def small(tiny_file: Path) -> Iterator[clearway.LLM]:
    with clearway.LLM(str(tiny_file), device="cpu", threads=1, max_num_seqs=4, progress=False) as model:
        yield model


@pytest.fixture(scope="session")
def command_line() -> Callable[..., str]:
    program = os.environ.get("CLEARWAY_BIN")
    if not program:
        lacking("golden", "CLEARWAY_BIN does not name the command line")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, "run", "-m", MODEL, "--device", "cpu", "-c", "512", *arguments], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run


@pytest.fixture(scope="session")
def vulkan() -> clearway.Device:
    names = [device["name"] for device in clearway.devices() if device["name"].startswith("vulkan")]
    if not names:
        lacking("vulkan", "there is no device with a Vulkan driver")
    return clearway.Device(names[0])
