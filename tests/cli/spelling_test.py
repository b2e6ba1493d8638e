"""Help that fits a screen, and what people type by habit: other programs' spellings, slips, sizes."""
import shutil

from harness import *

COMMANDS = ["chat", "run", "batch", "info", "bench", "demo", "eval", "quantize", "tokenize"]


def options(text):
    """Names and values of the options in a help."""
    return [line[:28].strip() for line in text.splitlines() if line.startswith(("  -", "      --"))]


def helps(_):
    for command in COMMANDS:
        lines = riffle(command, "--help").out.decode().splitlines()
        check(10 <= len(lines) <= 40, f"{command} --help fits a screen", len(lines))
    for command in COMMANDS:
        brief, whole = (riffle(command, flag) for flag in ("--help", "--help-all"))
        check(brief.code == whole.code == 0 and brief.err == whole.err == b"", f"{command} --help and --help-all", whole)
        brief, whole = brief.out.decode(), whole.out.decode()
        check(all(len(line) <= 100 for line in whole.splitlines()), f"{command} --help-all is at most 100 columns wide",
              [line for line in whole.splitlines() if len(line) > 100])
        check(set(options(brief)) <= set(options(whole)), f"{command}: --help-all has all of --help",
              set(options(brief)) - set(options(whole)))
        shared = riffle("help", command)
        check(shared.code == 0 and shared.out.decode() == brief, f"riffle help {command}", shared)
    brief, whole = (riffle("run", flag).out.decode() for flag in ("--help", "--help-all"))
    check("--help-all lists" in brief and "--vote" not in brief and "--evict" not in brief,
          "run --help names what it leaves out, and leaves out what is for comparison", brief)
    check("--vote" in whole and "--rank" in whole, "run --help-all has the settings of selectors", whole)
    compared = ["--evict lru|fifo", "--pool ", "--gqa ", "--stop-mode ", "--residency ", "--no-pin", "--lookahead "]
    for command in COMMANDS:
        whole = riffle(command, "--help-all").out.decode()
        found = [flag for flag in compared if flag in whole]
        check(found == (compared if command in ("bench", "eval") else []),
              f"{command} --help-all: what is only for comparison is in bench and eval", found)
    r = riffle("run", "-p", "x", "--evict", "fifo")
    check(one_line_error(r, 2, "unknown flag --evict of riffle run; these have it: bench, eval"), "run --evict", r)
    r = riffle("help")
    check(r.code == 0 and r.out == riffle("--help").out and b"Commands:" in r.out, "riffle help", r)
    r = riffle("--help-all")
    check(r.code == 0 and all(f"Usage: riffle {c} " in r.out.decode() for c in COMMANDS), "riffle --help-all", r)


def slips(_):
    cases = {
        ("--temprature", "0"): "unknown flag --temprature; did you mean --temp?",
        ("--sedd", "1"): "unknown flag --sedd; did you mean --seed?",
        ("--max-token", "1"): "unknown flag --max-token; did you mean --max-tokens?",
        ("--gpumem=12G",): "unknown flag --gpumem; did you mean --gpu-mem?",
        ("-seed", "1"): "unknown flag -seed; did you mean --seed?",
        ("--max-seqs", "2"): "unknown flag --max-seqs of riffle run; these have it: batch, bench",
        ("-z",): "unknown flag -z",
        ("--think=max",): "--think: 'max': expected low, medium, high, true or false",
        ("--raw=99999999999999999999",): "--raw: '99999999999999999999': expected true or false",
        ("--ignore-eos=",): "--ignore-eos: '': expected true or false",
        ("-q=foo",): "-q: found the value 'foo', expected none",
        ("--reasoning-effort", "low"):
            "--reasoning-effort: --think=low, --think=medium and --think=high set how long a model reasons, where its "
            "chat template asks for reasoning_effort",
        ("--cpu-experts", "-2"): "--cpu-experts: '-2': expected a whole number, -1 to 1024",
        ("--frobnicate",): "unknown flag --frobnicate",
    }
    for args, text in cases.items():
        r = riffle("run", "-p", "x", *args)
        first = r.err.decode().splitlines()[0]
        check(one_line_error(r, 2, "See riffle run --help.") and first == "riffle: " + text, text, r)
    r = riffle("rnu", "-p", "x")
    check(one_line_error(r, 2, "'rnu' is not a command", "did you mean run?"), "a slip in a command", r)
    r = riffle("run", "-p", "-ngl", "-n", "1", "-q", "--raw", *SMALL)
    check(r.code == 0, "a value may look like a flag", r)


