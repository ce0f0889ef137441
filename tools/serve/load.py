"""Load on `clearway serve`, held against `clearway bench` of the same program.

usage: load.py PROGRAM [-m MODEL] [--device D] [--vllm-rs FILE] [--in-flight 1,8,32,64] [--tokens 128] [--rounds 10]
               [--newcomer 8000] [--others 16]

Needs nothing but Python 3. The server gets

- one stream after another, in turns with `clearway bench`: tokens per second and time to the first byte beside the
  rate and the time of the prompt that `bench` has;
- a closed loop of N requests in flight: tokens per second against N x tokens / (T_PP + T_TG) of `bench --parallel N`;
- Poisson arrivals at 70 % of the rate of the largest N: times to the first token and between tokens;
- with `--newcomer`, a prompt of so many tokens while `--others` texts are written: the time to its first token, and times between
  tokens of the others before it comes and until then.

Every prompt has so many tokens, random ones, so that no cache helps; every answer has as many, ends of text ignored.

`--vllm-rs` has the last two made by `vllm-rs bench serve`, the load generator in the wheel of vLLM (`vllm/vllm-rs` in it, a
program that runs alone). Times between tokens are then its own: between two pieces of a stream, however many tokens each has.
"""

import argparse
import contextlib
import json
import os
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


TOKENS = re.compile(rb'"token_ids": ?\[([0-9, ]+)\]')
WRITTEN = re.compile(rb'"completion_tokens": ?([0-9]+)')


