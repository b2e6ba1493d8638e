"""riffle batch on files as people write them for OpenAI's Batch API and vLLM's run-batch: every
field of a probe is honoured, harmless or refused by name, and records are OpenAI's."""
import re
import math
import time

from harness import *

ARGS = ["batch", *SMALL, "--selector", "dense"]
ASK = "The code is 4821.\nWhat is the code?"
USER = {"role": "user", "content": ASK}


def line(custom_id, body, **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", **more, "body": body}).encode()


def chat(custom_id="a", messages=(USER,), **body):
    return line(custom_id, {"model": "gpt-4o-mini", "messages": list(messages), "temperature": 0,
                            "max_tokens": 6, **body}, url="/v1/chat/completions")


def prompt(custom_id="a", text="The rain", **body):
    return line(custom_id, {"model": "davinci-002", "prompt": text, "temperature": 0,
                            "max_tokens": 6, **body}, url="/v1/completions")


def batch(lines, *args):
    r = riffle(*ARGS, *args, stdin=b"\n".join(lines))
    r.records = [json.loads(text) for text in r.out.splitlines()]
    return r


def texts(record):
    if record["response"] is None:
        return [str(record["error"])]
    return [c["text"] if "text" in c else c["message"]["content"]
            for c in record["response"]["body"]["choices"]]


def gist(record):
    """Returns the parts of a record that a field may change: the answers, and the length of the prompt."""
    body = (record["response"] or {}).get("body")
    return body and (texts(record), body["usage"]["prompt_tokens"])


def get(path):
    with open(path, "rb") as f:
        return f.read()


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


# Expected results of a probe: the answer of the same line without the field, with no word about it (SAME) or with a
# notice that names the field (IGNORED); an answer of its own (OTHER); or an error that names the field (REFUSED).
SAME, IGNORED, OTHER, REFUSED = "same", "ignored", "other", "refused"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CHAT_FIELDS = [
    # OpenAI's
    (SAME, {"n": 1}), (SAME, {"stream": False}), (SAME, {"logprobs": False}),
    (SAME, {"top_logprobs": 0}), (SAME, {"logit_bias": {}}), (SAME, {"logit_bias": None}),
    (SAME, {"frequency_penalty": 0}), (SAME, {"presence_penalty": 0.0}), (SAME, {"tools": []}),
    (SAME, {"tools": None}), (SAME, {"tool_choice": "none"}), (SAME, {"tool_choice": "auto"}),
    (SAME, {"parallel_tool_calls": True}), (SAME, {"parallel_tool_calls": False}),
    (SAME, {"functions": []}), (SAME, {"function_call": "none"}),
    (SAME, {"response_format": {"type": "text"}}), (SAME, {"modalities": ["text"]}),
    (SAME, {"reasoning_effort": "high"}), (SAME, {"verbosity": "medium"}), (SAME, {"stop": None}),
    (SAME, {"top_p": 1}), (SAME, {"seed": 7}), (SAME, {"seed": -1}), (REFUSED, {"seed": -2}),
    (SAME, {"audio": None}),
    (SAME, {"max_completion_tokens": 6, "max_tokens": None}),
    (IGNORED, {"user": "u-1"}), (IGNORED, {"metadata": {"batch": "nightly"}}),
    (IGNORED, {"store": True}), (IGNORED, {"service_tier": "auto"}),
    (IGNORED, {"stream_options": {"include_usage": True}}), (IGNORED, {"safety_identifier": "s"}),
    (IGNORED, {"prompt_cache_key": "k"}), (IGNORED, {"prompt_cache_retention": "24h"}),
    (IGNORED, {"prediction": {"type": "content", "content": "4821"}}),
    (OTHER, {"max_tokens": 1}), (OTHER, {"stop": ["h"]}), (OTHER, {"stop": "e"}),
    (OTHER, {"n": 2}), (REFUSED, {"n": 0}), (REFUSED, {"n": 129}), (REFUSED, {"stream": True}),
    (SAME, {"logprobs": True}), (SAME, {"logprobs": True, "top_logprobs": 20}),
    (REFUSED, {"top_logprobs": 5}), (REFUSED, {"logprobs": 3}), (REFUSED, {"top_logprobs": 21}),
    (OTHER, {"logit_bias": {"13": 100}}), (REFUSED, {"logit_bias": {"5000000": -100}}),
    (REFUSED, {"logit_bias": {"a": 1}}), (REFUSED, {"logit_bias": {"5": 101}}), (REFUSED, {"logit_bias": [[5, -100.5]]}),
    (REFUSED, {"logit_bias": [5]}), (REFUSED, {"logit_bias": [[5, True]]}),
    (OTHER, {"logit_bias": [[13, 100]]}), (SAME, {"logit_bias": [[5, False]]}), (SAME, {"frequency_penalty": 2}),  # no token comes twice
    (SAME, {"presence_penalty": -2}), (REFUSED, {"frequency_penalty": 2.5}),
    (REFUSED, {"presence_penalty": "1"}),
    (REFUSED, {"tools": [TOOL]}), (REFUSED, {"tool_choice": "required"}),
    (REFUSED, {"functions": [{"name": "f"}]}), (REFUSED, {"reasoning_effort": "minimal"}),
    (SAME, {"reasoning_effort": "none"}), (SAME, {"chat_template_kwargs": {"reasoning_effort": "low"}}),
    (REFUSED, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}),
    (REFUSED, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}),
    (OTHER, {"response_format": SCHEMA}), (OTHER, {"response_format": {"type": "json_object"}}),
    (REFUSED, {"response_format": {"type": "grammar"}}), (REFUSED, {"response_format": "text"}),
    (REFUSED, {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
    (REFUSED, {"modalities": ["text", "audio"]}), (REFUSED, {"audio": {"voice": "ash"}}),
    (REFUSED, {"web_search_options": {}}), (REFUSED, {"max_tokens": 0}),
    # vLLM's
    (SAME, {"repetition_penalty": 1.0}), (SAME, {"length_penalty": 1}), (SAME, {"min_tokens": 0}),
    (SAME, {"skip_special_tokens": True}), (SAME, {"spaces_between_special_tokens": True}),
    (SAME, {"include_stop_str_in_output": False}), (SAME, {"ignore_eos": False}),
    (SAME, {"top_k": -1}), (SAME, {"min_p": 0}), (SAME, {"stop_token_ids": []}),
    (SAME, {"use_beam_search": False}), (SAME, {"add_generation_prompt": True}),
    (SAME, {"continue_final_message": False}), (SAME, {"add_special_tokens": False}),
    (SAME, {"echo": False}), (SAME, {"chat_template_kwargs": {}}),
    (IGNORED, {"priority": 3}), (IGNORED, {"request_id": "r"}), (IGNORED, {"cache_salt": "s"}),
    (OTHER, {"ignore_eos": True, "max_tokens": 40}),
    (OTHER, {"repetition_penalty": 3}), (REFUSED, {"repetition_penalty": 0}),
    (OTHER, {"repeat_penalty": 3, "repeat_last_n": -1}), (SAME, {"repeat_last_n": 5}),
    (REFUSED, {"repeat_penalty": 1, "repetition_penalty": 1}), (REFUSED, {"min_tokens": 5}),
    (REFUSED, {"skip_special_tokens": False}), (REFUSED, {"bad_words": ["a"]}),
    (OTHER, {"guided_json": {"type": "object"}}), (OTHER, {"guided_regex": "[0-9]{3} [a-z]+x"}),
    (OTHER, {"guided_choice": ["Otto", "Anna"]}), (OTHER, {"guided_grammar": 'root ::= "ja"'}),
    (OTHER, {"structured_outputs": {"choice": ["a"]}}), (REFUSED, {"structured_outputs": {}}),
    (REFUSED, {"structured_outputs": {"json": None}}), (REFUSED, {"structured_outputs": {"a": 1}}),
    (OTHER, {"response_format": {"type": "json_object", "schema": {"type": "object"}}}),
    (OTHER, {"response_format": {"type": "json_schema", "schema": {"type": "object"}}}),
    (REFUSED, {"guided_json": {"not": {}}}), (REFUSED, {"guided_choice": []}),
    (REFUSED, {"structured_outputs": {"json_object": True, "regex": "a"}}),
    (SAME, {"xtc_probability": 0, "xtc_threshold": 0.3}), (REFUSED, {"xtc_probability": 1.5}),
    (SAME, {"xtc_probability": 1}),  # the line is greedy
    (REFUSED, {"xtc_threshold": "a"}), (SAME, {"dry_multiplier": 0, "dry_base": 3}),
    (OTHER, {"dry_multiplier": 1000, "dry_allowed_length": 0, "dry_sequence_breakers": []}),
    (SAME, {"dry_multiplier": 1000, "dry_allowed_length": 0, "dry_penalty_last_n": 0}),
    (SAME, {"dry_sequence_breakers": ["\n", "#"], "dry_penalty_last_n": -1}),
    (REFUSED, {"dry_multiplier": -1}), (REFUSED, {"dry_base": 0.5}),
    (REFUSED, {"dry_allowed_length": -1}), (REFUSED, {"dry_penalty_last_n": -2}),
    (REFUSED, {"dry_sequence_breakers": "a"}), (REFUSED, {"dry_sequence_breakers": ["a", ""]}),
    (SAME, {"grammar": ""}), (OTHER, {"json_schema": {"type": "integer"}}),
    (REFUSED, {"allowed_token_ids": [1]}), (REFUSED, {"truncate_prompt_tokens": 5}),
    (REFUSED, {"chat_template": "{{ messages }}"}), (REFUSED, {"add_generation_prompt": False}),
    (REFUSED, {"continue_final_message": True}), (REFUSED, {"add_special_tokens": True}),
    (REFUSED, {"unheard_of": 1}), (REFUSED, {"n_predict": 5}),
    (REFUSED, {"extra_body": {"guided_choice": ["a"]}}),
]
PROMPT_FIELDS = [
    (SAME, {"best_of": 1}), (OTHER, {"best_of": 3, "n": 3}), (REFUSED, {"best_of": 1, "n": 2}),
    (SAME, {"echo": False}), (SAME, {"suffix": None}),
    (SAME, {"suffix": ""}), (SAME, {"logprobs": None}), (SAME, {"add_special_tokens": True}),
    (IGNORED, {"user": "u"}),
    (REFUSED, {"best_of": 3}), (REFUSED, {"echo": True}), (REFUSED, {"suffix": "."}),
    (SAME, {"logprobs": 0}), (SAME, {"logprobs": 5}), (REFUSED, {"logprobs": True}),
    (REFUSED, {"top_logprobs": 2}), (OTHER, {"n": 3}), (REFUSED, {"prompt_logprobs": 1}),
    (REFUSED, {"add_special_tokens": False}),
]


def parts(*texts_of):
    return [{"type": "text", "text": t} for t in texts_of]


# (expected, messages, the word that an error or a notice has)
MESSAGES = [
    (SAME, [dict(USER, name="Ann")], "messages.name"),
    (SAME, [dict(USER, content=parts(*ASK.split("\n")))], ""),
    (SAME, [{"role": "user", "content": parts(ASK)}], ""),
    (SAME, [USER, {"role": "assistant", "content": ""}], ""),
    (OTHER, [USER, {"role": "assistant", "content": "It is 7.", "refusal": None,
                    "annotations": [], "tool_calls": None, "audio": None}, USER], ""),
    (OTHER, [USER, {"role": "assistant", "content": "The"}], ""),
    (OTHER, [USER, {"role": "user", "content": "Say it again."}], ""),
    (OTHER, [{"role": "system", "content": "Be kind."}, USER], "system messages"),
    (OTHER, [{"role": "developer", "content": "Be kind."}, USER], "system messages"),
    (REFUSED, [dict(USER, role="tool", tool_call_id="c")], "messages[0]"),
    (REFUSED, [USER, {"role": "assistant", "content": "x", "refusal": "No."}, USER],
     "messages[1].refusal"),
    (REFUSED, [USER, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, USER],
     "messages[1]"),
    (REFUSED, [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]}],
     "messages[0].content[1].type"),
    (REFUSED, [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}],
     "messages[0].content[0].type"),
    (REFUSED, [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
     "messages[0].content[0].type"),
]


