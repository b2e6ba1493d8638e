"""riffle info and bench on models with several types of weights, mixtures of experts and images."""
import re
import shutil
import sys

from harness import *

TINY = os.path.join(ROOT, "tests/golden/tiny")
EXPERTS = os.path.join(TINY, "qwen3moe_tied/qwen3moe_tied.gguf")


def info(*args):
    r = riffle("info", *args, "--json")
    return json.loads(r.out) if check(r.code == 0, f"info {args[-1]}", r) else {}


def experts(_):
    # 2 layers of 5 experts of 3 matrices of 64 x 32, of which a token uses 2.
    params = 2 * 5 * 3 * 64 * 32
    j = info("-m", EXPERTS)
    check(j["n_experts"] == 5 and j["n_experts_used"] == 2 and j["expert_dim"] == 32 and j["expert_params"] == params
          and j["expert_bytes"] == 2 * params, "experts are counted", j)
    used = (j["n_params"] - params * 3 / 5) / 1e6
    r = riffle("info", "-m", EXPERTS)
    check(f"5 a layer, width 32; a token uses 2 of them and {used:.1f} M of the parameters" in r.out.decode(),
          "info says what a token uses", r)
    bytes_per_step = {}
    for batch in 1, 4:
        r = riffle("bench", "-m", EXPERTS, "--device", "cpu", "--threads", "2", "--steps", "2", "--reps", "1", "-q", "--json",
                   "--prefill", "16", "--depth", "0", "--selectors", "dense", "--batch", str(batch))
        if not check(r.code == 0, f"bench of experts, batch {batch}", r):
            return
        bytes_per_step[batch] = json.loads(r.out)["decode"][0]["bytes_per_step"]
    # The embedding is the output, so all but experts is read; and a few tokens of KV.
    others = j["weight_bytes"] - 2 * params
    for batch, read in bytes_per_step.items():
        want = others + 2 * params * (1 - 0.6 ** batch)
        check(want <= read <= want * 1.05, f"bench counts the experts that {batch} rows read", (want, read))