class Request:
    """One request on a connection of its own."""

    def __init__(self, address, body, now, name=None):
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        head += f"X-Request-Id: {name}\r\n\r\n" if name else "\r\n"
        self.started = now
        self.name = name
        self.times = []  # arrival of each piece of text
        self.counts = []  # tokens of each
        self.tail = b""
        self.begin = b""  # of the answer
        self.received = b""  # its end
        self.is_late = False  # its end did not come in time
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)

    def read(self):
        """Takes what has come; whether it was the end."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError as problem:
            data, self.received = b"", self.received + repr(problem).encode()
        now = time.perf_counter()
        whole = self.tail + data
        cut = whole.rfind(b"\n\n") + 1
        # Every piece of text names its tokens.
        count = sum(ids.count(b",") + 1 for ids in TOKENS.findall(whole[:cut]))
        if count:
            self.times.append(now)
            self.counts.append(count)
        self.tail = whole[cut:]
        self.begin = self.begin or data[:64]
        self.received = (self.received + data)[-400:]
        if data:
            return False
        self.socket.close()
        return True

    def give_up(self, patience):
        """Its end did not come in time."""
        self.is_late = True
        self.received += f"no end within {patience:.0f} s".encode()
        self.socket.close()

    def status(self):
        """The status of the answer; 0 where none came, and where the answer had no end."""
        if self.is_late:
            return 0
        words = self.begin.split(None, 2)
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0

    def failed(self, tokens):
        """Whether it did not end as it should."""
        if self.is_late:
            return True
        written = WRITTEN.findall(self.received)
        complete = b"data: [DONE]" in self.received and written and int(written[-1]) == tokens
        return not complete or sum(self.counts) != tokens


class Load:
    def __init__(self, address, vocabulary, tokens):
        self.address, self.vocabulary, self.tokens = address, vocabulary, tokens
        self.random = random.Random(1)
        self.failed = []

    def body(self, answer, tokens=None):
        prompt = [self.random.randrange(10, self.vocabulary) for _ in range(tokens or self.tokens)]
        return json.dumps({
            "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "return_token_ids": True,
        }).encode()

    def run(self, count, in_flight, arrivals=None, answer=None, watch=None, patience=None, prefix=None):
        """Sends requests, at most so many at once, or at given times; those without errors, and the seconds all took.

        `watch` is told how many have ended and which are under way, each time that one has ended. A request without an end
        after `patience` seconds has failed. With a prefix each request is named by it and its number, in the header `X-Request-Id`.
        """
        selector = selectors.DefaultSelector()
        answer = answer or self.tokens
        bodies = [self.body(answer) for _ in range(count)]
        done, failed, sent, live = [], [], 0, set()
        start = time.perf_counter()
        while len(done) + len(failed) < count:
            now = time.perf_counter()
            while sent < count and len(live) < in_flight and (arrivals is None or start + arrivals[sent] <= now):
                name = None if prefix is None else f"{prefix}{sent}"
                request = Request(self.address, bodies[sent], now if arrivals is None else start + arrivals[sent], name)
                selector.register(request.socket, selectors.EVENT_READ, request)
                sent += 1
                live.add(request)
            wait = 1.0
            if arrivals is not None and sent < count:
                wait = max(0.0, start + arrivals[sent] - time.perf_counter())
            ready = {key.data for key, _ in selector.select(wait)}
            now = time.perf_counter()
            late = {request for request in live if patience is not None and now - request.started > patience}
            for request in ready | late:
                fd = request.socket
                ended = request in ready and request.read()
                if not ended and request in late:
                    request.give_up(patience)
                    ended = True
                if ended:
                    selector.unregister(fd)
                    live.remove(request)
                    if request.failed(answer):
                        failed.append(request)
                        print(f"a request failed: {request.begin!r} ... {request.received!r}", file=sys.stderr)
                    else:
                        done.append(request)
                    if watch:
                        watch(len(done) + len(failed), live)
        self.failed += failed
        if not done:
            sys.exit("no request was answered")
        return done, time.perf_counter() - start


# Seconds in which a server compiles what a load needs, at most.
WARM_UP = 60.0


def metrics(address):
    """What the server counts."""
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=60) as answer:
        return [line for line in answer.read().decode().splitlines() if not line.startswith("#")]


def lists_missing(address):
    """Whether the server compiles what it needed already."""
    return any(line.startswith("clearway_lists_missing") and float(line.split()[-1]) for line in metrics(address))


# Tokens of a text that is written while a newcomer's prompt is read, and seconds before it comes.
STEADY = 2048
BEFORE = 2.0


def newcomer(load, tokens, others):
    """A prompt of so many tokens while others are written."""

    def prompt_of(count):
        rest = [Request(load.address, load.body(STEADY), time.perf_counter()) for _ in range(others)]
        selector = selectors.DefaultSelector()
        for request in rest:
            selector.register(request.socket, selectors.EVENT_READ, request)
        came, started, steady = None, time.perf_counter(), None
        while came is None or not came.times:
            for key, _ in selector.select(0.05):
                request = key.data
                if request.read():
                    selector.unregister(request.socket)
                    sys.exit(f"a text ended too early: {request.begin!r} ... {request.received!r}")
            now = time.perf_counter()
            if steady is None and all(request.times for request in rest):
                steady = now
            if came is None and steady is not None and now - steady >= BEFORE:
                came = Request(load.address, load.body(1, count), now)
                selector.register(came.socket, selectors.EVENT_READ, came)
            if now - started > 600:
                sys.exit("the newcomer's first token did not come in ten minutes")
        # The others are given up, which the server has to bear.
        for request in [*rest, came]:
            request.socket.close()
        return rest, came, steady

    # What is compiled on the way is compiled now.
    prompt_of(tokens)
    until = time.perf_counter() + WARM_UP
    while lists_missing(load.address) and time.perf_counter() < until:
        # A server takes in what was made when it works.
        load.run(1, 1, answer=1)
    rest, came, steady = prompt_of(tokens)
    first = came.times[0]
    parts = {"before": (steady, came.started), "until": (came.started, first)}
    gaps = {name: [] for name in parts}
    for request in rest:
        for before, after, count in zip(request.times, request.times[1:], request.counts[1:]):
            for name, (begin, end) in parts.items():
                if begin <= before < end:
                    gaps[name] += [1e3 * (after - before) / count] * count
    if not all(gaps.values()):
        sys.exit("no token came before the newcomer or beside its prompt: make it longer")
    median, until = quantile(gaps["before"], 0.5), gaps["until"]
    return {
        "tokens": tokens, "others": others, "first_ms": 1e3 * (first - came.started), "before_p50_ms": median,
        "until_p50_ms": quantile(until, 0.5), "until_p99_ms": quantile(until, 0.99), "until_worst_ms": max(until),
        "times": quantile(until, 0.99) / median,
    }


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def between(requests):
    """Times between pieces, of all requests. Tokens that come together share the time."""
    times = []
    for request in requests:
        for before, after, count in zip(request.times, request.times[1:], request.counts[1:]):
            times += [(after - before) / count] * count
    return times


class Own:
    """Requests of this program."""

    name = "this program"

    def __init__(self, load):
        self.load = load

    def measure(self, count, in_flight=None, rate=None):
        """Figures of a closed loop, or of requests that arrive at random."""
        before, arrivals = len(self.load.failed), None
        if rate is not None:
            at, arrivals = 0.0, []
            for _ in range(count):
                at += self.load.random.expovariate(rate)
                arrivals.append(at)
        requests, seconds = self.load.run(count, in_flight or count, arrivals)
        first = [1e3 * (r.times[0] - r.started) for r in requests]
        gaps = [1e3 * gap for gap in between(requests)]
        return {
            "requests": len(requests), "errors": len(self.load.failed) - before, "seconds": seconds,
            "tokens_per_second": sum(sum(r.counts) for r in requests) / seconds,
            "first_p50_ms": quantile(first, 0.5), "first_p99_ms": quantile(first, 0.99),
            "between_p50_ms": quantile(gaps, 0.5), "between_p99_ms": quantile(gaps, 0.99),
        }


class VllmRs:
    """Requests of `vllm-rs bench serve`."""

    name = "vllm-rs bench serve"

    def __init__(self, program, address, name, vocabulary, tokens, folder, patience):
        self.program, self.tokens, self.folder, self.patience = program, tokens, folder, patience
        self.seed = 0
        # It draws tokens of a vocabulary, which it wants as a file. Prompts are sent as numbers, so words of any form will do.
        words = {f"t{number}": number for number in range(vocabulary)}
        model = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}, file)
        self.flags = [
            "--backend", "openai", "--base-url", f"http://{address[0]}:{address[1]}", "--model", name, "--tokenizer", folder,
            "--dataset-name", "random", "--random-input-len", str(tokens), "--random-output-len", str(tokens), "--prompt-token-ids",
            "--ignore-eos", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
            "--disable-tqdm", "--no-steady-state", "--save-result", "--result-dir", folder,
        ]  # fmt: skip

    def measure(self, count, in_flight=None, rate=None):
        self.seed += 1
        result = f"{self.seed}.json"
        command = [self.program, "bench", "serve", *self.flags, "--num-prompts", str(count), "--seed", str(self.seed)]
        command += ["--max-concurrency", str(in_flight)] if in_flight else []
        command += ["--request-rate", f"{rate:.4f}"] if rate else []
        done = subprocess.run(
            [*command, "--result-filename", result], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=self.patience
        )
        path = os.path.join(self.folder, result)
        if done.returncode != 0 or not os.path.exists(path):
            sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}")
        with open(path) as file:
            found = json.load(file)
        missing = count * self.tokens - found["total_output_tokens"]
        if missing and found["completed"] == count:
            sys.exit(f"{missing} tokens are missing in {count} answers")
        return {
            "requests": found["completed"], "errors": count - found["completed"], "seconds": found["duration"],
            "tokens_per_second": found["output_throughput"],
            "first_p50_ms": found["median_ttft_ms"], "first_p99_ms": found["p99_ttft_ms"],
            "between_p50_ms": found["median_itl_ms"], "between_p99_ms": found["p99_itl_ms"],
        }


def bench(program, model, device, flags):
    command = [program, "bench", *model, *device, "--json", *flags]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@contextlib.contextmanager
def serve(program, model, device, context, texts, cache):
    """A server for so many texts of at most `context` tokens, with `cache` tokens for all; its process and address."""
    command = [program, "serve", *model, *device, "--port", "0", "--log", "none", "--parallel", str(texts)]
    command += ["--ctx-size", str(context), "--cache-size", str(cache), "--queue", "4096"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        for line in server.stderr:
            print(line, end="", file=sys.stderr)
            if "listening on http://" in line:
                host, _, port = line.strip().rpartition("http://")[2].rpartition(":")
                address = (host, int(port))
            if line.startswith("ready"):
                break
        else:
            sys.exit("the server did not get ready")
        # What it says later is passed on.
        threading.Thread(target=lambda: sys.stderr.writelines(server.stderr), daemon=True).start()
        yield server, address
    except BaseException:
        # Nobody waits for its answers any more.
        server.kill()
        raise
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def processor_seconds(process):
    """Time of all cores that the threads of a process took; `None` where the system does not tell."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    except OSError:
        return None
    return total / 1e9