def probes(_):
    lines, expected = [chat("plain"), prompt("plain-p")], []
    for i, (kind, fields) in enumerate(CHAT_FIELDS + PROMPT_FIELDS):
        of = chat if i < len(CHAT_FIELDS) else prompt
        lines.append(of(str(i), **fields))
        word = next(iter(fields))
        expected.append((kind, f"{of.__name__} {json.dumps(fields)}", word, of,
                         word if kind == IGNORED else ""))
    for i, (kind, messages, word) in enumerate(MESSAGES):
        lines.append(chat(f"m{i}", messages))
        expected.append((kind, json.dumps(messages), word, chat, "" if kind == REFUSED else word))
    r = batch(lines, "--max-seqs", "4")
    check(r.code == 6 and len(r.records) == len(lines), f"{len(expected)} probes: a record each", r)
    plain = {chat: gist(r.records[0]), prompt: gist(r.records[1])}
    said = r.err.decode()
    counts = [(sum(e[0] == k for e in expected), k) for k in (SAME, IGNORED, OTHER, REFUSED)]
    print(f"{len(expected)} probes: " + ", ".join(f"{n} {k}" for n, k in counts))
    for (kind, name, word, of, notice), record in zip(expected, r.records[2:]):
        error = record["error"] or {}
        if kind == REFUSED:
            check(error.get("code") == "bad_request" and word in error["message"]
                  and f"line {record['line']}: " in error["message"], f"refused: {name}", record)
        else:
            same = error == {} and gist(record) == plain[of]
            check(same if kind != OTHER else error == {} and not same, f"{kind}: {name}", record)
            if notice:
                check(notice in said, f"said: {name}", said)
    ignored = [t for t in said.splitlines() if t.startswith("[ignored")]
    names = {w for k, _, w, _, _ in expected if k == IGNORED} | {"messages.name"}
    check(len(ignored) == 1 and all(n in ignored[0] for n in names)
          and ignored[0].count("line") == len(names) and "user (2 lines)" in ignored[0],
          "one notice names all fields without effect, and nothing else", ignored)
    check("ignored" not in batch(lines, "-q").err.decode(), "-q keeps it quiet")


