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
    lines = [line for line in r.err.split(b"\n") if b"high" in line]
    check(r.code == 0 and lines == [b"[thinking: high, without effect: the chat template does not use reasoning_effort]"], "/think where the template asks for none: one line", r)
    r = riffle(*args, stdin=b"/think hard\n")
    check(r.code == 1 and b"found 'hard', expected on, off, low, medium or high" in r.err, "/think with another word", r)

    r = riffle(*args, stdin=b"/system You are a pirate.\nHello.\n")
    moved = answer("Hello.", "--system", "You are a pirate.")
    check(r.code == 0 and r.out == moved != first and r.out == answer("You are a pirate.\n\nHello."),
          "/system goes into the user's message where the template has none, as in run", (str(r), moved))
    r = riffle(*args[:-1], "--system", "You are a pirate.", stdin=b"Hello.\nHello.\n")
    check(r.out.startswith(moved) and r.err.count(b"[system messages became user messages; ") == 1, "which is said once", r)
    for more, said in ((["--seed", "7"], True), ([], True), (["--temp", "0"], False)):
        r = riffle("chat", "-n", "2", *SMALL, *more, stdin=b"Hello.\n")
        seeds = re.findall(rb"^\[seed (\d+)\]$", r.err, re.M)
        again = riffle("chat", "-n", "2", *SMALL, *(["--seed", seeds[0].decode()] if said and seeds else more), stdin=b"Hello.\n")
        check(r.code == 0 and len(seeds) == said and again.out == r.out, f"a pipe's chat tells its seed: {more}", r)
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


def function(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


# The grammar of its call leaves the model no choice except white space and the digit.
DAYS = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["days"], "additionalProperties": False}
# A template that writes tools and calls as Hermes models do.
CALLER = ("{% for m in messages %}[INST] {{ m.content or m.tool_calls[0].function|tojson }} [/INST]{% endfor %}"
          "{% if tools %}<tool_call>{{ tools|tojson }}{% endif %}{##}")


def tools(folder):
    """Calls of tools, and their results."""
    model = with_template(folder, "caller.gguf", CALLER)
    must = written(folder, "must.json", {"tools": [function("weather", DAYS)], "tool_choice": "required",
                                           "parallel_tool_calls": False})
    chat = ["chat", "-m", model, "-n", "120", *GREEDY, *SMALL]
    ask = [*chat, "--tools", must]
    call = re.compile(rb'^/call weather (\{\s*"days":\s*\d\s*\})$', re.M)

    r = riffle(*ask, stdin=b"Rain?\n")
    found = call.findall(r.out)
    check(r.code == 0 and r.out.count(b"\n") == 1 and len(found) == 1, "a call is a line of stdout", r)
    body = {"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 120, "temperature": 0,
            **json.load(open(must))}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    batch = json.loads(riffle("batch", "-m", model, *SMALL, "-q", stdin=line.encode()).out)
    message = batch["response"]["body"]["choices"][0]["message"]
    wrote = message["tool_calls"][0]["function"]["arguments"]
    check(json.loads(wrote) == json.loads(found[0]), "the same call as in batch", (wrote, found))

    # The answer to a result: that of a batch with the call and its result in the messages.
    r = riffle(*ask, "-q", stdin=b"Rain?\n/result weather 12 degrees\n")
    body["messages"] += [{k: v for k, v in message.items() if v is not None},
                         {"role": "tool", "content": "12 degrees", "tool_call_id": message["tool_calls"][0]["id"]}]
    del body["tool_choice"]
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    batch = json.loads(riffle("batch", "-m", model, *SMALL, "-q", stdin=line.encode()).out)
    said = batch["response"]["body"]["choices"][0]["message"]["content"]
    answer = r.out[r.out.index(b"\n") + 1:].decode()
    check(r.code == 0 and answer == said + "\n", "/result gives the result, and the model goes on", (str(r), said))

    r = riffle(*ask, stdin=b"Rain?\nHello.\n/load x\n/result price 3\n/result weather\n/result weather 12\n/result weather 12\n")
    errors = [e for e in r.err.split(b"\n") if e.startswith(b"riffle: ")]
    wanted = (b"found calls without a result (weather), expected", b"found calls without a result (weather), expected",
              b"/result: found 'price', expected the name of a call without a result: weather", b"/result weather: found no result",
              b"/result: found no call without a result, expected an answer that calls a tool")
    check(r.code == 1 and len(errors) == len(wanted) and all(w in e for w, e in zip(wanted, errors)),
          "wrong turns while a call waits", errors)
    r = riffle(*ask, stdin=b"Rain?\n/retry\n")
    check(r.code == 0 and len(call.findall(r.out)) == 2, "/retry writes the call again", r)
    r = riffle("chat", "-m", model, "-n", "36", *GREEDY, *SMALL, "--tools", must, stdin=b"Rain?\nHello.\n")
    errors = [e for e in r.err.split(b"\n") if e.startswith(b"riffle: ")]
    check(r.code == 1 and len(errors) == 2 and b"tool_calls[0]" in errors[0] and b"the answer ended" in errors[0]
          and b"not kept" in errors[0] and b"/call" not in r.out, "a call that -n cut: an error, and the chat goes on", r)

    kept, both = os.path.join(folder, "kept.kv"), b"Rain?\n/result weather 12 degrees\n"
    a = riffle(*ask, "--session", kept, "-q", stdin=b"Rain?\n")
    info = json.loads(riffle("info", kept, "--json").out)
    b = riffle(*chat, "--session", kept, "-q", stdin=b"Hello.\n/result weather 12 degrees\n")
    check(info["messages"] == 2 and a.out + b.out == riffle(*ask, "-q", stdin=both).out and b"without a result" in b.err,
          "a saved chat keeps its call, and its tools", (str(a), str(b)))
    c = riffle(*chat, "--session", kept, "-q", stdin=b"/retry\n")
    check(c.code == 0 and c.out == b.out, "and /retry answers the result again", (str(b), str(c)))
    c = riffle(*chat, "--chat-template", "inst", "--session", kept, stdin=b"Hello.\n")
    check(one_line_error(c, 1, "kept.kv: field tools is not supported: this model's chat template has no place for tools"),
          "nor with a template that takes none", c)

    two = written(folder, "two.json", {"tools": [function(n, {"type": "object", "properties": {}, "additionalProperties": False})
                                                   for n in ("a", "b")], "tool_choice": "required"})
    for seed in range(40):  # until the model calls twice
        r = riffle(*chat[:chat.index("--temp")], *SMALL, "--temp", "3", "--tools", two, "--seed", str(seed), "-q", stdin=b"Go.\n")
        names = re.findall(rb"^/call ([ab]) \{\s*\}$", r.out, re.M)
        if r.code == 0 and len(names) == 2:
            break
    results = b"".join(b"/result %s 1\n" % n for n in names)
    r = riffle(*chat[:chat.index("--temp")], *SMALL, "--temp", "3", "--tools", two, "--seed", str(seed), stdin=b"Go.\n" + results)
    check(len(names) == 2 and b"[these calls still need a result: %s; /result" % names[1] in r.err and r.out.count(b"\n") > 2,
          "an answer comes when all calls have results", (names, str(r)))


