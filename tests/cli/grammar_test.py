"""Answers that a grammar or a JSON Schema constrains: run, chat, batch; errors in grammars."""
import re

from harness import *

ASK = "My name is Anna Smith and I am 30 years old. What is my name?"
RUN = ["run", "-q", *SMALL]
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age"],
          "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0,
                                                                             "maximum": 150}}}


def answers(_):
    for rule, pattern in {'"yes" | "no"': "yes|no", '[a-z]{3,9} " " [0-9]{2}': "[a-z]{3,9} [0-9]{2}",
                          '"\\u4e2d" ("\\u00e9" | "e"){2}': "\u4e2d[\u00e9e]{2}"}.items():
        for seed in range(3):
            r = riffle(*RUN, "-p", ASK, "--grammar", f"root ::= {rule}", "--seed", seed.__str__(), "--json")
            out = json.loads(r.out) if r.code == 0 else {}
            check(re.fullmatch(pattern, out.get("text", "")) and out["finish_reason"] == "stop",
                  f"{rule} with seed {seed}", r)
    r = riffle(*RUN, "-p", ASK, "--grammar", 'root ::= "a"*', "-n", "5", "--ignore-eos", "--json")
    out = json.loads(r.out)
    check(set(out["text"]) <= {"a"} and out["finish_reason"] == "length", "--ignore-eos goes on as long as it may", r)
    r = riffle(*RUN, "-p", ASK, "--grammar", 'root ::= "yes"', "--ignore-eos", "--json")
    out = json.loads(r.out)
    check(out["text"] == "yes" and out["finish_reason"] == "stop", "--ignore-eos ends where no token is left", r)
    r = riffle(*RUN, "-p", ASK, "--grammar", 'root ::= "one two three"', "-n", "2", "--json")
    out = json.loads(r.out)
    check("one two three".startswith(out["text"]) and out["finish_reason"] == "length", "-n cuts", r)
    r = riffle(*RUN, "-p", ASK, "--grammar", 'root ::= "one two three"', "--stop", "two", "--json")
    out = json.loads(r.out)
    check(out["text"] == "one " and out["finish_reason"] == "stop", "a stop text ends an answer that is not complete", r)


