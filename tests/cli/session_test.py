"""Documents read once (riffle read, run --session), chats that are kept (chat --session), riffle info of both."""
import fcntl
import random
import re
import resource
import shutil
import struct
import time

from harness import *

ROUNDS = int(os.environ.get("RIFFLE_SESSION_KILLS", "4"))


def documents(folder):
    text, kept = os.path.join(folder, "book.txt"), os.path.join(folder, "book.kv")
    with open(text, "w") as f:
        f.write(words(1500) + "The captain's name is Mallory. " + words(300))
    question = ["-p", "Who is the captain?", *GREEDY, *SMALL, "-n", "16", "-q"]
    r = riffle("read", "-f", text, "-o", kept, *SMALL)
    if not check(r.code == 0 and r.out == b"" and b"riffle run --session" in r.err, "a document is read", r):
        return
    check(os.stat(kept).st_mode & 0o777 == 0o600, "for its owner alone")
    before = open(kept, "rb").read()
    for selector in "dense", "share", "psa":  # lfps learns from the last prompt
        flags = [*question, "--selector", selector]
        a, b = riffle("run", "-f", text, *flags), riffle("run", "--session", kept, *flags, "--json")
        answer = json.loads(b.out) if b.code == 0 else {}
        check(a.code == 0 and shown(answer.get("text", "")).encode() == a.out, f"{selector} answers as from the document", (a, b))
        check(answer.get("stats", {}).get("prefill_tokens", 999) < 40, f"{selector} reads the question alone", answer.get("stats"))
    check(open(kept, "rb").read() == before, "run does not change the file")
    again = rb"(\d+) of its (\d+) tokens are read again: the prompt differs after (\d+) tokens"
    ask = ["--session", kept, "-p", "Who is the captain?", *GREEDY, *SMALL, "-n", "2"]
    r = riffle("run", *ask)
    check(r.code == 0 and b"read again" not in r.err, "the normal case needs no notice", r)
    r = riffle("run", *ask, "--chat-template", "vicuna")
    m = re.search(again, r.err)
    n = [int(x) for x in m.groups()] if m else [0, 0, 0]
    check(r.code == 0 and n[0] > 1500 and n[0] == n[1] - n[2] and n[2] < 10,
          "another chat template is told", r)
    check(riffle("run", *ask, "-q", "--chat-template", "vicuna").err == b"", "but not with -q")
    chat = ["chat", *GREEDY, *SMALL, "-n", "2"]
    asked = f"/open {kept}\nWho is the captain?\nAnd the mate?\n".encode()
    r = riffle(*chat, stdin=asked)
    check(r.code == 0 and b"read again" not in r.err, "nor does a document that a chat opens", r)
    r = riffle(*chat, "--chat-template", "vicuna", stdin=asked)
    check(r.code == 0 and len(re.findall(again, r.err)) == 1, "a chat tells it once", r)
    same_document(folder, text, kept)
    r = riffle("info", kept, "--json")
    i = json.loads(r.out) if r.code == 0 else {}
    check(i.get("kind") == "document" and i.get("document_bytes") == os.path.getsize(text) and i.get("n_tokens", 0) > 1500,
          "info tells what is in it", r)
    r = riffle("info", kept)
    check(b"a document of" in r.out, "and for people", r)
    r = riffle("read", "-f", text, "-f", text, "-o", kept, "-c", "8192", "-q")
    check(r.code == 0 and json.loads(riffle("info", kept, "--json").out)["n_tokens"] > 3000, "several files, one after the other", r)


def read_again(folder):
    """riffle read over a document of the same text says why it does not go on from there."""
    text, kept = os.path.join(folder, "again.txt"), os.path.join(folder, "again.kv")
    with open(text, "w") as f:
        f.write(words(300))
    read = ["read", "-f", text, "-o", kept, "-c", "2048"]
    r = riffle(*read)
    check(r.code == 0 and b"from its beginning" not in r.err, "a new document needs no reason", r)
    r = riffle(*read)
    check(r.code == 0 and b"from its beginning" not in r.err and b"continues from there" in r.err,
          "nor does the same document", r)
    r = riffle(*read, "--kv", "q8")
    check(r.code == 0 and f"[the document is read from its beginning: {kept}: ".encode() in r.err
          and b"q8" in r.err, "keys and values of another type are told", r)
    whole = open(kept, "rb").read()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    open(kept, "wb").write(damaged)
    r = riffle(*read, "--kv", "q8")
    check(r.code == 0 and f"[the document is read from its beginning: {kept}: ".encode() in r.err,
          "damaged keys and values are told", r)
    check(riffle("run", "--session", kept, "-p", "Who?", *GREEDY, "-c", "2048", "--kv", "q8", "-n", "2").code == 0,
          "and the document is whole again")


