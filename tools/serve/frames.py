"""Libraries that people build on: tools and structured output through langchain, pydantic-ai and instructor.

usage: frames.py URL MODEL langchain|pydantic_ai|instructor

Each stands in an environment of its own: they ask for different versions of the same packages.
"""

import enum
import sys

import pydantic

URL, MODEL, LIBRARY = sys.argv[1] + "/v1", sys.argv[2], sys.argv[3]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Thing(pydantic.BaseModel):
    """A thing."""

    colour: Colour
    large: bool


def langchain():
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(base_url=URL, api_key="none", model=MODEL, max_tokens=100, max_retries=0)
    assert chat.invoke("Say hello.").content
    assert "".join(piece.content for piece in chat.stream("Say hello."))
    for method in ("json_schema", "function_calling"):
        thing = chat.with_structured_output(Thing, method=method).invoke("Describe a red thing.")
        assert isinstance(thing, Thing), thing

    @tool
    def weather(place: Colour) -> str:
        """The weather of a place."""
        return str(place)

    answer = chat.bind_tools([weather], tool_choice="any").invoke("How is the weather?")
    call = answer.tool_calls[0]
    assert call["name"] == "weather" and call["args"]["place"] in ("red", "green"), call
    vectors = OpenAIEmbeddings(base_url=URL, api_key="none", model=MODEL, check_embedding_ctx_length=False)
    found = vectors.embed_documents(["a", "b"])
    assert len(found) == 2 and len(found[0]) == len(found[1]) > 0


def pydantic_ai():
    from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    settings = ModelSettings(max_tokens=100)
    assert Agent(model, model_settings=settings).run_sync("Say hello.").output
    for output in (NativeOutput(Thing), ToolOutput(Thing)):
        found = Agent(model, output_type=output, model_settings=settings).run_sync("Describe a red thing.").output
        assert isinstance(found, Thing), found


def instructor():
    import instructor
    import openai

    client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=MODEL, response_model=Thing, max_retries=0, max_tokens=100,
            messages=[{"role": "user", "content": "Describe a red thing."}],
        )
        assert isinstance(found, Thing), found


{one.__name__: one for one in (langchain, pydantic_ai, instructor)}[LIBRARY]()
print(f"{LIBRARY}: good")
