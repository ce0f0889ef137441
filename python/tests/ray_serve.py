"""Ray Serve on a cluster of two nodes: two replicas under load, one of them killed, several times.

usage: ray_serve.py [REQUESTS] [MODEL] [--kills N] [--vllm-rs FILE] [--only questions|generator|vllm]

Loads of two kinds, each with a replica killed in the middle: questions, streamed and not, whose answers are compared with those
that the same questions get when nothing is killed; and the load generator of the server, `tools/serve/load.py`. `--vllm-rs` adds
`vllm-rs bench serve`, the load generator in the wheel of vLLM. Requests that were in the hands of the killed replica must get
a clean error: a status, or a stream that breaks off. All others get their answer. The replica must come back and answer.
Exits with 1 where that is not so, and where nothing happens for long.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ray_cluster import PATIENCE, WATCH, on_cluster, titles

import ray
from ray import serve

import clearway.ray

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/serve"))
from load import Load, VllmRs  # noqa: E402

CLIENTS = 8
# Seconds in which a request must have ended.
LONGEST = 120.0
VOCABULARY = 40_000
# Tokens of each prompt and each answer of load generators.
TOKENS = 16


class Answer(NamedTuple):
    """Status 0 stands for a connection that broke or a stream that did not end."""

    status: int
    text: str
    process: int | None
    """The replica that answered, where it said so."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", nargs="?", type=lambda text: min(int(text), 400), default=400, help="of each load, 400 at most")
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--kills", type=int, default=2, help="replicas killed under each load, one after the other")
    parser.add_argument("--vllm-rs", metavar="FILE", help="the load generator of vLLM")
    parser.add_argument("--only", choices=["questions", "generator", "vllm"], help="one of the loads")
    return parser.parse_args()


ARGS = arguments()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


PORT = free_port()


def replicas() -> list[int]:
    return sorted(process for process, title in titles().items() if title.startswith("ray::ServeReplica:"))


def kill_one(what: str, victim: int | None = None) -> int:
    victim = victim or replicas()[0]
    os.kill(victim, signal.SIGKILL)
    print(f"killed replica {victim} {what}", flush=True)
    return victim


def ask(index: int, stream: bool) -> Answer:
    body = {"prompt": f"Question {index % 40}: the sum of {index % 40} and 5 is", "max_tokens": 8, "seed": 3, "stream": stream}
    WATCH.sees(f"the start of question {index}")
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONGEST)
    process = None
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        named = response.getheader("X-Clearway-Replica")
        process = None if named is None else int(named.rpartition("/")[2])
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as problem:
        return Answer(0, repr(problem), process)
    finally:
        connection.close()
    if response.status != 200:
        return Answer(response.status, text, process)
    if not stream:
        return Answer(200, json.loads(text)["choices"][0]["text"], process)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return Answer(0, "the stream broke off", process)
    return Answer(200, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]), process)


class Killed(NamedTuple):
    process: int
    under_way: set[int]
    """Requests that were under way then."""


def questions(kill: bool) -> tuple[list[Answer], Killed | None]:
    """Answers to all requests, by their number; a replica is killed after a quarter of them."""
    answers: list[Answer | None] = [None] * ARGS.requests
    asked: set[int] = set()
    turn, lock = iter(range(ARGS.requests)), threading.Lock()
    killed: list[Killed] = []

    def client() -> None:
        while True:
            with lock:
                index = next(turn, None)
                if index is None:
                    return
                asked.add(index)
            answers[index] = ask(index, index % 2 == 0)
            with lock:
                if kill and not killed and index >= ARGS.requests // 4:
                    under_way = {one for one in asked if answers[one] is None}
                    victim = kill_one(f"at question {index}, {len(under_way)} under way")
                    killed.append(Killed(victim, under_way))

    started = time.monotonic()
    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    found = [answer if answer is not None else Answer(0, "none", None) for answer in answers]
    good = sum(answer.status == 200 for answer in found)
    print(f"questions: {good} answers of {len(found)} in {time.monotonic() - started:.1f} s", flush=True)
    return found, killed[0] if killed else None


