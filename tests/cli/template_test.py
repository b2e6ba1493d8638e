"""run makes the prompt a message if riffle can evaluate the model's chat template; thinking."""
from harness import *

ASK = ["run", "-p", "What is the capital of France?", "-n", "12", *GREEDY, *SMALL]
PLAIN = b"continued as plain text"


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
          and [j["text"].encode() + b"\n" for j in got] == [default.out, raw.out],
          "--json tells the template", got)
    ids = [len(riffle("tokenize", "-p", "Hello", "--ids-only", "-q", *more).out.split())
           for more in ([], ["--chat"])]
    tokens = [json.loads(riffle("run", "-p", "Hello", "-n", "1", *SMALL, "--json", "-q",
                                *more).out)["prompt_tokens"]
              for more in (["--raw"], [])]
    check(tokens == ids and ids[0] < ids[1],
          "the tokens are those that tokenize shows, without and with --chat", (ids, tokens))
    check(name == "own", "the model's own template is evaluated", name)
    r = riffle(*ASK, "--chat-template", "inst")
    check(r.out == chat.out, "a template by name", r)
    r = riffle("chat", "--chat-template", "chatml", *SMALL, stdin=b"Hi.\n")
    check(one_line_error(r, 2, "--chat-template: found chatml, which needs the token <|im_start|>, expected a template "
                               "whose tokens the model has: llama2, inst, "), "a format whose tokens the model lacks, at the start", r)
    system = riffle(*ASK, "--system", "Be brief.")
    same = riffle(*ASK, "--system", "Be brief.", "--chat")
    joined = riffle(*ASK[:ASK.index("-p") + 1], "Be brief.\n\n" + ASK[ASK.index("-p") + 1],
                    *ASK[ASK.index("-p") + 2:])
    check(system.code == 0 and system.out == same.out == joined.out != chat.out
          and b"[system messages became user messages; " in system.err
          and b"became" not in joined.err,
          "--system implies --chat; a template without system messages has it in the user's",
          (str(system), str(same), str(joined)))
    for more in (["--chat"], ["--system", "x"], ["--chat-template", "inst"], ["--think"],
                 ["--no-think"]):
        r = riffle(*ASK, "--raw", *more)
        check(one_line_error(r, 2, f"found both --raw and {more[0]}, expected one of them"),
              f"--raw and {more[0]} exclude each other", r)