def tool_files(folder):
    model = with_template(folder, "caller.gguf", CALLER)
    fine = function("a", DAYS)

    def refused(name, data, code, *say, using=model):
        path = written(folder, "tools.json", data)
        r = riffle("chat", "-m", using, *GREEDY, *SMALL, "-n", "2", "--tools", path, stdin=b"Hi.\n")
        check(one_line_error(r, code, *say), f"--tools: {name}", r)

    at = "tools.json: "
    refused("no JSON", "[", 2, at + "found the end of the text at byte 2, expected JSON")
    refused("more than a list", '[],"seed":3', 2, at + "found ',' at byte 3, expected JSON")
    refused("not UTF-8 or a number", "3", 2, at + "found a JSON number, expected a list of tools")
    refused("an empty list", [], 2, at + "found no tools")
    refused("an object without tools", {"a": 1}, 2, at + "found an object without the field tools")
    refused("another field", {"tools": [fine], "seed": 3}, 2, at + 'found the field "seed", expected tools, tool_choice')
    refused("a field of a tool", [fine, {"type": "function", "function": {}}], 2,
            at + "field tools[1].function.name is missing")
    refused("a field twice", '[{"type":"function","type":"function"}]', 2, at, 'found the key "type" twice in one object')
    refused("a choice", {"tools": [fine], "tool_choice": {"type": "function", "function": {"name": "b"}}}, 2,
            at + 'field tool_choice.function.name is "b", expected the name of a tool')
    refused("a model without tools", [fine], 1,
            at + "field tools is not supported: this model's chat template has no place for tools", using=MODEL)
    refused("... which must call", {"tools": [fine], "tool_choice": "required"}, 1, at + "field tools is not supported",
            using=MODEL)
    r = riffle("chat", "--tools", "/no/such.json", stdin=b"Hi.\n")
    check(one_line_error(r, 1, "/no/such.json"), "--tools: no file", r)
    r = riffle("chat", "--tools", written(folder, "fine.json", [fine]), "--grammar", 'root ::= "a"', stdin=b"Hi.\n")
    check(one_line_error(r, 2, "--grammar", "--tools"), "--tools and --grammar exclude each other", r)


main(through_a_pipe, tools, tool_files, recurrent_layers, errors, commands, on_a_terminal, typing, stopping, colours, thinking)
