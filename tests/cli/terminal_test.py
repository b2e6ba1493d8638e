"""Input and output of a terminal: control sequences in untrusted text, keys, Ctrl-C, closed streams."""
import shutil

from harness import *
from terminal import *

EVIL = "\x1b]52;c;SGVsbG8=\x07\x1b[2J\x7f\u009b31m\u202e"
SHOWN = rb"\u001b]52;c;SGVsbG8=\u0007\u001b[2J\u007f\u009b31m\u202e"
GRAMMAR = f'root ::= "a{EVIL}z"'


def on_terminal(*args, **env):
    t = Terminal(*args, NO_COLOR="1", **env)
    code = t.end(120)
    return code, t.seen.replace(b"\r\n", b"\n")


def answers(folder):
    args = ["run", "-p", "x", "--grammar", GRAMMAR, *GREEDY, *SMALL, "-q"]
    code, seen = on_terminal(*args)
    check(code == 0 and seen == b"a" + SHOWN + b"z\n", "an answer's control sequences are shown, not obeyed", seen)
    r = riffle(*args)
    check(r.code == 0 and r.out.rstrip(b"\n") == b"a" + EVIL.encode() + b"z", "a pipe gets them unchanged", r)
    code, seen = on_terminal(*args, "--json")
    piped = json.loads(riffle(*args, "--json").out)["text"]
    check(code == 0 and json.loads(seen)["text"] == "a" + EVIL + "z" == piped, "--json is the same JSON on both", seen)
    lines = os.path.join(folder, "in.jsonl")
    with open(lines, "w") as f:
        f.write(json.dumps({"custom_id": "a", "body": {"prompt": "x", "max_tokens": 99, "grammar": GRAMMAR}}) + "\n")
    code, seen = on_terminal("batch", "-i", lines, *SMALL, "-q")
    check(code == 0 and EVIL in json.dumps(json.loads(seen), ensure_ascii=False).encode().decode("unicode_escape", "replace")
          or SHOWN in seen, "a record of batch", seen)
    check(not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", seen), "... has no control characters", seen)

    t = Terminal("chat", "--grammar", GRAMMAR, *GREEDY, *SMALL, "-q", NO_COLOR="1")
    t.wait_for(rb"> ")
    t.send(b"x\r")
    seen = t.wait_for(rb"u202ez")
    check(SHOWN in seen, "an answer in chat", seen)
    t.send(b"\x04")
    check(t.end() == 0, "... which ends")


def notices(folder):
    name = os.path.join(folder, "a\x1b]0;t\x07b")
    code, seen = on_terminal("run", "-f", name)
    check(code == 1 and rb"a\u001b]0;t\u0007b: cannot open" in seen and b"\x1b" not in seen, "an error quotes a name", seen)
    r = riffle("run", "-f", name)
    check(r.code == 1 and b"a\x1b]0;t\x07b: cannot open" in r.err, "... in a pipe as it is", r)
    with open(name, "w") as f:
        f.write("a { \x1b[31m }")
    code, seen = on_terminal("run", "-p", "x", "--json-schema", name)
    check(code == 2 and b"\x1b" not in seen, "an error quotes a schema", seen)
    code, seen = on_terminal("tokenize", "-p", "\x1b[31m\x7f", "-q")
    check(code == 0 and not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", seen), "tokenize", seen)
    code, seen = on_terminal("run", "-p", "Hi.", "-n", "2", *GREEDY, *SMALL)
    t = Terminal("run", "-p", "Hi.", "-n", "2", *GREEDY, *SMALL)
    check(t.end() == 0 and b"\x1b[2m[answer of" in t.seen and b"\x1b[0m" in t.seen, "riffle's own colours stay", t.seen)


def metadata(folder):
    own = json.loads(riffle("info", "--json", "-q").out)["name"].encode()
    new = (b"N\x1b]5\x07\n\tX" + b"." * len(own))[:len(own)]
    model = changed(folder, "esc.gguf", own, new)
    code, seen = on_terminal("info", "-m", model)
    shown = [line for line in seen.split(b"\n") if line.startswith(b"name ")]
    check(code == 0 and len(shown) == 1 and rb"N\u001b]5\u0007\u000a\u0009X" in shown[0] and b"\x1b" not in seen,
          "a name in a model's file is one line", seen)
    r = riffle("info", "-m", model)
    check(rb"N\u001b]5\u0007\u000a\u0009X" in r.out, "... in a pipe, too: a table", r)
    named = os.path.join(folder, "m\x1b]0;t\x07\n.gguf")
    os.symlink(model, named)
    for name, args in (("bench", ["--prefill", "0", "--depth", "64", "--steps", "2", "--reps", "1"]),
                       ("batch", ["-i", os.path.join(folder, "none\x1b]0;t\x07.jsonl")]),
                       ("eval", ["--text", os.path.join(folder, "none\x1b]0;t\x07.txt")])):
        code, seen = on_terminal(name, "-m", named, *args, *(SMALL if name != "eval" else ()))
        own = re.sub(rb"\x1b\[[0-9;]*m|\r", b"", seen)
        check(code == (0 if name == "bench" else 1) and not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", own),
              f"{name} shows names without obeying them", (code, seen))
    check(json.loads(riffle("info", "-m", model, "--json").out)["name"] == new.decode(), "--json has the name itself")


def closed_streams(folder):
    """A file that riffle opens must not get a closed stream's descriptor."""
    line = '{"custom_id":"a","body":{"prompt":"hi","max_tokens":3}}\n'
    doc, inp = os.path.join(folder, "doc.txt"), os.path.join(folder, "in.jsonl")
    for path, text in ((doc, "The code is 4821.\n"), (inp, line)):
        with open(path, "w") as f:
            f.write(text)
    small = " ".join(SMALL)
    runs = {"batch": (f'batch -i "{inp}" -o "$1" {small}', "out.jsonl"),
            "batch of stdin": (f'batch -o "$1" {small} <"{inp}"', "out.jsonl"),
            "read": (f'read -f "{doc}" -o "$1" {small}', "out.kv"),
            "quantize": ('quantize -o "$1" --type q4_0 --allow-requantize', "out.gguf"),
            "chat": (f'chat --session "$1" -n 2 {small} <"{inp}"', "chat.kv")}
    for name, (command, output) in runs.items():
        for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"):
            if "<\"" in command and "0<" in closed:
                continue
            out = os.path.join(folder, output)
            if os.path.exists(out):
                os.remove(out)
            p = subprocess.run(["sh", "-c", f'"$0" {command} {closed}', BIN, out], capture_output=True,
                               env=environment(), stdin=subprocess.DEVNULL, timeout=240)
            data = open(out, "rb").read() if os.path.exists(out) else b""
            if name.startswith("batch"):
                good = data.count(b"\n") == 1 and json.loads(data)["error"] is None
            elif name == "quantize":
                good = riffle("info", "-m", out, "-q").code == 0
            elif name == "chat" and "1>&-" in closed:
                good = b"[" not in data[:1]  # its answer cannot be written; nothing else may be in the file
            else:
                good = riffle("info", out).code == 0
            check(good and b"tokens/s" not in data[-4096:], f"{name} with {closed}", (p.returncode, p.stderr, data[-200:]))
    p = subprocess.run(["sh", "-c", f'"$0" run -p hi -n 2 {small} 1>&-', BIN], capture_output=True, env=environment())
    check(p.returncode == 1 and b"stdout: cannot write" in p.stderr, "an answer to a closed stdout is an error", p.stderr)


def without_devices(folder):
    """The same where /dev is empty, as in a small container."""
    def inside(command, *args):
        return subprocess.run(["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /dev && " + command, BIN, *args],
                              capture_output=True, env=environment(), stdin=subprocess.DEVNULL, timeout=120)

    if not shutil.which("unshare") or inside("exit 7").returncode != 7:
        print("skip without_devices: unshare cannot mount")
        return
    small = " ".join(SMALL)
    out, inp = os.path.join(folder, "out.jsonl"), os.path.join(folder, "in.jsonl")
    with open(inp, "w") as f:
        f.write('{"custom_id":"a","body":{"prompt":"hi","max_tokens":3}}\n')
    p = inside(f'"$0" batch -i "$1" -o "$2" {small} 0<&- 1>&- 2>&-', inp, out)
    with open(out, "rb") as f:
        data = f.read()
    check(p.returncode == 0 and data.count(b"\n") == 1 and json.loads(data)["error"] is None,
          "without /dev/null closed streams are held, too", (p, data))
    p = inside(f'"$0" run -p hi -n 2 {small} 0<&-')
    check(p.returncode == 0 and p.stdout.endswith(b"\n"), "... and a closed stdin is no document", p)
    p = inside(f'"$0" run -p hi -n 2 {small} 1>&-')
    check(p.returncode == 1 and b"stdout: cannot write" in p.stderr, "... and a closed stdout is an error", p)


def talk(history, text=b"Hello.\r", **env):
    """A chat on a terminal in which something is typed."""
    t = Terminal("chat", "-n", "2", *GREEDY, *SMALL, "-q", **({"RIFFLE_HISTORY": history} | env))
    t.wait_for(rb"> ", 30)
    t.send(text)
    t.wait_for(rb"\n.*?> ", 30)
    t.send(b"\x04")
    return t.end()


def history(folder):
    path = os.path.join
    real, link = path(folder, "real"), path(folder, "link")
    os.symlink("real", link)
    for i, name in enumerate((b"One.", b"Two.")):
        check(talk(link, name + b"\r") == 0 and os.path.islink(link) and os.path.exists(real)
              and name in open(real, "rb").read(), f"a link's target is written ({i + 1})", os.listdir(folder))
    kept = open(real, "rb").read()
    check(b"One." in kept and os.stat(real).st_mode & 0o077 == 0, "and read", kept)
    os.chmod(real, 0o640)
    owner = os.stat(real).st_uid
    check(talk(link, b"Three.\r") == 0 and b"Three." in open(real, "rb").read() and os.stat(real).st_mode & 0o777 == 0o640
          and os.stat(real).st_uid == owner, "its mode and owner stay", os.stat(real))
    fifo = path(folder, "fifo")
    os.mkfifo(fifo)
    check(talk(fifo) == 0 and not os.path.isfile(fifo), "a FIFO is neither read nor replaced")
    notes = path(folder, "notes.txt")
    with open(notes, "w") as f:
        f.write("mine\n")
    check(talk(notes) == 0 and open(notes).read() == "mine\n", "a file of something else stays")
    for device in ("/dev/null", "/dev/zero"):
        node = path(folder, os.path.basename(device))
        try:
            os.mknod(node, 0o600 | 0o020000, os.stat(device).st_rdev)
        except PermissionError:
            os.symlink(device, node)
        check(talk(node) == 0 and not os.path.isfile(node), f"{device} stays a device", os.lstat(node))
        check(talk(device) == 0 and not os.path.isfile(device), f"{device} itself")
    home, work = path(folder, "home"), path(folder, "work")
    os.mkdir(home)
    os.mkdir(work)
    env = environment(XDG_STATE_HOME="rel", HOME=home, TERM="xterm")
    del env["RIFFLE_HISTORY"]
    t = Terminal.of("/bin/sh", "-c", 'cd "$W" && unset RIFFLE_HISTORY && exec "$B" chat -q -n 2 -c 2048', B=BIN, W=work,
                    XDG_STATE_HOME="rel", HOME=home)
    t.wait_for(rb"> ")
    t.send(b"/stats\r")
    t.wait_for(rb"peak memory.*?> ")
    t.send(b"\x04")
    t.end()
    check(os.listdir(work) == [] and os.path.exists(path(home, ".local/state/riffle/history")),
          "a relative XDG_STATE_HOME is ignored", os.listdir(work))
    check([n for n in os.listdir(folder) if "part" in n] == [], "nothing is left beside them", os.listdir(folder))


def quantize_to_a_link(folder):
    real, link = os.path.join(folder, "real.gguf"), os.path.join(folder, "link.gguf")
    args = ["quantize", "--type", "q4_0", "--allow-requantize", "-q", "-o", link]
    os.symlink(real, link)
    r = riffle(*args)
    check(r.code == 0 and os.path.islink(link) and open(real, "rb").read(4) == b"GGUF",
          "a link to a file that is not there yet: the file is made, and the link stays", r)
    os.truncate(real, 0)
    r = riffle(*args)
    check(one_line_error(r, 2, link, "exists"), "without --force", r)
    r = riffle(*args, "--force")
    check(r.code == 0 and os.path.islink(link) and open(real, "rb").read(4) == b"GGUF", "--force writes a link's target", r)


def keys(_):
    t = Terminal("chat", "-n", "2", *GREEDY, *SMALL, "-q")
    t.wait_for(rb"> ")
    # Two words back, one forward, Delete; unknown keys between.
    t.send(b"/one two three\x1b[1;5D\x1b[15~\x1bOd\x1b[5~\x1b\x1b[C\x1b[3~\x1b[6;5~X\x1b[1~\x1bOF!\r")
    seen = t.wait_for(rb"is not a command.*?> ")
    check(rb"/one is not" in seen, "function keys are ignored", seen)
    t.send(b"\x1b[A\x1b[1;5D\x1b[1;5D\x1b[1;5D\x1b[C\x0b\x01\x1b[D/caf\xe9\r")
    seen = t.wait_for(rb"is not a command.*?> ")
    check("/caf\ufffd".encode() in seen, "a broken character does not swallow Enter", seen)
    t.send(b"\x04")
    check(t.end() == 0, "the chat ends as ever", t.seen)


def long_document(folder, n=10000 if THOROUGH else 7000):
    path = os.path.join(folder, "doc.txt")
    sentence = "The old clock in the hall struck nine, and the rain went on against the windows. "
    with open(path, "w") as f:
        f.write("The code is 4821. " + sentence * (n // 19) + "\n")
    return path


LONG = ["-c", "32K", "--device", "cpu", "--threads", THREADS, "--isa", ISA, "--selector", "dense", *GREEDY]


def stopped_load(folder):
    path = long_document(folder)
    t = Terminal("chat", *LONG, "-n", "8")
    t.wait_for(rb"/help lists.*?> ")
    t.send(f"/load {path}\r".encode())
    t.wait_for(rb"reading.*? [4-8]\d%")
    check(not t.modes() & termios.ECHO, "what is typed meanwhile is not echoed")
    t.send(b"\x03", at_prompt=False)
    t.send(b"\x03", at_prompt=False)
    seen = t.wait_for(rb"continues from there.*?> ")
    kept = int(re.search(rb"is not loaded; (\d+) tokens are read and kept", seen)[1])
    check(kept >= 2048, "two quick Ctrl-C stop /load and keep what was read", seen)
    t.send(b"\x03")
    seen = t.wait_for(rb"Ctrl-C does not leave.*?/save FILE.*?/exit.*?> ")
    t.send(f"/load {path}\r".encode())
    t.wait_for(rb"reading.*?\d%")
    t.send(b"/st", at_prompt=False)
    t.send(b"ats\r", at_prompt=False)
    seen = t.wait_for(rb"tokens of context in use\].*?> .*?peak memory.*?> ")
    used = int(re.search(rb": (\d+) of \d+ tokens of context in use\]", seen)[1])
    read = int(re.search(rb"(\d+) tokens read", seen)[1])
    check(b"/stats" not in seen.split(b"in use]")[0], "typed keys are not in the progress bar", seen[:300])
    check(kept < used and read < used + 200, "the same /load goes on from there", (kept, used, read))
    drawn = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen.split(b"in use]")[1])
    check(b"> /stats" in drawn, "what was typed meanwhile is at the next prompt", drawn)
    t.send(b"/exit\r")
    check(t.end() == 0, "/exit leaves", t.seen)


def stopped_read(folder):
    path, out, whole = long_document(folder), os.path.join(folder, "doc.kv"), os.path.join(folder, "whole.kv")
    args = ["read", "-f", path, *LONG[:-2]]
    t = Terminal(*args, "-o", out)
    t.wait_for(rb"reading.*? [4-8]\d%")
    t.send(b"\x03", at_prompt=False)
    code = t.end()
    m = re.search(rb"stopped: (\d+) of (\d+) tokens are kept in .*? continues from there", t.seen)
    check(code == 130 and m and 2048 <= int(m[1]) < int(m[2]), "Ctrl-C in read: what was read is kept", (code, t.seen[-300:]))
    r = riffle("info", out)
    check(b"tokens read" in r.out and m[1] + b" of its " + m[2] in r.out, "info tells", r)
    question = ["-p", "What is the code?", "-n", "8", *LONG]
    want = riffle("run", "-f", path, *question, "-q")
    begun = os.path.join(folder, "begun.kv")
    shutil.copy(out, begun)
    r = riffle("run", "--session", begun, *question)
    check(r.code == 0 and r.out == want.out and b"the rest is read now and kept there" in r.err, "a question reads the rest", r)
    r = riffle("run", "--session", begun, *question)
    check(r.code == 0 and r.out == want.out and b"the rest is read" not in r.err, "... once", r)
    r = riffle(*args, "-o", out)
    check(r.code == 0 and b"holds " + m[1] + b" of " + m[2] in r.err, "the same command goes on", r)
    riffle(*args, "-o", whole)
    for file in (out, whole):
        r = riffle("run", "--session", file, *question, "-q")
        check(r.code == 0 and r.out == want.out, "... and the answer is that of one that was not stopped", (r, want))
    i, j = (json.loads(riffle("info", f, "--json").out) for f in (out, whole))
    check(i["n_tokens"] == j["n_tokens"] == int(m[2]), "it has all tokens", (i, j))
    # Another document's file stays as it is.
    other = os.path.join(folder, "other.txt")
    with open(other, "w") as f:
        f.write("Another. " + open(path).read())
    before = open(out, "rb").read()
    t = Terminal("read", "-f", other, *LONG[:-2], "-o", out)
    t.wait_for(rb"reading.*? [4-8]\d%")
    t.send(b"\x03", at_prompt=False)
    check(t.end() == 130 and b"nothing is saved" in t.seen and open(out, "rb").read() == before,
          "a stopped read replaces no other document", t.seen[-300:])


def stopped_run(folder):
    """run -f FILE -p TEXT with --session: the file is made, and a stopped run goes on from there."""
    path, out, other = long_document(folder), os.path.join(folder, "doc.kv"), os.path.join(folder, "other.kv")
    args = ["run", "-f", path, "-p", "What is the code?", "-n", "8", *LONG]
    want = riffle(*args, "-q")

    def stop(*session):
        t = Terminal(*args, *session)
        t.wait_for(rb"reading.*? [4-8]\d%")
        t.send(b"\x03", at_prompt=False)
        return t.end(), t.seen

    code, seen = stop()
    check(code == 130 and b"--session FILE the same command keeps" in seen, "without --session a notice names it", seen[-300:])
    code, seen = stop("--session", out)
    m = re.search(rb"stopped: (\d+) of (\d+) tokens are kept in .*? continues from there", seen)
    check(code == 130 and m and 2048 <= int(m[1]) < int(m[2]), "Ctrl-C in run --session: what was read is kept", seen[-300:])
    first = int(m[1])
    t = Terminal(*args, "--session", out)
    t.wait_for(b"holds %d of %s tokens" % (first, m[2]))
    t.wait_for(rb"reading.*? [5-9]\d%")
    t.send(b"\x03", at_prompt=False)
    code = t.end()
    m = re.search(rb"stopped: (\d+) of (\d+) tokens are kept", t.seen)
    check(code == 130 and m and int(m[1]) > first, "the same command goes on from there, and keeps more", (code, first, t.seen[-300:]))
    r = riffle(*args, "--session", out)
    check(r.code == 0 and r.out == want.out and b"holds the whole document now: " + m[2] in r.err, "... to the end", (r, want))
    r = riffle(*args, "--session", out)
    check(r.code == 0 and r.out == want.out and b"is not read again" in r.err and b"whole" not in r.err, "... once", r)
    # Small documents, for the cases in which nothing is stopped.
    with open(path, "w") as f:
        f.write("The code is 4821. " * 40)
    small = ["run", "-f", path, "-p", "What is the code?", "-n", "8", *SMALL, *GREEDY]
    want = riffle(*small, "-q")
    first, second = (riffle(*small, "--session", other) for _ in range(2))
    check(first.code == 0 and first.out == want.out == second.out and b"holds the whole document now" in first.err
          and b"is not read again" in second.err, "--session makes a file of a document", (first, second))
    j = json.loads(riffle("info", other, "--json").out)
    read = os.path.join(folder, "read.kv")
    riffle("read", "-f", path, "-o", read, *SMALL)
    check(j["n_tokens"] == json.loads(riffle("info", read, "--json").out)["n_tokens"], "... as riffle read does", j)
    none = os.path.join(folder, "none.kv")
    r = riffle("run", "--session", none, "-p", "What is the code?", *SMALL)
    check(one_line_error(r, 1, none) and not os.path.exists(none), "without a document it must be there", r)


def stopped_process(_):
    """Ctrl-Z during an answer, in a shell that leaves the terminal as it finds it."""
    if not os.path.exists("/bin/dash"):
        print("SKIPPED: /bin/dash is missing")
        return
    shell = Terminal.of("/bin/dash", "-i", PS1="$ ", ENV="")
    shell.wait_for(rb"\$ ")
    shell.send(" ".join([BIN, "chat", "-n", "-1", "--ignore-eos", "-q", *GREEDY, *SMALL[2:], "-c", "8192"]).encode() + b"\r",
               at_prompt=False)
    shell.wait_for(rb"\r\n.*?> ")
    while shell.modes() & termios.IEXTEN:
        time.sleep(0.01)
    shell.send(b"Tell me a story.\r")
    shell.wait_for(rb"story\.\r?\r\n.+?[a-z]{2}")
    shell.send(b"\x1a", at_prompt=False)
    shell.wait_for(rb"Stopped.*?\$ ")
    modes = shell.modes()
    check(modes & termios.ECHO and modes & termios.ICANON, "a stopped process leaves the terminal as it was", modes)
    shell.send(b"fg\r", at_prompt=False)
    shell.wait_for(rb"chat.*?\r\n.*?[a-z]{2}")
    shell.send(b"\x03", at_prompt=False)
    shell.wait_for(rb"> ")
    shell.send(b"/exit\r")
    shell.wait_for(rb"\$ ")
    check(shell.modes() & termios.ECHO and shell.modes() & termios.ICANON, "and so does one that has ended", shell.modes())
    shell.send(b"exit\r", at_prompt=False)
    check(shell.end() == 0, "the shell ends")


ENDING = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGUSR1", "SIGABRT", "SIGSEGV"]


def started_below(shell):
    """The process that a shell has started, which leads neither a session nor a process group."""
    end = time.time() + 30
    while time.time() < end:
        with open(f"/proc/{shell}/task/{shell}/children") as f:
            for pid in map(int, f.read().split()):
                if os.path.samefile(f"/proc/{pid}/exe", BIN):
                    return pid
        time.sleep(0.01)
    raise AssertionError("the shell has started nothing")


def ended_chat(name, state, *args, before=None, ending=()):
    """A chat that a signal ends. The shell around it keeps the terminal open, since the system resets one that nobody
    has open."""
    t = Terminal.of("/bin/sh", "-c", 'trap : HUP INT QUIT TERM; "$@"; echo "code $?"; read line', "sh", BIN, "chat", "-q",
                    *args)
    normal = t.modes()
    pid = started_below(t.pid)
    if before:
        before(t)
    while t.modes() & termios.ECHO:
        time.sleep(0.005)
    # The second at once: one that comes later finds a chat that the first has ended, or is ending.
    for _ in range(2 if name in ending else 1):
        os.kill(pid, getattr(signal, name))
    seen = t.wait_for(rb"code \d+\r\n", 30)
    code = int(re.search(rb"code (\d+)", seen)[1])
    want = 130 if name in ending else 128 + getattr(signal, name)
    check(code == want, f"{name} ends a chat {state}", (code, want, seen[-200:]))
    check(t.modes() == normal, f"... and the terminal is as before {state}", (t.modes(), normal))
    last = max(seen.rfind(b"\x1b[?2004h"), seen.rfind(b"\x1b[?2004l"))
    check(seen[last:last + 8] == b"\x1b[?2004l", f"... also for pasted text {state}", seen[-200:])
    t.send(b"\r", at_prompt=False)
    t.end()


def ended(folder):
    """A signal that ends the process leaves the terminal with echo."""
    path = long_document(folder)
    slow = os.path.join(folder, "schema.json")
    os.mkfifo(slow)  # nobody writes it: the chat starts for as long as the test wants

    def at_prompt(t):
        t.wait_for(rb"> ", 60)
        while t.modes() & termios.IEXTEN:
            time.sleep(0.005)

    def reading(t):
        at_prompt(t)
        t.send(f"/load {path}\r".encode())
        while not t.modes() & termios.IEXTEN:  # until the editor has given the terminal back
            time.sleep(0.005)

    own = "SIGHUP", "SIGINT", "SIGTERM"  # the chat ends by itself after the second
    for name in ENDING:
        ended_chat(name, "that is being started", *SMALL, "--json-schema", slow)
        if name not in own:
            ended_chat(name, "at its prompt", *SMALL, before=at_prompt)
    for name in ("SIGHUP", "SIGQUIT", "SIGTERM"):
        ended_chat(name, "that reads", *LONG, before=reading, ending=own)


main(ended, stopped_process, answers, notices, metadata, closed_streams, without_devices, history, quantize_to_a_link, keys, stopped_load, stopped_read, stopped_run)
