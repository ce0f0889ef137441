"""Threads, event loops, signals, and memory over many loads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import tiny

from clearway import LLM, SamplingParams

PARAMS = SamplingParams(max_tokens=20, seed=2, ignore_eos=True)


def test_threads_share_a_model(small: LLM):
    prompts = [f"thread {index}" for index in range(16)]
    expected = [output.outputs[0].token_ids for output in small.generate(prompts, PARAMS)]
    found: dict[int, list[int]] = {}

    def work(index: int) -> None:
        found[index] = small.generate(prompts[index], PARAMS)[0].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(16)] == expected


def test_the_interpreter_is_free_meanwhile(llm: LLM):
    counted, over = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not over.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    started = time.monotonic()
    llm.generate("Once upon a time", SamplingParams(max_tokens=60, ignore_eos=True))
    elapsed = time.monotonic() - started
    over.set()
    thread.join()
    assert counted > 20 * elapsed, f"{counted} turns in {elapsed:.1f} s"


def test_event_loops_read_many_streams(small: LLM):
    prompts = [f"loop {index}" for index in range(12)]
    expected = [output.outputs[0].text for output in small.generate(prompts, PARAMS)]

    async def read(prompt: str) -> str:
        return "".join([piece.text async for piece in small.stream(prompt, PARAMS)])

    async def all_of_them() -> list[str]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        texts = await asyncio.gather(*map(read, prompts))
        ticking.cancel()
        assert ticks > 1, "the loop did other things meanwhile"
        return texts

    assert asyncio.run(all_of_them()) == expected
    # Another loop, after the first one is closed.
    assert asyncio.run(read(prompts[0])) == expected[0]


def test_a_stream_that_is_left_is_cancelled(small: LLM):
    async def leave() -> None:
        async for _ in small.stream("abc", SamplingParams(max_tokens=120, ignore_eos=True)):
            break

    asyncio.run(leave())
    for piece in small.stream("abc", SamplingParams(max_tokens=120, ignore_eos=True)):
        assert piece.text
        break
    deadline = time.monotonic() + 10
    while small.stats()["decoding"] or small.stats()["reading"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stats = small.stats()
    assert stats["blocks_in_use"] == 0
    assert stats["cancelled"] + stats["ended_by_budget"] + stats["ended_by_context"] == 2


INTERRUPTED = """
import signal, sys, threading, time
# Whoever runs the tests may ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from clearway import LLM, SamplingParams
length = int(sys.argv[2])
llm = LLM(sys.argv[1], device="cpu", max_model_len=length, max_num_seqs=2, progress=False)
print("ready", flush=True)
# Every token is text, so that no look for one is in vain.
letters = [token for letter in "abcdefgh" for token in llm.encode(letter)]
long = SamplingParams(max_tokens=length - 10, ignore_eos=True, allowed_token_ids=letters)
for call in (lambda: llm.generate(["a", "b"], long), lambda: [None for _ in llm.stream("c", long)]):
    try:
        call()
        print("ended", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while llm.stats()["decoding"] or llm.stats()["reading"]:
        time.sleep(0.001)
print(len(llm.generate("again", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids), flush=True)
"""


@pytest.mark.parametrize(("name", "length"), [("smollm2:135m", 4096), ("tiny", 200_000)])
def test_ctrl_c_ends_a_call_and_nothing_else(name, length, tmp_path):
    # Tokens of the tiny model come so soon that a call never waits for one.
    model = str(tiny.write(tmp_path / "tiny.gguf", context=length)) if name == "tiny" else name
    command = [sys.executable, "-c", INTERRUPTED, model, str(length)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - started < 5
    assert process.stdout.readline() == "3\n"
    assert process.wait(30) == 0


LOADS = """
import os, resource, sys
from clearway import LLM, SamplingParams
page = os.sysconf("SC_PAGE_SIZE")
def used():
    return int(open("/proc/self/statm").read().split()[1]) * page
marks = []
for count in range(1, int(sys.argv[2]) + 1):
    llm = LLM(sys.argv[1], device="cpu", threads=1, max_num_seqs=2, progress=False)
    llm.generate("ab", SamplingParams(max_tokens=2, ignore_eos=True))
    llm.close()
    if count % 100 == 0:
        marks.append(used())
print(*marks)
print(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not tell what memory is used")
def test_a_thousand_loads_leave_nothing_behind(tiny_file, counted):
    loads = 1000
    done = subprocess.run([sys.executable, "-c", LOADS, str(tiny_file), str(loads)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    memory, counts = done.stdout.splitlines()
    marks = [int(mark) for mark in memory.split()]
    grown = marks[-1] - marks[2]
    # 700 loads; one of them takes about 400 kB.
    assert grown < 8 << 20, f"{grown / 1e6:.1f} MB more: {marks}"
    counted("loads of a model in one process", loads)
    threads, files = map(int, counts.split())
    assert threads <= 6 and files <= 12, (threads, files)