def wordings(_):
    """Checks the errors for fields that other programs accept."""
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    cases = [
        ({"custom_id": "a"}, "field body is missing, expected an object with messages or prompt"),
        ({"custom_id": "a", "messages": [USER]}, "found messages in the line itself, expected it inside of body"),
        ({"custom_id": "a", "body": []}, "field body is [], expected an object with messages or prompt"),
        (chat(n_predict=5), "field body.n_predict is not supported; use max_tokens"),
        (chat(extra_body={"top_k": 3}), "field body.extra_body is not supported; its members belong in the body itself"),
        (chat(logit_bias=[5]), "field body.logit_bias[0] is 5, expected a token and its bias"),
        (chat(logit_bias="x"), 'field body.logit_bias is "x", expected an object such as {"15043": -1}, or a list'),
        (chat("a", [image]), 'field body.messages[0].content[0].type is "image_url", which is not supported; expected "text"'),
        (chat(structured_outputs={}), "field body.structured_outputs is {}, expected one of choice, grammar"),
        (prompt(best_of=3, n=2), "field body.best_of is 3, expected 2 as in body.n"),
    ]
    r = batch([x if isinstance(x, bytes) else json.dumps(x).encode() for x, _ in cases])
    for (_, words), record in zip(cases, r.records):
        check(words in (record["error"] or {}).get("message", ""), words, record)
    r = riffle(*ARGS, "--json-schema", "x")
    check(one_line_error(r, 2, "--json-schema", "chat, run", "a line's body has response_format"),
          "a flag that a field of the line replaces", r)


