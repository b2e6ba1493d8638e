"""riffle-serve: paths, streams, errors, the page's figures, and its command line."""

import json
import os
import subprocess
import sys
import time
import zlib

import pytest
from conftest import PACKAGE
from serving import WORDS, Server, cached, need, running, text_of

need("starlette", "uvicorn")


@pytest.fixture(scope="module")
def server(model_path):
    yield from running(model_path)


def events(lines):
    """The objects of a stream, which must end with [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


CHAT = {"messages": [{"role": "user", "content": "Where is the clerk?"}], "max_tokens": 12}


def test_health_and_models(server):
    assert server.get("/health") == (200, {"status": "ok"})
    status, models = server.get("/v1/models")
    (only,) = models["data"]
    assert status == 200 and models["object"] == "list" and only["id"] == "riffle-27m-32k"
    assert only["context_length"] == 4096
    assert server.get("/v1/models/riffle-27m-32k")[1]["object"] == "model"
    status, answer = server.get("/v1/models/gpt-9")
    assert status == 404 and answer["error"]["code"] == "model_not_found"


def test_a_completion_has_openais_form(server, riffle, model_path):
    answer = server.complete("The rain in", logprobs=2, n=2, max_tokens=6)
    assert answer["object"] == "text_completion" and len(answer["choices"]) == 2
    choice = answer["choices"][0]
    assert choice["finish_reason"] in ("length", "stop")
    assert len(choice["logprobs"]["tokens"]) == 6
    assert answer["usage"]["completion_tokens"] == 12
    with riffle.Model(model_path, n_ctx=4096, threads=2) as model:
        assert choice["text"] == model.generate("The rain in", max_tokens=6, temperature=0).text


def test_a_chat_is_the_same_whole_and_as_a_stream(server):
    for fields in ({"temperature": 0}, {"seed": 7, "temperature": 0.8}):
        body = {**CHAT, **fields, "stream_options": {"include_usage": True}}
        chunks = events(server.stream("/v1/chat/completions", body))
        del body["stream_options"]
        status, whole = server.post("/v1/chat/completions", body)
        assert status == 200 and whole["object"] == "chat.completion"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
        assert deltas[0]["role"] == "assistant"
        text = "".join(delta.get("content") or "" for delta in deltas)
        assert text == whole["choices"][0]["message"]["content"] and text
        ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert ends[-1] == whole["choices"][0]["finish_reason"] and set(ends[:-1]) <= {None}
        usage = chunks[-1]["usage"]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert (
            usage["prompt_tokens"] == whole["usage"]["prompt_tokens"] and not chunks[-1]["choices"]
        )


def test_a_stream_of_several_answers_names_each(server):
    body = {"prompt": ["One day", "Two days"], "n": 2, "max_tokens": 4, "seed": 1}
    chunks = events(server.stream("/v1/completions", body))
    texts = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + choice["text"]
    whole = server.complete(["One day", "Two days"], n=2, max_tokens=4, seed=1, temperature=None)
    assert [texts[i] for i in range(4)] == [choice["text"] for choice in whole["choices"]]


def test_a_response_format_is_kept(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, answer = server.post(
        "/v1/chat/completions", {**CHAT, "max_tokens": 60, "response_format": form, "seed": 5}
    )
    assert status == 200
    assert list(json.loads(answer["choices"][0]["message"]["content"])) == ["n"]


@pytest.mark.parametrize(
    "body, status, code, words",
    [
        (b'{"prompt": ', 400, None, "found the end of the text at byte 12, expected JSON"),
        (b'{"prompt":\n "a" "b"}', 400, None, "found '\"' in line 2 (byte 17 of the text), expected JSON"),
        (b'{"prompt": "\xff"}', 400, None, "UTF-8"),
        (b"[]", 400, None, "object"),
        (b"", 400, None, "JSON"),
        ({"prompt": "a", "top_p": 9}, 400, None, "top_p"),
        ({"prompt": "a", "colour": 1}, 400, None, "colour"),
        ({"max_tokens": 3}, 400, None, "prompt"),
        (b"5", 400, None, "expected an object"),
        (b'"a"', 400, None, "expected an object"),
        (b"null", 400, None, "expected an object"),
        ({"prompt": "a", "model": 5}, 400, "invalid_value", "model"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"prompt": "a", "model": "gpt-9"}, 404, "model_not_found", "gpt-9"),
        ({"prompt": " x" * 5000}, 400, "context_length_exceeded", "5002 tokens"),
        ({"prompt": "a", "max_tokens": 4095}, 400, "context_length_exceeded",
         "the prompt has 2 tokens and max_tokens is 4095, together 4097, but the context holds 4096; "
         "max_tokens may be at most 4094"),
        ({"prompt": " x" * 5000, "stream": True}, 400, "context_length_exceeded", "holds 4096"),
        (b"[" * 100000, 400, None, ""),
    ],
)
def test_a_bad_request_gets_openais_error(server, body, status, code, words):
    found, answer = server.post("/v1/completions", body)
    error = answer["error"]
    assert found == status and words in error["message"] and "\n" not in error["message"]
    assert {"message", "type", "param", "code"} == set(error)
    assert code is None or error["code"] == code


@pytest.mark.parametrize(
    "path, fields, param",
    [
        ("completions", {"prompt": "a", "max_tokens": 4095}, "max_tokens"),
        ("completions", {"prompt": "a", "max_completion_tokens": 4095}, "max_completion_tokens"),
        ("completions", {"prompt": [5] * 4096, "max_tokens": 1}, "prompt"),
        ("completions", {"prompt": " x" * 5000, "max_tokens": 1}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": " x" * 5000}]}, "messages"),
    ],
)
def test_an_error_names_the_field_that_needs_a_longer_context(server, path, fields, param):
    status, answer = server.post("/v1/" + path, fields)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == param
    assert (param if "max" in param else "the prompt") in answer["error"]["message"]


@pytest.mark.parametrize(
    "messages, words",
    [
        (5, "expected an array"),
        ({"role": "user", "content": "a"}, "expected an array"),
        ([], "is empty"),
        ([5], "expected an object"),
        ([[]], "expected an object"),
        ([{"role": "user"}], "content is missing"),
        ([{"role": "user", "content": None}], "content"),
    ],
)
def test_messages_that_are_wrong_get_openais_error(server, messages, words):
    status, answer = server.post("/v1/chat/completions", {"messages": messages})
    error = answer["error"]
    assert status == 400 and words in error["message"] and error["param"].startswith("messages")
    assert {"message", "type", "param", "code"} == set(error)


def test_bodies_as_http_may_send_them(server):
    body = b'{"prompt": "a", "max_tokens": 1}'
    for headers in ({"Content-Type": "text/plain"}, {}, {"Content-Encoding": "identity"}):
        assert server.request("POST", "/v1/completions", body, headers)[0] == 200
    # In chunks: http.client sends an iterator so.
    parts = iter([body[:5], body[5:]])
    assert server.request("POST", "/v1/completions", parts)[0] == 200
    squeezed = zlib.compress(body)
    headers = {"Content-Encoding": "deflate"}
    status, _, answer = server.request("POST", "/v1/completions", squeezed, headers)
    text = json.loads(answer)["error"]["message"]
    assert status == 415 and "Content-Encoding is 'deflate'" in text


def test_the_url_is_on_stdout_also_if_quiet(model_path):
    server = Server(model_path, "-q")
    assert server.get("/health")[0] == 200
    assert server.stop() == 0 and server.said == b""


def test_paths_and_methods_that_are_not_there(server):
    assert server.get("/v2")[0] == 404
    text = server.get("/v2")[1]["error"]["message"]
    assert "GET /v1/models/NAME" in text and "{" not in text
    for method, path, allowed in (
        ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("PUT", "/v1/models/x", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
    ):
        status, headers, body = server.request(method, path)
        error = json.loads(body)["error"]
        assert status == 405 and headers["allow"] == allowed
        words = f"found {method} '{path}', expected {allowed.replace(', ', ' or ')}"
        assert error["message"] == words and error["type"] == "invalid_request_error"
        status, headers, body = server.request("OPTIONS", path)
        assert status == 204 and headers["allow"] == allowed and body == b""
    status, headers, body = server.request("HEAD", "/v1/models")
    assert status == 200 and int(headers["content-length"]) > 0 and body == b""
    assert server.request("HEAD", "/v1/completions")[0] == 405
    status, answer = server.post("/v1/responses", {"input": "a"})
    assert status == 404 and "/v1/chat/completions" in answer["error"]["message"]
    status, answer = server.post("/v1/embeddings", {"input": "a"})
    assert status == 404 and "embeddings" in answer["error"]["message"]
    assert server.request("GET", "/../../etc/passwd")[0] == 404


def test_paths_without_v1_are_served_too(server):
    assert server.get("/models")[1]["data"][0]["object"] == "model"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    status, answer = server.post("/chat/completions", body)
    assert status == 200 and answer["object"] == "chat.completion"
    assert server.request("GET", "/chat/completions")[0] == 405
    assert "POST /chat" not in server.get("/v2")[1]["error"]["message"]


def test_any_name_of_the_model_will_do(server, model_path):
    for name in ("riffle-27m-32k", "riffle-27m-32k-q8_0", "riffle-27m-32k-q8_0.gguf"):
        assert server.complete("a", model=name)["model"] == "riffle-27m-32k"


def test_a_prompt_that_begins_like_an_earlier_one_is_not_read_again(server):
    first = server.complete(text_of(300, "Cid") + " Who?")
    for name in "DEFGHI":  # other prompts in between
        server.complete(text_of(60, name))
    second = server.complete(text_of(300, "Cid") + " When?")
    assert cached(first) == 0 and cached(second) > 300


def test_requests_are_answered_together(server):
    """A short request is answered while a long one runs."""
    long = server.stream(
        "/v1/completions", {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    )
    next(long)
    begun = time.monotonic()
    assert server.complete("Twice")["choices"][0]["text"] is not None
    assert time.monotonic() - begun < 20
    states = [one["state"] for one in server.get("/state")[1]["requests"]]
    assert states[:2] == ["answering", "done"]
    long.close()  # the client goes away: the answer ends
    state = server.idle(5)
    assert state["requests"][0]["state"] in ("done", "gone")
    assert state["totals"]["gone"] >= 1


def test_a_client_that_leaves_ends_its_answer_while_the_prompt_is_read(server):
    stream = server.stream("/v1/completions", {"prompt": text_of(3000, "Zoe"), "max_tokens": 400})
    for line in stream:
        if line.startswith(": reading"):
            break
    stream.close()
    assert server.idle(5)["requests"][0]["answer_tokens"] < 400


def test_progress_comes_as_comments(server):
    lines = list(
        server.stream("/v1/completions", {"prompt": text_of(3200, "Yan"), "max_tokens": 2})
    )
    shares = [int(line[10:-1]) for line in lines if line.startswith(": reading ")]
    assert shares == sorted(shares) and all(0 <= share <= 100 for share in shares)
    assert events(line for line in lines if not line.startswith(":"))


def test_the_figures_of_the_page(server):
    server.complete("Once")
    status, state = server.get("/state")
    assert status == 200 and state["max_seqs"] == 8 and state["plan"]["n_ctx"] == 4096
    assert state["stats"]["decode_tokens"] > 0 and state["totals"]["requests"] > 0
    newest = state["requests"][0]
    assert newest["state"] == "done" and newest["path"] == "/v1/completions"
    assert newest["answer_tokens"] > 0 and newest["read"] == 1
    text = json.dumps(state)
    assert not any(word in text for word in WORDS if len(word) > 4), "no text of a request"
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
    ):
        status, headers, body = server.request("GET", path)
        assert status == 200 and headers["content-type"].startswith(kind) and len(body) > 500
        assert "default-src 'self'" in headers["content-security-policy"]


def run(*flags, env=None):
    return subprocess.run(
        [sys.executable, "-B", "-m", "riffle.serve", *flags],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(PACKAGE), **(env or {})},
        timeout=60,
    )


def test_flags_that_are_wrong_are_named(model_path, tmp_path, server):
    import os

    env = {"RIFFLE_LIBRARY": os.environ["RIFFLE_LIBRARY"]}
    help_text = run("--help", env=env)
    assert help_text.returncode == 0
    for flag in ("--prefix-cache", "--api-key-file", "-c N, --ctx N", "--temp X", "--kv NAME"):
        assert flag in help_text.stdout, flag
    (tmp_path / "empty").write_text("\n")
    for flags, code, words in (
        ([], 2, "-m: found no model, expected a GGUF file or a Hugging Face folder"),
        (["-m", model_path, "--prot", "80"], 2, "found the unknown flag --prot; did you mean --port?"),
        (["-m", model_path, "--gpu_memm=8G"], 2, "found the unknown flag --gpu_memm; did you mean --gpu-mem?"),
        (["-m", model_path, "--zq", "1", "--prot", "80"], 2,
         "found the unknown flags --zq, --prot (did you mean --port?); --help lists all flags"),
        (["-m", model_path, "serve"], 2, "found 'serve', expected a flag"),
        (["-m", model_path, "--ctx", "many"], 2, "--ctx: 'many': expected"),
        (["-m", model_path, "-c", "many"], 2, "-c: 'many': expected"),
        (["-m", model_path, "--top-p", "9"], 2, "--top-p"),
        (["-m", model_path, "--isa", "neon" if os.uname().machine != "aarch64" else "avx2"], 1,
         "riffle-serve: --isa: found "),
        (["-m", model_path, "--port", "99999"], 2, "--port"),
        (["-m", model_path, "--max-body", "much"], 2, "--max-body"),
        (["-m", model_path, "--api-key-file", str(tmp_path / "empty")], 2, "found no key"),
        (["-m", model_path, "--api-key-file", str(tmp_path / "none")], 1, "No such file"),
        (["-m", str(tmp_path / "none.gguf"), "--port", "0"], 3, "none.gguf"),
        (["-m", str(tmp_path / "empty"), "--port", "0"], 3, "empty"),
        (["-m", model_path, "--port", "0", "--device", "emu", "--gpu-mem", "1M"], 4,
         "riffle-serve: --gpu-mem is 1.0 MiB"),
        (["-m", model_path, "--port", str(server.port)], 1, "Address already in use"),
    ):
        done = run(*flags, env=env)
        assert done.returncode == code and words in done.stderr, (flags, done.stderr)
        assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_shutdown_lets_answers_end(model_path):
    for seconds, n_tokens, whole in (("60", 100, True), ("1", 4000, False)):
        server = Server(model_path, "--shutdown-timeout", seconds, "--access-log")
        lines = server.stream(
            "/v1/completions", {"prompt": "Once", "max_tokens": n_tokens, "ignore_eos": True}
        )
        next(lines)
        server.process.terminate()
        try:
            rest = list(lines)
        except Exception:  # the connection was cut
            rest = []
        assert (bool(rest) and rest[-1] == "data: [DONE]") or not whole
        assert server.stop() == 0
        over = b"[--shutdown-timeout is over: the running answers are ended]\n"
        assert (over in server.said) == (not whole) and b"ERROR" not in server.said
        assert b"Traceback" not in server.said and b"/v1/completions" in server.said