def one_stream(load, server, measured, tokens, turns, repeat):
    """The server and `bench` in turns. A machine that is slower for a while is slower for both."""
    rows = []
    for turn in range(turns):
        row = {}
        for side in ("serve", "bench") if turn % 2 == 0 else ("bench", "serve"):
            if side == "bench":
                [prompt] = measured(["-p", str(tokens), "-n", "0", "-r", str(repeat)])
                # Tokens of an answer come after a prompt.
                [generate] = measured(["-p", "0", "-n", str(tokens), "-d", str(tokens), "-r", str(repeat)])
                row["bench"] = max(generate["samples_ts"])
                row["bench_prompt_ms"] = 1e3 * tokens / max(prompt["samples_ts"])
                row["bench_cpu_us"] = (generate["decode"] or {}).get("cpu_us_per_token")
                continue
            # A device takes some time to go back to its clocks after the other's turn.
            until = time.perf_counter() + 0.3
            while time.perf_counter() < until:
                load.run(1, 1)
            times = [processor_seconds(server)]
            requests = load.run(repeat, 1)[0]
            times.append(processor_seconds(server))
            load.run(repeat, 1, answer=1)
            times.append(processor_seconds(server))
            # A model so small that an answer comes in one piece has no rate.
            rates = [(sum(r.counts) - r.counts[0]) / (r.times[-1] - r.times[0]) for r in requests if len(r.times) > 1]
            if not rates:
                sys.exit("answers come in one piece: --tokens is too small to measure a rate")
            row["tokens_per_second"] = max(rates)
            row["first_ms"] = 1e3 * min(r.times[0] - r.started for r in requests)
            if None not in times:
                # What a token takes beyond the prompt and the first.
                whole, prompts = times[1] - times[0], times[2] - times[1]
                row["cpu_us"] = 1e6 * (whole - prompts) / (repeat * (tokens - 1))
        rows.append(row)
    middle = lambda of: statistics.median(map(of, rows))
    return {
        "turns": turns,
        "tokens_per_second": middle(lambda row: row["tokens_per_second"]), "bench": middle(lambda row: row["bench"]),
        "ratio": middle(lambda row: row["tokens_per_second"] / row["bench"]),
        "first_ms": middle(lambda row: row["first_ms"]), "bench_prompt_ms": middle(lambda row: row["bench_prompt_ms"]),
        "later_ms": middle(lambda row: row["first_ms"] - row["bench_prompt_ms"]),
        "rows": rows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("-m", "--model")
    parser.add_argument("--device")
    parser.add_argument("-t", "--threads", help="threads of the CPU; with one, processor time is that of the work alone")
    parser.add_argument("--vllm-rs", metavar="FILE", help="the load generator of vLLM")
    parser.add_argument("--in-flight", default="1,8,32,64", help="closed loops; 0 for none, and then no Poisson arrivals either")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10, help="requests for each that is in flight")
    parser.add_argument("--turns", type=int, default=3, help="of one stream and `bench`; 0 for none")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of a turn; the fastest counts")
    parser.add_argument("--seconds", type=float, default=15, help="length of the Poisson arrivals")
    parser.add_argument("--newcomer", type=int, metavar="TOKENS", help="a prompt that comes while others are written")
    parser.add_argument("--others", type=int, default=16, help="texts that are written when it comes")
    parser.add_argument("--patience", type=float, default=300, help="longest run of the load generator in seconds")
    parser.add_argument("--out", help="a file for the figures as JSON")
    args = parser.parse_args()
    model = ["-m", args.model] if args.model else []
    device = ["--device", args.device] if args.device else []
    device += ["-t", args.threads] if args.threads else []
    in_flight = [number for number in map(int, args.in_flight.split(",")) if number]
    most, tokens = max(in_flight, default=1), args.tokens
    measured = lambda flags: bench(args.program, model, device, flags)
    alone = {}
    if in_flight:
        flags = ["-p", str(tokens), "-n", str(tokens), "-r", str(args.repeat), "--parallel", ",".join(map(str, in_flight))]
        alone = {row["b"]: row for row in measured(flags)}
    # Whoever ends this program ends the server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    figures = {"tokens": tokens, "single": None, "closed": [], "poisson": None, "newcomer": None}
    context, texts, cache = 4 * tokens, most, 4 * tokens * most
    if args.newcomer:
        context = max(context, args.newcomer + tokens, 2 * STEADY)
        texts = max(texts, args.others + 1)
        cache = max(cache, 2 * STEADY * args.others + context)
    with serve(args.program, model, device, context, texts, cache) as (server, address), tempfile.TemporaryDirectory() as folder:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/v1/models", timeout=60) as answer:
            served = json.load(answer)["data"][0]
        vocabulary = served["meta"]["n_vocab"]
        load = Load(address, vocabulary, tokens)
        generator = Own(load)
        if args.vllm_rs:
            generator = VllmRs(os.path.abspath(args.vllm_rs), address, served["id"], vocabulary, tokens, folder, args.patience)
        # What is compiled on the way is compiled now.
        for number in [1, *in_flight]:
            until = time.perf_counter() + WARM_UP
            load.run(2 * number, number)
            while lists_missing(address) and time.perf_counter() < until:
                load.run(2 * number, number)
        if args.turns:
            single = figures["single"] = one_stream(load, server, measured, tokens, args.turns, args.repeat)
            print(f"one stream, {args.turns} turns: {single['tokens_per_second']:.1f} tokens/s, bench {single['bench']:.1f}, "
                  f"ratio {single['ratio']:.3f}; first byte {single['first_ms']:.1f} ms, bench's prompt "
                  f"{single['bench_prompt_ms']:.1f} ms, {single['later_ms']:+.1f} ms")
            sides = [(row.get("cpu_us"), row["bench_cpu_us"]) for row in single["rows"]]
            if all(all(side) for side in sides):
                ours, theirs = (statistics.median(column) for column in zip(*sides))
                ratio = single["cpu_ratio"] = statistics.median(ours / theirs for ours, theirs in sides)
                print(f"processor time of a token: {ours:.0f} us, bench {theirs:.0f} us, ratio {ratio:.3f}")
        if in_flight:
            figures["generator"] = generator.name
            loops(generator, alone, in_flight, args, figures)
        if args.newcomer:
            figures["newcomer"] = row = newcomer(load, args.newcomer, args.others)
            print(f"\na prompt of {args.newcomer} tokens beside {args.others} texts: first token after {row['first_ms']:.0f} ms; between tokens of the "
                  f"others p50 {row['before_p50_ms']:.2f} ms before, until then p99 {row['until_p99_ms']:.2f} ms ({row['times']:.2f} times), "
                  f"worst {row['until_worst_ms']:.1f} ms", flush=True)
        figures["metrics"] = metrics(address)
        errors = len(load.failed)
        if args.vllm_rs and in_flight:
            errors += sum(row["errors"] for row in [*figures["closed"], figures["poisson"]])
        if args.out:
            with open(args.out, "w") as out:
                json.dump(figures, out, indent=1)
        if errors:
            sys.exit(f"{errors} requests failed")


