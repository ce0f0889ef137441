"""One stream and a batch of 64 through Python against `clearway bench`, in turns.

usage: speed.py CLEARWAY [MODEL] [DEVICE] [ROUNDS]

CLEARWAY is the program, built in release mode as the package is. Prints medians of tokens per second and their ratio.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time

from clearway import LLM, SamplingParams

PROGRAM = sys.argv[1]
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2:135m"
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 5
TOKENS, PROMPT, PARALLEL = 128, 32, 64


def bench(*flags: str) -> dict:
    command = [PROGRAM, "bench", "-m", MODEL, "--device", DEVICE, "-r", "1", "--json", *flags]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]


def one_stream(llm: LLM) -> float:
    """Tokens per second of a text from its second token on."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS + 1, ignore_eos=True)
    times = [(time.perf_counter(), len(piece.token_ids)) for piece in llm.stream([1], params) if piece.token_ids]
    (first, _), (last, _) = times[0], times[-1]
    return sum(count for _, count in times[1:]) / (last - first)


def many(llm: LLM) -> float:
    """Tokens per second of texts that are written at once, those of the prompts included. No prompt was seen before."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    prompts = [[random.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(PARALLEL)]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    elapsed = time.perf_counter() - started
    assert all(len(output.outputs[0].token_ids) == TOKENS for output in outputs)
    return PARALLEL * (PROMPT + TOKENS) / elapsed


def compare(name: str, ours: list[float], theirs: list[float]) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"| {name} | {mine:.1f} | {other:.1f} | {mine / other:.3f} |", flush=True)


def main() -> None:
    lengths = ["-p", str(PROMPT), "-n", str(TOKENS)]
    rows: dict[str, tuple[list[float], list[float]]] = {"one stream": ([], []), f"{PARALLEL} at once": ([], [])}
    for _ in range(ROUNDS):
        # A model of ours that only waits takes no time, but its memory is not theirs: it is loaded and closed in turns.
        with LLM(MODEL, device=DEVICE, max_model_len=PROMPT + TOKENS + 32, max_num_seqs=PARALLEL, progress=False) as llm:
            llm.generate([[1]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
            rows["one stream"][0].append(one_stream(llm))
            many(llm)
            rows[f"{PARALLEL} at once"][0].append(many(llm))
        rows["one stream"][1].append(bench("-p", "0", "-n", str(TOKENS))["avg_ts"])
        rows[f"{PARALLEL} at once"][1].append(bench(*lengths, "--parallel", str(PARALLEL))["s"])
    print(f"{MODEL} on {DEVICE}, medians of {ROUNDS} rounds in turns, tokens per second\n")
    print("| | Python | clearway bench | ratio |\n|---|---|---|---|")
    for name, (ours, theirs) in rows.items():
        compare(name, ours, theirs)


if __name__ == "__main__":
    main()
