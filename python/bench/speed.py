"""One stream and a batch of prompts through Python against `clearway bench`, in turns.

CLEARWAY is the program, built in release mode as the package is. A round measures Python and the program right after each
other, in an order that changes from round to round. What counts is the median of the ratios of all rounds: a machine that
is slower for a minute is slower for both. Exits with 1 where a median is below what is asked for.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from clearway import LLM, SamplingParams


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="CLEARWAY", help="the program to compare with")
    parser.add_argument("-m", "--model", default="smollm2:135m", help="a model file or a name")
    parser.add_argument("--device", default="cpu", help="cpu, vulkan, vulkan:N")
    parser.add_argument("-r", "--rounds", type=int, default=11, help="pairs of each measurement")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="tokens of the one stream")
    parser.add_argument("--parallel", type=int, default=64, help="prompts of the batch")
    parser.add_argument("--batch-prompt", type=int, default=32, help="tokens of each of its prompts")
    parser.add_argument("--batch-tokens", type=int, default=128, help="tokens after each of them")
    parser.add_argument("--least-stream", type=float, default=0.97, help="least median ratio of the one stream")
    parser.add_argument("--least-batch", type=float, default=0.95, help="least median ratio of the batch")
    return parser.parse_args()


class Python:
    """The package, with one model for all rounds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        length = max(args.tokens + 2, args.batch_prompt + args.batch_tokens)
        self.llm = LLM(args.model, device=args.device, max_model_len=-(-length // 32) * 32, max_num_seqs=args.parallel, progress=False)
        self.random = random.Random(1)

    def stream(self) -> float:
        """Tokens per second of a text from its second token on."""
        params = SamplingParams(temperature=0, max_tokens=self.args.tokens + 1, ignore_eos=True)
        pieces = self.llm.stream([1], params)
        times = [(time.perf_counter(), len(piece.token_ids)) for piece in pieces if piece.token_ids]
        (first, _), (last, _) = times[0], times[-1]
        return sum(count for _, count in times[1:]) / (last - first)

    def batch(self) -> float:
        """Tokens per second of texts that are written at once, those of the prompts included. No prompt was seen before."""
        prompt, tokens, parallel = self.args.batch_prompt, self.args.batch_tokens, self.args.parallel
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        vocabulary = self.llm._engine.vocab_size
        prompts = [[self.random.randrange(vocabulary) for _ in range(prompt)] for _ in range(parallel)]
        started = time.perf_counter()
        outputs = self.llm.generate(prompts, params)
        elapsed = time.perf_counter() - started
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
        return parallel * (prompt + tokens) / elapsed


class Program:
    """`clearway bench`, started anew for each number. It warms up by itself."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def bench(self, *flags: str) -> dict:
        command = [self.args.program, "bench", "-m", self.args.model, "--device", self.args.device, "-r", "1", "--json", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)[0]

    def stream(self) -> float:
        return self.bench("-p", "0", "-n", str(self.args.tokens))["avg_ts"]

    def batch(self) -> float:
        lengths = ["-p", str(self.args.batch_prompt), "-n", str(self.args.batch_tokens)]
        return self.bench(*lengths, "--parallel", str(self.args.parallel))["s"]


def pairs(ours: Callable[[], float], theirs: Callable[[], float], warm_up: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Both in turns. Python is warmed up before each of its turns, as the program is."""

    def mine() -> float:
        warm_up()
        return ours()

    found = []
    for turn in range(rounds):
        if turn % 2 == 0:
            found.append((mine(), theirs()))
        else:
            other = theirs()
            found.append((mine(), other))
        print(f"  {found[-1][0]:.1f} / {found[-1][1]:.1f} = {found[-1][0] / found[-1][1]:.3f}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    args = arguments()
    python, program = Python(args), Program(args)
    rows = []
    print("one stream", file=sys.stderr, flush=True)
    rows.append(("one stream", pairs(python.stream, program.stream, python.stream, args.rounds), args.least_stream))
    print(f"{args.parallel} prompts", file=sys.stderr, flush=True)
    rows.append((f"{args.parallel} prompts", pairs(python.batch, program.batch, python.batch, args.rounds), args.least_batch))
    print(f"{args.model} on {python.llm.device_description}: tokens per second, {args.rounds} pairs in turns\n")
    print("| | Python, median | clearway bench, median | ratio, median | quartiles | least |\n|---|---|---|---|---|---|")
    good = True
    for name, found, least in rows:
        ratios = [mine / other for mine, other in found]
        ratio = statistics.median(ratios)
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratio] * 3
        mine, other = (statistics.median(column) for column in zip(*found))
        good &= ratio >= least
        print(f"| {name} | {mine:.1f} | {other:.1f} | {ratio:.3f} | {quartiles[0]:.3f} to {quartiles[2]:.3f} | {least:.2f} |")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