def check_questions(plain: list[Answer]) -> tuple[list[str], int]:
    """Questions with a kill, held against the answers without; what was wrong, and how many were in its hands."""
    again, killed = questions(kill=True)
    if killed is None:
        return ["no replica was killed"], 0
    failed = [(index, answer) for index, answer in enumerate(again) if answer.status != 200]
    for index, answer in failed:
        print(f"question {index}: {answer.status} {answer.text[:120]!r} of {answer.process}", flush=True)
    wrong = []
    others = [index for index, answer in failed if index not in killed.under_way or answer.process not in (None, killed.process)]
    if others:
        wrong.append(f"questions failed that the dead replica did not have: {others}")
    # A stream that had begun can only break off; others get a status.
    unclean = [index for index, answer in failed if answer.status not in (500, 503) and index % 2]
    if unclean:
        wrong.append(f"questions without a clean error: {unclean}")
    differ = [i for i, (a, b) in enumerate(zip(plain, again)) if b.status == 200 and a[:2] != b[:2]]
    if differ:
        wrong.append(f"{len(differ)} answers differ")
    return wrong + back(killed.process), len(failed)


def generated(kill: bool) -> tuple[list[str], int]:
    """The load generator of the server; what was wrong, and how many failed."""
    load = Load(("127.0.0.1", PORT), VOCABULARY, TOKENS)
    in_its_hands: set[object] = set()
    killed: list[int] = []

    def watch(ended: int, under_way: set[object]) -> None:
        WATCH.sees(f"request {ended} of the load generator")
        if kill and not killed and ended >= ARGS.requests // 4:
            in_its_hands.update(under_way)
            killed.append(kill_one(f"after {ended} requests, {len(under_way)} under way"))

    done, seconds = load.run(ARGS.requests, CLIENTS, watch=watch, patience=LONGEST)
    print(f"load generator: {len(done)} answers of {ARGS.requests} in {seconds:.1f} s, {len(load.failed)} failed", flush=True)
    wrong = []
    others = [request for request in load.failed if request not in in_its_hands]
    if others:
        wrong.append(f"{len(others)} requests of the load generator failed that no dead replica had")
    # A stream that had begun can only break off; others get a status.
    unclean = [request for request in load.failed if request.status() not in (200, 500, 503)]
    if unclean:
        wrong.append(f"{len(unclean)} requests of the load generator got no clean error")
    return wrong + (back(killed[0]) if killed else []), len(load.failed)


class Stats(NamedTuple):
    process: int
    running: int
    ended: int


def stats() -> Stats | None:
    """What a replica counts, one or the other."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONGEST)
    try:
        connection.request("GET", "/stats")
        response = connection.getresponse()
        found = json.loads(response.read())
        process = int((response.getheader("X-Clearway-Replica") or "").rpartition("/")[2])
        return Stats(process, found["reading"] + found["decoding"], found["ended_by_budget"])
    except (OSError, http.client.HTTPException, ValueError, LookupError):
        return None
    finally:
        connection.close()


def all_stats() -> int:
    """Texts that both replicas have ended."""
    ended: dict[int, int] = {}

    def both_tell() -> bool:
        one = stats()
        if one:
            ended[one.process] = one.ended
        return set(ended) >= set(replicas())

    for what in until("what both replicas count", both_tell):
        raise TimeoutError(what)
    return sum(ended.values())


def vllm(program: str, kill: bool) -> tuple[list[str], int]:
    """The load generator of vLLM; what was wrong, and how many failed. A replica with requests in its hands is killed after a quarter of them."""
    before = all_stats()
    begun = threading.Event()
    clock: list[float] = []
    killed: list[tuple[int, float]] = []
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        generator = VllmRs(os.path.abspath(program), ("127.0.0.1", PORT), ARGS.model, VOCABULARY, TOKENS, folder, PATIENCE)
        command = [generator.program, "bench", "serve", *generator.flags, "--save-detailed", "--result-filename", "found.json"]
        command += ["--num-prompts", str(ARGS.requests), "--max-concurrency", str(CLIENTS)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def listen() -> None:
            for line in process.stdout or ():
                said.append(line)
                if "starting main benchmark run" in line:
                    clock.append(time.monotonic())
                    begun.set()
            begun.set()

        listener = threading.Thread(target=listen)
        listener.start()
        begun.wait()
        ended: dict[int, int] = {}
        while process.poll() is None:
            one = stats()
            if one and ended.get(one.process) != one.ended:
                ended[one.process] = one.ended
                WATCH.sees(f"text {one.ended} of replica {one.process}")
            count = sum(ended.values()) - before
            if kill and not killed and one and one.running and count >= ARGS.requests // 4:
                victim = kill_one(f"after {count} requests of vllm-rs, {one.running} in its hands", one.process)
                killed.append((victim, time.monotonic() - clock[0]))
            time.sleep(0.1)
        listener.join()
        try:
            with open(os.path.join(folder, "found.json")) as file:
                found = json.load(file)
        except OSError:
            return [f"vllm-rs ended with {process.returncode}: {''.join(said)[-2000:]}"], 0
    failed, starts = [], found["start_times"]
    for index, (error, written) in enumerate(zip(found["errors"], found["output_lens"])):
        if error or written != TOKENS:
            failed.append(index)
            print(f"request {index} of vllm-rs, sent at {starts[index]:.2f} s: {error[:120]!r}", flush=True)
    print(f"vllm-rs: {ARGS.requests - len(failed)} answers in {found['duration']:.1f} s, {len(failed)} failed", flush=True)
    wrong = []
    if len(starts) != ARGS.requests:
        wrong.append(f"vllm-rs tells of {len(starts)} requests")
    if not killed:
        wrong += ["no replica was killed"] if kill else []
        return wrong + ([f"{len(failed)} requests of vllm-rs failed without a kill"] if failed else []), len(failed)
    victim, when = killed[0]
    # It does not tell when a request failed; one that was under way began at most as long before as the longest took. Its
    # clock began a moment before its line was read here. No more can have been under way than it has in flight.
    earliest, latest = when - max(found["latencies"]) - 0.5, when + 0.5
    others = [index for index in failed if not earliest < starts[index] < latest]
    if others or len(failed) > CLIENTS:
        wrong.append(f"requests of vllm-rs failed that were not under way at {when:.2f} s: {others or failed}")
    return wrong + back(victim), len(failed)


def until(what: str, is_so: Callable[[], bool]) -> list[str]:
    """Waits for something; what did not come."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            return [f"{what} did not come"]
        WATCH.sees(f"a look for {what}")
        time.sleep(0.2)
    return []