def ignore_unknown(_):
    """Fields that riffle does not know are left out if that is asked for; others are not."""
    odd = [line("top", json.loads(chat())["body"], url="/v1/chat/completions", shard_hint=3),
           chat("body", frobnicate={"a": [1]}), chat("message", [dict(USER, mood="glad")]),
           chat("part", [{"role": "user", "content": [dict(parts(ASK)[0], cache_control={})]}]),
           chat("esc", **{"a\u001b[31m b": 1}), chat("many", **{f"x{i}": i for i in range(500)})]
    names = ("shard_hint", "body.frobnicate", "messages.mood", "messages.content.cache_control")
    known = [chat("tools", tools=[TOOL]), chat("image", MESSAGES[12][1], odd=1)]
    r = batch(odd + known)
    check(r.code == 6 and all("not supported" in (x["error"] or {}).get("message", "")
                              for x in r.records), "unknown fields are refused", r.records)
    check(all("--ignore-unknown" in x["error"]["message"] for x in r.records[:6]),
          "with a word about the flag", r.records)
    r = batch([chat("plain")] + odd + known, "--ignore-unknown")
    same = texts(r.records[0])
    check(all(texts(x) == same for x in r.records[1:7]), "--ignore-unknown answers", r.records)
    check(all("not supported" in (x["error"] or {}).get("message", "") for x in r.records[7:]),
          "but what would change the answer is still refused", r.records[7:])
    said = [t for t in r.err.decode().splitlines() if t.startswith("[ignored (--ignore-unknown)")]
    check(len(said) == 1 and all(f"{n} (1 line)" in said[0] for n in names)
          and "\x1b" not in said[0] and "others" in said[0] and len(said[0]) < 2000,
          "and are named in one notice", r)


def prompts(_):
    """One choice for each prompt of a list, as if each had a line of its own."""
    ids = [int(i) for i in riffle("tokenize", "-q", "--ids-only", "-p", "The rain").out.split()]
    several = ["The rain", "Once upon a time", "Snow fell"]
    alone = [texts(x)[0] for x in batch([prompt(str(i), t) for i, t in enumerate(several)]).records]
    r = batch([prompt("list", several), prompt("one", ["The rain"]), prompt("token", ids),
               prompt("tokens", [ids, ids[:-1]]), prompt("single", "The rain")])
    got = r.records
    body = got[0]["response"]["body"]
    check(r.code == 0 and texts(got[0]) == alone, "a list of texts", (got[0], alone))
    check([c["index"] for c in body["choices"]] == [0, 1, 2]
          and body["usage"]["completion_tokens"] == 18
          and body["riffle"]["finish"] == ["length"] * 3, "a choice each, counted together", body)
    check(texts(got[1]) == alone[:1], "a list of one", got[1])
    usage = [x["response"]["body"]["usage"]["prompt_tokens"] for x in got]
    check(texts(got[2]) == alone[:1] and texts(got[3])[:1] == alone[:1] and len(texts(got[3])) == 2
          and usage[2] == len(ids) and usage[3] == 2 * len(ids) - 1,
          "tokens are taken as they are", (got[2:4], ids))
    # Answers to equal prompts differ, and the recorded seed gives the same answer again.
    hot = dict(temperature=1.5, max_tokens=12)
    first = batch([prompt("hot", ["The rain"] * 3, **hot)]).records[0]
    check(len(set(texts(first))) == 3, "equal prompts of a line differ", first)
    seed = first["response"]["body"]["riffle"]["seed"]
    again = batch([prompt("x"), prompt("hot", ["The rain"] * 3, seed=seed, **hot)]).records[1]
    check(texts(again) == texts(first), "and come again with the line's seed", again)
    for n in ("1", "8"):
        r = batch([prompt("0", several), prompt("bad", ["a", words(4000), "b"]),
                   prompt("1", several[::-1])], "--max-seqs", n)
        e = r.records[1]["error"] or {}
        check(r.code == 6 and texts(r.records[0]) == alone and texts(r.records[2]) == alone[::-1]
              and e.get("code") == "too_long" and "body.prompt[1]" in e["message"],
              f"one prompt that is too long fails its line alone, --max-seqs {n}", r.records)
    many = [f"Number {i} is" for i in range(150)]
    r = batch([prompt("many", many, max_tokens=2), prompt("last")], "--max-seqs", "8")
    check(r.code == 0 and len(texts(r.records[0])) == 150, "150 prompts", r)
    r = batch([prompt("bad", [[5], [2000000000], [6]]), prompt("good")])
    check(r.records[0]["error"] and texts(r.records[1]) == alone[:1],
          "a token that there is not", r.records)


