"""Random JSON schemas against a server: every finished answer must be valid, every refusal must name a keyword.

usage: schemas.py URL MODEL COUNT [SEED]
"""

import concurrent.futures
import json
import random
import re
import sys
import urllib.error
import urllib.request

import jsonschema

URL, MODEL, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(2**32)
# The class has what `time` means today; a `FormatChecker` of no draft takes the oldest meaning.
VALIDATOR = jsonschema.Draft202012Validator
WORDS = ["alpha", "beta", "gamma", "delta", "size", "name", "kind", "x", "y", "größe", "a b"]


def leaf(rng):
    kind = rng.randrange(9)
    if kind == 0:
        return {"type": "string", "maxLength": rng.randint(1, 12)}
    if kind == 1:
        low = rng.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}
    if kind == 2:
        low = rng.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if kind == 3:
        return {"type": "number", "minimum": 0, "maximum": rng.randint(1, 9)}
    if kind == 4:
        return {"type": rng.choice(["boolean", "null"])}
    if kind == 5:
        return {"enum": rng.sample(WORDS + [1, 2.5, None, True], rng.randint(1, 4))}
    if kind == 6:
        return {"const": rng.choice([*WORDS, 7, {"a": [1]}])}
    if kind == 7:
        return {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^(foo|bar)-[0-9]{1,3}$", "^\\d{4}$"])}
    return {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid"])}


def schema(rng, depth):
    kind = rng.randrange(10)
    if depth == 0 or kind < 3:
        return leaf(rng)
    if kind < 5:
        low = rng.randint(0, 2)
        array = {"type": "array", "items": schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.randint(0, 2)}
        if rng.random() < 0.04:
            # Cannot be enforced, and must be refused.
            array["uniqueItems"] = True
        return array
    if kind < 9:
        names = rng.sample(WORDS, rng.randint(0, 4))
        required = [name for name in names if rng.random() < 0.7]
        properties = {name: schema(rng, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def ask(number):
    rng = random.Random(SEED + number)
    inner = schema(rng, 3)
    whole = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "Make an example."}], "max_tokens": 400,
        "seed": number, "temperature": 0.7,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": whole, "strict": True}},
    }
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=1200) as answer:
            choice = json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        message = json.load(error)["error"]["message"]
        if error.code != 400:
            return "wrong", f"schema {number} of seed {SEED}: status {error.code}: {message}"
        # It names a keyword, or a value, of the schema.
        named = [word for word in re.findall(r"`([^`]+)`", message) if f'"{word}"' in json.dumps(whole)]
        if not named:
            return "wrong", f"schema {number} of seed {SEED}: {json.dumps(whole)}: no keyword in `{message}`"
        return "refused", message
    text = choice["message"]["content"]
    if choice["finish_reason"] == "length":
        return "unfinished", text
    try:
        VALIDATOR(whole, format_checker=VALIDATOR.FORMAT_CHECKER).validate(json.loads(text))
    except (jsonschema.ValidationError, json.JSONDecodeError) as error:
        return "wrong", f"schema {number} of seed {SEED}: {json.dumps(whole)}: {text}: {error}"
    return "valid", text


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(ask, range(COUNT)))
counts = {kind: sum(result[0] == kind for result in results) for kind in ("valid", "unfinished", "refused", "wrong")}
print(f"seed {SEED}: {COUNT} schemas, {counts}")
for reason in sorted({message for kind, message in results if kind == "refused"})[:10]:
    print(f"  refused: {reason[:160]}")
for problem in [message for kind, message in results if kind == "wrong"][:10]:
    print(f"  wrong: {problem}")
if counts["wrong"]:
    sys.exit(f"{counts['wrong']} of {COUNT} answers are wrong")
accepted = counts["valid"] + counts["unfinished"]
if accepted * 10 < COUNT * 9:
    sys.exit(f"only {accepted} of {COUNT} schemas were accepted")
