"""The package riffle on the shipped model: what its documentation promises."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import BUILD, GREEDY, PACKAGE, SMALL

QUESTION = [{"role": "user", "content": "The code is 4821. What is the code?"}]
FACTS = "The old clock stood in the hall.\nRachel Quinn's telephone number is 555 0142.\n" * 4
LONG = {"ignore_eos": True, "seed": 3}


def program(*args, **more):
    """The riffle command on the same model."""
    return subprocess.run(
        [BUILD / "riffle", *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        **more,
    ).stdout


def test_a_dozen_lines(riffle, model_path):
    model = riffle.Model(model_path)
    answer = model.chat(QUESTION, temperature=0, max_tokens=12)
    text = ""
    for piece in answer:
        assert piece
        text += piece
    assert text == answer.text == str(answer) and text
    assert answer.finish in ("stop", "length") and answer.n_tokens in (
        len(answer.tokens),
        len(answer.tokens) + 1,
    )
    assert answer.prompt_tokens == len(model.chat_tokens(QUESTION))
    assert not model.info.chat_effort and model.info.qk_norm in ("none", "head", "whole")
    assert model.chat_tokens(QUESTION, thinking="high") == model.chat_tokens(QUESTION)


def test_tokens(model):
    text = "The rain \u00e9\U0001f600"
    tokens = model.tokenize(text)
    assert tokens[0] == model.info.bos_id and model.detokenize(tokens) == text
    assert model.tokenize(text, bos=False) == tokens[1:]
    assert model.tokenize("", bos=False) == [] and model.detokenize([]) == ""
    assert model.tokenize("</s>", bos=False, special=True) == [model.info.eos_id]
    assert model.piece(model.info.eos_id) == "</s>" and model.is_end_token(model.info.eos_id)
    assert not model.is_end_token(tokens[1])


def test_info(model):
    info = model.info
    assert info.name == "riffle-27m-32k" and info.n_ctx_train == 32768 and info.format == "gguf"
    assert info.n_layers > 0 and info.n_params > 20e6 and info.chat_template_name == "own"


def test_answers_are_those_of_the_program(model, model_path):
    ours = model.generate("The rain", max_tokens=16, **GREEDY)
    theirs = program(
        "run", "-m", model_path, "--raw", "-q", "-p", "The rain", "-n", 16, "--temp", 0, "-c", 2048
    )
    assert ours.text == theirs.rstrip("\n")


def test_whole_and_piece_by_piece_are_the_same(model):
    options = {"max_tokens": 24, "temperature": 1.0, "seed": 7}
    assert "".join(model.chat(QUESTION, **options)) == model.chat(QUESTION, **options).text
    assert (
        model.chat(QUESTION, **options).text != model.chat(QUESTION, **{**options, "seed": 8}).text
    )


def test_stop_strings_end_an_answer(model):
    whole = model.generate("The rain", max_tokens=24, **GREEDY).text
    word = whole.split()[3]
    for stop in (word, [word, "never said"]):
        answer = model.generate("The rain", max_tokens=24, stop=stop, **GREEDY)
        assert answer.text == whole[: whole.index(word)] and answer.finish == "stop"


def test_what_was_read_is_not_read_again(model):
    model.chat(QUESTION, max_tokens=4).text
    before = model.default_context.stats()["prefill_tokens"]
    answer = model.chat(QUESTION, max_tokens=4)
    answer.text
    assert model.default_context.stats()["prefill_tokens"] - before < answer.prompt_tokens / 2


def test_a_document_is_read_once(riffle, model, model_path, tmp_path):
    path = tmp_path / "facts.kv"
    with model.read(FACTS) as document:
        assert document.n_tokens > 100
        first = document.ask("What is Rachel Quinn's telephone number?", **GREEDY)
        assert first.text
        before = model.default_context.stats()["prefill_tokens"]
        again = document.ask("What is Rachel Quinn's telephone number?", **GREEDY)
        assert again.text == first.text
        assert model.default_context.stats()["prefill_tokens"] - before < 40
        document.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with model.load_document(path) as document:
        assert document.ask("What is Rachel Quinn's telephone number?", **GREEDY).text == first.text
    question = ("-p", "What is Rachel Quinn's telephone number?", "-q", "--temp", 0, "-c", 2048)
    assert program("run", "-m", model_path, "--session", path, *question).rstrip("\n") == first.text
    read = tmp_path / "read.kv"
    (tmp_path / "facts.txt").write_text(FACTS)
    program("read", "-m", model_path, "-f", tmp_path / "facts.txt", "-o", read, "-q", "-c", 2048)
    with model.load_document(read) as document:
        assert document.text == FACTS
        assert document.ask("What is Rachel Quinn's telephone number?", **GREEDY).text == first.text


def test_a_document_without_a_chat_template(model, model_path, tmp_path):
    path, text = tmp_path / "raw.kv", tmp_path / "facts.txt"
    text.write_text(FACTS)
    program("read", "-m", model_path, "--raw", "-f", text, "-o", path, "-q", "-c", 2048)
    theirs = program(
        *("run", "-m", model_path, "--session", path, "-p", "The old clock", "-q"),
        *("--temp", 0, "-n", 8, "-c", 2048),
    )
    with model.load_document(path) as document:
        ours = document.ask("The old clock", max_tokens=8, **GREEDY)
        assert ours.text == theirs.rstrip("\n")


def test_a_document_with_a_selector_that_cannot_fork(riffle, model_path):
    question = "What is Rachel Quinn's telephone number?"
    with riffle.Model(model_path, selector="lfps", device="cpu", **SMALL) as model:
        with model.read(FACTS) as document:
            answers = [document.ask(question, max_tokens=8, **GREEDY).text for _ in range(2)]
            assert all(answers) and document.ask("Who?", max_tokens=4).finish in ("stop", "length")


def test_sessions(riffle, model, tmp_path):
    context = model.context(**SMALL)
    assert context.length == 2048
    session = context.session()
    assert session.n_tokens == 0
    session.prefill("The old clock in the hall struck nine")
    n = session.n_tokens
    assert n == len(model.tokenize("The old clock in the hall struck nine"))
    fork = session.fork(n - 2)
    assert fork.n_tokens == n - 2
    session.truncate(3)
    assert session.n_tokens == 3
    text = session.generate("The old clock in the hall struck nine", max_tokens=8, **GREEDY).text
    assert (
        fork.generate("The old clock in the hall struck nine", max_tokens=8, **GREEDY).text == text
    )
    fork.save(tmp_path / "s.kv", data=b"mine\0too")
    loaded = context.load(tmp_path / "s.kv")
    assert loaded.data == b"mine\0too" and loaded.n_tokens == fork.n_tokens
    with pytest.raises(riffle.BadSession, match="Context.load"):
        model.load_document(tmp_path / "s.kv")
    other = context.session()  # a text as tokens
    assert (
        other.generate(
            model.tokenize("The old clock in the hall struck nine"), max_tokens=8, **GREEDY
        ).text
        == text
    )


def test_an_answer_can_be_closed(model):
    answer = model.generate("The rain", **LONG)
    pieces = [next(answer), next(answer)]
    start = time.monotonic()
    answer.close()
    assert time.monotonic() - start < 5
    assert (
        answer.finish == "aborted"
        and answer.text.startswith("".join(pieces))
        and list(answer) == []
    )
    answer.close()
    for piece in model.generate("The rain", **LONG):
        break  # nobody holds this answer, so it ends here
    assert model.generate("The rain", max_tokens=4, **GREEDY).text


def test_a_prompt_can_be_stopped_while_it_is_read(riffle, model):
    seen = []

    def stop(phase, done, total):
        seen.append((phase, done <= total))
        return False

    answer = model.generate(FACTS * 6, progress=stop)
    with pytest.raises(riffle.Aborted):
        next(answer)
    assert seen == [("prefill", True)]

    def fail(*_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model.generate(FACTS * 6, progress=fail).text
    with pytest.raises(KeyError, match="mine"):
        model.read(FACTS * 6, progress=fail)
    assert model.generate("The rain", max_tokens=2).text is not None


def test_one_answer_of_a_context_at_a_time(riffle, model):
    answer = model.generate("The rain", **LONG)
    next(answer)
    for call in (
        lambda: next(model.chat(QUESTION)),
        lambda: model.read(FACTS),
        lambda: model.default_context.session(),
    ):
        with pytest.raises(riffle.Busy, match="an answer that this thread has begun"):
            call()
    with model.context(**SMALL) as other:
        assert other.session().generate("The rain", max_tokens=2).text is not None
    answer.close()
    assert model.chat(QUESTION, max_tokens=2).text is not None


def test_closing_a_model_ends_its_answers(riffle, model_path):
    model = riffle.Model(model_path, **SMALL)
    session = model.context(**SMALL).session()
    answer = session.generate("The rain", **LONG)
    next(answer)
    model.close()
    model.close()
    assert "".join(answer) is not None and answer.finish == "aborted"
    for use in (
        lambda: model.tokenize("x"),
        lambda: session.n_tokens,
        lambda: session.prefill("x"),
        lambda: model.chat(QUESTION),
        lambda: session.context.length,
    ):
        with pytest.raises(riffle.BadArgument, match="closed"):
            use()


def test_threads_with_contexts_of_their_own(model):
    alone = model.generate("The rain", max_tokens=12, **GREEDY).text
    found = []

    def work():
        with model.context(n_ctx=512, threads=1) as context:
            found.append(context.session().generate("The rain", max_tokens=12, **GREEDY).text)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 3


def run_all(works):
    """Runs the functions in threads of their own. Returns what they raised."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return errors