def conversations(_):
    """Checks conversations that a chat template does not take unchanged, and a last message that is continued."""
    told = [{"role": "system", "content": "The code is 4821."},
            {"role": "user", "content": "What is the code?"}]
    split = [dict(USER, content=t) for t in ASK.split("\n")]
    joined = [dict(USER, content="\n\n".join(ASK.split("\n")))]
    start = {"role": "assistant", "content": "The code is"}
    lines = [chat("joined", joined), chat("told", told), chat("split", split),
             chat("dev", [dict(told[0], role="developer"), told[1]]),
             chat("two", [told[0], dict(told[0], content="Be kind."), told[1]]),
             chat("late", [told[1], told[0]]), chat("started", [USER, start]),
             chat("raw", [USER]), prompt("p", f"[INST] {ASK} [/INST] The code is")]
    own = batch(lines)
    check(own.code == 0, "all are answered", own)
    by = {x["custom_id"]: texts(x)[0] for x in own.records}
    check(by["told"] == by["dev"] == by["joined"],
          "a system message without a place in the template goes before the user's", by)
    check(by["started"] == by["p"], "an assistant's message that comes last is continued: the new "
          "text alone, white space included", by)
    check("[4 lines (the first: line 2): system messages" in own.err.decode(), "it is said", own)
    named = batch(lines, "--chat-template", "inst")  # its roles must alternate
    by = {x["custom_id"]: texts(x)[0] for x in named.records}
    check(named.code == 0 and by["split"] == by["joined"] == by["told"]
          and by["started"] == by["p"],
          "user messages in a row are joined where the template takes turns", by)
    check("[1 line (the first: line 3): messages of the same role" in named.err.decode(),
          "that is said too", named)
    r = batch([chat("a", [start]), chat("b", [start, USER])], "--chat-template", "inst")
    check(r.code == 6 and all("messag" in x["error"]["message"] for x in r.records),
          "what fits in no way is refused in the template's words", r.records)
    more = chat("a", [USER, start], continue_final_message=True, add_generation_prompt=False)
    r = batch([more, chat("b", [USER, start], continue_final_message=False),
               chat("c", [USER, start], add_generation_prompt=True)])
    check(texts(r.records[0])[0] == by["p"] and all(
        "continues" in (x["error"] or {}).get("message", "") for x in r.records[1:]),
        "vLLM's continue_final_message agrees or is refused", r.records)


# Lines of the shape of those in OpenAI's guide to batches and in vLLM's example of run-batch.
DOCUMENTED = [
    {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": model, "messages": [{"role": "system", "content": manner},
                                           {"role": "user", "content": "Hello there!"}], **limit}}
    for i, (model, manner, limit) in enumerate([
        ("gpt-3.5-turbo-0125", "You help people.", {"max_tokens": 1000}),
        ("gpt-3.5-turbo-0125", "You help nobody.", {"max_tokens": 1000}),
        ("meta-llama/Llama-3-8B-Instruct", "You help people.", {"max_completion_tokens": 1000}),
        ("gpt-4o-mini", "You add numbers.", {})])
] + [{"custom_id": "azure", "method": "POST", "url": "/chat/completions",
      "body": {"model": "deployment", "messages": [{"role": "user", "content": "Hello there!"}]}}]
LEGACY = [{"custom_id": "legacy", "method": "POST", "url": "/v1/completions",
           "body": {"model": "gpt-3.5-turbo-instruct", "prompt": ["Say this", "Say that"],
                    "max_tokens": 7, "temperature": 0}}]
OTHER_URLS = ("/v1/embeddings", "/v1/responses", "/v1/score", "/v1/rerank", "/v1/moderations")


def documented(_):
    lines = [json.dumps(x).encode() for x in DOCUMENTED + LEGACY]
    before = int(time.time())
    first, second = batch(lines, "-n", "8"), batch(lines, "-n", "8")
    check(first.code == 0, "documented lines run as they are", first)
    ids = []
    for record in first.records + second.records:
        body = record["response"]["body"]
        ids += [record["id"], record["response"]["request_id"], body["id"]]
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        chatty = "message" in body["choices"][0]
        check(body["object"] == ("chat.completion" if chatty else "text_completion")
              and body["id"].startswith("chatcmpl-" if chatty else "cmpl-")
              and record["id"].startswith("batch_req_") and isinstance(body["created"], int)
              and before <= body["created"] <= time.time() + 1 and cached >= 0
              and body["choices"][0]["logprobs"] is None
              and body["choices"][0]["finish_reason"] in ("stop", "length"),
              f"{record['custom_id']} has what OpenAI's records have", record)
    check(len(set(ids)) == len(ids) and len(ids) == 6 * len(lines), "no two ids are alike", ids)
    shared = batch([prompt(str(i), words(300) + str(i)) for i in range(4)])
    cached = [x["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"]
              for x in shared.records]
    check(cached[0] == 0 and min(cached[1:]) > 100, "cached_tokens counts what was not read",
          cached)
    r = batch([line(url, {"model": "m", "input": "a"}, url=url) for url in OTHER_URLS])
    check(all("url" in x["error"]["message"] and "/v1/chat/completions" in x["error"]["message"]
              for x in r.records), "lines for other endpoints are refused by url", r.records)


