"""riffle bench --arrivals: requests that arrive over time, on emu with a virtual clock and with the real clock."""
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))
from harness import *

BASE = ["bench", "--arrivals", "-q", "--json", "--threads", THREADS]
# Blocks of 32 tokens, for requests of 63 blocks each in 4 rows.
EMU = ["--cost", "h200-8b", "--block", "32", "--lengths", "2000:24", "--requests", "12", "--max-seqs", "8",
       "--selector", "psa", "--epsilon", "0.9"]


def arrivals(name, *args, code=0):
    r = riffle(*BASE, *args)
    try:
        j = json.loads(r.out)
    except ValueError as e:
        check(False, name, f"{e}: {r}")
        return None
    check(r.code == code, f"{name}: exit code {code}", r)
    return j


def answered(j, n, tokens):
    r = j["result"]
    return (r["requests"] == n and r["failed"] == 0 and r["output_tokens"] == n * tokens and r["ttft_s"]["mean"] > 0
            and r["tbt_s"]["p99"] >= r["tbt_s"]["p50"] > 0 and r["tbt_s"]["max"] >= r["tbt_s"]["p99"])


def virtual(_):
    args = [*EMU, "--request-rate", "20"]
    j = arrivals("emu", *args)
    if not j:
        return
    r, c = j["result"], j["cost"]
    check(j["shape"] == "tiny" and j["device"] == "emu" and j["clock"] == "virtual" and j["synthetic_attention"], "--cost stands on tiny", j)
    check(answered(j, 12, 24) and r["prompt_tokens"] == 12 * 2000, "every request is answered in full", r)
    # A prompt of 2,000 tokens costs at least its operations, and weights are read once a step.
    operations = 2 * c["layer_params"] * 2000 / (c["linear_tflops"] * 1e12)
    step = (c["layer_params"] + c["output_params"]) * c["param_bytes"] / (c["memory_gb_s"] * 1e9)
    check(r["ttft_s"]["p50"] >= operations and r["ttft_s"]["mean"] >= operations, "no first token before its prefill's cost", r)
    check(r["tbt_s"]["p50"] > step, "no token faster than the weights are read", r)
    check(r["prefill_kv_blocks"] == (2000 + 31) // 32 * 8, "one layer of a prompt on the device, of the model stood for", r)
    parts = r["cost_seconds"]
    check(0 < sum(parts.values()) <= r["seconds"] * 1.0001, "time is the parts' and of waiting for arrivals", r)
    check(parts["prefill"] >= 12 * operations, "all prompts are paid for", parts)
    again = arrivals("emu, again", *args)
    check(again and again["result"] == r, "the same seed, the same figures", (again and again["result"], r))
    other = arrivals("another seed", *args, "--seed", "2")
    check(other and other["result"]["ttft_s"] != r["ttft_s"], "another seed, other arrivals", other and other["result"])


def pressure(_):
    # 8 sequences of 63 blocks in 4 rows: 2,016 blocks; a pool of 200.
    args = [*EMU, "--request-rate", "0", "--slots", "200"]
    control, none = arrivals("control", *args, "--working-set-steps", "12"), arrivals("no control", *args, "--no-ws-control")
    if not control or not none:
        return
    a, b = control["result"], none["result"]
    check(answered(control, 12, 24) and answered(none, 12, 24), "a small pool answers all", (a, b))
    check(a["skipped"] > 0 and b["skipped"] == 0, "control skips, --no-ws-control does not", (a["skipped"], b["skipped"]))
    check(a["decode_rows_per_iteration"] < b["decode_rows_per_iteration"], "and so steps fewer together", (a, b))
    check(b["blocks_loaded_per_iteration"] > 0 and b["cost_seconds"]["load"] > 0, "what does not fit is loaded", b)
    copies = arrivals("copies", *[a + ",copies" if a == "h200-8b" else a for a in args], "--no-ws-control")
    check(copies and copies["result"]["cost_seconds"]["load"] > 5 * b["cost_seconds"]["load"], "a copy a block is slower", copies and copies["result"])


def prefill(_):
    args = ["--cost", "h200-8b,reload=1", "--block", "32", "--lengths", "6000:32", "--requests", "6", "--request-rate", "8", "--prefill-chunk", "256",
            "--selector", "psa"]
    stall = {}
    for mode in ["layers", "chunks", "whole"]:
        j = arrivals(mode, *args, "--prefill-mode", mode, "--max-inject-tokens", "2048")
        if not j:
            return
        check(answered(j, 6, 32) and j["scheduler"]["prefill_mode"] == mode, f"--prefill-mode {mode} answers all", j["result"])
        stall[mode] = j["result"]["longest_stall_s"]
    check(0 < stall["layers"] < stall["whole"] / 3 and stall["chunks"] < stall["whole"] / 3, "a whole prompt stalls longest", stall)


def resident(_):
    args = ["--cost", "h200-8b", "--block", "32", "--lengths", "2000:24", "--requests", "10", "--request-rate", "0", "--max-seqs", "10", "--selector",
            "dense"]
    # 64 blocks in each of 4 rows: 256 a request.
    j = arrivals("resident", *args, "--slots", "600", "--all-resident")
    if j:
        r = j["result"]
        check(answered(j, 10, 24) and r["decode_rows_per_iteration"] <= 2 and r["cost_seconds"]["load"] == 0,
              "--all-resident holds requests back", r)
        check(r["ttft_s"]["max"] > 3 * r["ttft_s"]["p50"] or r["delay_s"]["max"] > r["delay_s"]["p50"] > 0, "which then wait", r)
    r = riffle(*BASE, *args, "--slots", "200", "--all-resident")
    check(one_line_error(r, 4, "--all-resident", "request 1", "256 blocks"), "a request that never fits is named", r)


def goodput(_):
    args = ["--cost", "h200-8b", "--block", "32", "--lengths", "8000:3", "--requests", "20", "--request-rate", "2", "--selector", "psa", "--goodput", "--delay-limit", "0.5"]
    j = arrivals("goodput", *args)
    if not j:
        return
    within = [p["rate"] for p in j["probes"] if p["within"]]
    beyond = [p["rate"] for p in j["probes"] if not p["within"]]
    check(j["goodput"] > 0 and within and max(within) == j["goodput"] and answered(j, 20, 3), "a highest rate is found", j["probes"])
    check(abs(j["tbt_limit_s"] - 25 * j["lone_step_s"]) < 1e-9, "the limit is 25 lone steps", j)
    check(all(p["within"] == (p["tbt_p99_s"] <= j["tbt_limit_s"] and p["delay_mean_s"] <= 0.5) for p in j["probes"]), "by both limits", j["probes"])
    above = [b for b in beyond if b > j["goodput"]]
    check(j["goodput_bounded"] and above and min(above) <= 1.06 * j["goodput"], "to a twentieth", j["probes"])
    j = arrivals("all rates", *args[:-2], "--delay-limit", "1e6")
    check(j and not j["goodput_bounded"], "where no rate is beyond the limits, that is said", j and j["probes"])
    j = arrivals("no rate", *args, "--tbt-limit", "1e-6")
    check(j and j["goodput"] == 0 and j["result"] is None, "limits that nothing keeps", j)


def wall(folder):
    lengths = os.path.join(folder, "lengths")
    with open(lengths, "w") as f:
        f.write("# prompt output\n300 8\n120 5\n40 9\n")
    for device in ["cpu", "emu"]:
        j = arrivals(f"wall on {device}", "--shape", "tiny", "--device", device, "--lengths", lengths, "--request-rate", "50", "--shared-prefix", "30")
        if not j:
            continue
        r = j["result"]
        check(j["clock"] == "wall" and j["cost"] is None and r["failed"] == 0 and r["output_tokens"] == 22 and r["prompt_tokens"] == 460
              and r["seconds"] > 0, f"{device}: a file's requests are answered", r)
    r = riffle("bench", "--arrivals", "--shape", "tiny", "--device", "cpu", "--lengths", lengths, "--request-rate", "0", "-q", "--threads", THREADS)
    check(r.code == 0 and b"first token" in r.out and b"output tokens/s" in r.out and b"3, 0 failed" in r.out, "tables", r)
    r = riffle("bench", "--arrivals", "--lengths", "64:4", "--requests", "3", "--request-rate", "0", "-c", "512", "-q", "--json", "--threads", THREADS,
               "--device", "cpu")
    check(r.code == 0 and json.loads(r.out)["result"]["output_tokens"] == 12, "the shipped model too", r)


def estimate(_):
    """The time of a run is estimated before it begins; for a long run, riffle says how to shorten it."""
    shape = ["bench", "--arrivals", "--shape", "tiny", "--device", "cpu", "--threads", THREADS, "--request-rate", "0"]
    begun = time.time()
    r = riffle(*shape, "--lengths", "400:8", "--requests", "20")
    took = time.time() - begun
    said = re.findall(rb"\[this takes about (\d+) s\]", r.err)
    check(r.code == 0 and len(said) == 1 and int(said[0]) < 20 * took + 2, "a short run", (took, r))
    quiet = riffle(*shape, "--lengths", "400:8", "--requests", "20", "-q")
    check(quiet.code == 0 and quiet.err == b"", "-q says nothing", quiet)
    p = start(*shape, "--lengths", "400:8", "--requests", "100000")
    line = p.stderr.readline()
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    check(re.search(rb"about \d+ minutes for 100000 requests; --requests", line), "a long run names --requests", line)
    loud, quiet = riffle("bench", "--arrivals", "--json", *EMU), riffle("bench", "--arrivals", "--json", "-q", *EMU)
    a, b = json.loads(loud.out), json.loads(quiet.out)
    check(a["result"] == b["result"], "the estimate changes no figure", (a["result"], b["result"]))


def stopped(_):
    """After Ctrl-C the measurements so far are printed."""
    def after(seconds, *args):
        p = start("bench", "--arrivals", *args)
        time.sleep(seconds)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        return p.returncode, out, err
    shape = ["--shape", "tiny", "--device", "cpu", "--lengths", "50:20", "--requests", "1000", "--request-rate", "4"]
    code, out, err = after(4, *shape)
    check(code == 130 and b"of 1000, 0 failed" in out and b"first token" in out and b"[stopped after" in err, "stopped, in words", (code, out, err))
    code, out, err = after(4, *shape, "--json")
    r = json.loads(out or b"{}")
    check(code == 130 and r.get("interrupted") and 0 < r["result"]["done"] < 1000 and r["result"]["output_tokens"] >= 20 * r["result"]["done"],
          "and as JSON", (code, out, err))
    code, out, err = after(6, "--cost", "h200-8b", "--lengths", "2000:24", "--goodput", "--requests", "400", "--json")
    r = json.loads(out or b"{}")
    check(code == 130 and r.get("interrupted") and isinstance(r["probes"], list), "a search for goodput", (code, out, err))


def bad(folder):
    lengths = os.path.join(folder, "lengths")
    with open(lengths, "w") as f:
        f.write("10 5\n10 -5\n")
    shape = ["bench", "--arrivals", "--shape", "tiny", "--device", "cpu"]
    check(one_line_error(riffle(*shape, "--lengths", lengths), 1, lengths, "line 2"), "a file's bad line is named")
    check(one_line_error(riffle(*shape, "--lengths", "nothing.txt"), 2, "--lengths", "nothing.txt"), "a file that is not there")
    for wrong in ("10:0", "-5:10", "10:5:3", "99999999999:10", ""):
        check(one_line_error(riffle(*shape, "--lengths", wrong), 2, "--lengths", "PROMPT:OUTPUT"), f"--lengths '{wrong}'")
    check(one_line_error(riffle(*shape, "--lengths", "100:5", "-c", "64"), 2, "100 and 5", "64"), "lengths beyond the context")
    for args, word in [(["--cost", "h200-8b"], "--cost"), (["--pool-mem", "1G"], "--pool-mem"), (["--prefill-mode", "512"], "layers, chunks, whole"), (["--prefill", "512"], "--prefill"),
                       (["--depth", "5"], "--depth"), (["--batch", "2"], "--batch"), (["--all-resident"], "--all-resident"), (["--request-rate", "-1"], "--request-rate"),
                       (["--working-set-steps", "65"], "--working-set-steps"), (["--tbt-limit", "1"], "--goodput"), (["--requests", "-1"], "--requests")]:
        r = riffle(*shape, *args)
        check(r.code == 2 and r.out == b"" and word.encode() in r.err, f"{' '.join(args)} is refused by name", r)
    for args, word in [(["--cost", "nothing"], "nothing"), (["--cost", ""], "nothing is given"), (["--cost", "h200-8b,step_us 5"], "KEY=VALUE"), (["--cost", "h200-8b,speed=1"], "speed"), (["--cost", "h200-8b,step_us=x"], "step_us"),
                       (["--cost", "h200-8b", "--pool-mem", "1"], "--pool-mem"), (["--cost", "h200-8b", "--pool-mem", "1G", "--slots", "9"], "--slots")]:
        r = riffle("bench", "--arrivals", *args)
        check(r.code in (1, 2) and r.out == b"" and word.encode() in r.err, f"{' '.join(args)} is refused by name", r)
    r = riffle("bench", "--request-rate", "1")
    check(r.code == 2 and b"--arrivals" in r.err, "--request-rate needs --arrivals", r)


main(virtual, pressure, prefill, resident, goodput, wall, estimate, stopped, bad)
