"""The example programs of tests/capi/examples, which link the shared library."""
from harness import *

FOLDER = os.path.join(os.path.dirname(BIN), "examples")
CODE = "The code is 4821."


def run(name, *args, stdin=b""):
    p = subprocess.run([os.path.join(FOLDER, name), *args], input=stdin, capture_output=True, timeout=200)
    return Result(p.returncode, p.stdout, p.stderr)


def chat(_):
    r = run("chat", MODEL, stdin=f"{CODE} What is the code?\nHello\n".encode())
    check(r.code == 0 and b"4821" in r.out and r.out.count(b"\n") >= 2, "chat answers each line", r)


def document(folder):
    text, kept = os.path.join(folder, "doc.txt"), os.path.join(folder, "kept.kv")
    with open(text, "w") as f:
        f.write((CODE + " ") * 30 + "\n")
    first = run("document", MODEL, text, kept, "What is the code?")
    later = run("document", MODEL, text, kept, "What is the code?", "What is it?")
    check(first.code == 0 and b"4821" in first.out and b"read and kept in" in first.err,
          "document answers", first)
    # The examples set no instruction set, so the model's texts may differ between two processes.
    check(later.code == 0 and b"4821" in later.out.splitlines()[0] and later.out.count(b"\n") > first.out.count(b"\n")
          and f"[{kept} is used: ".encode() in later.err, "document answers from what was kept", later)
    r = run("document", MODEL, text, text, "x")
    check(r.code == 1 and text.encode() in r.err, "document: a file that is no session", r)
    r = run("document", MODEL, os.path.join(folder, "none.txt"), kept, "x")
    check(r.code == 1 and b"none.txt: No such file" in r.err, "document: no such file", r)


def batch(_):
    r = run("batch", MODEL, stdin=b"The rain\nThe sun\nThe rain\n")
    lines = dict(x.split(b": ", 1) for x in r.out.splitlines() if b": " in x)
    check(r.code == 0 and set(lines) == {b"1", b"2", b"3"} and lines[b"1"] == lines[b"3"],
          "batch answers every line", r)


def abort(_):
    r = run("abort", MODEL, "200")
    check(r.code == 0 and r.out.endswith(b" tokens, stopped]\n"), "abort stops an answer", r)


def header(_):
    """The whole program in riffle.h's comment, which the Makefile extracts. It answers with the chat template."""
    r = run("header", MODEL, f"{CODE} What is the code?")
    check(r.code == 0 and len(r.out) > 1 and r.out.endswith(b"\n") and r.err == b"", "the program in riffle.h answers", r)
    for args, words in (((), b"usage: ask MODEL.gguf"), (("/nowhere.gguf", "x"), b"/nowhere.gguf"), ((MODEL, "1 " * 60000), b"32768")):
        r = run("header", *args)
        check(r.code == 1 and r.out == b"" and words in r.err, f"the program in riffle.h: {words.decode()}", r)


def errors(_):
    for name, args in (("chat", ()), ("document", ("x",)), ("batch", ()), ("abort", ())):
        r = run(name, *args)
        check(r.code == 2 and r.err.startswith(f"usage: {name} MODEL.gguf".encode()), f"{name}: usage", r)
    for name, args in (("chat", ()), ("document", (__file__, "b", "c")), ("batch", ()), ("abort", ("1",))):
        r = run(name, "/nowhere.gguf", *args)
        check(r.code == 1 and b"/nowhere.gguf" in r.err, f"{name}: a model that is not there", r)


main(chat, document, batch, abort, header, errors)