def same_document(folder, text, kept):
    """-f with a document that the session holds already."""
    flags = [*GREEDY, *SMALL, "-n", "8", "--json"]
    data = open(text, "rb").read()
    for ask in ["-p", "Who is the captain?"], []:
        whole = riffle("run", "-f", text, *flags, *ask)
        for source, stdin in ("-f", b""), ("pipe", data):
            given = ["-f", text] if source == "-f" else []
            r = riffle("run", "--session", kept, *given, *ask, *flags, stdin=stdin)
            name = text if given else "standard input"
            a, b = (json.loads(x.out) if x.code == 0 else {} for x in (r, whole))
            check(a and a["text"] == b.get("text") and a["prompt_tokens"] == b["prompt_tokens"]
                  and a["stats"]["prefill_tokens"] < 40
                  and f"[{name} is not read again: {kept} holds its text]\n".encode() in r.err,
                  f"{source} {ask}: the kept document is not read again", (r, whole))
    more = os.path.join(folder, "more.txt")
    with open(more, "w") as f:
        f.write("The mate's name is Rose.")
    r = riffle("run", "--session", kept, "-f", more, "-p", "Who is the mate?", *flags)
    both = riffle("run", "-f", "-", "-p", "Who is the mate?", *flags, stdin=data + open(more, "rb").read())
    check(r.code == both.code == 0 and json.loads(r.out)["text"] == json.loads(both.out)["text"]
          and f"[{more} is read after the document in {kept}]\n".encode() in r.err,
          "another file follows the document", (r, both))
    r = riffle("run", "--session", kept, *flags, stdin=b"Who is the captain?")
    check(r.code == 0 and b"[" + kept.encode() not in r.err and b"is read after" not in r.err,
          "a question from standard input needs no notice", r)


