"""The Kubernetes manifests of docs/kubernetes: their form, that they name each other rightly, and the metrics they ask for.

usage: manifests.py FOLDER URL

Kinds of Kubernetes itself are validated by its schemas; those of the Gateway API and its inference extension by the
fields below, which are those of their v1.
"""

import pathlib
import re
import sys
import urllib.request

import kubernetes_validate
import yaml

FOLDER, URL = pathlib.Path(sys.argv[1]), sys.argv[2]
KUBERNETES = "1.34"

# Field to what it holds: a type, a set of words, a pattern, a list of one of these, or more fields. `!` ends required ones.
NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
OTHERS = {
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "targetPorts!": [{"number!": int}],
        "selector!": {"matchLabels!": dict},
        "endpointPickerRef!": {
            "group": str, "kind": str, "name!": NAME, "port": {"number!": int}, "failureMode": {"FailOpen", "FailClose"},
        },
    },
    ("gateway.networking.k8s.io/v1", "Gateway"): {
        "gatewayClassName!": NAME,
        "listeners!": [{"name!": NAME, "port!": int, "protocol!": {"HTTP", "HTTPS", "TLS", "TCP", "UDP"}}],
    },
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "parentRefs": [{"group": str, "kind": str, "name!": NAME}],
        "rules": [{
            "matches": [{"path": {"type": {"Exact", "PathPrefix"}, "value": re.compile("^/")}}],
            "backendRefs": [{"group": str, "kind": str, "name!": NAME, "port": int}],
            "timeouts": {"request": re.compile(r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"), "backendRequest": str},
        }],
    },
}


def check(value, form, where):
    if isinstance(form, list):
        assert isinstance(value, list) and value, where
        for index, item in enumerate(value):
            check(item, form[0], f"{where}[{index}]")
    elif isinstance(form, dict):
        assert isinstance(value, dict), where
        fields = {name.rstrip("!"): inner for name, inner in form.items()}
        for name in form:
            assert not name.endswith("!") or name[:-1] in value, f"{where}.{name[:-1]} is missing"
        for name, inner in value.items():
            assert name in fields, f"{where}.{name} is unknown"
            check(inner, fields[name], f"{where}.{name}")
    elif isinstance(form, re.Pattern):
        assert form.match(value), f"{where}: {value}"
    elif isinstance(form, set):
        assert value in form, f"{where}: {value}"
    else:
        assert isinstance(value, form), f"{where}: {value}"


objects = {}
for path in sorted(FOLDER.glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        key = (document["apiVersion"], document["kind"])
        name = document["metadata"]["name"]
        assert (document["kind"], name) not in objects, f"{path}: {name} stands there twice"
        objects[document["kind"], name] = document
        if key in OTHERS:
            assert set(document) == {"apiVersion", "kind", "metadata", "spec"}, path
            check(document["spec"], OTHERS[key], f"{path.name}: {document['kind']}")
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)

# They name each other.
pool = objects["InferencePool", "clearway"]["spec"]
server = objects["Deployment", "clearway"]["spec"]["template"]
picker = objects["Service", pool["endpointPickerRef"]["name"]]["spec"]
assert pool["selector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
container = server["spec"]["containers"][0]
assert [port["number"] for port in pool["targetPorts"]] == [port["containerPort"] for port in container["ports"]]
assert f"--port={pool['targetPorts'][0]['number']}" in container["args"]
assert pool["endpointPickerRef"]["port"]["number"] in [port["port"] for port in picker["ports"]]
for rule in objects["HTTPRoute", "clearway"]["spec"]["rules"]:
    assert all((backend["kind"], backend["name"]) in objects for backend in rule["backendRefs"])

# The server has every metric that the picker asks for.
arguments = objects["Deployment", "clearway-picker"]["spec"]["template"]["spec"]["containers"][0]["args"]
wanted = [argument.partition("=")[2] for argument in arguments if argument.partition("=")[0].endswith("-metric")]
with urllib.request.urlopen(f"{URL}/metrics") as answer:
    metrics = answer.read().decode()
for name in wanted:
    assert re.search(f"^{name}[{{ ]", metrics, re.M), f"{name} is not in /metrics"
assert len(wanted) == 5, wanted
for label in ("block_size", "num_gpu_blocks"):
    assert re.search(f"^vllm:cache_config_info{{[^}}]*{label}=\"[0-9]+\"", metrics, re.M), label
print(f"{len(objects)} objects, {len(wanted)} metrics")
