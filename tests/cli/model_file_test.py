"""Model files that are missing, cut short, or made of something else."""
import random
import shutil

from harness import *


def bad_files(folder):
    with open(MODEL, "rb") as f:
        good = f.read()
    rng = random.Random(1)
    files = {
        "empty": b"",
        "four bytes": good[:4],
        "header only": good[:64],
        "cut in the metadata": good[: 20000],
        "cut in half": good[: len(good) // 2],
        "last byte missing": good[:-1],
        "garbage": rng.randbytes(100000),
        "GGUF and garbage": good[:8] + rng.randbytes(100000),
        "text": b"This is not a model.\n" * 1000,
        "huge counts": good[:8] + b"\xff" * 16 + good[24:],
    }
    for name, data in files.items():
        path = os.path.join(folder, name.replace(" ", "_") + ".gguf")
        with open(path, "wb") as f:
            f.write(data)
        r = riffle("info", "-m", path, "-q")
        check(one_line_error(r, 3, path) and r.err.count(b"\n") == 1, f"model file: {name}", r)
    r = riffle("run", "-p", "x", "-m", os.path.join(folder, "cut_in_half.gguf"))
    check(one_line_error(r, 3, "cut_in_half"), "run says the same", r)


def other_files(folder):
    """A clone without Git LFS, and a file of a Hugging Face folder alone."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
    path = os.path.join(folder, "model.gguf")
    with open(path, "wb") as f:
        f.write(pointer)
    r = riffle("info", "-m", path)
    check(one_line_error(r, 3, path + ": found a Git LFS pointer, expected the file itself; run 'git lfs pull' in its folder"), "a pointer", r)
    weights = os.path.join(ROOT, "tests/golden/tiny/gemma3.safetensors")
    r = riffle("info", "-m", weights)
    check(one_line_error(r, 3, weights + ": found a safetensors file, expected a GGUF file or the folder that holds"),
          "a safetensors file", r)
    hf = os.path.join(folder, "hf")
    os.mkdir(hf)
    names = ["config.json", "tokenizer.json", "tokenizer.model", "model.safetensors"]
    for name in ("config.json", "model.safetensors"):
        for other in names:
            if os.path.exists(os.path.join(hf, other)):
                os.remove(os.path.join(hf, other))
        if name != "config.json":
            shutil.copy(os.path.join(ROOT, "tests/golden/tiny/gemma3/config.json"), hf)
        with open(os.path.join(hf, name), "wb") as f:
            f.write(pointer)
        r = riffle("info", "-m", hf)
        check(one_line_error(r, 3, os.path.join(hf, name) + ": found a Git LFS pointer"), f"a pointer as {name}", r)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"


def pointers(folder):
    """Every file that a user names may be a pointer of Git LFS."""
    path = os.path.join(folder, "pointer")
    with open(path, "wb") as f:
        f.write(POINTER)
    found = "found a Git LFS pointer, expected the file itself; run 'git lfs pull' in its folder"
    for name, code, args in (("run -f", 1, ["run", "-f", path]), ("run --session", 1, ["run", "-p", "x", "--session", path]),
                             ("info", 1, ["info", path]), ("read", 1, ["read", "-f", path, "-o", path + ".kv"]),
                             ("--json-schema", 1, ["run", "-p", "x", "--json-schema", path]),
                             ("--grammar", 1, ["run", "-p", "x", "--grammar", path]), ("batch", 1, ["batch", "-i", path]),
                             ("eval", 1, ["eval", "--text", path])):
        r = riffle(*args)
        check(r.code == code and r.out == b"" and path in r.err.decode() and found in r.err.decode(), f"a pointer: {name}", r)
    for command in ("/load", "/open"):
        r = riffle("chat", "-q", stdin=f"{command} {path}\n".encode())
        check(r.code == 1 and found in r.err.decode(), f"a pointer: {command}", r)
    long = os.path.join(folder, "about.txt")
    with open(long, "wb") as f:
        f.write(POINTER + b"This is how a pointer looks. " * 50)
    r = riffle("run", "-f", long, "-n", "1", "-c", "2048", "-q")
    check(r.code == 0, "a text about pointers is a text", r)


def no_models(folder):
    """Checks files that people pass to -m by mistake: one line says what the file is and what to pass instead."""
    def put(name, data):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        return os.path.join(folder, name)
    empty = os.path.join(folder, "nothing")
    pickle = os.path.join(folder, "torch")
    for path in (empty, pickle):
        os.mkdir(path)
    with open(os.path.join(pickle, "pytorch_model.bin"), "wb") as f:
        f.write(b"PK\x03\x04")
    expected = "expected a GGUF file or a Hugging Face folder"
    for path, *found in ((put("a.pdf", b"%PDF-1.7\n"), "a PDF document", "-f FILE"),
                         (put("a.zip", b"PK\x03\x04abc"), "a ZIP archive", "unzip"),
                         (put("a.bin", b"PK\x03\x04abc"), "a PyTorch checkpoint", "convert_hf_to_gguf.py"),
                         (put("b.pth", b"\x80\x02}q\x00."), "a Python pickle", "convert_hf_to_gguf.py"),
                         (put("a.onnx", b"\x08\x07\x12"), "an ONNX model"), (put("a.gz", b"\x1f\x8b\x08"), "a compressed file"),
                         (put("old.bin", b"tjgg\x03\0\0\0"), "from before GGUF"),
                         (put("a.txt", b"Once upon a time.\n"), "a text file", "-f FILE"),
                         (put("config.json", b'{"a": 1}'), "a JSON file", "give the folder"),
                         (empty, "an empty folder"), (pickle, "PyTorch weights"),
                         ("hf.co/bartowski/Qwen3-8B-GGUF:Q4_K_M", "hf download bartowski/Qwen3-8B-GGUF --include '*Q4_K_M*.gguf'"),
                         ("https://huggingface.co/org/name", "hf download org/name"),
                         ("https://huggingface.co/org/name/resolve/main/a.gguf", "a URL", "curl -LO https://"),
                         ("org/name:Q4_K_M", "hf download org/name"), ("org/name", "hf download org/name"),
                         ("llama3.2:3b", "Ollama", "ollama show --modelfile llama3.2:3b")):
        r = riffle("run", "-p", "x", "-m", path)
        check(one_line_error(r, 3, path + ": found ", expected, *found) and r.err.count(b"\n") == 1, f"-m {os.path.basename(path)}", r)


def names(folder):
    """A relative path is a path if its folder is there or it names a file; else it may be a repository's name."""
    os.mkdir(os.path.join(folder, "models"))
    for name, hub in (("models/qwen", False), ("models/qwen:Q4_K_M", False), ("models/x.gguf", False), ("org/x.gguf", False),
                      ("org/x.safetensors", False), ("./org/qwen", False), ("models/org/qwen", False), ("org/qwen", True),
                      ("org/qwen:Q4_K_M", True)):
        p = start("info", "-m", name, cwd=folder)
        out, err = p.communicate(timeout=60)
        r = Result(p.returncode, out, err)
        check(one_line_error(r, 3, name, "hf download" if hub else "No such file") and (b"hf download" in err) == hub,
              f"-m {name} is {'a repository' if hub else 'a path'}", r)


def other_texts(folder):
    """Text files that hold no text, devices, and sessions of another model."""
    path = os.path.join(folder, "binary")
    with open(path, "wb") as f:
        f.write(b"abc\0def")
    for args in (["run", "-f", path], ["read", "-f", path, "-o", path + ".kv"]):
        r = riffle(*args)
        check(r.code == 1 and f"{path}: found a NUL byte at offset 3, expected text in UTF-8" in r.err.decode(), f"a NUL: {args[0]}", r)
    with open(path, "wb") as f:
        f.write("Hi.".encode("utf-16"))
    r = riffle("chat", "-q", stdin=f"/load {path}\n".encode())
    check(r.code == 1 and b"iconv -f UTF-16" in r.err, "/load of UTF-16", r)
    for args in (["run", "-f", "/dev/zero"], ["run", "-p", "x", "--json-schema", "/dev/zero"]):
        r = riffle(*args)
        check(r.code == 1 and b"/dev/zero: found a device, expected a text file" in r.err, "a device has no end", r)
    r = riffle("run", "-f", "/dev/null")
    check(one_line_error(r, 1, "empty"), "/dev/null is empty", r)
    model = os.path.join(folder, "other.gguf")
    kept = os.path.join(folder, "kept.kv")
    riffle("read", "-q", "-f", os.path.join(ROOT, "README.md"), "-o", kept, "-c", "8192")
    riffle("quantize", "-q", "-o", model, "--type", "q4_0", "--allow-requantize")
    name = json.loads(riffle("info", kept, "--json").out)["model"]
    r = riffle("run", "-q", "-p", "x", "-m", model, "--session", kept, "-c", "8192")
    check(one_line_error(r, 1, kept, name, "give the model of the session with -m"), "a session of another model", r)


def missing(folder):
    for name, path in {"missing": folder + "/none.gguf", "empty folder": folder}.items():
        r = riffle("info", "-m", path)
        check(one_line_error(r, 3, path), f"model path: {name}", r)
    r = riffle("info", RIFFLE_MODEL=folder + "/from_environment.gguf")
    check(one_line_error(r, 3, "from_environment.gguf"), "RIFFLE_MODEL is used", r)


def batch_output_is_safe(folder):
    """A bad model must not cost the user an output file of an earlier run."""
    out = os.path.join(folder, "out.jsonl")
    with open(out, "w") as f:
        f.write("precious\n")
    lines = os.path.join(folder, "in.jsonl")
    with open(lines, "w") as f:
        f.write('{"custom_id":"a","body":{"prompt":"x"}}\n{"custom_id":"b","body":{"prompt":"y"}}\n')
    r = riffle("batch", "-i", lines, "-o", out, "-m", folder + "/none.gguf")
    check(r.code == 1 and open(out).read() == "precious\n", "batch leaves an output alone that is not its own", r)
    earlier = '{"custom_id":"a","line":1,"response":{"status_code":200},"error":null}\n'
    with open(out, "w") as f:
        f.write(earlier)
    r = riffle("batch", "-i", lines, "-o", out, "-m", folder + "/none.gguf")
    check(r.code == 3 and open(out).read() == earlier, "batch leaves the output alone if the model is bad", r)


main(bad_files, other_files, pointers, no_models, names, other_texts, missing, batch_output_is_safe)