def errors(folder):
    kept = os.path.join(folder, "e.kv")
    text = os.path.join(folder, "e.txt")
    with open(text, "w") as f:
        f.write(words(300))
    riffle("read", "-f", text, "-o", kept, *SMALL, "-q")
    ask = ["-p", "What?", "-n", "2", "-q", *SMALL]
    check(one_line_error(riffle("run", "--session", kept, *ask, "--kv", "q8"), 1, kept, "f16", "q8", "--kv", "--block"),
          "another type of KV")
    check(one_line_error(riffle("run", "--session", kept, "-p", "x", "-c", "128", "-q"), 5, kept, "128"), "a short context")
    check(one_line_error(riffle("run", "--session", text, *ask), 1, f"{text}: found a file that begins with", "expected a session of riffle"), "another kind of file")
    check(one_line_error(riffle("run", "--session", folder, *ask), 1, folder, "folder"), "a folder")
    for args in ["info"], ["run", *ask, "--session"]:
        r = riffle(*args, MODEL)
        check(one_line_error(r, 1, f"{MODEL}: found a GGUF file, expected a session of riffle; -m {MODEL} gives a model"),
              f"{args[0]}: a model is no session", r)
    for args in ["info"], ["run", "-p", "x"], ["chat"]:
        r = riffle(*args, "-q", "-m", kept)
        check(one_line_error(r, 3, f"-m {kept}: found a session of riffle, expected a GGUF file", f"riffle info {kept}"),
              f"{args[0]}: a session is no model", r)
    check(one_line_error(riffle("chat", "--session", kept, "-q", *SMALL), 1, kept, "a document"), "a document is no chat")
    check(one_line_error(riffle("read", "-f", text, "-o", text, "-q", *SMALL), 1, text, "another kind of file"),
          "no other file is replaced")
    chat = ["chat", "--session", os.path.join(folder, "turns.kv"), *GREEDY, *SMALL, "-n", "4"]
    riffle(*chat, "-q", stdin=b"Hello there.\nWhat is rain?\nAnd snow?\n")
    data = bytearray(open(chat[2], "rb").read())
    for page in 1, 2:  # the third save is in page 2, the second in page 1
        other = bytearray(data)
        other[page * 4096 + 100] ^= 1
        open(chat[2], "wb").write(other)
        i = riffle("info", chat[2])
        r = riffle(*chat, stdin=b"/retry\n")
        lost = page == 2
        notice = b"turns.kv: the newest save is damaged; the one before, of 20" in r.err
        check(r.code == 0 and notice == lost and f"{6 - 2 * lost} messages]".encode() in r.err,
              f"a damaged save, page {page}: the other one is used", r)
        check((b"the newest save; this is the one before" in i.out) == lost, "and info says it", i)
    data = bytearray(open(kept, "rb").read())
    data[len(data) // 2] ^= 1
    bad = os.path.join(folder, "bad.kv")
    open(bad, "wb").write(data)
    check(one_line_error(riffle("run", "--session", bad, *ask), 1, bad, "checksum"), "a flipped bit")
    open(bad, "wb").write(data[: len(data) // 3])
    check(one_line_error(riffle("run", "--session", bad, *ask), 1, bad), "a file that was cut")
    # A file of another model is refused as such, though this one has no template to ask with.
    other = changed(folder, "other.gguf", b"tokenizer.chat_template", b"tokenizer.chat_templatx")
    data = bytearray(open(other, "rb").read())
    data[-40] ^= 1
    open(other, "wb").write(data)
    r = riffle("run", "-m", other, "--session", kept, *ask)
    check(one_line_error(r, 1, kept, "weights"), "another model, without a template", r)
    r = riffle("run", "--session", kept, *ask, "--raw")
    check(r.code == 2, "--raw is settled by the file", r)
    for command in "run", "chat":
        r = riffle(command, "--session", "", "-q", *SMALL, stdin=b"")
        check(r.code == 2 and b"--session" in r.err and b"empty name" in r.err, f"{command}: an empty name", r)
    # Checks that a session file that cannot be written is refused before the document is read.
    nowhere = os.path.join(folder, "none", "x.kv")
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    for command in ("run", "-p", "x", "--session"), ("info",):
        check(one_line_error(riffle(*command, pipe, *(SMALL if command[0] == "run" else [])), 1, pipe, "a device or pipe"),
              f"{command[0]}: a pipe is no session")
    dangling = os.path.join(folder, "dangling")
    os.symlink(nowhere, dangling)
    for target, found in ((nowhere, "No such file"), (folder, "a folder"), (pipe, "a device or pipe"),
                          (dangling, "No such file")):
        r = riffle("read", "-f", text, "-o", target, *SMALL)
        check(one_line_error(r, 1, target, found) and b"reading" not in r.err, f"read -o: {found}", r)
        check(one_line_error(riffle("chat", "--session", target, "-q", *SMALL, stdin=b"Hello\n"), 1, target, found),
              f"chat --session: {found}")


def chats(folder):
    kept = os.path.join(folder, "chat.kv")
    chat = ["chat", *GREEDY, *SMALL, "-n", "8", "-q"]
    whole = riffle(*chat, stdin=b"Hello there.\nWhat is rain?\nAnd snow?\n")
    a = riffle(*chat, "--session", kept, stdin=b"Hello there.\nWhat is rain?\n")
    b = riffle(*chat, "--session", kept, stdin=b"And snow?\n")
    check(whole.code == 0 and a.out + b.out == whole.out, "a chat goes on where it ended", (whole, a, b))
    own = os.path.join(folder, "vicuna.kv")
    vicuna = [*chat[:-1], "--chat-template", "vicuna", "--session", own]
    asks = "Hello there. " + words(100) + "\nWhat is rain?\n"
    riffle(*vicuna, stdin=asks.encode())
    r = riffle(*vicuna, stdin=b"And snow?\n")
    check(r.code == 0 and b"messages]" in r.err and b"read again" not in r.err,
          "and needs no notice", r)
    r = riffle(*vicuna, "--system", "Be brief.", stdin=b"And snow?\n")
    check(r.code == 0 and b"tokens are read again" in r.err, "another system message is told", r)
    i = json.loads(riffle("info", kept, "--json").out)
    check(i["kind"] == "chat" and i["messages"] == 6 and i["saves"] == 3, "and is saved after every answer", i)
    copies = [os.path.join(folder, f"copy{n}.kv") for n in (1, 2)]
    for copy in copies:
        shutil.copy(kept, copy)
    r = riffle(*chat, "--session", copies[0], stdin=b"/retry\n")
    check(r.code == 0 and r.out == b.out and messages(copies[0]) == messages(kept),
          "/retry answers the last kept message again", r)
    r = riffle(*chat, "--session", copies[1], stdin=b"/clear\n/retry\n")
    check(r.code == 1 and r.out == b"" and b"found no message" in r.err,
          "/retry has nothing to answer after /clear", r)
    other = os.path.join(folder, "other.kv")
    r = riffle(*chat, stdin=f"/open {kept}\nAnd hail?\n/save {other}\n".encode())
    i = json.loads(riffle("info", other, "--json").out)
    check(r.code == 0 and i["messages"] == 8, "/open and /save", (r, i))
    book = os.path.join(folder, "book2.txt")
    with open(book, "w") as f:
        f.write(words(200))
    loaded = os.path.join(folder, "loaded.kv")
    r = riffle(*chat, "--session", loaded, stdin=f"/load {book}\n/exit\n".encode())
    i = json.loads(riffle("info", loaded, "--json").out)
    check(r.code == 0 and i["document_bytes"] > 100 and i["messages"] == 0, "a loaded document is kept without a question", (r, i))
    r = riffle(*chat, "--session", other, stdin=b"/clear\n")
    i = json.loads(riffle("info", other, "--json").out)
    check(r.code == 0 and i["messages"] == 0, "/clear is kept when riffle leaves", (r, i))


def messages(path):
    """Returns the texts of a kept chat, read without riffle: its file has them as JSON."""
    data = open(path, "rb").read()
    # Pages 1 and 2 say where the last two saves end. A save that was killed may have left more.
    saves = [struct.unpack_from("<5Q", data, page * 4096) for page in (1, 2)]
    data = data[: max(saves)[4]]
    at = data.rfind(b'{"riffle":1,"kind":"chat"')
    saved, _ = json.JSONDecoder().raw_decode(data[at:].decode("utf-8", "replace"))
    return [m["content"] for m in saved["messages"]]


def kept_files(folder):
    """No command replaces a chat or a document that it did not keep itself."""
    text, book, chat_file, mine, new = (os.path.join(folder, n) for n in ("k.txt", "k.kv", "talk1.kv", "mine.kv", "new.kv"))
    with open(text, "w") as f:
        f.write(words(100))
    read = ["read", "-f", text, *SMALL]
    chat = ["chat", *GREEDY, *SMALL, "-n", "4"]
    riffle(*chat, "-q", "--session", chat_file, stdin=b"Hello there.\n")
    before = open(chat_file, "rb").read()
    r = riffle(*read, "-o", chat_file)
    check(one_line_error(r, 2, f"{chat_file}: found a chat of 2 messages, expected a new file or a document of riffle read; "
                         "remove the file, or use another name"), "read -o over a chat is refused", r)
    r = riffle("read", "-f", "/no/such", "-o", chat_file, *SMALL)
    check(one_line_error(r, 2, chat_file), "before anything is read", r)
    open(new, "w").close()
    for target, name in (book, "a new file"), (book, "an older document"), (new, "an empty file"):
        r = riffle(*read, "-q", "-o", target)
        check(r.code == 0 and r.err == b"", f"read -o: {name}", r)
    os.remove(new)
    document = open(book, "rb").read()

    r = riffle(*chat, "-q", stdin=f"Hello.\n/save {chat_file}\n/save {book}\nAnd snow?\n/save {mine}\n".encode())
    lines = r.err.decode().splitlines()
    end = ", expected a new file or one that has this conversation already; remove the file, or use another name"
    check(r.code == 1 and len(lines) == 2 and lines[0] == f"riffle: {chat_file}: found a chat of 2 messages{end}"
          and lines[1].startswith(f"riffle: {book}: found a document of ") and lines[1].endswith(end)
          and len(messages(mine)) == 4, "/save over what others kept is refused, and the chat goes on", r)
    check(open(chat_file, "rb").read() == before and open(book, "rb").read() == document, "and they are as before")
    damaged = bytearray(before)
    damaged[4096:3 * 4096] = bytes(2 * 4096)
    open(new, "wb").write(damaged)
    for r, code in (riffle(*read, "-o", new), 2), (riffle(*chat, "-q", stdin=f"/save {new}\n".encode()), 1):
        check(one_line_error(r, code, new, "remove the file, or use another name")
              and open(new, "rb").read() == damaged, "nor is a damaged file replaced", r)
    open(new, "w").close()
    ahead, target = os.path.join(folder, "ahead.kv"), os.path.join(folder, "target.kv")
    os.symlink("target.kv", ahead)
    r = riffle(*chat, stdin=f"Hello.\n/save {ahead}\nAnd snow?\n/save {ahead}\n/save {target}\n".encode())
    check(r.code == 0 and os.path.islink(ahead) and len(messages(target)) == 4,
          "a link to a file that is not there yet: the file is made, and the link stays", r)
    link = os.path.join(folder, "link.kv")
    os.symlink(new, link)
    r = riffle(*chat, stdin=f"Hello.\n/save {new}\nAnd snow?\n/save {link}\n".encode())
    check(r.code == 0 and f"[saved in {new}]\n".encode() in r.err and f"[saved in {link}]\n".encode() in r.err
          and len(messages(new)) == 4, "/save again to its own file", r)
    r = riffle(*chat, "-q", stdin=f"/open {new}\nAnd hail?\n/save {new}\n/clear\n/save {new}\n".encode())
    check(r.code == 1 and r.err.count(b"found a chat of 6 messages") == 1 and len(messages(new)) == 6,
          "and to the file that it came from, until /clear", r)
    r = riffle(*chat, "--session", new, stdin=f"/save {new}\n".encode())
    check(r.code == 0 and f"[saved in {new}]\n".encode() in r.err, "/save to the file of --session", r)
    p = start(*chat, "-q", "--session", "fresh.kv", stdin=subprocess.PIPE, cwd=folder)
    _, err = p.communicate(b"/save ./fresh.kv\nHello.\n/save beside.kv\nAnd snow?\n/save ./beside.kv\n", timeout=200)
    check(p.returncode == 0 and err == b"" and not os.path.exists(os.path.join(folder, "fresh-2.kv"))
          and all(len(messages(os.path.join(folder, name))) == 4 for name in ("fresh.kv", "beside.kv")),
          "relative paths name the same file before and after it is there", err)
    shared = os.path.join(folder, "shared.kv")
    p = start(*chat, stdin=subprocess.PIPE)
    p.stdin.write(f"Hello.\n/save {shared}\n".encode())
    p.stdin.flush()
    while b"[saved in" not in p.stderr.readline():
        pass
    riffle(*chat, "-q", "--session", shared, stdin=b"What is rain?\n")
    _, err = p.communicate(f"/save {shared}\n".encode(), timeout=200)
    check(p.returncode == 1 and b"found a chat of 4 messages" in err and messages(shared)[2] == "What is rain?",
          "/save to its own file is refused once another chat was saved there", err)
    r = riffle(*chat, "-q", stdin=b'Hello.\n/save ""\n')
    check(r.code == 1 and b"/save: found no file name, expected one after the command" in r.err, "an empty name in quotes", r)


def cleared(folder):
    """/clear says what happens to the file of --session."""
    kept = os.path.join(folder, "cleared.kv")
    chat = ["chat", *GREEDY, *SMALL, "-n", "4"]
    session = [*chat, "--session", kept]
    empty = b"[the conversation is empty]\n"
    replaced = f"[the conversation is empty; the chat in {kept} is replaced at the next save]\n".encode()
    r = riffle(*session, stdin=b"/clear\n")
    check(r.code == 0 and empty in r.err and not os.path.exists(kept), "/clear before the first save", r)
    r = riffle(*session, stdin=b"Hello.\n/clear\n/clear\n")
    check(r.code == 0 and r.err.count(replaced) == 2 and messages(kept) == [], "the file is emptied at the end", r)
    r = riffle(*session, stdin=b"/clear\nHello.\n/clear\nAnd snow?\n")
    check(r.code == 0 and r.err.count(empty) == 1 and r.err.count(replaced) == 1
          and messages(kept)[::2] == ["And snow?"], "or holds the new conversation", r)
    r = riffle(*chat, stdin=b"Hello.\n/clear\n")
    check(r.code == 0 and empty in r.err, "/clear without --session", r)
    r = riffle(*chat, "--chat-template", "vicuna", "--system", "Be brief.", stdin=b"Hello.\n/clear\n")
    check(b"[the conversation is empty except for the system message]\n" in r.err, "the system message stays", r)
    r = riffle(*session, "-q", stdin=b"/clear\n")
    check(r.code == 0 and r.err == b"", "-q hides it", r)


def two_chats(folder):
    """Checks that two chats that use one file at the same time both keep their conversations."""
    kept, beside = (os.path.join(folder, name) for name in ("talk.kv", "talk-2.kv"))
    chat = ["chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q"]
    for known in False, True:  # known: the file exists when the first chat begins
        a = start(*chat, stdin=subprocess.PIPE)
        a.stdin.write(b"/help\n")
        a.stdin.flush()
        a.stderr.readline()  # now it has looked for the file
        r = riffle(*chat, stdin=b"What is rain?\n")
        check(r.code == 0 and r.err == b"", "the second chat is kept", r)
        _, err = a.communicate(b"Hello there.\nAnd snow?\n", timeout=200)
        check(a.returncode == 0 and err.count(b"talk-2.kv") == 1 and
              b"another chat was saved there" in err, "the first one says where it is kept", err)
        asked = messages(beside)[-4::2]
        check(messages(kept)[-2] == "What is rain?" and asked == ["Hello there.", "And snow?"],
              "and nothing is lost", (messages(kept), messages(beside)))
        check(known or len(messages(beside)) == 4, "the chat has its own turns alone", asked)
        os.remove(beside)
    r = riffle(*chat, stdin=b"More?\n")
    check(r.code == 0 and r.err == b"" and not os.path.exists(beside),
          "one chat at a time goes on in the file", r)
    other = os.path.join(folder, ".", "talk.kv")
    r = riffle(*chat, stdin=f"/save {other}\nAnd hail?\n".encode())
    check(r.code == 0 and r.err == b"" and not os.path.exists(beside) and messages(kept)[-2] == "And hail?",
          "/save knows the file by another way to write its path", r)


def stopped(folder):
    """Ctrl-C stops an answer, not the session: the conversation is kept. So do SIGTERM and SIGHUP."""
    for n, (how, turns) in enumerate(((signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 1))):
        kept = os.path.join(folder, f"stopped{n}.kv")
        p = start("chat", "--session", kept, *GREEDY, "--ignore-eos", "-q", "-c", "32K", stdin=subprocess.PIPE)
        if turns:
            p.stdin.write(b"/set max-tokens 4\nHello there.\n/set max-tokens -1\n")
        p.stdin.write(b"What is rain?\nAnd snow?\n")
        p.stdin.flush()
        for _ in range(turns):
            p.stdout.readline()
        said = p.stdout.read(20)
        p.send_signal(how)
        rest, err = p.stdout.read(), p.stderr.read()
        p.wait(timeout=60)
        texts = messages(kept) if os.path.exists(kept) else []
        check(p.returncode == 130 and b"not saved" not in err and len(texts) == 2 * turns + 2
              and texts[-2] == "What is rain?" and texts[-1].encode() + b"\n" == said + rest,
              f"{how.name} in answer {turns + 1}", (p.returncode, err, len(said + rest), texts))
        r = riffle("chat", "--session", kept, *GREEDY, "-c", "32K", "-n", "4", stdin=b"And snow?\n")
        check(r.code == 0 and f"{2 * turns + 2} messages]".encode() in r.err, "... and the chat goes on", r)


def locked(folder):
    """Somebody else is saving to the file, and does not come to an end."""
    kept = os.path.join(folder, "locked.kv")
    chat = ["chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q"]
    riffle(*chat, stdin=b"Hello there.\n")
    before = open(kept, "rb").read()
    with open(kept, "rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        p = start(*chat, stdin=subprocess.PIPE)
        p.stdin.write(b"What is rain?\n")
        p.stdin.flush()
        for text in iter(p.stdout.read1, b""):
            if b"\n" in text:
                break  # the answer has been written: it is saved now
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
    check(p.returncode == 130 and f"stopped: {kept} is not saved".encode() in err
          and before == open(kept, "rb").read(),
          "who waits for another's save can be stopped", (p.returncode, err))


def cut_while_mapped(folder):
    """Somebody else shortens the file that a chat reads its keys and values from."""
    kept = os.path.join(folder, "cut.kv")
    chat = ["chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q", "--device", "cpu"]
    riffle(*chat, stdin=("Hello there. " + words(100) + "\n").encode())
    p = start(*chat, stdin=subprocess.PIPE)
    p.stdin.write(b"/stats\n")
    p.stdin.flush()
    for _ in range(2):
        p.stderr.readline()  # now it has loaded the file
    os.truncate(kept, 3 * 4096)
    out, err = p.communicate(b"What is rain?\n", timeout=200)
    text = f"riffle: {os.path.realpath(kept)}: the file was shortened or became unreadable while it was in use\n"
    check(p.returncode == 1 and out == b"" and err == text.encode(),
          "a line names a file that was cut", (p.returncode, out, err))


def full(folder):
    """A limit on the size of files, whose signal ends a program that does nothing about it."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    text, kept = os.path.join(folder, "full.txt"), os.path.join(folder, "full.kv")
    with open(text, "w") as f:
        f.write(words(600))
    p = start("read", "-f", text, "-o", kept, *SMALL, "-q", preexec_fn=limit)
    r = Result(0, *p.communicate(timeout=200))
    r.code = p.returncode
    check(one_line_error(r, 1, kept, "File too large") and r.err.count(b"\n") == 1,
          "read: a line names the file", r)
    check(os.listdir(folder) == ["full.txt"], "and nothing stays behind", os.listdir(folder))
    chat = ["chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q"]
    riffle(*chat, stdin=b"Hello there.\n")
    before = open(kept, "rb").read()
    p = start(*chat, stdin=subprocess.PIPE, preexec_fn=limit)
    out, err = p.communicate(("What is rain? " + words(600) + "\n").encode(), timeout=200)
    check(p.returncode == 1 and out.count(b"\n") == 1 and kept.encode() in err,
          "chat: the answer is given, the error said", (p.returncode, out, err))
    check(open(kept, "rb").read() == before, "and the file is as before")


def killed(folder):
    """At most the turn under way is lost, never the file."""
    kept, copy = (os.path.join(folder, name) for name in ("killed.kv", "copy.kv"))
    seen = 0
    said = []  # answers
    rng = random.Random(7)
    for n in range(ROUNDS):
        p = start("chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q", stdin=subprocess.PIPE)
        answers = 0
        lines = []
        try:
            for _ in range(rng.randrange(20)):
                p.stdin.write(b"Tell me more.\n")
                p.stdin.flush()
                lines.append(p.stdout.readline())
                if not lines[-1]:
                    break
                answers += 1
            p.stdin.write(b"Tell me more.\n")
            p.stdin.flush()
            time.sleep(rng.uniform(0, 0.05))  # about two turns
        finally:
            p.send_signal(signal.SIGKILL)
            said += lines + [s for s in p.communicate()[0].splitlines(True) if s.endswith(b"\n")]
        if not os.path.exists(kept):
            check(answers <= 1, f"kill {n}: nothing was kept yet", answers)
            said = []
            continue
        r = riffle("info", kept, "--json")
        held = json.loads(r.out)["messages"] // 2 if r.code == 0 else -1
        # The line of an answer is printed before it is saved.
        check(seen + answers - 1 <= held <= seen + answers + 1, f"kill {n}: {held} turns of {seen + answers}", r)
        texts = [m.encode() + b"\n" for m in messages(kept)[1::2]]
        check(len(texts) == held and texts == said[:held],
              f"kill {n}: with the answers as they were given", (texts, said))
        said = texts
        shutil.copy(kept, copy)
        r = riffle("chat", "--session", copy, *GREEDY, *SMALL, stdin=b"")
        check(r.code == 0 and f"{2 * held} messages]".encode() in r.err,
              f"kill {n}: the file loads", r)
        seen = held
        if seen >= 20:  # a longer chat would fill the context
            os.remove(kept)
            seen = 0
            said = []
        leftovers = [f for f in os.listdir(folder) if ".part-" in f]
        for f in leftovers:
            os.remove(os.path.join(folder, f))
    r = riffle("chat", "--session", kept, *GREEDY, *SMALL, "-n", "6", "-q", stdin=b"The last one.\n")
    check(r.code == 0 and r.out, "the chat still goes on", r)


main(documents, read_again, errors, chats, kept_files, cleared, two_chats, stopped, locked, cut_while_mapped, full, killed)
