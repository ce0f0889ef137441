"""Load on `clearway serve`, held against `clearway bench --parallel` of the same program.

usage: load.py PROGRAM [-m MODEL] [--device D] [--in-flight 1,8,32,64] [--tokens 128] [--rounds 4] [--out FILE]

Needs nothing but Python 3. First `bench --parallel N` is run for each N, then the server is started and gets

- one stream after another: tokens per second against `bench --parallel 1`, and the time to the first byte beside the
  time of `bench` for the prompt;
- a closed loop of N requests in flight: tokens per second against N x tokens / (T_PP + T_TG) of the bench;
- Poisson arrivals at 70 % of the rate of the largest N: times to the first token and between tokens.

Every prompt has so many tokens, random ones, so that no cache helps; every answer has as many, ends of text ignored.
"""

import argparse
import json
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request


TOKENS = re.compile(rb'"token_ids":\[([0-9,]+)\]')


class Request:
    """One request on a connection of its own."""

    def __init__(self, address, body, now):
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.started = now
        self.times = []  # arrival of each piece of text
        self.counts = []  # tokens of each
        self.tail = b""
        self.received = b""
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)

    def read(self):
        """Takes what has come; whether it was the end."""
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        whole = self.tail + data
        cut = whole.rfind(b"\n\n") + 1
        # Every piece of text names its tokens.
        count = sum(ids.count(b",") + 1 for ids in TOKENS.findall(whole[:cut]))
        if count:
            self.times.append(now)
            self.counts.append(count)
        self.tail = whole[cut:]
        self.received = (self.received + data)[-400:]
        if data:
            return False
        self.socket.close()
        return True

    def failed(self, tokens):
        """Whether it did not end as it should."""
        complete = b"data: [DONE]" in self.received and f'"completion_tokens":{tokens}'.encode() in self.received
        return not complete or sum(self.counts) != tokens


class Load:
    def __init__(self, address, vocabulary, tokens):
        self.address, self.vocabulary, self.tokens = address, vocabulary, tokens
        self.random = random.Random(1)
        self.errors = 0

    def body(self):
        prompt = [self.random.randrange(10, self.vocabulary) for _ in range(self.tokens)]
        return json.dumps({
            "prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "return_token_ids": True,
        }).encode()

    def run(self, count, in_flight, arrivals=None):
        """Sends requests, at most so many at once, or at given times; those without errors, and the seconds all took."""
        selector = selectors.DefaultSelector()
        bodies = [self.body() for _ in range(count)]
        done, sent, live, errors = [], 0, 0, 0
        start = time.perf_counter()
        while len(done) + errors < count:
            now = time.perf_counter()
            while sent < count and live < in_flight and (arrivals is None or start + arrivals[sent] <= now):
                request = Request(self.address, bodies[sent], now if arrivals is None else start + arrivals[sent])
                selector.register(request.socket, selectors.EVENT_READ, request)
                sent, live = sent + 1, live + 1
            wait = 1.0
            if arrivals is not None and sent < count:
                wait = max(0.0, start + arrivals[sent] - time.perf_counter())
            for key, _ in selector.select(wait):
                request = key.data
                fd = request.socket
                if request.read():
                    selector.unregister(fd)
                    live -= 1
                    if request.failed(self.tokens):
                        errors += 1
                        print(f"a request failed: {request.received!r}", file=sys.stderr)
                    else:
                        done.append(request)
        self.errors += errors
        if not done:
            sys.exit("no request was answered")
        return done, time.perf_counter() - start


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


def bench(program, model, device, tokens, in_flight):
    command = [program, "bench", *model, *device, "-p", str(tokens), "-n", str(tokens), "-r", "3", "--json"]
    found = subprocess.run([*command, "--parallel", ",".join(map(str, in_flight))], stdout=subprocess.PIPE, check=True)
    return {row["b"]: row for row in json.loads(found.stdout)}