def test_threads_on_one_model_wait_for_their_turn(riffle, model):
    prompts = [f"Number {i}: the rain" for i in range(6)]
    want = [model.generate(prompt, max_tokens=12, **GREEDY).text for prompt in prompts]
    with model.read(FACTS) as document:
        said = document.ask("Who has a number?", max_tokens=8, **GREEDY).text
        got, asked = {}, []

        def work(i):
            for _ in range(3):
                got[i] = model.generate(prompts[i], max_tokens=12, **GREEDY).text
                asked.append(document.ask("Who has a number?", max_tokens=8, **GREEDY).text)
                session = model.default_context.session()
                session.prefill(prompts[i])
                session.close()

        assert run_all([lambda i=i: work(i) for i in range(6)]) == []
        assert [got[i] for i in range(6)] == want and asked == [said] * 18


def test_turns_are_in_order(riffle, model):
    first, order = model.generate("The rain", max_tokens=400, ignore_eos=True), []
    next(first)

    def work(i):
        model.generate(f"Number {i}", max_tokens=1).text
        order.append(i)

    threads = []
    for i in range(5):
        threads.append(threading.Thread(target=work, args=(i,), daemon=True))
        threads[-1].start()
        while len(model.default_context._turns._waiting) <= i:
            time.sleep(0.001)
    assert first.finish is not None or order == []
    first.close()
    for thread in threads:
        thread.join(60)
    assert order == list(range(5))


