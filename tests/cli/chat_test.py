"""riffle chat, through a pipe and on a terminal."""
from harness import *
from terminal import *

QUESTION = "What is the code?"


def document(folder, tokens=500):
    path = os.path.join(folder, "doc.txt")
    with open(path, "w") as f:
        f.write(words(tokens // 2) + " The code is 4821. " + words(tokens // 2) + "\n")
    return path


def through_a_pipe(folder):
    path = document(folder)
    args = ["chat", "-n", "16", *GREEDY, *SMALL]
    r = riffle(*args, "-q", stdin=b"Hello.\nWho are you?\n")
    check(r.code == 0 and r.out.count(b"\n") >= 2 and b"> " not in r.out and r.err == b"", "two questions, two answers",
          r)
    one = riffle("run", "--chat", "-p", "Hello.", "-n", "16", *GREEDY, *SMALL, "-q")
    check(r.out.startswith(one.out), "the first is that of riffle run --chat", (r.out, one.out))

    asked = riffle("run", "--chat", "-f", path, "-p", QUESTION, "-n", "16", *GREEDY, *SMALL, "-q")
    script = f"/load {path}\n{QUESTION}\n/stats\n{QUESTION}\n/stats\n/exit\nnot read\n"
    r = riffle(*args, stdin=script.encode())
    check(r.code == 0 and r.out.startswith(asked.out), "/load and a question: as run -f -p", (r, asked))
    read = [int(n) for n in re.findall(rb"(\d+) tokens read", r.err)]
    # The document has some 500 tokens; a question with the template around it has fewer than 60.
    check(len(read) == 2 and 400 < read[0] < 800 and read[1] - read[0] < 100, "the document is read once", read)

    r = riffle(*args, stdin=b"Hello.\n/clear\nHello.\n")
    half = r.out[: len(r.out) // 2]
    check(r.code == 0 and r.out == half + half, "/clear forgets", r)
    r = riffle(*args, stdin=b"Hello \\\nworld.\n")
    one = riffle("run", "--chat", "-p", "Hello \nworld.", "-n", "16", *GREEDY, *SMALL, "-q")
    check(r.out == one.out, "a line ending in \\ goes on", (r.out, one.out))
    r = riffle(*args, stdin=b"/help\n\n   \n")
    check(r.code == 0 and r.out == b"" and b"/load" in r.err, "/help is on stderr; blank lines ask nothing", r)


def recurrent_layers(folder):
    """A model whose state cannot be cut back: a conversation prefills each token once, and /retry prefills none."""
    path, model = os.path.join(folder, "long.txt"), os.path.join(ROOT, "tests/golden/tiny/lfm2_odd/lfm2_odd.gguf")
    with open(path, "w", encoding="utf-8") as f:
        f.write("abcdefgh ijklmnop " * 170)
    asked = "".join(f"question {'abc'[i % 3]} xyz\n/stats\n" for i in range(20))
    r = riffle("chat", "-m", model, "--chat-template", "vicuna", "-c", "8192", "-n", "24", "--temp", "0",
               stdin=f"/load {path}\n/stats\n{asked}/retry\n/stats\n".encode())
    read = [int(n) for n in re.findall(rb"(\d+) tokens read", r.err)]
    held = [int(n) for n in re.findall(rb"(\d+) of 8192 tokens of context in use; KV", r.err)]
    check(r.code == 0 and len(read) == len(held) == 22 and read[0] > 3000, "20 questions about a long text", r)
    again = [new - (after - before) for new, after, before in
             zip((b - a for a, b in zip(read, read[1:])), held[1:], held)]
    check(all(n <= 16 for n in again), "a question reads no more than its own tokens and a lead", (read, held))
    check(read[21] == read[20], "/retry reads nothing", read)


def errors(folder):
    args = ["chat", "-n", "8", *GREEDY, *SMALL, "-q"]
    one = riffle(*args, stdin=b"Hello.\n").out
    for name, line, word in (("an unknown command", b"/sing", b"/sing"),
                             ("a missing file", b"/load /no/such", b"/no/such"),
                             ("/load alone", b"/load", b"file name"), ("invalid UTF-8", b"a\xffb", b"UTF-8"),
                             ("a NUL", b"a\0b", b"NUL")):
        r = riffle(*args, stdin=line + b"\nHello.\n")
        check(r.code == 1 and word in r.err and r.out == one, f"{name}: the conversation goes on", r)
    r = riffle(*args, stdin=words(6000).encode() + b"\nHello.\n")
    check(r.code == 5 and r.out == one, "a question too long: the conversation goes on", r)
    longer, afresh = b" (-c N sets the length of the context)\n", b" (/clear starts afresh)\n"
    check(longer in r.err and afresh not in r.err, "one message alone: a longer context helps", r)
    r = riffle(*args, stdin=b"Hello.\n" + words(6000).encode() + b"\n")
    check(r.code == 5 and afresh in r.err and longer not in r.err, "after others: /clear helps", r)
    path = document(folder, 6000)
    r = riffle(*args, stdin=f"/load {path}\nHello.\n".encode())
    check(r.code == 5 and r.out == one, "a document too long as well", r)
    check(longer in r.err and afresh not in r.err, "and -c is named", r)
    r = riffle("chat", stdin=b"x\n", RIFFLE_MODEL="/no/model.gguf")
    check(one_line_error(r, 3, "/no/model.gguf"), "no model, no chat", r)


def commands(folder):
    """Each command through a pipe, and its effect."""
    args = ["chat", "-n", "12", *GREEDY, *SMALL, "-q"]

    def answer(text, *more):
        return riffle("run", "--chat", "-p", text, "-n", "12", *GREEDY, *SMALL, "-q", *more).out

    r = riffle(*args, stdin=b'"""Hello\n\nworld.\n"""\n')
    check(r.code == 0 and r.out == answer("Hello\n\nworld."), "quotes around a message of several lines", r)
    r = riffle(*args, stdin=b'"""/stats\nHello."""\n')
    check(r.code == 0 and r.out == answer("/stats\nHello."), "a message in quotes is no command", r)
    r = riffle(*args, stdin=b'"""Hello.\n')
    check(r.code == 1 and r.out == b"" and b'"""' in r.err, "quotes that are never closed", r)

    r = riffle(*args, stdin=b"Hello.\n/retry\nWho are you?\n")
    two = riffle(*args, stdin=b"Hello.\nWho are you?\n")
    first = answer("Hello.")
    check(r.code == 0 and r.out == first + two.out, "/retry answers again, and the conversation has one of both", (r, two))
    r = riffle(*args, stdin=b"/retry\nHello.\n")
    check(r.code == 1 and r.out == first and b"/retry" in r.err, "/retry before any message", r)
    warm = ["chat", "-n", "12", "--temp", "9", "--top-p", "1", "--min-p", "0", "--seed", "5", *SMALL, "-q"]
    r, two = riffle(*warm, stdin=b"Hello.\n/retry\n"), riffle(*warm, stdin=b"Hello.\n")
    again = riffle(*warm, stdin=b"Hello.\n/retry\n")
    check(r.out.startswith(two.out) and r.out != 2 * two.out and r.out == again.out, "/retry takes the next seed", (r, two))
    r = riffle(*warm, stdin=b"Hello.\n/set seed 5\n/retry\n")
    check(r.out == 2 * two.out, "/set seed: the next answer takes it", (r, two))

    loud = riffle(*warm[:-1], stdin=b"Hello.\n/retry\n")
    named = re.search(rb"this answer has the seed (\d+)", loud.err)
    told = riffle(*warm, stdin=b"Hello.\n/set seed %s\n/retry\n" % (named[1] if named else b"0"))
    check(named and told.out == loud.out, "/retry names its seed, which gives the answer again", (loud, told))
    r = riffle(*args[:-1], stdin=b"Hello.\n/retry\n")
    check(r.out == 2 * first and b"temperature 0 gives the same answer" in r.err, "a greedy /retry says so", r)

    model = thinker(folder)
    def asked(*more):
        return riffle("run", "-m", model, "-p", "Hi.", "-n", "12", *GREEDY, *SMALL, "-q", *more).out
    r = riffle("chat", "-m", model, *args[1:-1], stdin=b"Hi.\n/clear\n/think on\n/think\nHi.\n/clear\n/think off\nHi.\n")
    check(r.out == asked() + asked("--think") + asked("--no-think") and b"[thinking: on]" in r.err, "/think", (r, asked("--think")))
    r = riffle(*args[:-1], stdin=b"/think high\n")
    check(r.code == 0 and b"has no effect" in r.err and b"[thinking: high]" in r.err, "/think where the template asks for none", r)
    r = riffle(*args, stdin=b"/think hard\n")
    check(r.code == 1 and b"found 'hard', expected on, off, low, medium or high" in r.err, "/think with another word", r)

    r = riffle(*args, stdin=b"/system You are a pirate.\nHello.\n")
    check(r.code == 1 and r.out == first and b"does not print system messages" in r.err, "/system is refused where the template has none", r)
    vicuna = ["--chat-template", "vicuna"]
    r = riffle(*args, *vicuna, stdin=b"/system You are a pirate.\nHello.\n/clear\nHello.\n/system\n/clear\nHello.\n")
    pirate, plain = answer("Hello.", *vicuna, "--system", "You are a pirate."), answer("Hello.", *vicuna)
    check(r.code == 0 and r.out == 2 * pirate + plain and pirate != plain, "/system sets and removes the system message", (str(r), pirate, plain))
    r = riffle(*args, stdin=b"/set max-tokens 4\nHello.\n/set n 12\n/clear\nHello.\n")
    short = riffle("run", "--chat", "-p", "Hello.", "-n", "4", *GREEDY, *SMALL, "-q").out
    check(r.code == 0 and r.out == short + first, "/set max-tokens", (r, short))
    r = riffle(*args, stdin=b"/set\n")
    check(r.code == 0 and all(w in r.err for w in (b"temp", b"top-k", b"top-p", b"min-p", b"max-tokens  12", b"seed")),
          "/set alone shows the settings", r)
    for line, found in (("/set temp hot", "hot"), ("/set top_k 1.5", "1.5"), ("/set top-p 2", "2"), ("/set max-tokens -2", "-2"),
                        ("/set seed x", "x"), ("/set colour red", "colour"), ("/set temp", "no value"), ("/set temp nan", "nan"), ("/set temp -1", "0 to 100")):
        r = riffle(*args, stdin=line.encode() + b"\nHello.\n")
        check(r.code == 1 and r.out == first and found.encode() in r.err and b"expected" in r.err, f"{line} is refused", r)

    loud = riffle("chat", "-n", "4", *GREEDY, *SMALL, stdin=b"Tell me a story.\n")
    check(loud.code == 0 and b"cut after 4 tokens" in loud.err and b"max-tokens" in loud.err, "an answer cut by -n says so", loud)

    os.rename(document(folder), os.path.join(folder, "my doc.txt"))
    plain = riffle(*args, stdin=f"/load {folder}/my doc.txt\n{QUESTION}\n".encode())
    for spelled in ("~/my doc.txt", f"'{folder}/my doc.txt'", '"~/my doc.txt"', "~/my\\ doc.txt"):
        r = riffle(*args, stdin=f"/load {spelled}\n{QUESTION}\n".encode(), HOME=folder)
        check(plain.code == 0 and r.code == 0 and r.out == plain.out, f"/load {spelled}", r)


def on_a_terminal(folder):
    history = os.path.join(folder, "state", "history")
    args = ["chat", "-c", "8192", "--threads", THREADS, *GREEDY, "--selector", "dense"]
    t = Terminal(*args, "-n", "12", RIFFLE_HISTORY=history)
    t.wait_for(rb"> ")
    t.send(b"Hello.\r")
    answer = t.wait_for(rb"Hello\.\r?\r\n(.+?)\r\n.*?> ")
    check(len(answer) > 10, "a question on a terminal", answer)
    t.send(b"/stats\r")
    check(b"tokens read" in t.wait_for(rb"peak memory.*?> "), "/stats", t.seen)
    t.send(f"/load {document(folder, 7000)}\r".encode())
    shown = t.wait_for(rb"in use\].*?> ")
    # A GPU has read it before a bar would be drawn.
    quick = json.loads(riffle("info", "--plan", "--json").out)["plan"]["device"] == "cuda"
    check(quick or (b"reading" in shown and b"%" in shown), "/load shows a progress bar", shown[-300:])
    t.send(b"\x1b[A\x1b[A\r")  # two up: /stats again
    check(b"tokens read" in t.wait_for(rb"peak memory.*?> "), "history by the arrow keys", t.seen)
    t.send(b"typed but not sent")
    t.wait_for(rb"not sent")  # the terminal throws away what the program has not read yet when Ctrl-C comes
    t.send(b"\x03")
    t.wait_for(rb"> ")
    t.send("caf\u00e9 \u2603\x17\x17/help\r".encode())  # word erase works on whole characters
    check(b"/clear" in t.wait_for(rb"/exit.*?> "), "Ctrl-C drops a half-typed line; line editing", t.seen)
    t.send(b"\x04")
    code = t.end()
    check(code == 0, "Ctrl-D leaves", code)
    kept = open(history, "rb").read() if os.path.exists(history) else b""
    check(b"Hello." in kept and os.stat(history).st_mode & 0o077 == 0, "history is kept, for the user alone", kept)


def typing(folder):
    """Pasted text, Tab and Ctrl-Z, as a terminal sends them."""
    home = os.path.join(folder, "home")
    os.makedirs(os.path.join(home, "papers"))
    with open(os.path.join(home, "papers", "a long name.txt"), "w") as f:
        f.write("The code is 4821.\n")
    args = ["chat", *SMALL, *GREEDY, "--selector", "dense", "-n", "12"]
    t = Terminal(*args, HOME=home)
    t.wait_for(rb"\x1b\[\?2004h")
    t.send(b"\x1b[200~Hello\r\rworld.\r\x1b[201~")
    time.sleep(0.5)
    t.read(0.1)
    check(b"world." in t.seen and b"cut after" not in t.seen, "a pasted line break does not send the message", t.seen)
    t.send(b"\r")
    shown = t.wait_for(rb"cut after 12 tokens.*?> ")
    one = riffle("run", "--chat", "-p", "Hello\n\nworld.", "-n", "12", *GREEDY, *SMALL, "--selector", "dense", "-q").out
    check(one.strip() in shown.replace(b"\r\n", b"\n"), "a pasted text is one message", (shown, one))
    t.send(b"/cl\t\r")
    t.send(b"/retry\r")
    check(b"no message" in t.wait_for(rb"expected one to answer again.*?> "), "Tab completes a command", t.seen)
    t.send(b"/s\t\t")
    check(b"/system" in t.wait_for(rb"/set.*?/stats.*?/system.*?/s"), "Tab lists what there is", t.seen)
    t.send(b"\x15/load ~/pa\ta\t\r")
    shown = t.wait_for(rb"tokens of context in use.*?> ")
    check(b"/papers/a long name.txt: " in shown, "Tab completes a path", shown)
    t.send(b"\x15\x04")
    check(t.end() == 0, "Ctrl-D leaves after that")

    shell = Terminal.of("/bin/bash", "--norc", "--noprofile", "-i", PS1="$$ ", HOME=home)
    shell.send(" ".join([BIN, *args, "-q"]).encode() + b"\r", at_prompt=False)
    shell.wait_for(rb"> ")
    shell.send(b"half of")
    shell.wait_for(rb"half of")
    shell.send(b"\x1a", at_prompt=False)
    shell.wait_for(rb"Stopped")
    shell.send(b"fg\r", at_prompt=False)
    shell.wait_for(rb"fg\r.*?> half of", 20)
    shell.send(b" it\x15/help\r")
    check(b"/retry" in shell.wait_for(rb"/exit.*?> "), "fg draws the line again, and it can be edited", shell.seen)
    shell.send(b"\x04")
    time.sleep(1)
    shell.send(b"exit\r", at_prompt=False)
    check(shell.end() == 0, "and the chat ends as ever")


def stopping(folder):
    kept = os.path.join(folder, "kept.kv")
    t = Terminal("chat", "-c", "32K", "-n", "-1", "--ignore-eos", "--threads", THREADS, *GREEDY, "--selector", "dense",
                 "--session", kept)
    t.wait_for(rb"> ")
    t.send(b"Tell me a story.\r")
    t.wait_for(rb"story\.\r?\r\n.+?[a-z]{2}")
    t.send(b"\x03", at_prompt=False)
    text = t.wait_for(rb"> ", 30)
    check(b"[stopped]" in text, "Ctrl-C stops the answer and the prompt comes back", text[-300:])
    i = json.loads(riffle("info", kept, "--json").out or b"{}")
    check(b"not saved" not in text and i.get("messages") == 2, "and the session is saved", (text[-300:], i))
    t.send(b"/stats\r")
    check(b"tokens read" in t.wait_for(rb"peak memory.*?> "), "the chat goes on after it", t.seen)
    t.send(b"\x03")
    code = t.end()
    check(code == 130, "Ctrl-C at an empty prompt leaves", code)
    t = Terminal("chat", *GREEDY, "-n", "8", "-c", "32K", "--session", kept)
    t.wait_for(rb"2 messages\].*?> ")
    t.send(b"/clear\r")
    t.wait_for(rb"/clear.*?> ")
    t.send(b"\x03")
    code, i = t.end(), json.loads(riffle("info", kept, "--json").out)
    check(code == 130 and i["messages"] == 0, "... and saves what is new", (code, i, t.seen))


def colours(_):
    t = Terminal("run", "--raw", "-p", "The rain", "-n", "4", *GREEDY, *SMALL)
    code = t.end()
    check(code == 0 and b"\x1b[2m" in t.seen, "notices are dimmed on a terminal", t.seen)
    t = Terminal("run", "--raw", "-p", "The rain", "-n", "4", *GREEDY, *SMALL, NO_COLOR="1")
    code = t.end()
    check(code == 0 and b"\x1b" not in t.seen and b"decode steps" in t.seen, "NO_COLOR", t.seen)
    t = Terminal("run", "-n", "4")
    code = t.end()
    check(code == 2 and b"no prompt" in t.seen, "run without a prompt does not wait for one", t.seen)


def thinking(folder):
    model = thinker(folder)
    args = ["-m", model, "--think", "-n", "6", *GREEDY, *SMALL]
    thought = json.loads(riffle("run", "-p", "Hi.", "--json", "-q", *args).out)["reasoning_content"]
    for more, dim in (({}, b"\x1b[2m"), ({"NO_COLOR": "1"}, b"")):
        t = Terminal("chat", *args, **more)
        t.wait_for(rb"> ")
        t.send(b"Hi.\r")
        seen = t.wait_for(rb"cut after 6 tokens.*?> ").replace(b"\r\n", b"\n")
        check(thought and dim + thought.encode() in seen and (dim or b"\x1b[2m" not in seen),
              f"reasoning is shown {'dimmed' if dim else 'with NO_COLOR'}", (thought, seen))
        t.send(b"\x04")
        check(t.end() == 0, "a chat with reasoning ends", t.seen)


main(through_a_pipe, recurrent_layers, errors, commands, on_a_terminal, typing, stopping, colours, thinking)