def choices(_):
    """Checks n, logprobs, penalties and biases."""
    warm = {"temperature": 1.0, "seed": 5}
    long = [dict(USER, content=words(300) + ASK)]
    r = batch([chat("one", long, **warm), chat("four", long, n=4, **warm), chat("again", long, n=4, **warm),
               prompt("both", ["The rain", "The sun"], n=2, **warm), prompt("rain", **warm)])
    one, four, again, both, rain = r.records
    check(texts(four)[0] == texts(one)[0] and texts(four) == texts(again)
          and len(set(texts(four))) > 1, "n: the first choice is that of the seed, others differ", r.records)
    check([c["index"] for c in both["response"]["body"]["choices"]] == [0, 1, 2, 3]
          and texts(both)[0] == texts(rain)[0], "n: choices of each prompt stand together", both)
    alone = batch([chat("one", long, **warm)]).records[0]["response"]["body"]
    r = batch([chat("four", long, n=4, **warm)])
    body = r.records[0]["response"]["body"]
    n_prompt = body["usage"]["prompt_tokens"]
    said = re.search(rb"(\d+) prompt tokens", r.err)
    check(n_prompt == alone["usage"]["prompt_tokens"] and said and int(said[1]) == n_prompt,
          "n: a prompt counts once", (body["usage"], r.err))

    r = batch([chat("plain"), chat("logprobs", logprobs=True, top_logprobs=4),
               prompt("counted", logprobs=3), chat("none", logprobs=True)])
    plain, logprobs, counted, none = r.records
    content = logprobs["response"]["body"]["choices"][0]["logprobs"]["content"]
    whole = b"".join(bytes(t["bytes"]) for t in content).decode()
    check(texts(plain) == texts(logprobs) and whole.strip() == texts(plain)[0].strip(),
          "logprobs: the tokens' bytes are the answer", (whole, texts(plain)))
    check(all(len(t["top_logprobs"]) == 4 and t["logprob"] <= 0
              and t["token"] == t["top_logprobs"][0]["token"]  # greedy
              and t["logprob"] == t["top_logprobs"][0]["logprob"]
              and sorted((x["logprob"] for x in t["top_logprobs"]), reverse=True)
              == [x["logprob"] for x in t["top_logprobs"]]
              and sum(math.exp(x["logprob"]) for x in t["top_logprobs"]) <= 1 + 1e-5
              for t in content), "logprobs: best first, of probabilities", content)
    c = counted["response"]["body"]["choices"][0]["logprobs"]
    check("".join(c["tokens"]) == texts(counted)[0] and c["text_offset"][0] == 0
          and c["text_offset"] == sorted(c["text_offset"]) and len(c["top_logprobs"][0]) == 3
          and len(c["tokens"]) == len(c["token_logprobs"]), "logprobs of a prompt's answer", c)
    content = none["response"]["body"]["choices"][0]["logprobs"]["content"]
    check(content and all(t["top_logprobs"] == [] for t in content), "logprobs without others", content)

    first = json.loads(riffle("tokenize", "-p", texts(plain)[0], "--json").out)["ids"][1]
    r = batch([chat("banned", logit_bias={str(first): -100}), chat("forced", logit_bias={"13": 100})])
    check(texts(r.records[0]) != texts(plain) or texts(plain)[0] == "", "a biased token is not drawn", r.records)
    flags = riffle("run", "-p", ASK, "-q", *SMALL, *GREEDY, "-n", "12", "-l", "13+100").out
    check(flags.decode().strip() == texts(batch([chat("forced", logit_bias={"13": 100}, max_tokens=12)]).records[0])[0].strip(),
          "--logit-bias is logit_bias", flags)
    for bad in "13", "13+", "+3", "13+x", "13+inf", "13--1", "a+1", "13+nan", "13+101", "13-100.5", "13+1e30":
        r = riffle("run", "-p", "x", "-l", bad, *SMALL)
        check(r.code == 2 and b"--logit-bias" in r.err, f"--logit-bias {bad} is refused", r)
    r = riffle("run", "-p", "x", "-l", "13+1", "-l", "13-1", *SMALL)
    check(r.code == 2 and b"two biases" in r.err, "two biases of one token are refused", r)
    r = riffle("run", "-p", "x", "-l", "9999999+1", *SMALL)
    check(r.code == 2 and b"--logit-bias: found token 9999999, expected a token of this model, 0 to" in r.err, "a bias of no token is refused", r)
    many = "word word word word word word word word"
    run = ["run", "--raw", "-p", many, "-q", *SMALL, *GREEDY, "-n", "24"]
    free = riffle(*run).out
    for flag in (("--repeat-penalty", "3"), ("--frequency-penalty", "2"), ("--presence-penalty", "2"),
                 ("--dry-multiplier", "9")):
        r = riffle(*run, *flag)
        check(r.code == 0 and len(set(r.out.split())) >= len(set(free.split())), f"{flag[0]} has an effect",
              (free, r.out))
    dry = ["--dry-multiplier", "9", "--dry-allowed-length", "1"]
    # A space is in every word, so none repeats.
    outs = [riffle(*run, *dry, "--dry-sequence-breaker", b).out for b in ("none", " ", "zzz")]
    check(outs[0] == outs[2] and outs[0] != outs[1] == free, "--dry-sequence-breaker has an effect", (free, outs))
    escaped, plain = (riffle(*run, *dry, "--dry-sequence-breaker", b, "--dry-sequence-breaker", ":").out
                      for b in (r"\n", "\n"))
    check(escaped == plain, r"\n is a line break in --dry-sequence-breaker", (escaped, plain))
    warm = [*run[:4], "-q", *SMALL, "--seed", "3", "-n", "24", "--temp", "0.7"]
    xtc = ["--xtc-probability", "1", "--xtc-threshold", "0.05"]
    first, again, off = (riffle(*warm, *f).out for f in (xtc, xtc, [*xtc[:2], "--xtc-threshold", "0.51"]))
    check(first == again and off == riffle(*warm).out != first, "XTC has an effect, and the seed decides",
          (first, again, off))
    for bad in (["--xtc-probability", "1.5"], ["--xtc-threshold", "-1"], ["--dry-multiplier", "nan"],
                ["--dry-base", "0.9"], ["--dry-allowed-length", "-1"], ["--dry-penalty-last-n", "-2"],
                ["--dry-sequence-breaker", ""], ["--dry-sequence-breaker", "none", "--dry-sequence-breaker", "a"]):
        r = riffle("run", "-p", "x", *bad, *SMALL)
        check(r.code == 2 and bad[0].encode() in r.err, " ".join(bad) + " is refused", r)