def same_text(_):
    """A grammar that allows the model's own text changes nothing, with any sampler; nor does lookup."""
    for flags in (["--temp", "0"], ["--seed", "1"], ["--seed", "2", "--top-k", "5"], ["--seed", "3", "--top-p", "0.5"],
                  ["--seed", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0.1", "--temp", "1.5"]):
        free = riffle(*RUN, "-p", ASK, *flags)
        bound = riffle(*RUN, "-p", ASK, *flags, "--grammar", "root ::= [^ \\n] .*")
        check(free.code == bound.code == 0 and free.out == bound.out and free.out, " ".join(flags), (free, bound))
    free = riffle(*RUN, "-p", ASK, *GREEDY).out.decode().removesuffix("\n")
    literal = "root ::= " + json.dumps(free) + " | [a-z]+"
    r = riffle(*RUN, "-p", ASK, *GREEDY, "--grammar", literal)
    check(r.out.decode() == shown(free), "greedy: an answer that happened to comply is the same", (r, free))
    rule = 'root ::= ("Anna " | "Otto " | "and "){20,30}'
    plain = riffle(*RUN, "-p", ASK, "--grammar", rule, "--seed", "5")
    for n in ("1", "4", "8"):
        ahead = riffle(*RUN, "-p", ASK, "--grammar", rule, "--seed", "5", "--lookup", n)
        check(plain.code == ahead.code == 0 and plain.out == ahead.out and plain.out, f"--lookup {n}", (plain, ahead))


def schemas(folder):
    path = written(folder, "person.json", PERSON)
    for seed in ("1", "2", "3"):
        r = riffle(*RUN, "-p", ASK, "--json-schema", path, "--seed", seed, "--temp", "1")
        try:
            got = json.loads(r.out)
        except ValueError:
            got = {}
        check(r.code == 0 and set(got) == {"name", "age"} and len(got["name"]) <= 12 and 0 <= got["age"] <= 150,
              f"--json-schema with seed {seed}", r)
    inline = riffle(*RUN, "-p", ASK, "-j", json.dumps(PERSON), "--seed", "1", "--temp", "1")
    file = riffle(*RUN, "-p", ASK, "--json-schema-file", path, "--seed", "1", "--temp", "1")
    check(inline.code == 0 and inline.out == file.out, "a schema's text, and llama.cpp's spellings", (inline, file))
    for flag, value in (("-jf", path), ("--json-schema", "\n " + json.dumps(PERSON))):
        r = riffle(*RUN, "-p", ASK, flag, value, "--seed", "1", "--temp", "1")
        check(r.code == 0 and r.out == inline.out, f"{flag} {value[:12]!r}", r)
    grammar = written(folder, "g.gbnf", 'root ::= "ja"')
    for flag in ("--grammar", "--grammar-file"):
        r = riffle(*RUN, "-p", ASK, flag, grammar)
        check(r.code == 0 and r.out == b"ja\n", flag, r)
    r = riffle("chat", "-q", *SMALL, "--grammar", grammar, stdin=b"Hello\nAnd again\n")
    check(r.code == 0 and r.out == b"ja\nja\n", "chat --grammar", r)
    r = riffle("chat", "-q", *SMALL, "--json-schema", path, stdin=ASK.encode() + b"\n")
    check(r.code == 0 and set(json.loads(r.out)) == {"name", "age"}, "chat --json-schema", r)


def reasoning(folder):
    """The grammar constrains what follows reasoning, if there is any."""
    model = thinker(folder)
    rule = 'root ::= "yes" | "no"'
    for flags in (["--no-think"], ["--think"], []):
        for seed in ("1", "2"):
            r = riffle(*RUN, "-m", model, "-p", ASK, "--grammar", rule, "--seed", seed, "-n", "300", "--json", *flags)
            out = json.loads(r.out) if r.code == 0 else {"text": "?", "finish_reason": "?"}
            # Where the model goes on reasoning until it is cut off, there is no answer.
            ok = out["text"] in ("yes", "no") if out["finish_reason"] == "stop" else out["text"] == "" and flags != ["--no-think"]
            check(ok, f"{' '.join(flags) or 'as the template has it'}, seed {seed}", r)


def agreement(_):
    """Text, tokens and log-probabilities of a constrained answer agree, however few its tokens."""
    def line(i, **fields):
        return {"custom_id": f"{i}", "body": {"messages": [{"role": "user", "content": ASK}], "temperature": 1,
                                              "seed": i, "logprobs": True, **fields}}
    lines = [line(i, guided_choice=["yes", "no"], max_tokens=3) for i in range(8)]
    lines += [line(i, guided_choice=[" yes", "\n"], max_tokens=9) for i in range(4)]
    lines += [line(i, response_format={"type": "json_object"}, max_tokens=30) for i in range(8)]
    for i, one in enumerate(lines):
        one["custom_id"] = str(i)
    r = riffle("batch", "-q", *SMALL, stdin="\n".join(map(json.dumps, lines)).encode())
    for asked, record in zip(lines, map(json.loads, r.out.splitlines())):
        choice = record["response"]["body"]["choices"][0]
        text = choice["message"]["content"]
        check(text == "".join(t["token"] for t in choice["logprobs"]["content"]), "text and tokens agree", choice)
        allowed = asked["body"].get("guided_choice")
        check(text in allowed if allowed else text.startswith("{"), "the answer is the choice", choice)


def continued(_):
    """A last message of the assistant and the answer together make a text of the grammar."""
    def line(i, begun, **fields):
        messages = [{"role": "user", "content": ASK}, {"role": "assistant", "content": begun}]
        return {"custom_id": f"{i}", "body": {"messages": messages, "max_tokens": 60, "seed": i, "temperature": 1, **fields}}

    good = ['{"name":', '{"name": "Anna', '{"age": 30, "name":"', '{', '{"name": "Anna", "age": 30}']
    lines = [line(i, begun, guided_json=PERSON, n=2) for i, begun in enumerate(good)]
    lines += [line(9, "It is", guided_choice=["It is Anna.", "It is Otto.", "No."])]
    lines += [line(10, "Here is", guided_json=PERSON), line(11, '{"name": 4', guided_json=PERSON)]
    r = riffle("batch", "-q", *SMALL, stdin="\n".join(map(json.dumps, lines)).encode())
    got = [json.loads(x) for x in r.out.splitlines()]
    for begun, record in zip(good, got):
        for choice in record["response"]["body"]["choices"]:
            whole = begun + choice["message"]["content"]
            if choice["finish_reason"] == "stop":
                check(set(json.loads(whole)) == {"name", "age"}, f"the whole is valid: {begun}", whole)
    text = got[5]["response"]["body"]["choices"][0]["message"]["content"]
    check(text in (" Anna.", " Otto."), "a choice that has begun", text)
    check("line 7: field body.messages[1].content, which the answer continues: text: found 'H' at byte 1"
          in got[6]["error"]["message"], "no text begins so", got[6])
    check("found '4' at byte 10" in got[7]["error"]["message"], "a value that does not fit", got[7])


def errors(folder):
    path = written(folder, "bad.gbnf", 'root ::= "a"\nx ::= [b-a]\n')
    r = riffle(*RUN, "-p", "x", "--grammar", path)
    check(one_line_error(r, 2, "bad.gbnf: line 2, column 8: found a range that ends before it begins"), "a bad grammar", r)
    r = riffle(*RUN, "-p", "x", "--grammar", "root ::= y")
    check(one_line_error(r, 2, "--grammar: line 1, column 10: found rule y"), "a rule that is missing", r)
    path = written(folder, "bad.json", {"properties": {"a": {"not": {}}}})
    r = riffle(*RUN, "-p", "x", "--json-schema", path)
    check(one_line_error(r, 2, "bad.json: at #/properties/a: found the keyword not, expected"), "a schema", r)
    r = riffle(*RUN, "-p", "x", "--json-schema", written(folder, "half.json", '{"type":\n "string"'))
    check(one_line_error(r, 2, "half.json: line 2, column 10: found the end, expected JSON"), "half a schema", r)
    r = riffle(*RUN, "-p", "x", "--grammar", os.path.join(folder, "none.gbnf"))
    check(one_line_error(r, 1, "--grammar: ", "none.gbnf: cannot open", "a grammar, which holds ::="), "a file that is missing", r)
    r = riffle(*RUN, "-p", "x", "--json-schema", "true", "-m", "none.gguf")
    check(one_line_error(r, 1, "--json-schema: true: cannot open", "a schema, which begins with {"),
          "... is known before the model is loaded", r)
    r = riffle(*RUN, "-p", "x", "--grammar", "-")
    check(one_line_error(r, 2, "--grammar", "'-'"), "standard input is the prompt's", r)
    r = riffle(*RUN, "-p", "x", "--grammar", "root ::= .", "--json-schema", "{}")
    check(one_line_error(r, 2, "--grammar", "--json-schema"), "one of both", r)


def batch(_):
    def line(i, **fields):
        return {"custom_id": f"{i}", "body": {"messages": [{"role": "user", "content": ASK}], "max_tokens": 60, "seed": 1, **fields}}

    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"items": {"uniqueItems": True}}}}
    lines = [line(0, response_format=form), line(1, response_format=bad), line(2),
             line(3, response_format={"type": "json_object"}), line(4, guided_choice=["Anna Smith", 'a "b"\n']),
             line(5, guided_regex="[0-9]{4}"), line(6, structured_outputs={"grammar": 'root ::= "ja" | "nein"'}),
             line(7, response_format=form), line(8, response_format=form, guided_regex="a"), line(9, guided_json=json.dumps(PERSON)),
             line(10, response_format=form, seed=2)]
    data = "\n".join(map(json.dumps, lines)).encode()
    r = riffle("batch", "-q", *SMALL, "--max-seqs", "4", stdin=data)
    got = [json.loads(x) for x in r.out.splitlines()]
    check(r.code == 6 and len(got) == len(lines), "a record for each line", r)
    text = [x["response"] and x["response"]["body"]["choices"][0]["message"]["content"] for x in got]
    message = [x["error"] and x["error"]["message"] for x in got]
    check(message[1] and "line 2: field body.response_format.json_schema.schema: at #/items: found the keyword uniqueItems" in message[1],
          "an unsupported schema is a record that names the place", message)
    check(message[8] and "body.guided_regex" in message[8] and "body.response_format" in message[8], "two fields", message)
    check([i for i, m in enumerate(message) if m] == [1, 8], "the other lines are answered", message)
    for i in (0, 7, 9, 10):
        one = json.loads(text[i]) if text[i] else {}
        check(set(one) == {"name", "age"}, f"line {i + 1} is by its schema", text[i])
    check(text[0] == text[7] == text[9], "the same schema and seed: the same text", text)
    check(text[3] and text[3].startswith("{"), "json_object", text[3])
    check(text[4] in ("Anna Smith", 'a "b"\n') and re.fullmatch("[0-9]{4}", text[5]) and text[6] in ("ja", "nein"),
          "vLLM's fields", text)
    alone = riffle("batch", "-q", *SMALL, "--max-seqs", "1", stdin=data)
    check([json.loads(x)["response"] and json.loads(x)["response"]["body"]["choices"] for x in alone.out.splitlines()]
          == [x["response"] and x["response"]["body"]["choices"] for x in got], "one at a time: the same answers", alone)


main(answers, same_text, schemas, reasoning, agreement, continued, errors, batch)
