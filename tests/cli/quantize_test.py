"""riffle quantize and --weights: files that other commands run, refusals that cost nothing."""
import time

from harness import *

PROMPT = ["--raw", "-p", "The old clock in the hall struck nine, and", "-n", "8", *GREEDY, *SMALL]


# The shipped model's weights are Q8_0 already.
AGAIN = "--allow-requantize"


def quantize(folder, kind, *more):
    return riffle("quantize", AGAIN, "-o", os.path.join(folder, kind + ".gguf"), "--type", kind, "--threads", "2", *more)


def files_run(folder):
    """Checks that a quantised file and --weights in memory give the same answers."""
    sizes = {}
    for kind, bits in {"q8_0": 8.5, "q4_k_m": 5.5, "q4_0": 4.5}.items():
        r = quantize(folder, kind, "--json")
        if not check(r.code == 0, f"quantize {kind}", r):
            continue
        said = json.loads(r.out)
        path = os.path.join(folder, kind + ".gguf")
        sizes[kind] = said["weight_bytes_out"]
        check(said["file_bytes"] == os.path.getsize(path) and abs(said["bits_per_weight"] - bits) < 0.7
              and 0 <= said["relative_error"] < 0.2, f"quantize {kind}: what it says", said)
        a = riffle("run", "-m", path, *PROMPT)
        b = riffle("run", "-m", MODEL, "--weights", kind, *PROMPT)
        check(a.code == 0 and a.out and a.out == b.out, f"{kind} file and --weights {kind} answer alike", (a, b))
    check(sizes["q4_0"] < sizes["q4_k_m"] < sizes["q8_0"], "sizes follow the types", sizes)
    same = riffle("run", "-m", os.path.join(folder, "q8_0.gguf"), *PROMPT)
    own = riffle("run", "-m", MODEL, *PROMPT)
    check(same.out == own.out, "the shipped Q8_0 model as q8_0 is itself", (same, own))
    r = riffle("info", "-m", os.path.join(folder, "q4_0.gguf"), "--json")
    check(json.loads(r.out)["weight_type"] == "Q4_0" and json.loads(r.out)["chat_template"] != "", "info of a written file", r)


def summary(folder):
    r = quantize(folder, "q5_0")
    text = r.err.decode()
    check(r.code == 0 and r.out == b"" and all(w in text for w in ["q5_0.gguf", "bits each", "error", " s"]),
          "a summary on stderr", r)
    r = quantize(folder, "q5_0", "--force", "-q")
    check(r.code == 0 and r.out == b"" and r.err == b"", "--force replaces, -q is quiet", r)


def refusals(folder):
    out = os.path.join(folder, "q5_0.gguf")
    with open(out, "w") as f:
        f.write("precious\n")
    r = quantize(folder, "q5_0")
    check(one_line_error(r, 2, out, "--force"), "an existing file is left alone", r)
    check(open(out).read() == "precious\n", "... unchanged")
    r = riffle("quantize", "-m", MODEL, "-o", MODEL, "--type", "q4_0", "--force", AGAIN)
    check(one_line_error(r, 2, "read from"), "the model's own file is refused, --force or not", r)
    r = riffle("quantize", "-m", folder + "/none.gguf", "-o", folder + "/x.gguf")
    check(one_line_error(r, 3, "none.gguf"), "a missing model", r)
    r = riffle("quantize", "-o", folder + "/none/x.gguf", AGAIN)
    check(one_line_error(r, 1, "none/x.gguf"), "a folder that is not there", r)
    r = riffle("quantize", "-o", folder + "/x.gguf", "--type", "q3_k")
    check(r.code == 2 and b"q3_k" in r.err and b"q4_k_m" in r.err, "an unknown type", r)
    r = riffle("quantize", "--type", "q4_0")
    check(r.code == 2 and b"--output" in r.err, "no output", r)
    r = riffle("run", "--weights", "q3", "-p", "x")
    check(r.code == 2 and b"q3" in r.err and b"q4_k" in r.err, "--weights: an unknown type", r)
    check(sorted(os.listdir(folder)) == ["q5_0.gguf"], "no file is left behind", os.listdir(folder))


def quantised_input(folder):
    """The errors of rounding twice add up, so it has to be asked for. A file that grows gets a warning."""
    out = os.path.join(folder, "x.gguf")
    r = riffle("quantize", "-o", out, "--type", "q4_0")
    check(one_line_error(r, 2, MODEL, "Q8_0", "expected F32, F16 or BF16", AGAIN) and r.err.count(b"\n") == 1,
          "quantised input is refused", r)
    check(os.listdir(folder) == [], "... and nothing is written", os.listdir(folder))
    # Rows of 24 values stay F16, and these have the most bytes.
    mixed = os.path.join(folder, "mixed.gguf")
    source = os.path.join(ROOT, "tests/golden/tiny/gemma4_e2b/gemma4_e2b.gguf")
    r = riffle("quantize", "-m", source, "-o", mixed, "--type", "q8_0", "-q")
    check(r.code == 0, "a model of which a part becomes Q8_0", r)
    r = riffle("quantize", "-m", mixed, "-o", folder + "/again.gguf", "--type", "q4_0")
    check(one_line_error(r, 2, mixed, "some of its weights are Q8_0", AGAIN), "a part that is quantised is refused too", r)
    os.remove(mixed)
    r = riffle("quantize", "-o", out, "--type", "q4_0", AGAIN, "--threads", "2")
    check(r.code == 0 and b"warning" not in r.err, "it is not when that is meant", r)
    wide = os.path.join(folder, "f16.gguf")
    r = riffle("quantize", "-o", wide, "--type", "f16", AGAIN, "--threads", "2")
    check(r.code == 0 and b"warning" in r.err and b"f16.gguf" in r.err and b"larger" in r.err, "a file that grows: a warning", r)
    r = riffle("quantize", "-m", wide, "-o", out, "--type", "q8_0", "--force", "--threads", "2")
    check(r.code == 0 and b"warning" not in r.err, "F16 input needs no flag", r)


def full_disk(folder):
    """A limit on file size stands for the full disk."""
    import resource

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    out = os.path.join(folder, "x.gguf")
    p = subprocess.run([BIN, "quantize", AGAIN, "-o", out, "--type", "q8_0"], capture_output=True, env=environment(),
                       preexec_fn=limit, timeout=240)
    text = p.stderr.decode()
    check(p.returncode == 1 and out in text and text.count("\n") == 1, "no room on the disk", (p.returncode, text))
    check(os.listdir(folder) == [], "... leaves nothing", os.listdir(folder))


def interrupted(folder):
    p = start("quantize", AGAIN, "-o", os.path.join(folder, "x.gguf"), "--type", "q4_k", "--threads", "1")
    while p.poll() is None and not os.listdir(folder):
        time.sleep(0.001)
    check(p.poll() is None, "quantize writes while it converts", p.returncode)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    check(p.returncode == 130 and b"[stopped; nothing was written]" in err and os.listdir(folder) == [],
          "Ctrl-C stops it and leaves nothing", (p.returncode, err, os.listdir(folder)))


main(files_run, summary, refusals, quantised_input, full_disk, interrupted)