def loops(generator, alone, in_flight, args, figures):
    """Closed loops, and Poisson arrivals after them."""
    tokens = args.tokens
    print(f"\nload of {generator.name}, {tokens} tokens in and {tokens} out\n")
    print("| in flight | tokens/s | bench: N x tokens / (T_PP + T_TG) | ratio | first token p50, p99 ms | between p50, p99 ms | errors |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    rate = 0.0
    for number in in_flight:
        row = generator.measure(args.rounds * number, in_flight=number)
        expected = number * tokens / alone[number]["t_s"]
        row |= {"in_flight": number, "bench": expected, "ratio": row["tokens_per_second"] / expected}
        rate = row["tokens_per_second"] / tokens
        figures["closed"].append(row)
        print(f"| {number} | {row['tokens_per_second']:.1f} | {expected:.1f} | {row['ratio']:.3f} | {row['first_p50_ms']:.1f}, "
              f"{row['first_p99_ms']:.1f} | {row['between_p50_ms']:.2f}, {row['between_p99_ms']:.2f} | {row['errors']} |", flush=True)
    # The rate of the largest closed loop is what the server can do.
    wanted = 0.7 * rate
    count = min(max(32, int(wanted * args.seconds)), 4096)
    row = figures["poisson"] = generator.measure(count, rate=wanted)
    row["rate"] = wanted
    spread = row["between_p99_ms"] / max(row["between_p50_ms"], 1e-9)
    print(f"\nPoisson, {wanted:.2f} requests/s, {count} requests, {row['errors']} errors: first token p50 {row['first_p50_ms']:.1f} ms, "
          f"p99 {row['first_p99_ms']:.1f} ms; between p50 {row['between_p50_ms']:.2f} ms, p99 {row['between_p99_ms']:.2f} ms, "
          f"{spread:.2f} times", flush=True)


if __name__ == "__main__":
    main()