def start(program, model, device, tokens, most):
    command = [program, "serve", *model, *device, "--port", "0", "--log", "none", "--parallel", str(most)]
    command += ["--ctx-size", str(4 * tokens), "--cache-size", str(4 * tokens * most), "--queue", "4096"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    address = None
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if "listening on http://" in line:
            host, _, port = line.strip().rpartition("http://")[2].rpartition(":")
            address = (host, int(port))
        if line.startswith("ready"):
            return server, address
    sys.exit("the server did not get ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("-m", "--model")
    parser.add_argument("--device")
    parser.add_argument("--in-flight", default="1,8,32,64")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4, help="requests for each that is in flight")
    parser.add_argument("--out", help="a file for the figures as JSON")
    args = parser.parse_args()
    model = ["-m", args.model] if args.model else []
    device = ["--device", args.device] if args.device else []
    in_flight = [int(number) for number in args.in_flight.split(",")]
    most, tokens = max(in_flight), args.tokens
    alone = bench(args.program, model, device, tokens, in_flight)
    # Whoever ends this program ends the server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, address = start(args.program, model, device, tokens, most)
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/v1/models") as answer:
            vocabulary = json.load(answer)["data"][0]["meta"]["n_vocab"]
        load = Load(address, vocabulary, tokens)
        figures = {"tokens": tokens, "closed": [], "single": None, "poisson": None}
        # What is compiled on the way is compiled now.
        for number in in_flight:
            load.run(2 * number, number)

        if 1 in alone:
            requests, _ = load.run(8, 1)
            # A model so small that an answer comes in one piece has no rate.
            rates = [(sum(r.counts) - r.counts[0]) / (r.times[-1] - r.times[0]) for r in requests if len(r.times) > 1]
            if not rates:
                sys.exit("answers come in one piece: --tokens is too small to measure a rate")
            first = [r.times[0] - r.started for r in requests]
            own = (tokens - 1) / alone[1]["t_tg_s"]
            single = {
                "tokens_per_second": statistics.median(rates), "bench": own,
                "first_ms": 1e3 * statistics.median(first), "bench_prompt_ms": 1e3 * alone[1]["t_pp_s"],
            }
            figures["single"] = single
            print(f"one stream: {single['tokens_per_second']:.1f} tokens/s, bench {own:.1f}, "
                  f"ratio {single['tokens_per_second'] / own:.3f}; first byte {single['first_ms']:.1f} ms, "
                  f"bench's prompt {single['bench_prompt_ms']:.1f} ms, "
                  f"{single['first_ms'] - single['bench_prompt_ms']:+.1f} ms")
        print("\n| in flight | tokens/s | bench: N x tokens / (T_PP + T_TG) | ratio | first token p50, p99 ms | between p50, p99 ms |")
        print("|--:|--:|--:|--:|--:|--:|")
        rate = 0.0
        for number in in_flight:
            requests, seconds = load.run(args.rounds * number, number)
            rate = len(requests) / seconds
            found = rate * tokens
            expected = number * tokens / alone[number]["t_s"]
            first = [1e3 * (r.times[0] - r.started) for r in requests]
            gaps = [1e3 * gap for gap in between(requests)]
            row = {
                "in_flight": number, "tokens_per_second": found, "bench": expected, "ratio": found / expected,
                "first_p50_ms": quantile(first, 0.5), "first_p99_ms": quantile(first, 0.99),
                "between_p50_ms": quantile(gaps, 0.5), "between_p99_ms": quantile(gaps, 0.99),
            }
            figures["closed"].append(row)
            print(f"| {number} | {found:.1f} | {expected:.1f} | {row['ratio']:.3f} | {row['first_p50_ms']:.1f}, "
                  f"{row['first_p99_ms']:.1f} | {row['between_p50_ms']:.2f}, {row['between_p99_ms']:.2f} |")
        # The rate of the largest closed loop is what the server can do.
        wanted, at, arrivals = 0.7 * rate, 0.0, []
        for _ in range(max(32, 2 * args.rounds * most)):
            at += load.random.expovariate(wanted)
            arrivals.append(at)
        before = load.errors
        requests, seconds = load.run(len(arrivals), len(arrivals), arrivals)
        errors = load.errors - before
        first = [1e3 * (r.times[0] - r.started) for r in requests]
        gaps = [1e3 * gap for gap in between(requests)]
        poisson = {
            "requests": len(requests), "rate": wanted, "seconds": seconds, "errors": errors,
            "first_p50_ms": quantile(first, 0.5), "first_p99_ms": quantile(first, 0.99),
            "between_p50_ms": quantile(gaps, 0.5), "between_p99_ms": quantile(gaps, 0.99),
        }
        figures["poisson"], figures["errors"] = poisson, load.errors
        print(f"\nPoisson, {wanted:.2f} requests/s, {len(arrivals)} requests, {errors} errors: first token p50 "
              f"{poisson['first_p50_ms']:.1f} ms, p99 {poisson['first_p99_ms']:.1f} ms; between tokens p50 "
              f"{poisson['between_p50_ms']:.2f} ms, p99 {poisson['between_p99_ms']:.2f} ms, "
              f"{poisson['between_p99_ms'] / poisson['between_p50_ms']:.2f} times")
        if args.out:
            with open(args.out, "w") as out:
                json.dump(figures, out, indent=1)
        if load.errors:
            sys.exit(f"{load.errors} requests failed")
    finally:
        server.terminate()
        server.wait()


main()
