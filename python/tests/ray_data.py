"""Ray Data on a cluster of two nodes, one worker killed in the middle.

usage: ray_data.py [ROWS] [MODEL] [TOKENS]

Every row must come out once and be what it is without the kill. Exits with 1 where that is not so.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ray_cluster import WATCH, on_cluster, titles

import ray

import clearway.ray

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2:135m"
TOKENS = int(sys.argv[3]) if len(sys.argv) > 3 else 4
ACTORS = 2
# Few rows make many batches, too: a worker must be at work when a quarter is out.
BATCH = min(32, max(1, ROWS // 24))


def workers() -> dict[int, bool]:
    """Processes of Ray that hold a stage, and whether each has rows in its hands."""
    stages = {process: title for process, title in titles().items() if title.startswith("ray::") and "_Stage" in title}
    return {process: ".submit" in title for process, title in stages.items()}


def run(kill: bool) -> tuple[dict[int, tuple[str, int]], list[str]]:
    """All rows by their number, and what was wrong. One worker is killed once a quarter of the rows is out."""
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
    twice: list[int] = []
    started = time.monotonic()
    for row in texts.iter_rows():
        if row["id"] in found:
            twice.append(row["id"])
        found[row["id"]] = (row["text"], row["text_tokens"])
        WATCH.sees(f"row {len(found)} {'with' if kill else 'without'} a kill")
        if kill and not killed and len(found) >= ROWS // 4:
            alive = workers()
            busy = [process for process, is_busy in alive.items() if is_busy]
            # One that works, beside another: Ray starts them one after the other, and ends those that nothing is left for.
            if len(alive) == ACTORS and busy:
                killed.append(busy[0])
                os.kill(busy[0], signal.SIGKILL)
                print(f"killed worker {busy[0]} of {sorted(alive)} after {len(found)} rows", flush=True)
    print(f"{'with' if kill else 'without'} a kill: {len(found)} rows in {time.monotonic() - started:.1f} s", flush=True)
    wrong = [f"rows {twice} came twice"] if twice else []
    if kill and not killed:
        wrong.append("no worker was at work beside another")
    lost = sorted(set(range(ROWS)) - set(found))
    if lost:
        wrong.append(f"rows {lost} are lost")
    return found, wrong


def check() -> list[str]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    print(f"2 nodes, {ROWS} rows, {MODEL}, {TOKENS} tokens each", flush=True)
    plain, wrong = run(kill=False)
    again, more = run(kill=True)
    differ = [index for index in plain if index in again and plain[index] != again[index]]
    if differ:
        wrong.append(f"rows {differ} differ")
    texts = len(set(plain.values()))
    if texts < len(plain) // 10:
        # Rows that are all alike would hide one that came in the place of another.
        wrong.append(f"only {texts} different texts")
    print(f"{len(again)} rows compared, {len(differ)} differ; {texts} different texts", flush=True)
    return wrong + more


if __name__ == "__main__":
    sys.exit(on_cluster(check))
