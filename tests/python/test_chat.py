"""Conversations: tools, calls and their results, reasoning, and documents of several turns."""

import asyncio
import json
import time

import pytest
from conftest import GREEDY, SMALL, TOOLS, with_template

ASKED = [{"role": "user", "content": "How warm is it?"}]
FACTS = "The old clock stood in the hall.\nRachel Quinn's telephone number is 555 0142.\n" * 4
QUESTION = "What is Rachel Quinn's telephone number?"


@pytest.fixture(scope="module")
def tool_model(riffle, tool_model_path):
    with riffle.Model(tool_model_path, **SMALL) as model:
        yield model


def one_call(answer, names):
    """Checks an answer that is one call of a function with these names; returns the call."""
    (call,) = answer.tool_calls
    assert answer.finish == "tool_calls" and answer.text == ""
    assert call.name in names and call.error == "" and call.id.startswith("call_")
    assert call.arguments == json.loads(call.arguments_text)
    assert list(call.arguments) == ["days"] and 0 <= call.arguments["days"] <= 9
    return call


def test_an_answer_has_calls_and_the_results_go_back(tool_model):
    options = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 200, **GREEDY}
    answer = tool_model.chat(ASKED, tool_choice="required", **options)
    call = one_call(answer, ("weather", "price"))
    function = {"name": call.name, "arguments": call.arguments_text}
    assert answer.message["role"] == "assistant" and answer.message["content"] is None
    assert answer.message["tool_calls"] == [
        {"id": call.id, "type": "function", "function": function}
    ]
    named = {"type": "function", "function": {"name": "price"}}
    one_call(tool_model.chat(ASKED, tool_choice=named, **options), ("price",))
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    after = tool_model.chat([*ASKED, answer.message, result], tools=TOOLS, max_tokens=4, **GREEDY)
    assert after.prompt_tokens > answer.prompt_tokens
    assert after.message == {"role": "assistant", "content": after.text, "refusal": None}


def test_a_session_and_an_engine_give_the_same_calls(riffle, tool_model):
    options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200, **GREEDY}
    options["parallel_tool_calls"] = False
    with tool_model.context(**SMALL) as context, context.session() as session:
        answer = session.chat(ASKED, **options)
        pieces = list(answer)
        want = [(call.name, call.arguments) for call in answer.tool_calls]
    assert pieces == [] and want
    with riffle.Engine(tool_model, **SMALL) as engine:
        reply = engine.chat(ASKED, **options)
        assert reply.text == "" and reply.finish == "tool_calls"
        assert [(call.name, call.arguments) for call in reply.tool_calls] == want
        assert [one["function"]["name"] for one in reply.message["tool_calls"]] == [
            name for name, _ in want
        ]
        assert asyncio.run(engine.chat("Hi", max_tokens=3, **GREEDY).wait())


def test_calls_are_known_as_they_complete(riffle, tool_model):
    with riffle.Engine(tool_model, **SMALL) as engine:
        options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 400, **GREEDY}
        with engine.chat(ASKED, **options) as reply:  # the model writes one call after the other
            while not reply.tool_calls and not reply.done:
                time.sleep(0.001)
            assert reply.finish is None and reply.message is None
            assert reply.tool_calls[0].error == "" and "days" in reply.tool_calls[0].arguments


def test_a_call_that_is_cut_off_is_named(riffle, tool_model):
    answer = tool_model.chat(ASKED, tools=TOOLS, tool_choice="required", max_tokens=20, **GREEDY)
    assert answer.finish == "length"
    for call in answer.tool_calls:
        assert call.error.startswith("tool_calls[0]")
        with pytest.raises(riffle.BadArgument, match="^tool_calls"):
            call.arguments
    assert answer.tool_calls or answer.text  # no text is lost


