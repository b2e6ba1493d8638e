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
    check(one_line_error(r, 3, path + ": found a Git LFS pointer, expected the file itself; git lfs pull"), "a pointer", r)
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


main(bad_files, other_files, missing, batch_output_is_safe)
