"""Ray Data on a cluster of two nodes, one worker killed in the middle.

usage: ray_data.py [ROWS] [MODEL] [TOKENS]

Every row must come out once and be what it is without the kill. Exits with 1 where that is not so.
"""

from __future__ import annotations

import os
import signal
import sys
import time

# A busy machine takes long to start a node, and workers, which Ray runs at `nice` 15, would get hardly any time there.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
os.environ.setdefault("RAY_worker_niceness", "0")

import ray
from ray.cluster_utils import Cluster

import clearway.ray

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2:135m"
TOKENS = int(sys.argv[3]) if len(sys.argv) > 3 else 4
ACTORS = 2
BATCH = 32
# Bytes of the object store of a node: rows are small.
STORE = 200 << 20


def workers() -> dict[int, bool]:
    """Processes of Ray that hold a stage, and whether each has rows in its hands."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                title = file.read().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::") and "_Stage" in title:
            found[int(name)] = ".submit" in title
    return found


def run(kill: bool) -> tuple[dict[int, tuple[str, int]], float]:
    """All rows by their number, and the seconds they took. One worker is killed once a quarter of the rows is out."""
    rows = ray.data.from_items(
        [{"id": index, "prompt": f"{index}: {index % 97} + {index % 31} ="} for index in range(ROWS)],
        override_num_blocks=max(8, ROWS // BATCH),
    )
    engine = {"deterministic": True, "max_model_len": 64, "max_num_seqs": 32, "device": "cpu", "threads": 1}
    texts = clearway.ray.generate(
        rows,
        MODEL,
        sampling_params={"max_tokens": TOKENS, "seed": 11},
        concurrency=ACTORS,
        batch_size=BATCH,
        engine=engine,
    )
    found: dict[int, tuple[str, int]] = {}
    killed: list[int] = []
    started = time.monotonic()
    for row in texts.iter_rows():
        assert row["id"] not in found, f"row {row['id']} came twice"
        found[row["id"]] = (row["text"], row["text_tokens"])
        if kill and not killed and len(found) >= ROWS // 4:
            alive = workers()
            busy = [process for process, is_busy in alive.items() if is_busy]
            # One that works, beside another: Ray starts them one after the other, and ends those that nothing is left for.
            if len(alive) == ACTORS and busy:
                killed.append(busy[0])
                os.kill(busy[0], signal.SIGKILL)
                print(f"killed worker {busy[0]} of {sorted(alive)} after {len(found)} rows", flush=True)
    assert bool(killed) == kill, "no worker was at work beside another"
    return found, time.monotonic() - started


def main() -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE})
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    nodes = [node for node in ray.nodes() if node["Alive"]]
    print(f"{len(nodes)} nodes, {ROWS} rows, {MODEL}, {TOKENS} tokens each", flush=True)
    assert len(nodes) == 2
    plain, seconds = run(kill=False)
    print(f"without a kill: {len(plain)} rows in {seconds:.1f} s", flush=True)
    again, seconds = run(kill=True)
    print(f"with a kill: {len(again)} rows in {seconds:.1f} s", flush=True)
    lost = set(range(ROWS)) - set(again)
    differ = [index for index in plain if plain[index] != again.get(index)]
    print(f"lost {len(lost)}, different {len(differ)}; {len(set(plain.values()))} different texts", flush=True)
    ray.shutdown()
    cluster.shutdown()
    return int(bool(lost or differ or len(plain) != ROWS))


if __name__ == "__main__":
    sys.exit(main())