def test_tools_that_are_wrong_are_named(riffle, model, tool_model):
    for options, words in (
        ({"tools": [{"type": "x"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "body.x"}, 'tool_choice is "body.x"'),
        ({"tool_choice": "required"}, "tools is missing, expected tools with this tool_choice"),
    ):
        with pytest.raises(riffle.BadArgument) as error:
            tool_model.chat(ASKED, **options)
        assert str(error.value).startswith(words)
    with pytest.raises(TypeError, match="^parallel_tool_calls: found 1, expected True or False"):
        tool_model.chat(ASKED, parallel_tool_calls=1)
    with pytest.raises(riffle.Unsupported, match="^tools is not supported: this model's chat temp"):
        model.chat(ASKED, tools=TOOLS)
    with pytest.raises(riffle.BadArgument, match=r"messages\[1\].tool_call_id"):
        model.chat([*ASKED, {"role": "user", "content": "a", "tool_call_id": "b"}])


def test_reasoning_is_kept_apart(riffle, model_path, tmp_path):
    turns = b"{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    template = turns + b"<think>{# </think> #}"
    path = with_template(model_path, tmp_path / "thinks.gguf", template)
    with riffle.Model(path, **SMALL) as model:
        assert model.info.reasoning_end == "</think>"
        answer = model.chat(ASKED, max_tokens=8, **GREEDY)
        assert answer.text == "" and answer.reasoning and len(answer.tokens) == 8
        assert answer.message["reasoning_content"] == answer.reasoning
        with riffle.Engine(model, **SMALL) as engine:
            reply = engine.chat(ASKED, max_tokens=8, **GREEDY)
            assert reply.text == "" and reply.reasoning == answer.reasoning


def test_other_mappings_and_lists_are_messages(model):
    import types

    message = types.MappingProxyType({"role": "user", "content": "How warm is it?"})
    assert model.chat_tokens((message,)) == model.chat_tokens(ASKED)


def test_an_answer_without_a_conversation_has_no_message(model):
    answer = model.generate("The rain", max_tokens=2, **GREEDY)
    assert answer.text and answer.message is None
    assert answer.reasoning == "" and answer.tool_calls == []
    closed = model.chat(ASKED, max_tokens=100, ignore_eos=True)
    next(closed)
    closed.close()
    assert closed.message is None and closed.finish == "aborted"


@pytest.mark.parametrize("loaded", [False, True])
def test_a_conversation_about_a_document_reads_it_once(model, tmp_path, loaded):
    document = model.read(FACTS)
    if loaded:
        document.save(tmp_path / "facts.kv")
        document = model.load_document(tmp_path / "facts.kv")
    with document:
        first = document.chat(QUESTION, **GREEDY)
        assert first.text == document.ask(QUESTION, **GREEDY).text
        turns = [
            {"role": "user", "content": QUESTION},
            first.message,
            {"role": "user", "content": "Where was the clock?"},
        ]
        before = model.default_context.stats()["prefill_tokens"]
        answer = document.chat(turns, max_tokens=12, **GREEDY)
        assert answer.text
        read = model.default_context.stats()["prefill_tokens"] - before
        assert 0 < read <= answer.prompt_tokens - document.n_tokens < 100
        # The whole conversation with the text in it has the same prompt and answer.
        whole = [{"role": "user", "content": FACTS.rstrip() + "\n" + QUESTION}, *turns[1:]]
        assert answer.text == model.chat(whole, max_tokens=12, **GREEDY).text
        parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}, *turns[1:]]
        assert document.chat(parts, max_tokens=12, **GREEDY).text == answer.text


def test_wrong_conversations_about_a_document_are_named(riffle, model, tmp_path):
    with model.read(FACTS) as document:
        for messages, words in (
            ([{"role": "system", "content": "a"}], "messages[0].role: found 'system', expec"),
            ([], "messages is empty"),
            ([5], "messages[0] is 5, expected an object"),
            ([{"role": "user"}], "messages[0].content is missing"),
            ([{"role": "user", "content": 5}], "messages[0].content is 5, expected a string or"),
        ):
            with pytest.raises(riffle.BadArgument) as error:
                document.chat(messages)
            assert str(error.value).startswith(words)
        with pytest.raises(TypeError, match="^messages: found 5"):
            document.chat(5)
