"""Ray Serve on a cluster of two nodes: two replicas under load, one of them killed, several times.

usage: ray_serve.py [REQUESTS] [MODEL] [--kills N] [--vllm-rs FILE] [--only questions|generator|vllm]

Loads of two kinds, each with a replica killed in the middle: questions, streamed and not, whose answers are compared with those
that the same questions get when nothing is killed; and the load generator of the server, `tools/serve/load.py`. `--vllm-rs` adds
`vllm-rs bench serve`, the load generator in the wheel of vLLM. The replica must come back and answer.

Every request has a name, its `X-Request-Id`. Ray's proxies write down which replica accepted it and when it ended, and replicas
write down which requests they began. A request may fail only where the replica that was killed had accepted it, no other one did,
and it had not ended by then. It must get a clean error: status 500 or 503, or a stream that breaks off, which HTTP shows. All others
get their answer.
Exits with 1 where that is not so, and where nothing happens for long.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ray_cluster import PATIENCE, WATCH, on_cluster, titles

import ray
from ray import serve
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig

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
    """Status 0 stands for a connection that broke or a stream without its end."""

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
# What proxies and replicas write down: a file of each process.
NOTES = tempfile.mkdtemp(prefix="clearway-ray-")


def replicas() -> list[int]:
    return sorted(process for process, title in titles().items() if title.startswith("ray::ServeReplica:"))


def note(folder: str, *words: object) -> None:
    with open(os.path.join(folder, str(os.getpid())), "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


class Router(PowerOfTwoChoicesRequestRouter):
    """The router of Serve, in its proxies, with notes of the requests that replicas accepted."""

    folder = NOTES

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        super().on_request_routed(pending_request, replica_id, result)
        about = pending_request.metadata
        note(self.folder, "accepted", about.internal_request_id, replica_id.unique_id, time.monotonic(), about.request_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        note(self.folder, "ended", internal_request_id, replica_id.unique_id, time.monotonic())


class Replica(clearway.ray._Replica):
    """A replica, with notes of the requests that it began."""

    folder = NOTES

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        note(self.folder, "replica", self._replica.partition("/")[0])

    async def __call__(self, request: Any) -> Any:
        note(self.folder, "began", request.headers.get("x-request-id"))
        return await super().__call__(request)


class Killed(NamedTuple):
    process: int
    other: int
    """The replica that lived."""
    when: float


class Record(NamedTuple):
    """What is known of a request. Times are those of `time.monotonic`, which processes of one machine share."""

    accepted: dict[int, float]
    """When replicas accepted it, by process."""
    ended: dict[int, float]
    refused: set[int]
    """Replicas that were sent it and did not accept it, the dead ones among them."""
    began: set[int]
    """Replicas that say so themselves."""

    def had(self, when: float) -> set[int]:
        """Replicas that had it then."""
        return {process for process, since in self.accepted.items() if since <= when <= self.ended.get(process, when)}

    def died_with(self, killed: Killed) -> bool:
        # A proxy may learn of what a replica accepted when it is dead.
        return killed.process in self.accepted and self.ended.get(killed.process, killed.when) >= killed.when


NOBODY = Record({}, {}, set(), set())


def records(prefix: str) -> dict[str, Record]:
    """What proxies and replicas wrote down of requests whose names begin so."""
    rows = []
    for name in os.listdir(NOTES):
        with open(os.path.join(NOTES, name)) as file:
            rows += [(int(name), *line.split()) for line in file if line.endswith("\n")]
    processes = {words[0]: process for process, kind, *words in rows if kind == "replica"}
    names = {words[0]: words[3] for _, kind, *words in rows if kind == "accepted" and words[3].startswith(prefix)}
    found = {name: Record({}, {}, set(), set()) for name in names.values()}
    for process, kind, *words in rows:
        if kind == "began" and words[0].startswith(prefix):
            found.setdefault(words[0], Record({}, {}, set(), set())).began.add(process)
        elif kind in ("accepted", "ended") and words[0] in names:
            one, replica, at = found[names[words[0]]], processes[words[1]], float(words[2])
            if kind == "accepted":
                one.accepted[replica] = at
            elif replica in one.accepted:
                one.ended[replica] = at
            else:
                one.refused.add(replica)
    return found


def kill_one(prefix: str, done: int) -> Killed | None:
    """Kills the replica that has most requests, once a quarter are done and both have some, or half are done and one has."""
    alive = replicas()
    if done < ARGS.requests // 4 or len(alive) != 2:
        return None
    now = time.monotonic()
    had = [process for record in records(prefix).values() for process in record.had(now)]
    other, victim = sorted(alive, key=had.count)
    if victim not in had or (other not in had and done < ARGS.requests // 2):
        return None
    killed = Killed(victim, other, time.monotonic())
    os.kill(victim, signal.SIGKILL)
    print(f"killed replica {victim} when {done} were done; it had {had.count(victim)}, the other {had.count(other)}", flush=True)
    return killed


class Failure(NamedTuple):
    name: str
    what: str
    is_clean: bool


def judge(load: str, prefix: str, killed: Killed | None, answered: Iterable[str], failures: list[Failure]) -> list[str]:
    """What was wrong with a load: failures of requests that the dead replica did not have, and those without a clean error."""
    found = records(prefix)
    wrong = []
    for failure in failures:
        record = found.get(failure.name, NOBODY)
        # Times are from the kill.
        accepted = [f"{process} at {at - killed.when if killed else at:+.3f} s" for process, at in record.accepted.items()]
        by, began = (", ".join(map(str, some)) or "none" for some in (accepted, record.began))
        print(f"{failure.name}: {failure.what}; accepted by {by}; begun by {began}", flush=True)
        if killed is None:
            wrong.append(f"{failure.name} failed without a kill")
        elif not record.died_with(killed) or set(record.accepted) | record.began != {killed.process}:
            wrong.append(f"{failure.name} failed, which the dead replica did not have, or not alone")
        if not failure.is_clean:
            wrong.append(f"{failure.name} got no clean error")
    lacking = [name for name in answered if not found.get(name, NOBODY).accepted]
    if lacking:
        wrong.append(f"nobody wrote down who had {lacking}")
    if killed:
        names = {failure.name for failure in failures}
        own = {name for name, record in found.items() if record.died_with(killed)}
        others = {name for name, record in found.items() if killed.other in record.had(killed.when)}
        resent = [name for name, record in found.items() if killed.process in record.refused]
        newer = [name for name, record in found.items() if set(record.accepted) - {killed.process, killed.other}]
        print(f"{load}: the dead replica had {len(own)}, {len(own & names)} failed; the other had {len(others)}, {len(others & names)} failed; "
              f"{len(names - own - others)} more failed; {len(resent)} sent to the dead one went to another; the one in its place accepted "
              f"{len(newer)}", flush=True)  # fmt: skip
    return wrong


def ask(index: int, stream: bool, prefix: str | None = None) -> Answer:
    body = {"prompt": f"Question {index % 40}: the sum of {index % 40} and 5 is", "max_tokens": 8, "seed": 3, "stream": stream}
    WATCH.sees(f"the start of question {index}")
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONGEST)
    process = None
    try:
        headers = {"Content-Type": "application/json"} | ({"X-Request-Id": f"{prefix}{index}"} if prefix else {})
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
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
        return Answer(0, "the stream ended as if it were whole", process)
    return Answer(200, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]), process)


LOADS = itertools.count()


def questions(kill: bool) -> tuple[list[Answer], Killed | None, str]:
    """Answers to all requests, by their number; a replica is killed in the middle of them. And what their names begin with."""
    answers: list[Answer | None] = [None] * ARGS.requests
    turn, lock = iter(range(ARGS.requests)), threading.Lock()
    killed: list[Killed] = []
    prefix = f"question-{next(LOADS)}-"

    def client() -> None:
        while True:
            with lock:
                index = next(turn, None)
            if index is None:
                return
            answers[index] = ask(index, index % 2 == 0, prefix)
            with lock:
                if kill and not killed:
                    killed.extend(filter(None, [kill_one(prefix, ARGS.requests - answers.count(None))]))

    started = time.monotonic()
    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    found = [answer if answer is not None else Answer(0, "none", None) for answer in answers]
    good = sum(answer.status == 200 for answer in found)
    print(f"questions: {good} answers of {len(found)} in {time.monotonic() - started:.1f} s", flush=True)
    return found, killed[0] if killed else None, prefix


def check_questions(plain: list[Answer]) -> tuple[list[str], int]:
    """Questions with a kill, held against the answers without; what was wrong, and how many failed."""
    again, killed, prefix = questions(kill=True)
    if killed is None:
        return ["no replica was killed"], 0
    answered, failures = [], []
    found = records(prefix)
    others = []
    for index, answer in enumerate(again):
        name = f"{prefix}{index}"
        if answer.process not in (None, *found.get(name, NOBODY).accepted):
            others.append(name)
        if answer.status == 200:
            answered.append(name)
        else:
            # A stream that names its replica had begun.
            is_broken = answer.process is not None and answer.text.startswith(("IncompleteRead", "ConnectionReset")) and index % 2 == 0
            is_clean = answer.status in (500, 503) or is_broken
            what = f"{answer.status} {answer.text[:80]!r} of {answer.process}"
            failures.append(Failure(name, what, is_clean))
    wrong = judge("questions", prefix, killed, answered, failures)
    if others:
        wrong.append(f"other replicas than those that accepted them answered {others}")
    differ = [i for i, (a, b) in enumerate(zip(plain, again)) if b.status == 200 and a[:2] != b[:2]]
    if differ:
        wrong.append(f"{len(differ)} answers differ")
    return wrong + back(killed.process), len(failures)


def generated(kill: bool) -> tuple[list[str], int]:
    """The load generator of the server; what was wrong, and how many failed."""
    load = Load(("127.0.0.1", PORT), VOCABULARY, TOKENS)
    killed: list[Killed] = []
    prefix = f"load-{next(LOADS)}-"

    def watch(ended: int, _: set[object]) -> None:
        WATCH.sees(f"request {ended} of the load generator")
        if kill and not killed:
            killed.extend(filter(None, [kill_one(prefix, ended)]))

    done, seconds = load.run(ARGS.requests, CLIENTS, watch=watch, patience=LONGEST, prefix=prefix)
    print(f"load generator: {len(done)} answers of {ARGS.requests} in {seconds:.1f} s, {len(load.failed)} failed", flush=True)
    if kill and not killed:
        return ["no replica was killed"], 0
    failures = []
    for one in load.failed:
        # A stream that had begun breaks off: it lacks the last chunk, which is empty.
        is_clean = one.status() in (500, 503) or (one.status() == 200 and not one.received.endswith(b"\r\n0\r\n\r\n"))
        failures.append(Failure(one.name, f"{one.status()} {one.received[-80:]!r}", is_clean))
    wrong = judge("load generator", prefix, killed[0] if killed else None, [one.name for one in done], failures)
    return wrong + (back(killed[0].process) if killed else []), len(failures)


def vllm(program: str, kill: bool) -> tuple[list[str], int]:
    """The load generator of vLLM; what was wrong, and how many failed."""
    said: list[str] = []
    killed: Killed | None = None
    prefix = f"vllm-{next(LOADS)}-"
    with tempfile.TemporaryDirectory() as folder:
        generator = VllmRs(os.path.abspath(program), ("127.0.0.1", PORT), ARGS.model, VOCABULARY, TOKENS, folder, PATIENCE)
        command = [generator.program, "bench", "serve", *generator.flags, "--save-detailed", "--result-filename", "found.json"]
        command += ["--num-prompts", str(ARGS.requests), "--max-concurrency", str(CLIENTS), "--request-id-prefix", prefix]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        listener = threading.Thread(target=lambda: said.extend(process.stdout or ()))
        listener.start()
        last = 0
        while process.poll() is None:
            ended = sum(bool(record.ended) for record in records(prefix).values())
            if ended != last:
                last = ended
                WATCH.sees(f"request {ended} of vllm-rs")
            if kill and not killed:
                killed = kill_one(prefix, ended)
            time.sleep(0.1)
        listener.join()
        try:
            with open(os.path.join(folder, "found.json")) as file:
                found = json.load(file)
        except OSError:
            return [f"vllm-rs ended with {process.returncode}: {''.join(said)[-2000:]}"], 0
    answered, failures = [], []
    # It names requests by their number.
    for index, (error, written) in enumerate(zip(found["errors"], found["output_lens"])):
        if error or written != TOKENS:
            # What it says of a status, and of a stream that had begun and broke off.
            is_clean = re.match("HTTP 50[03] |Stream error: ", error) is not None
            failures.append(Failure(f"{prefix}{index}", f"{error[:80]!r}", is_clean))
        else:
            answered.append(f"{prefix}{index}")
    print(f"vllm-rs: {len(answered)} answers of {ARGS.requests} in {found['duration']:.1f} s, {len(failures)} failed", flush=True)
    if kill and not killed:
        return ["no replica was killed"], 0
    wrong = [] if len(found["errors"]) == ARGS.requests else [f"vllm-rs tells of {len(found['errors'])} requests"]
    wrong += judge("vllm-rs", prefix, killed, answered, failures)
    return wrong + (back(killed.process) if killed else []), len(failures)


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
    router = RequestRouterConfig(request_router_class=Router)
    app = clearway.ray.deployment(ARGS.model, replicas=2, num_cpus=1, engine=engine, request_router_config=router)
    # The same, with replicas that take notes.
    app = serve.Application(app._bound_deployment.options(func_or_class=Replica))
    serve.run(app, name="clearway")
    # The proxy learns of the application a moment after it is ready.
    wrong = until("the route", lambda: ask(0, False).status == 200)
    print(f"2 nodes, replicas {replicas()}, {ARGS.requests} requests of {CLIENTS} clients", flush=True)
    wrong += [what for what in (ask_models(), *map(ask_wrong, WRONG)) if what]
    lost = 0
    if ARGS.only in (None, "questions"):
        plain, _, _ = questions(kill=False)
        wrong += [] if all(answer.status == 200 for answer in plain) else ["errors without a kill"]
        for _ in range(ARGS.kills):
            more, failed = check_questions(plain)
            wrong, lost = wrong + more, lost + failed
    if ARGS.only in (None, "generator"):
        more, _ = generated(kill=False)
        wrong += more
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
    sys.exit(on_cluster(check, serve.shutdown, lambda: shutil.rmtree(NOTES)))