def limits(_):
    """The max_tokens of a line has to fit the context; that of a flag only ends the answer."""
    long = words(1980)
    lines = [prompt("fits", long, max_tokens=8), prompt("asked", long, max_tokens=2000), prompt("flag", long, max_tokens=None)]
    r = batch(lines, "-n", "2000")
    fits, asked, flag = r.records
    size = fits["response"]["body"]["usage"]["prompt_tokens"]
    check(r.code == 6 and asked["error"] and asked["error"]["code"] == "too_long"
          and f"the prompt has {size} tokens and max_tokens is 2000, together {size + 2000}, but the context holds 2048" in asked["error"]["message"],
          "max_tokens that cannot fit is refused with all numbers", asked)
    choice, usage = flag["response"]["body"]["choices"][0], flag["response"]["body"]["usage"]
    check(choice["finish_reason"] == "length" and 2048 <= usage["total_tokens"] <= 2049, "-n ends at the context's end", flag)


def openai_types(_):
    """The openai package accepts the records, and no field of its requests is unknown."""
    try:
        from openai.types import Completion, completion_create_params
        from openai.types.chat import ChatCompletion
        from openai.types.chat import completion_create_params as chat_params
    except ImportError:
        print("skip records against the types of the openai package, which is missing "
              "(pip install openai)")
        return
    lines = [json.dumps(x).encode() for x in DOCUMENTED + LEGACY]
    lines += [chat("logprobs", n=2, logprobs=True, top_logprobs=3), prompt("counted", logprobs=2, n=2)]
    for record in batch(lines, "-n", "8").records:
        body = record["response"]["body"]
        kind = ChatCompletion if body["object"] == "chat.completion" else Completion
        parsed = kind.model_validate(body, strict=True)
        check(parsed.usage.total_tokens == body["usage"]["total_tokens"]
              and parsed.usage.prompt_tokens_details.cached_tokens is not None
              and len(parsed.choices) == len(body["choices"]) and parsed.model == body["model"],
              f"{record['custom_id']} is a {kind.__name__}", record)
    for of, params in ((chat, chat_params), (prompt, completion_create_params)):
        fields = sorted(params.CompletionCreateParamsBase.__annotations__)
        records = batch([of(f, **{f: {"no": "value"}}) for f in fields]).records
        unknown = [f for f, x in zip(fields, records)
                   if x["error"] and "--ignore-unknown" in x["error"]["message"]]
        check(unknown == [] and len(fields) > 15, f"all {len(fields)} fields of {of.__name__} are "
              "known", unknown)


def in_order(data):
    """Returns the records without the parts that differ from run to run."""
    rows = map(json.loads, data.splitlines())
    return [(x["line"], x["custom_id"], x["error"], texts(x)) for x in rows]


