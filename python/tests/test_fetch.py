"""A model that is not in the cache is fetched once, with a bar."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clearway import LLM, SamplingParams

PARTS = 12
"""The file comes in so many parts, with a pause after each."""
PAUSE = 0.12


@pytest.fixture()
def hub(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A hub on this machine with one file and a slow line, and an empty cache."""
    data = tiny_file.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            about = self.path.startswith("/api/models/some/repo")
            body = json.dumps({"siblings": [{"rfilename": "tiny.gguf", "size": len(data)}]}).encode() if about else data
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if about:
                self.wfile.write(body)
                return
            step = -(-len(body) // PARTS)
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(PAUSE)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("CLEARWAY_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_fetch_has_a_bar_that_fills_and_goes(hub, capsys):
    options = {"device": "cpu", "threads": 1, "max_num_seqs": 1}
    with LLM("hf:some/repo:tiny.gguf", **options) as llm:
        assert llm.generate("ab", SamplingParams(max_tokens=2, ignore_eos=True))[0].finished
    shown = capsys.readouterr().err
    bars = re.findall(r"fetching hf:some/repo:tiny\.gguf \[(=*) *\] \d+/\d+ MB", shown)
    filled = [len(bar) for bar in bars]
    assert len(filled) >= 3 and filled == sorted(filled) and filled[0] < filled[-1], shown
    assert shown.endswith("\r") and not shown.rsplit("\r", 2)[-2].strip(), "the line is left empty"
    # The second load takes the file from the cache: the hub is not asked and nothing is drawn.
    hub.shutdown()
    with LLM("hf:some/repo:tiny.gguf", **options) as llm:
        assert llm.generate("ab", SamplingParams(max_tokens=2, ignore_eos=True))[0].finished
    assert "fetching" not in capsys.readouterr().err


def test_a_fetch_without_a_bar_is_silent(hub, capsys):
    LLM("hf:some/repo:tiny.gguf", device="cpu", threads=1, max_num_seqs=1, progress=False).close()
    assert capsys.readouterr().err == ""


def test_importing_takes_neither_numpy_nor_long():
    program = "import sys, time\nstarted = time.perf_counter()\nimport clearway\nprint(time.perf_counter() - started, 'numpy' in sys.modules)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split() for _ in range(5)]
    assert {numpy for _, numpy in runs} == {"False"}
    # The fastest of five: other programs may take the processor meanwhile.
    assert min(float(seconds) for seconds, _ in runs) < 0.2, runs