def back(victim: int) -> list[str]:
    """Waits until another has taken the place of a replica; every question is answered meanwhile, and by both in the end."""
    statuses: set[int] = set()
    answered: set[int | None] = set()

    def both_answer() -> bool:
        answer = ask(1, False)
        statuses.add(answer.status)
        answered.add(answer.process)
        alive = replicas()
        return victim not in alive and len(alive) == 2 and answered >= set(alive)

    wrong = until(f"one in the place of replica {victim}", both_answer)
    return wrong + ([] if statuses == {200} else [f"afterwards: {statuses}"])


def check() -> list[str]:
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    WATCH.sees("the start of Serve")
    engine = {"deterministic": True, "max_model_len": 256, "max_num_seqs": 8, "device": "cpu", "threads": 1}
    serve.run(clearway.ray.deployment(ARGS.model, replicas=2, num_cpus=1, engine=engine), name="clearway")
    # The proxy learns of the application a moment after it is ready.
    wrong = until("the route", lambda: ask(0, False).status == 200)
    print(f"2 nodes, replicas {replicas()}, {ARGS.requests} requests of {CLIENTS} clients", flush=True)
    wrong += [what for what in (ask_models(), *map(ask_wrong, WRONG)) if what]
    lost = 0
    if ARGS.only in (None, "questions"):
        plain, _ = questions(kill=False)
        wrong += [] if all(answer.status == 200 for answer in plain) else ["errors without a kill"]
        for _ in range(ARGS.kills):
            more, failed = check_questions(plain)
            wrong, lost = wrong + more, lost + failed
    if ARGS.only in (None, "generator"):
        more, failed = generated(kill=False)
        wrong += more + ([f"{failed} requests of the load generator failed without a kill"] if failed else [])
        for _ in range(ARGS.kills):
            more, failed = generated(kill=True)
            wrong, lost = wrong + more, lost + failed
    if ARGS.only in (None, "vllm") and ARGS.vllm_rs:
        more, _ = vllm(ARGS.vllm_rs, kill=False)
        wrong += more
        for _ in range(ARGS.kills):
            more, failed = vllm(ARGS.vllm_rs, kill=True)
            wrong, lost = wrong + more, lost + failed
    # Otherwise nothing was tested.
    return wrong + ([] if lost else ["no replica had a request in its hands when it was killed"])


def ask_models() -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONGEST)
    connection.request("GET", "/v1/models")
    found = json.loads(connection.getresponse().read())
    return None if [row["id"] for row in found["data"]] == [ARGS.model] else f"models: {found}"


WRONG = (({"nonsense": 1}, 400, "nonsense"), ({"model": "another"}, 404, "there is no model `another`"))


def ask_wrong(what: tuple[dict[str, object], int, str]) -> str | None:
    more, status, word = what
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONGEST)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Hi"}], **more}))
    response = connection.getresponse()
    text = response.read().decode()
    return None if response.status == status and word in text else f"{more}: {response.status} {text}"


if __name__ == "__main__":
    sys.exit(on_cluster(check, serve.shutdown))