def other_spellings(folder):
    ours = riffle("run", "--raw", "-p", "The rain", "-n", "6", "-c", "512", "--temp", "0", "--threads", "2", "-q")
    for args in (["--n-predict", "6", "--ctx-size", "512", "--temperature", "0", "-t", "2"],
                 ["--n-predict=6", "--ctx-size=512", "--temperature=0", "-t2"],
                 ["--predict", "6", "--num-ctx", "512", "--temperature", "0.0", "--threads", "2", "--cpu-experts", "-1"]):
        r = riffle("run", "--raw", "-p", "The rain", *args, "-q")
        check(r.code == 0 and r.out == ours.out and ours.out, " ".join(args), r)
    for args in (["-n=6", "--ctx_size", "512", "--temp=0", "-t=2"],
                 ["--max_new_tokens=6", "-c=512", "--temp", "0", "-t", "2"]):
        r = riffle("run", "-no-cnv", "-p=The rain", *args, "-q")
        check(r.code == 0 and r.out == ours.out, " ".join(["-no-cnv", *args]), r)
    path = os.path.join(folder, "prompt.txt")
    with open(path, "w") as f:
        f.write("The rain")
    r = riffle("run", "--raw", "--file", path, "-n", "6", "-c", "512", "--temp", "0", "--top-k", "1", "--seed", "1", "-q")
    check(r.code == 0 and r.out == ours.out, "--file, --top-k, --seed", r)
    answers = {
        ("-ngl", "99"): "--device cuda",
        ("--n-gpu-layers", "99"): "--gpu-mem",
        ("-fa",): "leave the flag out",
        ("-fa", "on"): "leave the flag out",
        ("-ctk", "q8_0"): "--kv f16",
        ("-ctv", "f16"): "--kv f16",
        ("--cache-type-k", "f16"): "--kv f16",
        ("-i",): "riffle chat",
        ("--mirostat", "2"): "--repeat-penalty",
        ("-hf", "x/y"): "-m PATH",
        ("-b", "512"): "--prefill-chunk",
        ("-ub", "512"): "--prefill-chunk",
        ("-mg", "0"): "CUDA_VISIBLE_DEVICES",
        ("-st",): "leave the flag out",
        ("-cnv",): "riffle chat",
        ("-np", "4"): "riffle batch --max-seqs",
        ("-v",): "no log",
        ("--verbose",): "statistics",
        ("-e",): "-f FILE",
        ("--color",): "NO_COLOR",
        ("--prompt-cache", "x"): "riffle read -o FILE",
        ("--logprobs", "5"): "riffle batch",
        ("--lora", "x"): "merge the adapter",
        ("--mmproj=x",): "text part",
        ("--rope-freq-base", "1e6"): "the model's file",
        ("--rope_scaling", "yarn"): "the model's file",
        ("--typical", "1"): "--min-p",
        ("--samplers", "top_k"): "llama.cpp's order",
        ("--in-prefix", "x"): "riffle run --raw",
        ("--host", "::"): "riffle-serve",
        ("--keepalive", "5m"): "riffle-serve",
        ("--jinja",): "leave the flag out",
        ("--no-warmup",): "leave the flag out",
        ("--override-kv", "x"): "leave the flag out",
        ("--nowordwrap",): "leave the flag out",
    }
    for args, word in answers.items():
        r = riffle("run", "-p", "x", *args)
        flag = args[0].partition("=")[0]
        check(one_line_error(r, 2, f"riffle: {flag}: ", word) and b"See riffle run --help.\n" in r.err
              and r.err.count(b"\n") == 2, " ".join(args) + " is answered", r)
    r = riffle("run", "-p", "x", "-ngl", "99", "--temprature", "0", "-fa", "on", "--jinja", "-fa", "--override-kv", "a",
               "-n")
    lines = r.err.decode().splitlines()
    check(r.code == 2 and len(lines) == 7 and all(line.startswith("riffle: ") for line in lines[:6])
          and [line.split()[1] for line in lines[:5]] == ["-ngl:", "unknown", "-fa:", "--jinja:", "--override-kv:"]
          and "-n without a value" in lines[5] and lines[6] == "See riffle run --help.", "several flags are answered in one go, each once", r)
    r = riffle("chat", "-no-cnv", *SMALL)
    check(one_line_error(r, 2, "riffle: -no-cnv: ", "riffle run --raw"), "chat -no-cnv is answered", r)
    r = riffle("batch", "-np", "2", "-q", *SMALL, stdin=b"")
    check(r.code == 0, "batch -np", r)
    commands = {"list": "riffle info", "pull": "-m PATH", "serve": "riffle batch", "ps": "nothing running",
                "show": "riffle info", "rm": "-m PATH"}
    for command, word in commands.items():
        r = riffle(command, "llama3")
        check(one_line_error(r, 2, f"'{command}' is not a command", word), f"riffle {command}", r)