def without(folder):
    none = changed(folder, "none.gguf", b"tokenizer.chat_template", b"tokenizer.chat_templ_no")
    odd = changed(folder, "odd.gguf", b"{% endif %}", b"{% enfid %}")
    for path, why in ((none, b"carries no chat template"),
                      (odd, b"line 1: found the statement 'enfid'")):
        default, raw = riffle(*ASK, "-m", path), riffle(*ASK, "-m", path, "--raw")
        said = [line for line in default.err.splitlines() if PLAIN in line]
        check(default.code == 0 and default.out and default.out == raw.out,
              "no template that can be evaluated: the prompt is continued",
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
    check(one_line_error(r, 2, "<|im_start|>"),
          "a template by name that the vocabulary lacks tokens for is an error", r)


def thinking(folder):
    model = thinker(folder)
    plain = riffle(*ASK)
    for more in ([], ["--no-think"], ["--think=false"], ["--no-think=true"]):
        r = riffle(*ASK, "-m", model, *more)
        check(r.code == 0 and r.out == plain.out, f"an answer without reasoning {more}", (r, plain))
    for more in (["--think"], ["--think=true"], ["--no-think=false"], ["--think", "on"], ["--think", "high"]):
        r = riffle(*ASK, "-m", model, *more)
        check(r.code == 0 and r.out == b"\n", f"reasoning is no part of the answer on stdout: {more}", r)
    r = riffle(*ASK, "-m", model, "--think")
    r = riffle(*ASK, "-m", model, "--think", "off")
    check(r.out == plain.out, "--think off", r)
    r = riffle(*ASK, "-m", model, "--think", "hard")
    check(one_line_error(r, 2, "unexpected argument 'hard'"), "--think and another word", r)
    r = riffle(*ASK, "-m", model, "--think")
    check(r.out == b"\n" and b"all of these tokens are reasoning: -n allows more" in r.err,
          "reasoning that takes all tokens: a notice", r)
    j = json.loads(riffle(*ASK, "-m", model, "--think", "--json", "-q").out)
    check(j["text"] == "" and j["reasoning_content"] and j["completion_tokens"] > 0,
          "run --json keeps reasoning apart", j)
    check(json.loads(riffle(*ASK, "--json", "-q").out)["reasoning_content"] is None,
          "... and has null where there is none", j)
    r = riffle(*ASK, "--think")
    said = [line for line in r.err.splitlines() if b"--think has no effect" in line]
    check(r.out == plain.out and len(said) == 1 and b"enable_thinking" in said[0],
          "--think for a template that does not ask for it: a notice", r)
    r = riffle(*ASK, "--think", "--no-think")
    check(one_line_error(r, 2, "both --no-think and --think")
          or one_line_error(r, 2, "both --think and --no-think"),
          "--think and --no-think exclude each other", r)

    def lines(*flags, **fields):
        body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 6,
                "temperature": 0, **fields}
        line = json.dumps({"custom_id": "a", "body": body}).encode() + b"\n"
        r = riffle("batch", "-m", model, "-q", *SMALL, *flags, stdin=line)
        return json.loads(r.out)

    def message(record):
        return record["response"]["body"]["choices"][0]["message"]

    usual, on = message(lines()), message(lines("--think"))
    check("reasoning_content" not in usual and usual["content"], "batch: an answer alone", usual)
    check(on["content"] == "" and on["reasoning_content"], "batch --think: reasoning_content", on)
    for flag, value, same in (("--think", False, usual), ("--no-think", True, on)):
        got = message(lines(flag, chat_template_kwargs={"enable_thinking": value}))
        check(got == same, "batch: a line's own enable_thinking goes before the flag", got)
    talk = [{"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello.", "reasoning_content": "Say hello."},
            {"role": "user", "content": "Bye."}]
    bare = [talk[0], dict(talk[1], reasoning_content=None), talk[2]]
    a, b = lines(messages=talk), lines(messages=bare)
    check(a["response"]["body"]["usage"] == b["response"]["body"]["usage"]
          and message(a) == message(b),
          "batch: the template drops reasoning of earlier turns", (a, b))
    for fields, what in (({"chat_template_kwargs": 1}, "an object"),
                         ({"chat_template_kwargs": {"x": 1}}, "kwargs.\"x\" is not supported"),
                         ({"chat_template_kwargs": {"enable_thinking": 1}}, "true or false"),
                         ({"messages": [dict(talk[0], reasoning_content="b")]},
                          "is given with the role user, expected it with assistant"),
                         ({"messages": [dict(talk[1], reasoning_content=5), talk[0]]},
                          "a string")):
        error = lines(**fields)["error"]
        check(error and error["code"] == "bad_request" and what in error["message"],
              f"batch: {what}", error)

    r = riffle("chat", "-m", model, "--think", "-n", "5", *GREEDY, *SMALL, "-q",
               stdin=b"Hi.\nBye.\n")
    check(r.code == 0 and r.out == b"\n\n" and r.err == b"",
          "chat: reasoning is shown on a terminal only", r)


PARTS = ("{% for m in messages %}{{ bos_token ~ '[INST] ' }}"
         "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
         "{{ ' [/INST]' }}{% endfor %}{##}")
FIRST = "{% for m in messages %}{{ bos_token ~ '[INST] ' ~ m.content[0].text ~ ' [/INST]' }}{% endfor %}{##}"


def parts(folder):
    """Templates that read content as a list of parts alone; batch lines of both forms."""
    text = {"type": "text", "text": "Who?"}
    lines = b"".join(json.dumps({"custom_id": str(i), "body": {
        "messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0,
    }}).encode() + b"\n" for i, content in enumerate(("Who?", [text])))
    plain = riffle("run", "-p", "Who?", "-n", "6", *GREEDY, *SMALL, "--chat-template", "inst")
    for name, template in (("parts", PARTS), ("first", FIRST)):
        model = with_template(folder, name + ".gguf", template)
        r = riffle("run", "-p", "Who?", "-n", "6", *GREEDY, *SMALL, "-m", model)
        check(r.code == 0 and r.out == plain.out and PLAIN not in r.err,
              f"run: a template that reads parts ({name})", (r, plain))
        r = riffle("chat", "-m", model, "-n", "6", *GREEDY, *SMALL, "-q", stdin=b"Who?\n")
        check(r.code == 0 and r.out.strip() == plain.out.strip(), f"chat: the same ({name})",
              (r, plain))
        r = riffle("batch", "-m", model, "-q", *SMALL, stdin=lines)
        said = [json.loads(line) for line in r.out.splitlines()]
        said = [j["response"] and j["response"]["body"]["choices"][0]["message"]["content"]
                for j in said]
        check(said == [plain.out.decode().rstrip("\n")] * 2,
              f"batch: content as a string and as a list ({name})", (r, plain))


