"""Standard input of run together with -p and -f: a document, nothing, an endless pipe, a loop's file."""
import pty
import socket
import time

from harness import *

DOCUMENT = b"The code is 4821.\n"
QUESTION = "What is the code?"
RUN = ["run", "--chat", "-n", "12", *GREEDY, *SMALL]
UNREAD = b"standard input is not read"


def answer(*args, **more):
    return riffle(*RUN, "-q", *args, **more)


def open_pipe():
    """Starts run on a pipe that sends nothing and does not end. Its wait of 10 seconds passes during other tests."""
    p = start(*RUN, "-p", QUESTION, stdin=subprocess.PIPE)
    return p


def documents(folder):
    path = os.path.join(folder, "doc.txt")
    with open(path, "wb") as f:
        f.write(DOCUMENT)
    want = answer("-p", DOCUMENT.decode() + QUESTION)
    alone = answer("-p", QUESTION)
    check(want.code == 0 and want.out and want.out != alone.out, "the document changes the answer",
          (want, alone))
    r = answer("-p", QUESTION, stdin=DOCUMENT)
    check(r.code == 0 and r.out == want.out and r.err == b"", "a pipe goes before -p, as -f does",
          (r, want))
    r = riffle(*RUN, "-p", QUESTION, stdin=DOCUMENT)
    check(b"[standard input, 18 B, is the document before -p; give < /dev/null if it is not]" in r.err,
          "... and is never read in silence", r)
    check(r.out.endswith(b"\n") and not r.out.endswith(b"\n\n"), "an answer in a pipe is a line", r)
    for end in (b"", b"\r\n\n"):
        r = answer("-p", QUESTION, stdin=DOCUMENT.rstrip() + end)
        check(r.out == want.out, f"its line breaks at the end do not matter: {end}", r)
    r = answer("-p", QUESTION, "--json", stdin=DOCUMENT)
    check(r.code == 0 and json.loads(r.out)["text"].encode() + b"\n" == want.out, "... with --json", r)
    with open(path, "rb") as f:
        p = start(*RUN, "-q", "-p", QUESTION, stdin=f)
        out, err = p.communicate(timeout=120)
    check(out == want.out, "a redirected file goes before -p", (out, err))
    ours, theirs = socket.socketpair()
    p = start(*RUN, "-q", "-p", QUESTION, stdin=theirs)
    theirs.close()
    ours.sendall(DOCUMENT[:5])
    time.sleep(0.3)
    ours.sendall(DOCUMENT[5:])
    ours.close()
    out, err = p.communicate(timeout=120)
    check(out == want.out, "a socket goes before -p, in pieces", (out, err))
    r = answer("-f", "-", "-p", QUESTION, stdin=DOCUMENT)
    check(r.out == want.out, "-f - is standard input", r)
    ids = [riffle("tokenize", "--ids-only", "-q", *args, stdin=stdin).out for args, stdin in
           ((["-p", QUESTION], DOCUMENT), (["-p", DOCUMENT.decode() + QUESTION], b""))]
    check(ids[0] and ids[0] == ids[1], "tokenize -p takes a pipe as run does", ids)
    big = words(100000).encode()
    r = riffle("run", "-p", "x", "-c", "64", "-q", stdin=big)
    check(one_line_error(r, 5, "64"), "a document longer than a pipe holds is read whole", r)
    r = riffle("run", "-p", "x", *SMALL, stdin=b"a" * 30_000_000)
    check(one_line_error(r, 5, "tokens or more, but the context holds 2048"), "30 MB are too long before they are tokenised", r)