def values(_):
    cases = {
        ("--temp", "0", "--temp", "1"): "found --temp twice, expected it once",
        ("-n", "1", "--max-tokens", "2"): "found both -n and --max-tokens, which are the same flag; expected one of them",
        ("-c512", "--ctx-size=1K"): "found both -c and --ctx-size, which are the same flag; expected one of them",
        ("-n",): "found -n without a value, expected a value after it",
        ("-n=",): "found -n= without a value, expected a value after it",
        ("--temp",): "found --temp without a value, expected a value after it",
        ("--raw", "--chat"): "found both --raw and --chat, expected one of them",
        ("--stop", ""): "--stop: found an empty text, expected one that ends an answer",
    }
    for args, text in cases.items():
        r = riffle("run", "-p", "x", *args)
        first = r.err.decode().splitlines()[0]
        check(one_line_error(r, 2, "See riffle run --help.") and first == "riffle: " + text, text, r)
    r = riffle("info", "--weights", "q4_k")
    check(one_line_error(r, 2, "found --weights without --shape, expected both"), "a flag that needs another", r)
    r = riffle("read", "-f", "x")
    check(one_line_error(r, 2, "found no --output; expected --output with a value"), "a flag that is missing", r)
    r = riffle("chat", "--stop", "a", "--stop", "", stdin=b"")
    check(one_line_error(r, 2, "--stop: found an empty text"), "chat --stop", r)
    r = riffle("run", "-p", "The rain", "--stop", "a", "--stop", "b", "-q", "-q", "-n", "1", *SMALL)
    check(r.code == 0, "what may be repeated", r)
    for command in ("run", "chat"):
        more = ["-p", "x"] if command == "run" else []
        r = riffle(command, *more, "--logit-bias", "99999999+1", *SMALL, stdin=b"x\n")
        check(one_line_error(r, 2, "--logit-bias: found token 99999999, expected a token of this model, 0 to "),
              f"{command} --logit-bias of no token", r)
    for flag in ("-v", "-V"):
        check(one_line_error(riffle(flag), 2, flag, "riffle --version"), f"riffle {flag}")
    r = riffle("-m", "x.gguf", "-p", "x")
    check(one_line_error(r, 2, "found the flag -m first, expected a command", "run"), "flags before a command", r)


def sizes(_):
    for text in ["12gb", "12GB", "12Gb", "12GiB", "12gib", "12G", "12g", str(12 << 30)]:
        r = riffle("info", "--plan", "--json", "--device", "emu", "-c", "1k", "--host-mem", text, "--gpu-mem", text)
        check(r.code == 0 and json.loads(r.out)["plan"]["n_ctx"] == 1024, f"--gpu-mem {text}", r)
    for text in ["4096", "4K", "4k"]:
        r = riffle("info", "--plan", "--json", "--device", "emu", "-c", "1K", "--slots", text)
        check(r.code == 0 and json.loads(r.out)["plan"]["slots"] == 4096, f"--slots {text}", r)
    for args in (["-c", "2.5"], ["-c", "1gib"], ["--slots", "x"], ["--slots", "1gib"], ["--slots", "1kb"]):
        r = riffle("info", "--plan", *args)
        check(one_line_error(r, 2, args[0], f"'{args[1]}'", "a whole number such as 4096 or 32K"), f"{args} is refused", r)
    for command in (["run", "-p", "x", "--gpu-mem", "12"], ["info", "--plan", "--host-mem=4096"],
                    ["batch", "--prefix-cache", "x", "--prefix-cache-size", "100"]):
        r = riffle(*command)
        number = command[-1].rpartition("=")[2]
        unit = "G" if int(number) < 1000 else "M"
        check(one_line_error(r, 2, f"'{number}' is {number} bytes, expected a size such as {number}{unit}"), f"{command}", r)
    r = riffle("bench", "--depth", "1KiB")
    check(one_line_error(r, 2, "--depth", "'1KiB'", "4096 or 32K"), "--depth takes no bytes", r)
    for text in ["12gx", "12gbb", "gb", "12 g", "-1g", "12kiloB", str(1 << 64), "9300000000000000000"]:
        r = riffle("run", "-p", "x", f"--gpu-mem={text}")
        check(one_line_error(r, 2, "--gpu-mem", f"'{text}'", "512M, 12G or 1.5G"), f"--gpu-mem {text} is refused", r)


def folders(folder):
    ask = ["--raw", "-p", "The rain", "-n", "4", "-q", *GREEDY, *SMALL]
    one = os.path.join(folder, "one")
    os.mkdir(one)
    os.symlink(MODEL, os.path.join(one, "model.gguf"))
    shutil.copy(os.path.join(ROOT, "README.md"), one)
    r = riffle("run", "-m", one, *ask)
    check(r.code == 0 and r.out == riffle("run", "-m", MODEL, *ask).out, "-m takes a folder with one .gguf file", r)
    os.symlink(MODEL, os.path.join(one, "other.gguf"))
    r = riffle("run", "-m", one, *ask)
    check(one_line_error(r, 3, one, "2 models (model.gguf, other.gguf)"), "a folder with two names both", r)
    empty = os.path.join(folder, "empty")
    os.mkdir(empty)
    r = riffle("run", "-m", empty, *ask)
    check(one_line_error(r, 3, empty), "a folder without any", r)


main(helps, slips, other_spellings, values, sizes, folders)
