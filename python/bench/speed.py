"""One stream and a batch of prompts through Python against `clearway bench`, in turns.

CLEARWAY is the program, built in release mode as the package is. A round measures Python and the program right after each
other, in an order that changes from round to round, and counts if other programs left the processor to them. The median of the
ratios is the result: a machine that is slower for a minute is slower for both. Exits with 1 where a median is below what is
asked for.

`--by processor` counts tokens per second of processor time instead, which other programs change little. On the CPU, with one
thread (`-t 1`), that is the time of the work; several threads wait for each other, and waiting counts.
"""

from __future__ import annotations

import argparse
import json
import os
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
    parser.add_argument("-t", "--threads", type=int, help="threads of the CPU; all cores without it")
    parser.add_argument("--by", choices=["clock", "processor"], default="clock", help="what seconds are")
    parser.add_argument("-r", "--rounds", type=int, default=11, help="pairs of each measurement")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="tokens of the one stream")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the one stream in a turn; the fastest counts")
    parser.add_argument("--parallel", type=int, default=64, help="prompts of the batch")
    parser.add_argument("--batch-prompt", type=int, default=32, help="tokens of each of its prompts")
    parser.add_argument("--batch-tokens", type=int, default=128, help="tokens after each of them")
    parser.add_argument("--others", type=float, default=0.05, help="share of the processor that others may have in a round that counts")
    parser.add_argument("--only", choices=["stream", "batch"], help="one of both measurements")
    parser.add_argument("--least-stream", type=float, default=0.97, help="least median ratio of the one stream")
    parser.add_argument("--least-batch", type=float, default=0.95, help="least median ratio of the batch")
    return parser.parse_args()


class Others:
    """The share of the processor that other programs, and other machines on the same host, had since the last look."""

    def __init__(self) -> None:
        self.before = self.now()

    @staticmethod
    def now() -> tuple[float, float, float]:
        """Seconds of all cores: all, idle, ours with those of programs that we started and that have ended."""
        try:
            with open("/proc/stat") as file:
                ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in file.readline().split()[1:9]]
        except OSError:
            return 0.0, 0.0, 0.0
        times = os.times()
        return sum(ticks), ticks[3] + ticks[4], times.user + times.system + times.children_user + times.children_system

    def share(self) -> float:
        now = self.now()
        total, idle, ours = (after - before for after, before in zip(now, self.before))
        self.before = now
        return max(0.0, (total - idle - ours) / total) if total > 0 else 0.0


class Python:
    """The package, with one model for all rounds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        length = max(args.tokens + 2, args.batch_prompt + args.batch_tokens)
        threads = {} if args.threads is None else {"threads": args.threads}
        self.llm = LLM(
            args.model, device=args.device, max_model_len=-(-length // 32) * 32, max_num_seqs=args.parallel, progress=False, **threads
        )
        self.now = time.perf_counter if args.by == "clock" else time.process_time
        self.random = random.Random(1)

    def warm_up(self) -> None:
        """A GPU takes some time to go back to its clocks after the other's turn."""
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            self.stream_once()

    def stream(self) -> float:
        self.warm_up()
        return max(self.stream_once() for _ in range(self.args.repeat))

    def stream_once(self) -> float:
        """Tokens per second of a text from its second token on."""
        params = SamplingParams(temperature=0, max_tokens=self.args.tokens + 1, ignore_eos=True)
        pieces = self.llm.stream([1], params)
        times = [(self.now(), len(piece.token_ids)) for piece in pieces if piece.token_ids]
        (first, _), (last, _) = times[0], times[-1]
        return sum(count for _, count in times[1:]) / (last - first)

    def batch(self) -> float:
        """Tokens per second of texts that are written at once, those of the prompts included. No prompt was seen before."""
        prompt, tokens, parallel = self.args.batch_prompt, self.args.batch_tokens, self.args.parallel
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        vocabulary = self.llm._engine.vocab_size
        prompts = [[self.random.randrange(vocabulary) for _ in range(prompt)] for _ in range(parallel)]
        self.warm_up()
        started = self.now()
        outputs = self.llm.generate(prompts, params)
        elapsed = self.now() - started
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
        return parallel * (prompt + tokens) / elapsed


class Program:
    """`clearway bench`, started anew for each turn. It warms up by itself."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def bench(self, *flags: str) -> dict:
        command = [self.args.program, "bench", "-m", self.args.model, "--device", self.args.device, "--json", *flags]
        command += [] if self.args.threads is None else ["-t", str(self.args.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)[0]

    def stream(self) -> float:
        found = self.bench("-p", "0", "-n", str(self.args.tokens), "-r", str(self.args.repeat))
        return max(found["samples_ts"]) if self.args.by == "clock" else 1e6 / found["decode"]["cpu_us_per_token"]

    def batch(self) -> float:
        lengths = ["-p", str(self.args.batch_prompt), "-n", str(self.args.batch_tokens)]
        found = self.bench(*lengths, "-r", "1", "--parallel", str(self.args.parallel))
        tokens = self.args.parallel * (self.args.batch_prompt + self.args.batch_tokens)
        return found["s"] if self.args.by == "clock" else tokens / found["cpu_s"]


def pairs(ours: Callable[[], float], theirs: Callable[[], float], args: argparse.Namespace) -> list[tuple[float, float]]:
    """Both in turns. A round that others disturbed is repeated, as long as there are not too many."""
    found: list[tuple[float, float]] = []
    others = Others()
    for turn in range(args.rounds * 5):
        if turn % 2 == 0:
            mine, other = ours(), theirs()
        else:
            other, mine = theirs(), ours()
        share = others.share()
        quiet = share <= args.others
        print(f"  {mine:.1f} / {other:.1f} = {mine / other:.3f}" + ("" if quiet else f", not counted: others had {share:.0%}"), file=sys.stderr, flush=True)
        if quiet:
            found.append((mine, other))
        if len(found) == args.rounds:
            return found
    sys.exit(f"others had more than {args.others:.0%} of the processor in all but {len(found)} rounds; see --others")


def main() -> int:
    args = arguments()
    python, program = Python(args), Program(args)
    rows = []
    kinds = {
        "stream": ("one stream", python.stream, program.stream, args.least_stream),
        "batch": (f"{args.parallel} prompts", python.batch, program.batch, args.least_batch),
    }
    for kind, (name, ours, theirs, least) in kinds.items():
        if args.only in (None, kind):
            print(name, file=sys.stderr, flush=True)
            ours()
            rows.append((name, pairs(ours, theirs, args), least))
    seconds = "second" if args.by == "clock" else "second of processor time"
    print(f"{args.model} on {python.llm.device_description}: tokens per {seconds}, {args.rounds} pairs in turns\n")
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
