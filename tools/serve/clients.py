"""The official clients against a server, in strict mode: every answer is validated by their own types.

usage: clients.py URL MODEL [KEY]

Exits with 1 at the first answer that is not what the client's types say, or not what was asked for.
"""

import json
import sys
import typing

import anthropic
import openai
import pydantic

URL, MODEL = sys.argv[1], sys.argv[2]
KEY = sys.argv[3] if len(sys.argv) > 3 else "none"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True)


def claude():
    return anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=True)


USER = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "size"],
    "additionalProperties": False,
}
PLACES = {
    "type": "object",
    "properties": {"place": {"enum": ["Paris", "Rome"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a place", "parameters": PLACES}}


def arguments(text):
    value = json.loads(text)
    assert value["place"] in ("Paris", "Rome"), value


@check
def models():
    found = client().models.list()
    assert MODEL in [model.id for model in found.data], found
    assert client().models.retrieve(MODEL).id == MODEL


@check
def chat():
    answer = client().chat.completions.create(model=MODEL, messages=USER, max_tokens=16, temperature=0, seed=1)
    choice = answer.choices[0]
    assert choice.message.content and choice.finish_reason in ("stop", "length"), answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    pieces, usage, reason = "", None, None
    stream = client().chat.completions.create(
        model=MODEL, messages=USER, max_tokens=16, temperature=0, seed=1, stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for part in chunk.choices:
            pieces += part.delta.content or ""
            reason = part.finish_reason or reason
    assert pieces == choice.message.content and reason == choice.finish_reason, (pieces, answer)
    assert usage.completion_tokens == answer.usage.completion_tokens


@check
def chat_options():
    answer = client().chat.completions.create(
        model=MODEL, messages=USER, max_completion_tokens=5, n=2, logprobs=True, top_logprobs=3, stop=["zzz"],
        logit_bias={"5": -100}, frequency_penalty=0.5, presence_penalty=0.5, top_p=0.9, user="me",
        extra_body={"ignore_eos": True},
    )
    assert len(answer.choices) == 2 and answer.usage.completion_tokens == 10, answer
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 5 and len(choice.logprobs.content[0].top_logprobs) == 3


@check
def completions():
    answer = client().completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
    text = answer.choices[0].text
    assert text and len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens, answer
    # The client's types have no place for a piece that is not the last: its `finish_reason` is null, as OpenAI sends it.
    loose = client().with_options()
    loose._strict_response_validation = False
    stream = loose.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]


@check
def structured():
    shape = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    answer = client().chat.completions.create(model=MODEL, messages=USER, max_tokens=60, response_format=shape)
    value = json.loads(answer.choices[0].message.content)
    assert value["colour"] in ("red", "green") and 1 <= value["size"] <= 9, value

    class Thing(pydantic.BaseModel):
        colour: typing.Literal["red", "green"]
        size: typing.Literal["small", "large"]

    parsed = client().chat.completions.parse(
        model=MODEL, messages=USER, max_tokens=200, temperature=0, response_format=Thing
    )
    assert isinstance(parsed.choices[0].message.parsed, Thing), parsed


@check
def tools():
    asked = {"model": MODEL, "messages": USER, "tools": [TOOL], "max_tokens": 120, "parallel_tool_calls": False}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = client().chat.completions.create(**asked, tool_choice=choice)
        assert answer.choices[0].finish_reason == "tool_calls", answer
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "weather"
        arguments(call.function.arguments)
    pieces, name = "", None
    for chunk in client().chat.completions.create(**asked, tool_choice="required", stream=True):
        for part in chunk.choices:
            for delta in part.delta.tool_calls or []:
                name = delta.function.name or name
                pieces += delta.function.arguments or ""
    assert name == "weather"
    arguments(pieces)
    history = USER + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny"},
    ]
    answer = client().chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=10)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls"), answer


@check
def responses():
    answer = client().responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0)
    assert answer.output_text and answer.status in ("completed", "incomplete"), answer
    stream = client().responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0, stream=True)
    text, last = "", None
    for event in stream:
        last = event
        if event.type == "response.output_text.delta":
            text += event.delta
    assert last.type in ("response.completed", "response.incomplete"), last
    assert text == answer.output_text == last.response.output_text, (text, answer.output_text)
    tool = {"type": "function", "name": "weather", "parameters": PLACES, "strict": True}
    answer = client().responses.create(
        model=MODEL, input="Say hello.", max_output_tokens=120, tools=[tool], tool_choice="required",
        parallel_tool_calls=False,
    )
    call = answer.output[0]
    assert call.type == "function_call", answer
    arguments(call.arguments)
    shape = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}}
    answer = client().responses.create(model=MODEL, input="Say hello.", max_output_tokens=60, text=shape)
    assert json.loads(answer.output_text)["colour"] in ("red", "green"), answer


@check
def embeddings():
    # Without a wish the client asks for base64 and reads it itself, after its types have refused a string.
    loose = client().with_options()
    loose._strict_response_validation = False
    found = loose.embeddings.create(model=MODEL, input=["Say hello.", "Something else"])
    plain = client().embeddings.create(model=MODEL, input=["Say hello.", "Something else"], encoding_format="float")
    for one, other in zip(found.data, plain.data, strict=True):
        assert len(one.embedding) == len(other.embedding) > 0
        assert abs(sum(a * b for a, b in zip(one.embedding, other.embedding)) - 1) < 1e-3
    assert found.usage.total_tokens == found.usage.prompt_tokens > 0, found.usage


@check
def errors():
    for body, error in (
        ({"model": "nothing", "messages": USER}, openai.NotFoundError),
        ({"model": MODEL, "messages": []}, openai.BadRequestError),
        ({"model": MODEL, "messages": USER, "extra_body": {"nonsense": 1}}, openai.BadRequestError),
    ):
        try:
            client().chat.completions.create(**body)
        except error as found:
            assert found.body["message"], found
        else:
            raise AssertionError(body)
    try:
        claude().messages.create(model=MODEL, messages=[], max_tokens=5)
    except anthropic.BadRequestError as found:
        assert found.body["error"]["type"] == "invalid_request_error", found.body
    else:
        raise AssertionError("no messages")


@check
def messages():
    # The client has no argument for the temperature any more; servers still take it.
    greedy = {"temperature": 0}
    asked = {"model": MODEL, "max_tokens": 16, "messages": USER, "extra_body": greedy, "system": "Be brief."}
    answer = claude().messages.create(**asked)
    text = "".join(block.text for block in answer.content)
    assert text and answer.stop_reason in ("end_turn", "max_tokens"), answer
    with claude().messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text
        last = stream.get_final_message()
    assert last.stop_reason == answer.stop_reason and last.usage.output_tokens == answer.usage.output_tokens
    count = claude().messages.count_tokens(model=MODEL, messages=USER, system="Be brief.")
    usage = answer.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)
    tool = {"name": "weather", "description": "Weather of a place", "input_schema": PLACES}
    answer = claude().messages.create(
        model=MODEL, max_tokens=120, messages=USER, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert answer.stop_reason == "tool_use", answer
    call = answer.content[-1]
    arguments(json.dumps(call.input))
    history = USER + [
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}]},
    ]
    answer = claude().messages.create(model=MODEL, max_tokens=10, messages=history, tools=[tool])
    assert answer.type == "message", answer


for one in CHECKS:
    one()
    print(f"{one.__name__}: good", flush=True)
print(f"{len(CHECKS)} checks with openai {openai.__version__} and anthropic {anthropic.__version__}")
