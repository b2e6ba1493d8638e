"""Unchanged clients against riffle-serve: the openai package, LangChain, llm, curl."""

import asyncio
import json
import shutil
import subprocess
import sys
import typing

import pytest
from conftest import TOOLS
from serving import need, running

need("starlette", "uvicorn")


@pytest.fixture(scope="module")
def server(model_path):
    yield from running(model_path)


@pytest.fixture()
def openai(server):
    module = pytest.importorskip("openai", reason="openai is not installed")
    with module.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MODEL = "riffle-27m-32k"
MESSAGES = [
    {"role": "system", "content": "You answer."},
    {"role": "user", "content": "The clerk is in Rome. Where is the clerk?"},
]


def test_openai_chat(openai):
    answer = openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0, logprobs=True,
        top_logprobs=3, n=2, seed=4,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.choices[0].logprobs.content[0].top_logprobs[2].logprob < 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint.startswith("fp_")
    assert [model.id for model in openai.models.list()] == [MODEL]


def test_openai_streams(openai):
    pieces, usage = [], None
    for chunk in openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    ):  # fmt: skip
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    whole = openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=12, temperature=0
    )
    assert "".join(pieces) == whole.choices[0].message.content and len(pieces) > 3
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens is not None


def test_openai_completions(openai):
    answer = openai.completions.create(
        model=MODEL, prompt="The rain in", max_tokens=5, temperature=0, logprobs=2, stop=["\n"]
    )
    assert answer.choices[0].text and len(answer.choices[0].logprobs.tokens) <= 5
    text = "".join(
        chunk.choices[0].text
        for chunk in openai.completions.create(
            model=MODEL, prompt="The rain in", max_tokens=5, temperature=0, stop=["\n"], stream=True
        )
    )
    assert text == answer.choices[0].text


def test_openai_parses_structured_outputs(openai):
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Person(pydantic.BaseModel):
        adult: bool
        kind: typing.Literal["clerk", "guest"]

    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 99, "temperature": 0}
    answer = openai.chat.completions.parse(**asked, response_format=Person)
    assert answer.choices[0].message.parsed.kind in ("clerk", "guest")
    with openai.chat.completions.stream(**asked, response_format=Person) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert parsed == answer.choices[0].message.parsed


@pytest.fixture(scope="module")
def tool_server(tool_model_path):
    yield from running(tool_model_path, "--model-name", MODEL)


def test_openai_tools(tool_server):
    package = pytest.importorskip("openai", reason="openai is not installed")
    client = package.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0)
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 200,
             "parallel_tool_calls": False}  # fmt: skip
    choices = ("required", {"type": "function", "function": {"name": "price"}})
    for seed, tool_choice in enumerate(choices):
        answer = client.chat.completions.create(
            **asked, tool_choice=tool_choice, seed=seed, temperature=0
        )
        call = answer.choices[0].message.tool_calls[0]
        assert answer.choices[0].finish_reason == "tool_calls"
        assert call.function.name in ("weather", "price")[seed:]
        assert 0 <= json.loads(call.function.arguments)["days"] <= 9
        arguments, names = "", set()
        for chunk in client.chat.completions.create(
            **asked, tool_choice=tool_choice, seed=seed, temperature=0, stream=True
        ):
            for delta in chunk.choices[0].delta.tool_calls or []:
                if delta.index == 0:
                    arguments += delta.function.arguments or ""
                    names |= {delta.function.name} - {None}
        assert arguments == call.function.arguments and names == {call.function.name}
    # The call and its result go back to the model.
    turn = answer.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    again = client.chat.completions.create(
        **{**asked, "messages": [*MESSAGES, turn, result], "max_tokens": 8}, tool_choice="auto"
    )
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
    client.close()


def test_openai_errors_are_its_exceptions(openai):
    import openai as package

    with pytest.raises(package.NotFoundError) as found:
        openai.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert found.value.code == "model_not_found"
    with pytest.raises(package.BadRequestError) as found:
        openai.completions.create(model=MODEL, prompt="x " * 5000, max_tokens=3)
    assert found.value.code == "context_length_exceeded"
    assert "5002" in str(found.value) and "4096" in str(found.value)
    with pytest.raises(package.BadRequestError) as found:
        openai.chat.completions.create(model=MODEL, messages=MESSAGES, top_p=9)
    assert found.value.param == "top_p"


def test_openai_async_clients_together(server):
    package = pytest.importorskip("openai", reason="openai is not installed")

    async def one(client, i):
        pieces = []
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Hello {i}"}], max_tokens=8,
            temperature=0, stream=True,
        ):  # fmt: skip
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            if i % 3 == 2 and len(pieces) > 2:
                break  # leaves the stream
        return "".join(pieces)

    async def all_of_them():
        base = f"{server.url}/v1"
        async with package.AsyncOpenAI(base_url=base, api_key="none") as client:
            return await asyncio.gather(*(one(client, i) for i in range(24)))

    texts = asyncio.run(all_of_them())
    assert len(texts) == 24 and all(texts[i] for i in range(24) if i % 3 != 2)
    server.idle()


def test_langchain(server):
    package = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = package.ChatOpenAI(
        model=MODEL, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=8
    )
    answer = chat.invoke("Where is the clerk?")
    assert answer.content and answer.usage_metadata["output_tokens"] <= 8
    streamed = "".join(chunk.content for chunk in chat.stream("Where is the clerk?"))
    assert streamed == answer.content
    schema = {"title": "Answer", "type": "object", "properties": {"yes": {"type": "boolean"}},
              "required": ["yes"], "additionalProperties": False}  # fmt: skip
    chat = chat.model_copy(update={"max_tokens": 99})
    found = chat.with_structured_output(schema, method="json_schema")
    assert isinstance(found.invoke("Is it so?")["yes"], bool)


def test_llm(server, tmp_path):
    pytest.importorskip("llm", reason="llm is not installed")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: {MODEL}\n  api_base: {server.url}/v1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "local", "-o", "temperature", "0", "-o", "max_tokens",
         "6", "Where is the clerk?"],
        capture_output=True, text=True, timeout=120,
        env={"LLM_USER_PATH": str(tmp_path), "HOME": str(tmp_path), "OPENAI_API_KEY": "none"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server):
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 5, "temperature": 0}

    def curl(*more, data):
        return subprocess.run(
            ["curl", "-sS", *more, f"{server.url}/v1/chat/completions", "-d", "@-"],
            input=json.dumps(data), capture_output=True, text=True, timeout=120, check=True,
        ).stdout  # fmt: skip

    # curl -d says application/x-www-form-urlencoded: OpenAI's examples add the header.
    for more in ((), ("-H", "Content-Type: application/json")):
        assert json.loads(curl(*more, data=body))["choices"][0]["message"]["content"]
    lines = curl("-N", data={**body, "stream": True}).split("\n\n")
    assert lines[0].startswith("data: {") and lines[-2:] == ["data: [DONE]", ""]
