"""Two servers behind LiteLLM and behind vllm-router, as docs/scale.md has them.

usage: routers.py LITELLM VLLM_ROUTER MODEL URL URL

LITELLM and VLLM_ROUTER are the programs. Needs nothing but Python 3.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

LITELLM, ROUTER, MODEL, *SERVERS = sys.argv[1:]
KEY = "sk-4f1c2a9b7d3e4865a0c9b8d7e6f50312"
REQUESTS = 24


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def call(url, body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **dict(headers)}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as answer:
        return answer.read().decode()


def texts(server):
    """Texts that a server has ended."""
    lines = re.findall(r"^clearway_texts_total\{.*\} (\d+)", call(f"{server}/metrics"), re.M)
    return sum(map(int, lines))


@contextlib.contextmanager
def running(name, command, health, patience, **environment):
    """A program until the end of the block, once it answers."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            start = time.monotonic()
            while True:
                with contextlib.suppress(OSError):
                    call(health)
                    break
                if process.poll() is not None or time.monotonic() > start + patience:
                    log.seek(0)
                    sys.exit(f"{name} does not answer:\n{log.read()[-4000:]}")
                time.sleep(0.2)
            print(f"{name}: up after {time.monotonic() - start:.1f} s", flush=True)
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ask(url, number):
    messages = [{"role": "user", "content": f"Count from {number}."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, "stream": number % 2 == 0}
    answer = call(f"{url}/v1/chat/completions", body)
    if not body["stream"]:
        return json.loads(answer)["choices"][0]["message"]["content"]
    assert answer.rstrip().endswith("data: [DONE]"), answer
    pieces = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for piece in pieces for choice in piece["choices"])


def share(name, url):
    before = [texts(server) for server in SERVERS]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(url, number), range(REQUESTS)))
    assert all(answers), answers
    shares = [texts(server) - count for server, count in zip(SERVERS, before)]
    print(f"{name}: {REQUESTS} requests, {' and '.join(map(str, shares))} by the servers", flush=True)
    assert sum(shares) == REQUESTS and min(shares) > 0, shares


def litellm(folder):
    port = free_port()
    entry = lambda server: {"model_name": MODEL, "litellm_params": {
        "model": f"openai/{MODEL}", "api_base": f"{server}/v1", "api_key": "none",
    }}
    config = {"model_list": [entry(server) for server in SERVERS], "router_settings": {"routing_strategy": "least-busy"}}
    path = os.path.join(folder, "litellm.yaml")
    with open(path, "w") as file:
        # JSON is YAML.
        json.dump(config, file)
    command = [LITELLM, "--config", path, "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    settings = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with running("LiteLLM", command, f"{url}/health/liveliness", 180, **settings):
        share("LiteLLM", url)
        body = {"model": MODEL, "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]}
        message = json.loads(call(f"{url}/v1/messages", body))
        assert message["content"][0]["text"], message
        vectors = json.loads(call(f"{url}/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}))
        assert len(vectors["data"]) == 2, vectors
        print("LiteLLM: /v1/messages and /v1/embeddings", flush=True)


def vllm_router():
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [ROUTER, "--worker-urls", *SERVERS, "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
               "--prometheus-port", str(metrics)]
    with running("vllm-router", command, f"{url}/v1/models", 60):
        share("vllm-router", url)


with tempfile.TemporaryDirectory() as scratch:
    vllm_router()
    litellm(scratch)
