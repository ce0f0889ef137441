"""What the checks on Ray share: a cluster of two nodes on this machine, and a watch that brings a check to its end."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

# A busy machine takes long to start a node, and workers, which Ray runs at `nice` 15, would get hardly any time there.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
os.environ.setdefault("RAY_worker_niceness", "0")
# Serve kills a proxy that is not ready within five seconds.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

# Bytes of the object store of a node: rows, requests and answers are small.
STORE = 200 << 20
# Seconds in which something must have happened.
PATIENCE = float(os.environ.get("CLEARWAY_RAY_PATIENCE", "600"))
# Seconds that Ray gets to end a cluster.
PATIENCE_OF_THE_END = 120.0


def descendants() -> set[int]:
    """Processes that this one started, those that they started, and so on."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    more = {os.getpid()}
    while more:
        more = {process for process, parent in parents.items() if parent in more} - found
        found |= more
    return found


def titles() -> dict[int, str]:
    """What the processes of the cluster call themselves."""
    found = {}
    for process in descendants():
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                found[process] = file.read().decode(errors="replace")
        except OSError:
            continue
    return found


def end(processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Watch:
    """Ends the check where nothing happens for too long: it has a verdict whatever Ray does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ("the start of the program", time.monotonic(), PATIENCE, 1)
        threading.Thread(target=self._run, daemon=True).start()

    def sees(self, what: str, patience: float = PATIENCE, status: int = 1) -> None:
        """Something has happened; what comes next has so many seconds, or the program ends with this status."""
        with self._lock:
            self._now = (what, time.monotonic(), patience, status)

    def _run(self) -> None:
        while True:
            time.sleep(1)
            with self._lock:
                what, since, patience, status = self._now
            if time.monotonic() - since > patience:
                print(f"nothing happened for {patience:.0f} s after {what}", flush=True)
                if status:
                    faulthandler.dump_traceback(all_threads=True)
                    print("not as it should be", flush=True)
                end(descendants())
                os._exit(status)


WATCH = Watch()


def on_cluster(check: Callable[[], list[str]], *ends: Callable[[], object]) -> int:
    """Runs a check on a cluster of two nodes, prints its verdict and returns the status of the program.

    A check returns what was wrong. The cluster ends with it: `ends` first, and by force where Ray does not end it.
    """
    import ray
    from ray.cluster_utils import Cluster

    cluster = None
    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE})
        cluster.add_node(num_cpus=2, object_store_memory=STORE)
        ray.init(address=cluster.address, log_to_driver=False)
        WATCH.sees("the start of the cluster")
        alive = sum(node["Alive"] for node in ray.nodes())
        wrong = check() if alive == 2 else [f"{alive} nodes in place of two"]
    except (Exception, SystemExit) as problem:
        traceback.print_exc()
        wrong = [f"the check broke off: {problem!r}"]
    for what in wrong:
        print(f"wrong: {what}", flush=True)
    print("not as it should be" if wrong else "as it should be", flush=True)
    status = int(bool(wrong))
    WATCH.sees("the verdict", PATIENCE_OF_THE_END, status)
    for one in (*ends, ray.shutdown, *([cluster.shutdown] if cluster else [])):
        with contextlib.suppress(Exception):
            one()
    end(descendants())
    return status
