"""Ctrl-C in the middle of things."""
import time

from harness import *

ENDLESS = ["-n", "-1", "--ignore-eos", "--selector", "dense", *GREEDY]


def finish(p, seconds=60):
    begin = time.time()
    out, err = p.communicate(timeout=seconds)
    return p.returncode, out, err, time.time() - begin


def during_an_answer(_):
    p = start("run", "--raw", "-p", "The rain", "-c", "32K", *ENDLESS)
    first = p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    code, rest, err, seconds = finish(p)
    check(code == 130, "Ctrl-C in an answer: exit code 130", (code, err))
    check(seconds < 20, "and soon", seconds)
    text = first + rest
    check(len(first) == 20 and text.decode("utf-8"), "what was said stays, in whole characters", text[-20:])


def json_of_a_stopped_answer(_):
    p = start("run", "--raw", "-p", "The rain", "-c", "32K", *ENDLESS, "--json", "-q")
    time.sleep(3)
    p.send_signal(signal.SIGINT)
    code, out, err, _ = finish(p)
    check(code == 130 and json.loads(out)["finish_reason"] == "aborted", "Ctrl-C with --json", (code, out[-200:], err))


def during_prefill(folder):
    path = os.path.join(folder, "long.txt")
    with open(path, "w") as f:
        f.write(words(24000))
    p = start("run", "--raw", "-f", path, "-c", "32K", *ENDLESS, "-q")
    time.sleep(1.5)
    p.send_signal(signal.SIGINT)
    code, _, err, seconds = finish(p)
    check(code == 130 and b"riffle:" not in err, "Ctrl-C while reading: exit code 130, no complaint", (code, err))
    check(seconds < 20, "and soon", seconds)


def json_of_a_stopped_prompt(folder):
    path = os.path.join(folder, "long.txt")
    with open(path, "w") as f:
        f.write(words(24000))
    p = start("run", "--raw", "-f", path, "-c", "32K", *ENDLESS, "--json", "-q")
    time.sleep(1.5)
    p.send_signal(signal.SIGINT)
    code, out, err, _ = finish(p)
    j = json.loads(out) if out else {}
    check(code == 130 and j.get("finish_reason") == "aborted" and j["device"] in ("cpu", "cuda"),
          "Ctrl-C while reading, with --json", (code, out[-200:], err))


def during_a_bench(_):
    p = start("bench", "--device", "cpu", "--prefill", "128", "--depth", "0", "--steps", "20000", "--reps", "1000", "--json",
              "-c", "32K", "-q")
    time.sleep(4)
    p.send_signal(signal.SIGINT)
    code, out, err, _ = finish(p)
    j = json.loads(out) if out else {}
    check(code == 130 and j.get("interrupted") is True and isinstance(j["decode"], list),
          "Ctrl-C in a bench: what it has measured", (code, out[-200:], err))


def terminate(_):
    p = start("run", "--raw", "-p", "The rain", "-c", "32K", *ENDLESS)
    p.stdout.read(5)
    p.send_signal(signal.SIGTERM)
    code, _, err, _ = finish(p)
    check(code == 130, "SIGTERM ends in the same way", (code, err))


def during_a_batch(_):
    lines = [json.dumps({"custom_id": str(i), "body": {"prompt": "The rain", "max_tokens": 4 if i == 0 else 1900,
                                                       "temperature": 0}}) for i in range(40)]
    p = start("batch", "-q", "-c", "2048", "--selector", "dense", stdin=subprocess.PIPE)
    p.stdin.write("\n".join(lines).encode())
    p.stdin.close()
    p.stdin = None
    first = p.stdout.readline()
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    code, rest, err, _ = finish(p)
    got = [json.loads(line) for line in (first + rest).splitlines()]
    check(code == 130, "Ctrl-C in a batch: exit code 130", (code, err))
    check(0 < len(got) < 40 and all(r["error"] is None and r["custom_id"] == str(i) for i, r in enumerate(got)),
          "only whole answers were written", got)


def twice(_):
    p = start("run", "--raw", "-p", "The rain", "-c", "32K", *ENDLESS)
    p.stdout.read(5)
    p.send_signal(signal.SIGINT)
    p.send_signal(signal.SIGINT)
    code, _, err, _ = finish(p)
    check(code == 130, "Ctrl-C twice", (code, err))


main(during_an_answer, json_of_a_stopped_answer, during_prefill, json_of_a_stopped_prompt, during_a_bench, terminate, during_a_batch, twice)