EFFORT = ("{{ bos_token ~ '[INST] ' ~ reasoning_effort | default('medium') }}"
          "{% for m in messages %}{{ m.content }}{% endfor %}{{ ' [/INST]' }}{##}")


def effort(folder):
    model, plain = with_template(folder, "effort.gguf", EFFORT), riffle(*ASK)

    def tokens(*flags):
        r = riffle(*ASK, "-m", model, *flags, "--json")
        check(r.code == 0 and b"no effect" not in r.err, f"run {flags}", r)
        j = json.loads(r.out)
        return j["text"], j["prompt_tokens"]

    levels = {level: tokens(f"--think={level}") for level in ("low", "medium", "high")}
    check(levels["medium"] == tokens() and len(set(levels.values())) == 3,
          "--think=LEVEL reaches the template", levels)
    for level, answer in levels.items():
        kwargs = json.dumps({"reasoning_effort": level, "enable_thinking": None})
        check(tokens("--chat-template-kwargs", kwargs) == answer, f"run {kwargs}")
        for field in ({"reasoning_effort": level}, {"chat_template_kwargs": {"reasoning_effort": level}}):
            body = {"messages": [{"role": "user", "content": ASK[2]}], "max_tokens": 12, "temperature": 0, **field}
            line = json.dumps({"custom_id": "a", "body": body}).encode()
            r = riffle("batch", "-m", model, "-q", "--think=low", *SMALL, stdin=line)
            body = json.loads(r.out)["response"]["body"]
            check((body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens"]) == answer,
                  f"batch: {field} goes before the flag", (body, answer))
    r = riffle("chat", "-m", model, "--think=high", "-n", "12", *GREEDY, *SMALL, stdin=ASK[2].encode())
    check(r.code == 0 and r.out.decode().strip() == levels["high"][0].strip() and b"no effect" not in r.err,
          "chat --think=high", (r, levels))
    r = riffle(*ASK, "-m", model, "--think")
    check(b"[--think has no effect: the chat template does not use enable_thinking but reasoning_effort; use "
          b"--think=low, medium or high]" in r.err, "--think without a level says what the template asks for", r)
    r = riffle("chat", "-m", model, *SMALL, stdin=b"/think on\n/think off\n")
    ignored = b", without effect: the chat template does not use enable_thinking but reasoning_effort; type /think low"
    check(b"[thinking: on" + ignored + b", medium or high]" in r.err
          and b"[thinking: off" + ignored + b" for the shortest reasoning]" in r.err,
          "chat names the command that sets a level", r)
    r = riffle(*ASK, "--think=high")
    check(r.out == plain.out and r.err.count(b"no effect") == 1
          and b"[the reasoning effort high has no effect: the chat template does not use reasoning_effort]" in r.err,
          "a level for a template that does not ask for it: a notice", r)

    def batch(model, *bodies):
        data = b"".join(json.dumps({"custom_id": f"{i}", "body": {"max_tokens": 1, **body}}).encode() + b"\n"
                        for i, body in enumerate(bodies))
        r = riffle("batch", "-m", model, *SMALL, stdin=data)
        check(r.code == 0, "batch", r)
        return [line for line in r.err.decode().splitlines() if "no effect" in line]
    talk = {"messages": [{"role": "user", "content": "Hi."}]}
    high, off, prompt = {"reasoning_effort": "high"}, {"reasoning_effort": "none"}, {"prompt": "Hi."}
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    said = batch(MODEL, talk, talk | high, prompt | high, talk | off, talk | high, talk | kwargs, prompt)
    check(len(said) == 3 and "2 lines (the first: line 2): reasoning_effort has no effect" in said[0]
          and "2 lines (the first: line 4)" in said[1] and "enable_thinking" in said[1]
          and "1 line (the first: line 3)" in said[2] and "prompt" in said[2], "batch: what the template does not read, once a run", said)
    check(batch(model, talk | high) == [] and len(batch(model, talk | off)) == 1, "batch: a template that asks for the level", model)
    other = thinker(folder)
    check(batch(other, talk | off, talk | kwargs) == [] and len(batch(other, talk | high)) == 1, "batch: a template that asks for enable_thinking", other)
    wrong = {"5": "found '5', expected a JSON object", '{"a": 1}': "found the variable 'a', expected enable_thinking or reasoning_effort",
             '{"reasoning_effort": "minimal"}': 'found "minimal", expected none, low, medium or high'}
    for kwargs, text in wrong.items():
        check(one_line_error(riffle(*ASK, "--chat-template-kwargs", kwargs), 2, "--chat-template-kwargs: ", text), text)


main(with_a_template, without, thinking, parts, effort)