def test_a_stopped_answer_stops_no_other(riffle, model):
    want = model.generate("The rain", max_tokens=10, **GREEDY).text
    for _ in range(10):
        first, got = model.generate("The rain", **LONG), []
        next(first)
        other = threading.Thread(
            target=lambda: got.append(model.generate("The rain", max_tokens=10, **GREEDY).text),
            daemon=True,
        )
        other.start()
        first.close()
        other.join(60)
        assert got == [want]


def test_a_callback_cannot_wait_for_its_own_call(riffle, model):
    raised = []

    def progress(*_):
        for call in (
            lambda: model.generate("The rain", max_tokens=1).text,
            lambda: model.read(FACTS),
            lambda: model.default_context.session(),
            lambda: model.close(),
        ):
            try:
                call()
            except riffle.Busy as error:
                raised.append(str(error))
        return True

    model.generate("a " * 900, max_tokens=1, progress=progress).text
    model.read("b " * 900, progress=progress).close()
    errors = run_all([lambda: model.read("c " * 900, progress=progress).close()])
    assert errors == [] and len(raised) >= 12 and all("callback" in text for text in raised)
    assert model.generate("The rain", max_tokens=2).text is not None


def test_closing_while_others_wait(riffle, model_path):
    model = riffle.Model(model_path, **SMALL)
    answer = model.generate("The rain", **LONG)
    next(answer)

    def work():
        while True:
            model.generate("The rain", max_tokens=3).text

    def close():
        while len(model.default_context._turns._waiting) < 2:
            time.sleep(0.001)
        model.close()

    errors = run_all([work, work, close])
    assert len(errors) == 2 and all("closed" in str(error) or "abort" in str(error) for error in errors)


