"""riffle bench on shapes with synthetic weights, and on synthetic attention."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))
from harness import *

TINY = ["bench", "--shape", "tiny", "--threads", THREADS, "--steps", "8", "--reps", "2", "-q", "--json"]


def bench(name, *args):
    device = [] if "--device" in args else ["--device", "cpu"]
    r = riffle(*TINY, *device, *args)
    try:
        return json.loads(r.out)
    except ValueError as e:
        check(False, name, f"{e}: {r}")
        return None


def shape(_):
    j = bench("--shape tiny", "--prefill", "200", "--depth", "0,300")
    if not j:
        return
    check(j["shape"] == "tiny" and j["weights"] == "q8_0" and j["model"] is None and j["synthetic_attention"] is None
          and len(j["prefill"]) == 1 and len(j["decode"]) == 4, "--shape tiny measures", j)
    check(all(d["tokens_per_second"] > 0 and d["memory_gb_per_second"] > 0 and d["bytes_per_step"] > 1e6
              and d["host_syncs_per_token"] is None for d in j["decode"]), "its rows are filled in", j)
    # Operations of 200 tokens in two layers of the tiny shape, of which the last needs only keys and values of all.
    p = j["prefill"][0]
    kv, others, output = 2 * 64 * 256, 2 * 256 * 256 + 3 * 512 * 256, 1024 * 256
    products = 2 * (200 * (kv + others) + 200 * kv + others + output)
    attention = 2 * 8 * 64 * (200 * 201 / 2 + 200)
    check(p["operations"] == products + attention, "operations of prompts", (p["operations"], products + attention))
    check(j["peak_tflops"] > 0 and abs(p["peak_share_pct"] * j["peak_tflops"] / p["tflops"] - 100) < 1e-3
          and abs(p["tflops"] * 1e12 * p["seconds"] / p["operations"] - 1) < 1e-6, "rates of prompts", j)
    check(bench("no prefill", "--prefill", "0", "--depth", "0")["peak_tflops"] is None, "no product is measured")
    sizes = {}
    for weights in ["q8_0", "bf16", "f16", "f32"]:
        j = bench(f"--weights {weights}", "--weights", weights, "--prefill", "16", "--depth", "0", "--selectors", "dense")
        sizes[weights] = j["decode"][0]["bytes_per_step"] if j else 0
    check(sizes["f16"] == sizes["bf16"] and 1.8 < sizes["f16"] / sizes["q8_0"] < 2 < sizes["f32"] / sizes["q8_0"] < 4,
          "weight types have their sizes", sizes)
    for selectors, planned in [("dense", "dense"), ("dense,share", "share")]:
        j = bench(selectors, "--prefill", "0", "--depth", "0", "--selectors", selectors)
        check(j and j["options"]["selection"]["selector"] == planned, f"--selectors {selectors}: the plan is for {planned}", j)
    r = riffle("bench", "--shape", "tiny", "--depth", "100", "--prefill", "64", "--steps", "4", "--reps", "1", "-q",
               "--threads", THREADS)
    check(r.code == 0 and b"tiny q8_0" in r.out and b"tokens/s" in r.out and r.err == b"", "tables", r)


def planning(_):
    r = riffle("info", "--shape", "llama-3.1-8b", "--weights", "bf16", "--plan", "-c", "32K", "--device", "emu", "--gpu-mem", "24G",
               "--json")
    j = json.loads(r.out)
    check(r.code == 0 and j["path"] is None and j["n_layers"] == 32 and j["weight_type"] == "BF16"
          and 14e9 < j["plan"]["weights"] < 17e9 and j["plan"]["slots"] > 0 and j["plan"]["total"] <= 24 << 30,
          "info --shape plans without a model", r)
    r = riffle("info", "--shape", "llama-3.1-8b", "-m", "x.gguf")
    check(r.code == 2, "--shape is in place of a model", r)
    for flags in [["--no-pin"], ["--residency", "host"], ["--residency", "device"]]:
        r = riffle("bench", "--shape", "tiny", "--depth", "0", "--device", "cpu", "-q", *flags)
        check(r.code == 2 and b"--residency and --no-pin need device cuda" in r.err, f"{flags[0]} without a GPU is refused by name", r)


def batch(_):
    one = bench("--batch 1", "--prefill", "16", "--depth", "256", "--selectors", "psa")
    four = bench("--batch 4", "--prefill", "16", "--depth", "256", "--selectors", "psa", "--batch", "4")
    if not one or not four:
        return
    a, b = one["decode"][0], four["decode"][0]
    check(four["batch"] == 4 and abs(b["tokens_per_second"] * b["seconds_per_step"] - 4) < 1e-6
          and b["bytes_per_step"] > a["bytes_per_step"] and b["kv_read_pct"] == a["kv_read_pct"], "--batch 4", (a, b))


def attention(_):
    # 8,192 tokens in blocks of 16: 512 blocks, of which a query attends to 5 %; heads of 32 have 20 directions.
    args = ["--synthetic-attention", "--depth", "8192", "--selectors", "dense,psa"]
    for device in ["cpu", "emu"]:
        j = bench(f"attention on {device}", *args, "--device", device)
        if not j:
            continue
        dense, psa = j["decode"]
        check(j["prefill"] == [] and abs(j["synthetic_attention"]["overlap"] - 0.88) < 1e-6, f"attention on {device}: no prefill", j)
        # psa reads one microbatch beyond the active blocks, and the blocks always read: sinks, recent blocks, tail.
        check(dense["kv_read_pct"] == 100 and 5 <= psa["kv_read_pct"] <= 12, f"attention on {device}: psa reads what is in view",
              psa)
        if device == "emu":
            check(psa["pool_hit_pct"] > 50, "a pool for everything is hit", psa)
    few = bench("sparser attention", *args, "--synthetic-sparsity", "0.25", "--synthetic-overlap", "0.5", "--synthetic-seed", "9")
    if few:
        check(20 <= few["decode"][1]["kv_read_pct"] <= 35, "--synthetic-sparsity 0.25 reads more", few["decode"][1])
    again = bench("the same attention", *args), bench("the same attention", *args)
    if all(again):
        check(again[0]["decode"][1]["kv_read_pct"] == again[1]["decode"][1]["kv_read_pct"], "the same seed, the same blocks")


def mistakes(_):
    cases = {
        "unknown shape": (["--shape", "llama-9"], "llama-3.1-8b"),
        "unknown weights": (["--shape", "tiny", "--weights", "q4"], "q8_0"),
        "a mixture of weights": (["--shape", "tiny", "--weights", "q4_k_m"], "expected one: q4_k"),
        "shape and model": (["--shape", "tiny", "-m", MODEL], "--shape"),
        "shape and text": (["--shape", "tiny", "--text", MODEL], "--text"),
        "options of synthetic attention without it": (["--shape", "tiny", "--synthetic-overlap", "0.5"], "--synthetic-attention"),
        "synthetic attention and prefill": (["--shape", "tiny", "--synthetic-attention", "--prefill", "64"], "--prefill"),
        "sparsity 0": (["--shape", "tiny", "--synthetic-attention", "--synthetic-sparsity", "0"], "sparsity"),
        "sparsity below what heads of 32 allow": (["--shape", "tiny", "--synthetic-attention", "--synthetic-sparsity", "0.01"],
                                                  "sparsity"),
        "weight nan": (["--shape", "tiny", "--synthetic-attention", "--synthetic-weight", "nan"], "weight"),
        "overlap 2": (["--shape", "tiny", "--synthetic-attention", "--synthetic-overlap", "2"], "overlap"),
        "batch 0": (["--shape", "tiny", "--batch", "0"], "batch"),
    }
    for name, (args, word) in cases.items():
        r = riffle("bench", *args)
        check(one_line_error(r, 2, word), f"usage error: {name}", r)
    # 200 M tokens of 8192 bytes of KV for each of 512 sessions.
    r = riffle("bench", "--shape", "tiny", "--synthetic-attention", "--depth", "200M", "--batch", "512", "--device", "cpu")
    check(one_line_error(r, 4, "of host memory, and this machine has") and b"smaller --depth" in r.err,
          "more than the machine's memory is refused before it is taken", r)


main(shape, planning, batch, attention, mistakes)