def nothing(_):
    want = answer("-p", QUESTION)
    for name, stdin in (("an empty pipe", b""), ("line breaks alone", b"\n\r\n")):
        r = riffle(*RUN, "-p", QUESTION, stdin=stdin)
        check(r.code == 0 and r.out == want.out and b"standard input" not in r.err,
              f"{name}: the question alone", r)
    p = start(*RUN, "-p", QUESTION)  # /dev/null
    out, err = p.communicate(timeout=120)
    check(out == want.out and b"standard input" not in err, "/dev/null: the question alone",
          (out, err))
    p = start(*RUN, "-p", QUESTION, stdin=None, preexec_fn=lambda: os.close(0))
    out, err = p.communicate(timeout=120)
    check(out == want.out and b"standard input" not in err, "closed: the question alone",
          (out, err))
    ours, theirs = pty.openpty()
    p = start(*RUN, "-p", QUESTION, stdin=theirs)
    out, err = p.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    check(out == want.out and b"standard input" not in err, "a terminal: the question alone",
          (out, err))


def loops(folder):
    """A shell's loop over the lines of a file: riffle takes none of them."""
    path = os.path.join(folder, "questions.txt")
    with open(path, "w") as f:
        f.write("Hello.\nWho are you?\n")
    run = '"$0" run --chat -p "$q" -n 6 --temp 0 ' + " ".join(SMALL)
    script = f'while read -r q; do {run}; done < "$1"'
    p = subprocess.run(["sh", "-c", script, BIN, path], capture_output=True, env=environment(),
                       timeout=120)
    want = b"".join(riffle("run", "--chat", "-p", q, "-n", "6", *GREEDY, *SMALL).out
                    for q in ("Hello.", "Who are you?"))
    check(p.stdout == want, "a while-read loop gets each of its lines", (p.stdout, want))
    check(p.stderr.count(UNREAD) == 1, "and what is not read is said, while there is some",
          p.stderr)


def beside_a_file(folder):
    path = os.path.join(folder, "doc.txt")
    with open(path, "wb") as f:
        f.write(DOCUMENT)
    want = answer("-f", path, "-p", QUESTION)
    for args in (["-f", path, "-p", QUESTION], ["-f", path]):
        r = riffle(*RUN, *args, stdin=b"Another text.\n")
        check(r.code == 0 and UNREAD in r.err and b"-f -" in r.err,
              "with -f a pipe is not read, and that is said", r)
        check(len(args) == 2 or r.out == want.out, "... and the answer is that of the file", r)
        r = riffle(*RUN, *args)
        check(r.code == 0 and UNREAD not in r.err, "... but not where there is nothing", r)
    with open(path, "rb") as f:
        p = start(*RUN, "-f", path, "-p", QUESTION, stdin=f)
        out, err = p.communicate(timeout=120)
    check(out == want.out and UNREAD in err, "with -f a redirected file is not read either",
          (out, err))
    p = start(*RUN, "-f", path, "-p", QUESTION, stdin=subprocess.PIPE)
    begun = time.time()
    p.wait(120)
    check(p.returncode == 0 and time.time() - begun < 9, "with -f an open pipe is not waited for",
          p.returncode)
    p.communicate()


def late(_):
    p = start(*RUN, "-p", QUESTION, stdin=subprocess.PIPE)
    time.sleep(2)
    out, err = p.communicate(DOCUMENT, timeout=120)
    check(p.returncode == 0 and b"[waiting for standard input; < /dev/null" in err,
          "a late document: said after a second", err)
    check(out == answer("-p", QUESTION, stdin=DOCUMENT).out, "... and read", out)
    p = start(*RUN, "-q", stdin=subprocess.PIPE)
    time.sleep(1.5)
    out, err = p.communicate(DOCUMENT, timeout=120)
    check(p.returncode == 0 and out and err == b"", "without -p a prompt is waited for",
          (p.returncode, out, err))


SILENT = [open_pipe()]


def silence(_):
    p = SILENT.pop()
    p.wait(120)
    text = p.stderr.read().decode()
    lines = text.splitlines()
    check(p.returncode == 1 and p.stdout.read() == b"" and len(lines) == 2
          and lines[1].startswith("riffle: stdin: ")
          and all(w in lines[1] for w in ("10 s", "expected", "< /dev/null", "-f -")),
          "an open pipe that sends nothing is an error, not an endless wait", (p.returncode, text))
    p.stdin.close()
    p.stdout.close()
    p.stderr.close()


main(documents, nothing, loops, beside_a_file, late, silence)