def test_a_file_is_read_as_a_file(riffle, model, tmp_path):
    path = tmp_path / "facts.txt"
    path.write_text(FACTS, encoding="utf-8")
    with model.read_file(path) as document, model.read_file(str(path)) as again:
        assert document.text == again.text == FACTS
    with model.read(str(path)) as name:  # a text like any other
        assert name.text == str(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(riffle.BadArgument, match="bytes: byte 1 is not UTF-8"):
        model.read_file(tmp_path / "bytes")


def test_a_folder_stands_for_the_model_in_it(riffle, model_path, tmp_path):
    (tmp_path / "one.gguf").symlink_to(model_path)
    (tmp_path / "README.md").write_text("text")
    with riffle.Model(tmp_path, **SMALL) as model:
        assert model.generate("The rain", max_tokens=2).text is not None
    (tmp_path / "two.gguf").symlink_to(model_path)
    with pytest.raises(riffle.FileError, match=r"2 models \(one.gguf, two.gguf\)"):
        riffle.Model(tmp_path)


def test_errors_have_the_text_of_the_library(riffle, model, tmp_path):
    missing = tmp_path / "none.gguf"
    with pytest.raises(riffle.FileError, match="none.gguf") as error:
        riffle.Model(missing)
    assert isinstance(error.value, riffle.Error) and error.value.status
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    (tmp_path / "empty").mkdir()
    formats = "expected a GGUF file or a Hugging Face folder"
    for name, found in (("bad.gguf", 'a file that begins with "no model"'), ("empty", "a folder with neither")):
        with pytest.raises(riffle.BadModel, match=f"{found}.*, {formats}") as error:
            riffle.Model(tmp_path / name)
        assert "\n" not in str(error.value) and str(tmp_path / name) in str(error.value)
    with pytest.raises(riffle.ContextFull, match="2048"):
        model.generate(FACTS * 100).text
    with pytest.raises(riffle.FileError, match="none.kv"):
        model.load_document(tmp_path / "none.kv")
    (tmp_path / "bad.kv").write_bytes(b"x" * 5000)
    with pytest.raises(riffle.Error, match="bad.kv"):
        model.load_document(tmp_path / "bad.kv")
    with pytest.raises(riffle.BadArgument, match="closed|expected|empty"):
        model.read("")
    with pytest.raises(MemoryError):
        model.context(device="emu", gpu_mem=1 << 20)
    with pytest.raises(riffle.BadArgument, match="holds a NUL"):
        model.chat([{"role": "user", "content": "a\0b"}])
    with pytest.raises(riffle.BadArgument, match=r"messages\[0\]"):
        model.chat([{"role": "user"}])
    with pytest.raises(riffle.BadArgument):
        model.chat([])
    with pytest.raises(riffle.BadArgument, match="token"):
        model.piece(-1)
    with pytest.raises(riffle.BadArgument):
        model.detokenize([10**9 % 2**31])
    with pytest.raises(riffle.BadArgument, match="temperature"):
        model.generate("x", temperature=-1).text


def test_wrong_values_are_named(riffle, model, model_path):
    with pytest.raises(TypeError, match="'temprature'.*temperature"):
        model.generate("x", temprature=0)
    with pytest.raises(ValueError, match="seed: found -2, expected a whole number.* or -1"):
        model.generate("x", seed=-2)
    with pytest.raises(TypeError, match="did you mean 'selector'"):
        riffle.Model(model_path, selectr="share")
    with pytest.raises(riffle.BadArgument, match="device: 'gpu': expected"):
        model.context(device="gpu")
    with pytest.raises(riffle.BadArgument, match="epsilon: '2': expected"):
        model.context(epsilon=2)


def test_settings(riffle, model):
    names = riffle.settings()
    assert {"device", "n_ctx", "threads", "selector", "kv", "gpu_mem", "block_size"} <= set(names)
    context = model.context(
        n_ctx=512,
        threads=1,
        selector="psa",
        epsilon=0.95,
        kv="q8",
        block_size=32,
        pool="per-layer",
        device="emu",
    )
    assert context.length == 512
    assert context.session().generate("The rain", max_tokens=4).text is not None


WAITING = """
import riffle, sys, threading
model = riffle.Model({model!r}, n_ctx=8192, threads=2)
ready = threading.Event()
def hold():
    answer = model.generate("The rain", ignore_eos=True)
    next(answer)
    ready.set()
    for _ in answer: pass
threading.Thread(target=hold, daemon=True).start()
ready.wait()
try:
    print("started", flush=True)
    model.generate("The sun", max_tokens=1).text
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait_for_a_turn(model_path):
    p = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(model=model_path)],
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(PACKAGE)),
    )
    assert p.stdout.readline() == b"started\n"
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=60)[0] == b"interrupted\n"


SCRIPT = """
import riffle, sys
model = riffle.Model({model!r}, n_ctx=8192, threads=2)
if {kind!r} == "exit":
    answer = model.generate("The rain", ignore_eos=True)
    next(answer)
    print("started", flush=True)
    sys.exit(0)
try:
    if {kind!r} == "answer":
        for n, piece in enumerate(model.generate("The rain", ignore_eos=True)):
            if n == 2:
                print("started", flush=True)
    else:
        model.read("The old clock in the hall struck nine. " * 700,
                   progress=lambda phase, done, total: print("started", flush=True))
except KeyboardInterrupt:
    print("interrupted", repr(model.generate("The rain", max_tokens=3).finish))
"""


@pytest.mark.parametrize("kind", ["answer", "read", "exit"])
def test_ctrl_c_and_the_end_of_a_program(model_path, kind):
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", SCRIPT.format(model=model_path, kind=kind)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(PACKAGE)),
    )
    assert process.stdout.readline() == "started\n"
    if kind != "exit":
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == ""
    if kind != "exit":
        assert out.splitlines()[-1] in ("interrupted 'length'", "interrupted 'stop'")


def test_handles_are_freed(riffle, model_path):
    """Contexts that nobody holds give their memory back: their threads end."""
    import gc

    model = riffle.Model(model_path, **SMALL)
    gc.collect()

    def threads():
        return len(os.listdir("/proc/self/task"))

    before = threads()
    for _ in range(4):
        model.context(n_ctx=512, threads=3).session().generate("The rain", max_tokens=2).text
    gc.collect()
    assert threads() <= before


CODE_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "integer", "minimum": 0, "maximum": 9999}},
    "required": ["code"],
    "additionalProperties": False,
}


def test_grammars(riffle, model):
    answer = model.chat(QUESTION, max_tokens=60, json_schema=CODE_SCHEMA, temperature=0)
    assert list(json.loads(answer.text)) == ["code"] and answer.finish == "stop"
    assert model.chat(QUESTION, regex="[0-9]{4}", **GREEDY).text.isdigit()
    assert model.chat(QUESTION, grammar='root ::= "yes" | "no"', **GREEDY).text in ("yes", "no")
    with pytest.raises(riffle.Error, match="line 1"):
        model.chat(QUESTION, grammar="root ::= (")
    with pytest.raises(TypeError, match="several of"):
        model.chat(QUESTION, grammar='root ::= "a"', regex="a")


def test_a_message_that_is_continued(riffle, model):
    begun = {"role": "assistant", "content": '{"code":'}
    answer = model.chat([*QUESTION, begun], json_schema=CODE_SCHEMA, max_tokens=60, **GREEDY)
    assert list(json.loads(begun["content"] + answer.text)) == ["code"]
    with pytest.raises(riffle.BadArgument, match="continues: .*found 'H' at byte 1"):
        model.chat([*QUESTION, dict(begun, content="Here")], json_schema=CODE_SCHEMA)


def test_an_answer_that_nobody_has_read_is_whole(model):
    for name in ("finish", "tokens", "logprobs", "n_tokens"):
        answer = model.chat(QUESTION, max_tokens=3, logprobs=True, **GREEDY)
        assert getattr(answer, name)
        assert answer.finish in ("stop", "length") and len(answer.tokens) == len(answer.logprobs)
    answer = model.generate("The rain", max_tokens=5, **GREEDY)
    next(answer)
    assert answer.finish is None and 0 < len(answer.tokens) < 5
    assert answer.text and len(answer.tokens) == 5


def test_what_chat_takes(riffle, model):
    one = model.chat(QUESTION, max_tokens=8, **GREEDY).text
    assert model.chat(QUESTION[-1]["content"], max_tokens=8, **GREEDY).text == one
    # The template has no system message: it joins the user's.
    joined = [{"role": "user", "content": "Be kind.\n\n" + QUESTION[0]["content"]}]
    kind = {"role": "developer", "content": "Be kind."}
    assert model.chat_tokens([kind, *QUESTION]) == model.chat_tokens(joined)
    for wrong in (QUESTION[0], None, 5):
        with pytest.raises(TypeError, match="^messages: found .*, expected "):
            model.chat(wrong)
    for wrong, words in (
        (["hi"], 'messages[0] is "hi", expected an object'),
        ([{"content": "a"}], "messages[0].role is missing"),
        ([{"role": "x", "content": "a"}], 'messages[0].role is "x", expected system, '),
        ([{"role": "user", "content": "a", "colour": 1}], 'messages[0]."colour" is not supported'),
    ):
        with pytest.raises(riffle.BadArgument) as error:
            model.chat(wrong)
        assert str(error.value).startswith(words)
    with pytest.raises(riffle.BadArgument, match="^messages: found U[+]D800, half of a surrogate"):
        model.chat("a\ud800")
    with pytest.raises(TypeError, match="messages: found b'a', expected a dict"):
        model.chat([{"role": "user", "content": b"a"}])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"max_tokens": "5"}, "max_tokens: found '5', expected a whole number"),
        ({"temperature": "x"}, "temperature: found 'x', expected a number"),
        ({"ignore_eos": "x"}, "ignore_eos: found 'x', expected True or False"),
        ({"logprobs": 5}, "logprobs: found 5, expected True or False; top_logprobs gives the"),
        ({"ignore_eos": 1}, "ignore_eos: found 1, expected True or False$"),
        ({"trim_start": 0}, "trim_start: found 0, expected True or False$"),
        ({"thinking": 1}, "thinking: found 1, expected True, False, 'low', 'medium' or 'high'$"),
        ({"stop": 5}, "stop: found 5, expected a str or a list"),
        ({"stop": [5]}, "stop: found 5, expected a str or a list"),
        ({"logit_bias": [5]}, "logit_bias: found \\[5\\], expected a dict"),
        ({"logit_bias": {"a": 1}}, "logit_bias: found {'a': 1}, expected a dict"),
        ({"json_schema": dict}, "json_schema: found <class 'dict'>, expected a schema as a dict"),
        ({"grammar": {"a": 1}}, "grammar: found {'a': 1}, expected a str"),
        ({"n_predict": 3}, "unknown option 'n_predict'; use max_tokens"),
        ({"stream": True}, "unknown option 'stream'; leave it out: iterate"),
        ({"response_format": {}}, "unknown option 'response_format'; use json_schema"),
        ({"max_tokenz": 3}, "unknown option 'max_tokenz'; did you mean 'max_tokens'?"),
    ],
)
def test_wrong_options_are_named(model, options, words):
    with pytest.raises(TypeError, match=words.replace("?", "[?]")):
        model.chat(QUESTION, **options)


def test_options_that_are_taken_in_other_forms(model):
    token = model.generate("The rain", max_tokens=1, **GREEDY).tokens[0]
    for bias in ({token: -math.inf}, {str(token): -math.inf}):
        answer = model.generate("The rain", max_tokens=3, logit_bias=bias, **GREEDY)
        assert token not in answer.tokens
    assert model.generate("The rain", max_tokens=1, stop=None, json_schema=None, **GREEDY).text
    schema = '{"type": "integer", "minimum": 7, "maximum": 7}'
    for form in (schema, json.loads(schema)):
        assert model.chat(QUESTION, json_schema=form, **GREEDY).text == "7"


@pytest.mark.parametrize(
    "settings, error, words",
    [
        ({"kv": "q3"}, "BadArgument", "kv: 'q3': expected one of f16, f32, q8"),
        ({"n_ctx": "many"}, "BadArgument", "n_ctx: 'many': expected a whole number .* 0 to"),
        ({"n_ctx": "4x"}, "BadArgument", "n_ctx: '4x': expected a whole number .* 0 to"),
        ({"n_ctx": -1}, "BadArgument", "n_ctx: '-1': expected a whole number .* 0 to"),
        ({"n_ctx": True}, "BadArgument", "n_ctx: found True, expected a whole number .* 0 to"),
        ({"gpu_mem": "12X"}, "BadArgument", "gpu_mem: '12X': expected a size such as"),
        ({"gpu_mem": "1.5"}, "BadArgument", "gpu_mem: '1.5': expected a size such as"),
        ({"gpu_mem": "9" * 400}, "BadArgument", "gpu_mem: '9.*expected a size such as"),
        ({"gpu_mem": "4096"}, "BadArgument", "'4096' is 4096 bytes, .*such as 4096M"),
        ({"host_mem": 12}, "BadArgument", "'12' is 12 bytes, expected .*such as 12G"),
        ({"pin": 1}, "TypeError", "pin: found 1, expected True or False"),
        ({"kv": None}, "TypeError", "kv: found None, expected a str, a number or a bool"),
        ({"n_gpu_layers": 3}, "TypeError", "'n_gpu_layers'; use device='cuda' or"),
        ({"chat_format": "a"}, "TypeError", "'chat_format'; use chat_template"),
    ],
)
def test_wrong_settings_are_named(riffle, model_path, settings, error, words):
    with pytest.raises(getattr(riffle, error, TypeError), match=words):
        riffle.Model(model_path, **settings)


def test_biases_penalties_and_log_probabilities(riffle, model):
    answer = model.generate("The rain", max_tokens=5, logprobs=True, top_logprobs=3, **GREEDY)
    assert answer.text and len(answer.logprobs) == len(answer.tokens) == 5
    for token, (logprob, top) in zip(answer.tokens, answer.logprobs):
        assert len(top) == 3 and top[0] == (token, logprob) and logprob <= 0
    first = answer.tokens[0]
    banned = model.generate("The rain", max_tokens=5, logit_bias={first: -math.inf}, **GREEDY)
    assert banned.text is not None and first not in banned.tokens
    again = model.generate("word " * 8, max_tokens=24, repeat_penalty=3.0, **GREEDY)
    assert again.text is not None and again.finish == "length"
    dry = dict(max_tokens=24, dry_allowed_length=1, **GREEDY)
    free, spaced, strict = (
        model.generate("word " * 8, dry_multiplier=m, dry_sequence_breakers=b, **dry).text
        for m, b in ((0.0, []), (9.0, [" "]), (9.0, []))
    )
    assert spaced == free != strict
    hot = dict(max_tokens=24, seed=3, temperature=0.7)
    xtc = dict(xtc_probability=1.0, xtc_threshold=0.05, **hot)
    assert model.generate("The rain", **xtc).text == model.generate("The rain", **xtc).text
    assert model.generate("The rain", **xtc).text != model.generate("The rain", **hot).text
    with pytest.raises(riffle.Error, match="xtc_threshold"):
        model.generate("The rain", xtc_threshold=2.0).text
    with pytest.raises(riffle.Error, match="frequency_penalty"):
        model.generate("The rain", frequency_penalty=3.0).text


def test_top_logprobs_need_logprobs(model):
    for options in ({}, {"logprobs": False}, {"logprobs": None}):
        with pytest.raises(ValueError) as error:
            model.generate("x", top_logprobs=2, **options)
        assert str(error.value) == "top_logprobs: found 2 without logprobs=True, expected both"
    assert model.generate("The rain", max_tokens=2, top_logprobs=0, **GREEDY).logprobs == []


def test_random_seeds(model):
    assert model.generate("x").seed == 0 and model.generate("x", seed=2**64 - 1).seed == 2**64 - 1
    # So hot that three answers are never the same by chance.
    options = {"max_tokens": 24, "temperature": 4.0}
    answers = [model.chat(QUESTION, seed=-1, **options) for _ in range(3)]
    assert len({answer.seed for answer in answers}) == 3
    assert all(0 <= answer.seed < 2**53 for answer in answers)
    assert len({answer.text for answer in answers}) > 1
    again = model.chat(QUESTION, seed=answers[0].seed, **options)
    assert again.text == answers[0].text


def test_arguments_of_other_types_are_named(model, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a")
    itself = "expected str (the text itself"
    with open(path) as file:
        for call, words in (
            (lambda: model.read(path), f"text: found a PosixPath, {itself}; use path.read_text())"),
            (lambda: model.read(file), f"text: found a TextIOWrapper, {itself}; use file.read())"),
            (lambda: model.read(b"a"), f"text: found b'a', {itself}; use text.decode())"),
            (lambda: model.read(5), f"text: found 5, {itself})"),
            (lambda: model.read("a", system=5), "system: found 5, expected a str"),
            (lambda: model.tokenize(5), "text: found 5, expected a str"),
            (lambda: model.tokenize("a", bos=1), "bos: found 1, expected True or False"),
            (
                lambda: model.chat(b"Hi"),
                "messages: found b'Hi', expected a str, or a list of dicts with role and content",
            ),
            (lambda: model.detokenize("a"), "tokens: found 'a', expected a list of token ids"),
            (lambda: model.detokenize(5), "tokens: found 5, expected a list of token ids"),
            (
                lambda: model.detokenize([1, 2**31]),
                "tokens: found 2147483648 in a list, expected a list of token ids",
            ),
            (lambda: model.piece("a"), "token: found 'a', expected a token id"),
            (lambda: model.is_end_token(1.5), "token: found 1.5, expected a token id"),
            (
                lambda: model.generate(b"Hi"),
                "prompt: found b'Hi', expected a str or a list of tokens",
            ),
            (
                lambda: model.generate([1, "a"]),
                "prompt: found 'a' in a list, expected a str or a list of tokens",
            ),
            (lambda: model.chat("a", date=5), "date: found 5, expected a str"),
        ):
            with pytest.raises(TypeError) as error:
                call()
            assert str(error.value) == words
    with model.read("a") as document, pytest.raises(TypeError, match="^question: found 5, expec"):
        document.ask(5)


def test_contents_in_parts(riffle, model):
    def chat(content):
        return model.chat_tokens([{"role": "user", "content": content}])

    parts = [{"type": "text", "text": "The code is 4821."}, {"type": "text", "text": "Which?"}]
    assert chat(parts) == chat("The code is 4821.\nWhich?") and chat(parts[:1]) != chat(parts)
    begun = {"role": "assistant", "content": [{"type": "text", "text": "12"}]}
    answer = model.chat([*QUESTION, begun], regex="12[0-9]{2}", **GREEDY)
    assert answer.text.isdigit() and len(answer.text) == 2
    image = {"type": "image_url", "image_url": {"url": "a.png"}}
    for content, words in (
        ([parts[0], image], '[1].type is "image_url", which is not supported; expected "text"'),
        ([{"text": "a"}], "[0].type is missing"),
        ([{"type": "text"}], "[0].text is missing"),
        (["a"], '[0] is "a", expected an object'),
        ([], " is empty, expected text"),
        (5, " is 5, expected a string or a list of parts of type text"),
    ):
        with pytest.raises(riffle.BadArgument) as error:
            chat(content)
        assert str(error.value) == "messages[0].content" + words


def test_sizes_as_on_the_command_line(riffle, model):
    from riffle import _settings

    for text, size in (
        ("12G", 12 << 30),
        ("1.5k", 1536),
        ("2M", 2 << 20),
        ("1TiB", 1 << 40),
        ("3gb", 3 << 30),
        ("1048576", 1 << 20),
        (1 << 20, 1 << 20),
        ("0", 0),
    ):
        for name in ("gpu_mem", "host_mem"):
            options = _settings.Options()
            _settings.set_setting(options, name, text)
            assert int(options.get(name)) == size
    options = _settings.Options()
    _settings.set_setting(options, "n_ctx", "4k")
    assert options.get("ctx") == "4096"
    with pytest.raises(MemoryError):
        model.context(device="emu", gpu_mem="1K")
    assert model.context(device="emu", gpu_mem="1G", n_ctx=512).length == 512