def tokenizers(folder):
    r, j = riffle("info"), info("-q")
    n = j["tokenizer"]["n_pieces"]
    check("tokenizer" in r.out.decode() and f"sentencepiece, {n} pieces; BOS <s> ({j['bos_id']}), EOS </s> ({j['eos_id']})"
          in r.out.decode() and 0 < n <= j["vocab_size"], "info shows the tokenizer", r)
    check(j["tokenizer"]["end_ids"] == [j["eos_id"]], "and the tokens that end an answer", j["tokenizer"])
    two = changed(folder, "two.gguf", b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.eot_token_id")
    both = info("-m", two)
    check(both["tokenizer"]["end_ids"] == sorted([j["bos_id"], j["eos_id"]]) and both["eos_id"] == j["eos_id"],
          "of which a model may have several", both)
    j = info("--shape", "llama-3.1-8b")
    check(j["bos_id"] == -1 and j["eos_id"] == -1 and j["tokenizer"] == {"kind": "none", "n_pieces": 0, "end_ids": []},
          "a shape has none", j)


def families(_):
    """Checks the lines about features beyond Llama's layers; models without these features have no such line."""
    named = lambda family: os.path.join(TINY, family, family + ".gguf")
    expected = {
        "gpt_oss": (["attention       sinks", "sliding window  64 tokens in 2 of 3 layers"],
                    {"attention_sinks": True, "attention_gate": False, "qk_norm": "none", "sliding_window": 64,
                     "n_window_layers": 2, "n_expert_layers": 3, "logit_softcap": 0}),
        "muse_glimmer": (["attention       norms of q and k in each head, output gate", "logit soft cap  4",
                          "sliding window  64 tokens in 4 of 5 layers"],
                         {"attention_sinks": False, "attention_gate": True, "qk_norm": "head", "n_window_layers": 4,
                          "n_expert_layers": 0, "logit_softcap": 4}),
        "lfm2_odd": (["attention        norms of q and k in each head", "recurrent state  3.4 KiB in 3 of 5 layers"],
                     {"n_recurrent_layers": 3, "state_bytes": 3 * 3 * 96 * 4, "n_window_layers": 0, "qk_norm": "head"}),
        "deepseek3": (["attention       multi-head latent: the first 32 values of a key are the value"],
                      {"latent_dim": 32, "head_dim": 64, "n_kv_heads": 1, "qk_norm": "none"}),
        "qwen2": ([], {"attention_sinks": False, "attention_gate": False, "qk_norm": "none", "n_window_layers": 0,
                       "logit_softcap": 0}),
    }
    for family, (lines, members) in expected.items():
        text = riffle("info", "-m", named(family)).out.decode().splitlines()
        about = [line for line in text if line.startswith(("attention", "sliding", "logit", "recurrent"))]
        check(sorted(about) == sorted(lines), f"info of {family}", text)
        j = info("-m", named(family))
        check({k: j.get(k) for k in members} == members, f"info --json of {family}", j)


def buffers(_):
    """The sums of the plan are those of its buffers, and the table shows the largest."""
    for args in ([], ["--device", "emu", "--gpu-mem", "200M"], ["-c", "100000", "--kv", "q8"]):
        r = riffle("info", "--plan", "--json", *args)
        plan = json.loads(r.out)["plan"]
        sums = {name: sum(parts.values()) for name, parts in plan["buffers"].items()}
        check({name: plan[name] for name in sums} == sums and sums["activations"] > 0, f"buffers of the plan {args}", plan)
        largest = max(plan["buffers"]["activations"], key=plan["buffers"]["activations"].get)
        line = next(l for l in riffle("info", "--plan", *args).out.decode().splitlines() if l.startswith("activations"))
        check(f"({largest} " in line, f"the largest buffer in the table {args}", line)


def usable_cpus():
    return json.loads(riffle("info", "--plan", "--json").out)["plan"]["threads"]


def threads(_):
    """Far more threads than CPUs would make every step slow."""
    cpus = int(subprocess.run(["nproc"], capture_output=True, check=True, env={**os.environ, "OMP_NUM_THREADS": ""}).stdout)
    said = r"\[--threads 1000: this process may use (\d+) CPUs?; riffle uses \1 threads?\]"
    r = riffle("info", "--plan", "--json", "--threads", "1000")
    notice = re.search(said, r.err.decode())
    if not check(r.code == 0 and notice and 1 <= int(notice[1]) <= cpus and json.loads(r.out)["plan"]["threads"] == int(notice[1]),
                 f"--threads 1000 with {cpus} CPUs", r):
        return
    cpus = int(notice[1])  # fewer where a quota limits them
    r = riffle("info", "--plan", "--json", "--threads", str(2 * cpus))
    check(r.code == 0 and json.loads(r.out)["plan"]["threads"] == 2 * cpus and b"--threads" not in r.err,
          "two threads for each CPU", r)
    check(usable_cpus() <= cpus, "by default no more threads than CPUs")


def affinity(_):
    """The CPUs that taskset, a container or a job allows."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        check(usable_cpus() == 1, "one CPU allowed: one thread", usable_cpus())
        r = riffle("run", "-t", "9", "-p", "hi", "-n", "1", "-c", "64", "--temp", "0")
        check(r.code == 0 and b"[--threads 9: this process may use 1 CPU; riffle uses 1 thread]" in r.err, "run -t 9 on one CPU", r)
    finally:
        os.sched_setaffinity(0, allowed)


def quota(_):
    """docker --cpus 1: a quota of the control group, version 1 or 2, where this process may make one."""
    first, second = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"
    in_second = os.path.exists(second + "/cgroup.controllers")
    group = (second if in_second else first) + f"/riffle_test_{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError as e:
        print(f"skip quota of a control group: {e}")
        return
    try:
        try:
            if in_second:
                write(group + "/cpu.max", "100000 100000")
            else:
                write(group + "/cpu.cfs_period_us", "100000")
                write(group + "/cpu.cfs_quota_us", "100000")
        except OSError as e:
            print(f"skip quota of a control group: {e}")
            return
        code = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execv(sys.argv[2], sys.argv[2:])"
        p = subprocess.run([sys.executable, "-c", code, group + "/cgroup.procs", BIN, "info", "--plan", "--json"],
                           capture_output=True, env=environment())
        check(p.returncode == 0 and json.loads(p.stdout)["plan"]["threads"] == 1, "a quota of one CPU: one thread",
              (p.returncode, p.stdout, p.stderr))
    finally:
        os.rmdir(group)


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def mixes(folder):
    path = os.path.join(folder, "mix.gguf")
    r = riffle("quantize", "--allow-requantize", "-o", path, "--type", "q4_k_m", "-q")
    if not check(r.code == 0, "quantize to a mix", r):
        return
    j = info("-m", path)
    types = j["weight_types"]
    check(len(types) > 1 and [t["bytes"] for t in types] == sorted((t["bytes"] for t in types), reverse=True)
          and j["weight_type"] == types[0]["type"], "weight types by falling bytes", types)
    total = sum(t["bytes"] for t in types)
    check(0.99 * j["weight_bytes"] < total <= j["weight_bytes"], "they are all of the matrices", (total, j["weight_bytes"]))
    text = ", ".join(f"{t['type']} {100 * t['bytes'] / total:.0f}%" for t in types if t["bytes"] >= total / 200)
    r = riffle("info", "-m", path)
    check(text in r.out.decode(), "info shows the mix", (text, r))
    types = info("-m", MODEL)["weight_types"]
    r = riffle("info", "-m", MODEL)
    check(len(types) == 1 and ", Q8_0\n" in r.out.decode() and b"%" not in r.out, "one type has no share", r)


def images(folder):
    path = os.path.join(folder, "gemma")
    os.mkdir(path)
    shutil.copy(os.path.join(TINY, "gemma3_images/config.json"), path)
    shutil.copy(os.path.join(TINY, "gemma3_images.safetensors"), os.path.join(path, "model.safetensors"))
    r = riffle("info", "-m", path)
    check(one_line_error(r, 3, "tokenizer.model"), "a folder without a vocabulary", r)
    config = json.load(open(os.path.join(path, "config.json")))
    config["model_type"] = "llava"
    json.dump(config, open(os.path.join(path, "config.json"), "w"))
    r = riffle("info", "-m", path)
    check(one_line_error(r, 3, "config.json: model_type", '"llava"', '"gemma3"'), "another family with images", r)


def refused(_):
    """Flags of a context are checked without --plan too."""
    lacks = "avx2" if os.uname().machine == "aarch64" else "neon"
    for more in ([], ["--json"], ["--plan"]):
        r = riffle("info", "--isa", lacks, *more)
        check(one_line_error(r, 1, f"--isa: found {lacks}, which this CPU lacks; expected one of auto"),
              f"info --isa {lacks} {' '.join(more)}", r)
    r = riffle("info", "--isa", "scalar")
    check(r.code == 0 and b"memory plan" not in r.out, "info --isa scalar plans nothing", r)


main(refused, tokenizers, experts, families, buffers, threads, affinity, quota, mixes, images)
