"""run makes the prompt a message if riffle knows the model's chat template, else continues it."""
from harness import *

ASK = ["run", "-p", "What is the capital of France?", "-n", "12", *GREEDY, *SMALL]
PLAIN = b"continued as plain text"


def changed(folder, name, old, new):
    """The model with a piece of its file's head replaced by one of the same length."""
    with open(MODEL, "rb") as f:
        data = f.read()
    at = data.find(old)
    assert at >= 0 and len(old) == len(new)
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data[:at] + new + data[at + len(old):])
    return path


def with_a_template(_):
    default, chat, raw = (riffle(*ASK, *more) for more in ([], ["--chat"], ["--raw"]))
    check(default.code == 0 and default.out and default.out == chat.out,
          "a chat model: --chat is the default", (default, chat))
    check(raw.code == 0 and raw.out != chat.out, "--raw continues the prompt", (raw, chat))
    check(all(PLAIN not in r.err for r in (default, chat, raw)), "nothing to say in any of them",
          default)
    name = json.loads(riffle("info", "--json", "-q").out)["chat_template_name"]
    got = [json.loads(riffle(*ASK, "--json", "-q", *more).out) for more in ([], ["--raw"])]
    check([j["chat_template"] for j in got] == [name, None]
          and [j["text"].encode() for j in got] == [default.out, raw.out],
          "--json tells the template", got)
    ids = [len(riffle("tokenize", "-p", "Hello", "--ids-only", "-q", *more).out.split())
           for more in ([], ["--chat"])]
    tokens = [json.loads(riffle("run", "-p", "Hello", "-n", "1", *SMALL, "--json", "-q",
                                *more).out)["prompt_tokens"]
              for more in (["--raw"], [])]
    check(tokens == ids and ids[0] < ids[1],
          "the tokens are those that tokenize shows, without and with --chat", (ids, tokens))
    r = riffle(*ASK, "--chat-template", name)
    check(r.out == chat.out, "a template by name", r)
    system = riffle(*ASK, "--system", "Be brief.")
    same = riffle(*ASK, "--system", "Be brief.", "--chat")
    check((system.code, system.out) == (same.code, same.out)
          and (system.code or system.out != chat.out),
          "--system implies --chat", (system, same))
    for more in (["--chat"], ["--system", "x"], ["--chat-template", name]):
        r = riffle(*ASK, "--raw", *more)
        check(one_line_error(r, 2, f"--raw excludes {more[0]}"),
              f"--raw and {more[0]} exclude each other", r)


def without(folder):
    none = changed(folder, "none.gguf", b"tokenizer.chat_template", b"tokenizer.chat_templ_no")
    odd = changed(folder, "odd.gguf", b"'[INST] '", b"'[WHAT] '")
    for path, why in ((none, b"carries no chat template"), (odd, b"is none that riffle knows")):
        default, raw = riffle(*ASK, "-m", path), riffle(*ASK, "-m", path, "--raw")
        said = [line for line in default.err.splitlines() if PLAIN in line]
        check(default.code == 0 and default.out and default.out == raw.out,
              "no known template: the prompt is continued",
              (default, raw))
        check(len(said) == 1 and why in said[0] and b"--chat-template" in said[0]
              and PLAIN not in raw.err,
              "... which is said in one line, but not with --raw", (default, raw))
        r = riffle(*ASK, "-m", path, "-q")
        check(r.out == raw.out and r.err == b"", "... nor with -q", r)
        j = json.loads(riffle(*ASK, "-m", path, "--json", "-q").out)
        check(j["chat_template"] is None, "... and --json tells that there is none", j)
        for more in (["--chat"], ["--system", "x"]):
            r = riffle(*ASK, "-m", path, *more, "-q")
            check(one_line_error(r, 1, why.decode(), "--chat-template"), f"{more[0]} is an error",
                  r)
        r = riffle(*ASK, "-m", path, "--chat-template", "inst")
        check(r.out == riffle(*ASK).out and PLAIN not in r.err, "--chat-template gives it one", r)
    r = riffle(*ASK, "--chat-template", "chatml", "-q")
    check(one_line_error(r, 1, "<|im_start|>"),
          "a template by name that the vocabulary lacks tokens for is an error", r)


main(with_a_template, without)
