"""riffle info and bench on models with several types of weights, mixtures of experts and images."""
import shutil

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


def tokenizers(_):
    r, j = riffle("info"), info("-q")
    n = j["tokenizer"]["n_pieces"]
    check("tokenizer" in r.out.decode() and f"sentencepiece, {n} pieces; BOS <s> ({j['bos_id']}), EOS </s> ({j['eos_id']})"
          in r.out.decode() and 0 < n <= j["vocab_size"], "info shows the tokenizer", r)
    r = riffle("info", "--shape", "llama3-8b")
    check(r.code != 0 or b"tokenizer" in r.out, "a shape has none", r)


def families(_):
    """What newer families have beyond Llama's layers; other models have no line about it."""
    named = lambda family: os.path.join(TINY, family, family + ".gguf")
    expected = {
        "gpt_oss": (["attention       sinks", "sliding window  64 tokens in 2 of 3 layers"],
                    {"attention_sinks": True, "attention_gate": False, "qk_norm": "none", "sliding_window": 64,
                     "n_window_layers": 2, "n_expert_layers": 3, "logit_softcap": 0}),
        "muse_glimmer": (["attention       norms of q and k in each head, output gate", "logit soft cap  4",
                          "sliding window  64 tokens in 4 of 5 layers"],
                         {"attention_sinks": False, "attention_gate": True, "qk_norm": "head", "n_window_layers": 4,
                          "n_expert_layers": 0, "logit_softcap": 4}),
        "qwen2": ([], {"attention_sinks": False, "attention_gate": False, "qk_norm": "none", "n_window_layers": 0,
                       "logit_softcap": 0}),
    }
    for family, (lines, members) in expected.items():
        text = riffle("info", "-m", named(family)).out.decode().splitlines()
        about = [line for line in text if line.startswith(("attention", "sliding", "logit"))]
        check(sorted(about) == sorted(lines), f"info of {family}", text)
        j = info("-m", named(family))
        check({k: j.get(k) for k in members} == members, f"info --json of {family}", j)


def threads(_):
    """Far more threads than cores would make every step slow."""
    cores = len(os.sched_getaffinity(0))
    for asked, used in ((2 * cores, 2 * cores), (1000, cores if cores < 500 else 1000)):
        r = riffle("info", "--plan", "--json", "--threads", str(asked))
        said = f"[--threads {asked}: this process may use {cores} cores; riffle uses {cores} threads]" in r.err.decode()
        check(r.code == 0 and json.loads(r.out)["plan"]["threads"] == used and said == (used != asked),
              f"--threads {asked} with {cores} cores", r)


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


main(tokenizers, experts, families, threads, mixes, images)
