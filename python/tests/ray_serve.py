"""Ray Serve on a cluster of two nodes: two replicas under load, one of them killed.

usage: ray_serve.py [REQUESTS] [MODEL]

Two kinds of load, each with a replica killed in the middle: questions, streamed and not, whose answers are compared with those
that the same questions get when nothing is killed; and the load generator of the server, `tools/serve/load.py`. Requests that
were in the hands of the killed replica must get a clean error: a status, or a stream that breaks off. All others get their
answer. The replica must come back. Exits with 1 where that is not so.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

# A busy machine takes long to start a node, and workers, which Ray runs at `nice` 15, would get hardly any time there.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
os.environ.setdefault("RAY_worker_niceness", "0")

import ray
from ray import serve
from ray.cluster_utils import Cluster

import clearway.ray

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/serve"))
from load import Load  # noqa: E402

REQUESTS = min(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, 400)
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2:135m"
CLIENTS = 8
PORT = 8123
# Tokens of each prompt and each answer of the load generator.
TOKENS = 16


def replicas() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                title = file.read().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::ServeReplica:"):
            found.append(int(name))
    return sorted(found)


def ask(index: int, stream: bool) -> tuple[int, str]:
    """Status and text of one answer; status 0 for a connection that broke or a stream that did not end."""
    body = {"prompt": f"Question {index % 40}: the sum of {index % 40} and 5 is", "max_tokens": 8, "seed": 3, "stream": stream}
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as problem:
        return 0, repr(problem)
    finally:
        connection.close()
    if response.status != 200:
        return response.status, text
    if not stream:
        return 200, json.loads(text)["choices"][0]["text"]
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return 0, "the stream broke off"
    return 200, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def load(kill: bool) -> tuple[list[tuple[int, str]], set[int]]:
    """Answers to all requests, by their number; a replica is killed after a quarter of them. And which were under way then."""
    answers: list[tuple[int, str] | None] = [None] * REQUESTS
    asked: set[int] = set()
    under_way: set[int] = set()
    turn, lock = iter(range(REQUESTS)), threading.Lock()
    killed: list[int] = []

    def client() -> None:
        while True:
            with lock:
                index = next(turn, None)
                if index is None:
                    return
                asked.add(index)
            answers[index] = ask(index, index % 2 == 0)
            if kill and index >= REQUESTS // 4:
                with lock:
                    if not killed:
                        killed.append(replicas()[0])
                        under_way.update(one for one in asked if answers[one] is None)
                        os.kill(killed[0], signal.SIGKILL)
                        print(f"killed replica {killed[0]} at request {index}, {len(under_way)} under way", flush=True)

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return [answer if answer is not None else (0, "none") for answer in answers], under_way


def generated_load(kill: bool) -> list[str]:
    """The load generator of the server; what was wrong."""
    load = Load(("127.0.0.1", PORT), 40_000, TOKENS)
    in_its_hands: set[object] = set()

    def watch(ended: int, under_way: set[object]) -> None:
        if kill and ended == REQUESTS // 4:
            in_its_hands.update(under_way)
            victim = replicas()[0]
            os.kill(victim, signal.SIGKILL)
            print(f"killed replica {victim} after {ended} requests, {len(under_way)} under way", flush=True)

    done, seconds = load.run(REQUESTS, CLIENTS, watch=watch)
    print(f"load generator: {len(done)} answers of {REQUESTS} in {seconds:.1f} s, {len(load.failed)} failed", flush=True)
    others = [request for request in load.failed if request not in in_its_hands]
    # A stream that had begun can only break off; others get a status.
    unclean = [request for request in load.failed if request.status() not in (200, 500, 503)]
    wrong = [] if not others else [f"{len(others)} requests of the load generator failed that no dead replica had"]
    return wrong + ([] if not unclean else [f"{len(unclean)} requests of the load generator got no clean error"])


def until(what: str, is_so: Callable[[], bool]) -> list[str]:
    """Waits for something; what did not come."""
    deadline = time.monotonic() + 120
    while not is_so():
        if time.monotonic() > deadline:
            return [f"{what} did not come"]
        time.sleep(0.5)
    return []


def main() -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    engine = {"deterministic": True, "max_model_len": 256, "max_num_seqs": 8, "device": "cpu", "threads": 1}
    serve.run(clearway.ray.deployment(MODEL, replicas=2, num_cpus=1, engine=engine), name="clearway")
    # The proxy learns of the application a moment after it is ready.
    wrong = until("the route", lambda: ask(0, False)[0] == 200)
    print(f"{len(ray.nodes())} nodes, {len(replicas())} replicas, {REQUESTS} requests of {CLIENTS} clients", flush=True)
    wrong += [what for what in (ask_models(), ask_wrong()) if what]
    started = time.monotonic()
    plain, _ = load(kill=False)
    print(f"without a kill: {sum(s == 200 for s, _ in plain)} answers in {time.monotonic() - started:.1f} s", flush=True)
    again, under_way = load(kill=True)
    failed = [(index, answer) for index, answer in enumerate(again) if answer[0] != 200]
    for index, answer in failed:
        print(f"request {index}: {answer[0]} {answer[1][:120]!r}", flush=True)
    wrong += [] if all(status == 200 for status, _ in plain) else ["errors without a kill"]
    # Only requests that were under way can have been in the hands of the replica.
    others = [index for index, _ in failed if index not in under_way]
    wrong += [] if not others else [f"failed, but asked for after the kill: {others}"]
    # A stream that had begun can only break off; others get a status.
    unclean = [index for index, (status, _) in failed if status not in (500, 503) and index % 2]
    wrong += [] if not unclean else [f"no clean error: {unclean}"]
    differ = [i for i, (a, b) in enumerate(zip(plain, again)) if b[0] == 200 and a != b]
    wrong += [] if not differ else [f"{len(differ)} answers differ"]
    wrong += until("the replica that was killed", lambda: len(replicas()) == 2)
    after = [ask(index, False)[0] for index in range(20)]
    wrong += [] if after == [200] * 20 else [f"afterwards: {after}"]
    print(f"with a kill: {len(failed)} of {REQUESTS} failed, {len(replicas())} replicas afterwards", flush=True)
    wrong += generated_load(kill=True)
    wrong += until("the replica that was killed under the load generator", lambda: len(replicas()) == 2)
    wrong += generated_load(kill=False)
    print(wrong or "as it should be", flush=True)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()
    return int(bool(wrong))


def ask_models() -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request("GET", "/v1/models")
    found = json.loads(connection.getresponse().read())
    return None if [row["id"] for row in found["data"]] == [MODEL] else f"models: {found}"


def ask_wrong() -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [], "nonsense": 1}))
    response = connection.getresponse()
    text = response.read().decode()
    return None if response.status == 400 and "nonsense" in text else f"a wrong field: {response.status} {text}"


if __name__ == "__main__":
    sys.exit(main())