def errors_file(folder):
    lines = [chat(str(i), stream=True) if i % 3 == 1 else chat(str(i), max_tokens=3 + i) for i in range(10)]
    source, out, errors = (os.path.join(folder, n) for n in ("in.jsonl", "out.jsonl", "bad.jsonl"))
    put(source, b"\n".join(lines) + b"\n")
    files = ["-i", source, "-o", out, "--errors", errors]
    r = riffle(*ARGS, *files)
    good, bad = in_order(get(out)), in_order(get(errors))
    check(r.code == 6 and [x[0] for x in good] == [1, 3, 4, 6, 7, 9, 10]
          and [x[0] for x in bad] == [2, 5, 8] and b"7 answers, 3 errors" in r.err,
          "answers in one file, errors in another, each in order", (r, good, bad))
    check(all(x[2] is None for x in good) and all(x[2]["code"] == "bad_request" for x in bad),
          "and nothing else", (good, bad))
    whole, whole_bad = get(out).splitlines(keepends=True), get(errors).splitlines(keepends=True)
    r = riffle(*ARGS, *files, "-m", "/nowhere")
    check(r.code == 6 and b"10 of 10 lines have a record" in r.err and b"nothing is left" in r.err,
          "both count as there", r)
    for kept, kept_bad, torn, torn_bad in (
            (3, 1, b"", b""), (0, 0, b"", b""), (2, 3, b"", b""),
            (2, 1, whole[2][:50], whole_bad[1][:9]), (5, 3, b"", whole_bad[0][:30])):
        put(out, b"".join(whole[:kept]) + torn)
        put(errors, b"".join(whole_bad[:kept_bad]) + torn_bad)
        r = riffle(*ARGS, *files)
        check(r.code == 6 and in_order(get(out)) == good and in_order(get(errors)) == bad
              and get(out).startswith(b"".join(whole[:kept]))
              and get(errors).startswith(b"".join(whole_bad[:kept_bad]))
              and r.err.count(b"cut short") == bool(torn) + bool(torn_bad),
              f"goes on from {kept} answers and {kept_bad} errors, torn: {bool(torn)}", r)
    os.unlink(errors)
    r = riffle(*ARGS, *files)
    check(r.code == 6 and in_order(get(errors)) == bad and in_order(get(out)) == good,
          "without the errors their lines are tried again", r)
    os.unlink(out)
    r = riffle(*ARGS, *files)
    check(r.code == 6 and in_order(get(out)) == good and in_order(get(errors)) == bad,
          "without the output both begin anew", r)
    r = riffle(*ARGS, *files, "--restart", "-q")
    check(r.code == 6 and in_order(get(out)) == good and in_order(get(errors)) == bad, "--restart", r)

    def refused(name, code, *say, data=None, out_data=None, args=(), keep=True):
        if data is not None:
            put(errors, data)
        if out_data is not None:
            put(out, out_data)
        before = get(errors)
        r = riffle(*ARGS, *(args or files))
        check(r.code == code and r.err.startswith(b"riffle: ")
              and all(w in r.err.decode() for w in say)
              and (not keep or get(errors) == before), name, r)

    refused("errors that are not riffle's", 1, errors, "line 1", data=b"my notes\n")
    refused("errors that are answers", 2, errors, "--errors", data=b"".join(whole))
    refused("a line in both files", 1, out, errors, "line 2", data=b"".join(whole_bad),
            out_data=b"".join(whole) + whole_bad[0])
    refused("errors of another input", 2, errors, "line 99",
            data=whole_bad[0].replace(b'"line":2', b'"line":99'), out_data=b"".join(whole))
    refused("the input as errors", 2, "--errors", source,
            args=["-i", source, "-o", out, "--errors", source])
    refused("the output as errors", 2, "--errors", out,
            args=["-i", source, "-o", out, "--errors", out])
    os.symlink(out, os.path.join(folder, "link"))
    refused("a link to the output as errors", 2, "--errors", "link",
            args=["-i", source, "-o", out, "--errors", os.path.join(folder, "link")])
    check(get(source) == b"\n".join(lines) + b"\n" and get(out) == b"".join(whole),
          "and nothing is changed")
    put(errors, b"".join(whole))
    os.unlink(out)
    refused("answers are not overwritten where a new output begins", 2, errors)
    check(not os.path.exists(out), "and no output is begun")
    put(errors, b"")
    r = riffle(*ARGS, "--errors", errors, stdin=b"\n".join(lines))
    check(r.code == 6 and in_order(r.out) == good and in_order(get(errors)) == bad,
          "with the output on stdout", r)
    r = riffle(*ARGS, "-i", source, "-o", out, "--errors", "-")
    check(r.code == 6 and in_order(r.out) == bad and in_order(get(out)) == good,
          "with the errors on stdout", r)


def manual(_):
    """The man page's table has the program's fields, with the same use and values. The README's has OpenAI's fields."""
    entry = r'\{\{"(\w+)", Use::(\w+)(?:, (?:R"\((.*?)\)"|"(.*?)"|nullptr,\s+"[^"]+"))?\}'
    with open(os.path.join(ROOT, "src/requests/fields.cpp"), encoding="utf-8") as f:
        table = f.read()
    own = re.findall(entry, table)
    openai = re.findall(entry, table[: table.index("    // vLLM")])
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        rows = f.read().split("| OpenAI's fields of a body | riffle |\n|---|---|\n")[1].splitlines()[:4]
    for use, row in zip(("HONOURED", "NO_OP", "IGNORED", "REFUSED"), rows):
        names = re.findall(r"\w+", row.split("|")[1].split(";")[0])
        check(sorted(names) == sorted(x[0] for x in openai if x[1] == use), f"the README's fields: {use}", names)
    with open(os.path.join(ROOT, "tools/man/riffle-batch.1"), encoding="utf-8") as f:
        page = re.findall(r"^\.It Li (\w+) Ta (\w+) Ta ?(.*)$", f.read(), re.M)
    uses = {"HONOURED": "honoured", "NO_OP": "accepted", "IGNORED": "ignored", "REFUSED": "refused"}
    want = [(name, uses[use]) for name, use, _, _ in own]
    check(len(own) > 80 and sorted(want) == sorted(x[:2] for x in page), "the man page's fields",
          set(want) ^ {x[:2] for x in page})
    said = {name: text.replace("\\(dq", '"').replace("empty", '""') for name, _, text in page}
    values = {name: ", ".join(json.dumps(v) for v in json.loads(raw or plain))
              for name, use, raw, plain in own if use == "NO_OP"}
    check(all(said[n] == v for n, v in values.items()), "and its values",
          {n: (said[n], v) for n, v in values.items() if said[n] != v})


main(manual, probes, wordings, ignore_unknown, prompts, conversations, documented, choices, limits, openai_types,
     errors_file)
