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
    kept = os.path.join(folder, "kept.kv")
    first = run("document", MODEL, (CODE + " ") * 30, kept, " The code")
    later = run("document", MODEL, "", kept, " The code", " No")
    check(first.code == 0 and b"4821" in first.out, "document answers", first)
    check(later.code == 0 and later.out.startswith(first.out) and len(later.out) > len(first.out),
          "document answers from what was kept", later)


def batch(_):
    r = run("batch", MODEL, stdin=b"The rain\nThe sun\nThe rain\n")
    lines = dict(x.split(b": ", 1) for x in r.out.splitlines() if b": " in x)
    check(r.code == 0 and set(lines) == {b"1", b"2", b"3"} and lines[b"1"] == lines[b"3"],
          "batch answers every line", r)


def abort(_):
    r = run("abort", MODEL, "200")
    check(r.code == 0 and r.out.endswith(b" tokens, stopped]\n"), "abort stops an answer", r)


def errors(_):
    for name, args in (("chat", ()), ("document", ("x",)), ("batch", ()), ("abort", ())):
        r = run(name, *args)
        check(r.code == 2 and r.err.startswith(f"usage: {name} MODEL.gguf".encode()), f"{name}: usage", r)
    for name, args in (("chat", ()), ("document", ("a", "b", "c")), ("batch", ()), ("abort", ("1",))):
        r = run(name, "/nowhere.gguf", *args)
        check(r.code == 1 and b"/nowhere.gguf" in r.err, f"{name}: a model that is not there", r)


main(chat, document, batch, abort, errors)
