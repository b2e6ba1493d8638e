"""tools/check_includes.py: includes and cycles that it must find in small trees, and trees that it must let pass."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools/check_includes.py")
failed = 0

# (name, {file: what it includes}, the beginning of each line that is printed)
CASES = [
    ("downwards", {
        "src/riffle.h": [],
        "src/util/error.h": ["riffle.h"],
        "src/formats/gguf.h": ["util/error.h"],
        "src/model/model.h": ["formats/gguf.h", "kernels/common/dtype.h"],
        "src/model/families/family.h": ["model/model.h"],
        "src/import/load_model.h": ["model/families/family.h"],
        "src/cli/main.cpp": ["cli/batch/batch.h", "riffle.h"],
        "src/cli/batch/batch.h": ["cli/common.h"],
        "src/cli/common.h": ["kernels/common/splitmix64.h"],
        "src/select/papers/psa.h": ["select/selector.h", "kernels/cpu/papers/psa.h"],
        "src/select/selector.h": [],
        "kernels/common/dtype.h": [],
        "kernels/common/splitmix64.h": [],
        "kernels/cpu/papers/psa.h": ["kernels/common/dtype.h"],
    }, []),
    ("a room below includes one above", {
        "src/formats/gguf.h": ["text/tokenizer.h"],
        "src/text/tokenizer.h": [],
        "src/model/model.h": ["model/families/family.h"],
        "src/model/families/family.h": [],
        "src/engine/plan/memory_plan.h": ["engine/engine.h"],
        "src/engine/engine.h": [],
        "src/cli/text_file.cpp": ["cli/batch/reader.h"],
        "src/cli/batch/reader.h": [],
    }, ["src/cli/text_file.cpp:1: cli includes", "src/engine/plan/memory_plan.h:1: engine/plan includes",
        "src/formats/gguf.h:1: formats includes", "src/model/model.h:1: model includes", "cli: 1 includes",
        "engine/plan: 1 includes", "formats: 1 includes", "model: 1 includes"]),
    ("the core includes papers, kernels include src, cli includes kernels", {
        "src/engine/engine.cpp": ["select/papers/psa.h"],
        "src/select/papers/psa.h": [],
        "kernels/cpu/dispatch.cpp": ["util/error.h"],
        "src/util/error.h": [],
        "src/cli/run.cpp": ["kernels/common/dtype.h"],
        "kernels/common/dtype.h": [],
    }, ["src/cli/run.cpp:1: cli includes", "src/engine/engine.cpp:1: engine includes",
        "kernels/cpu/dispatch.cpp:1: kernels includes", "cli: 1 includes", "engine: 1 includes",
        "kernels: 1 includes"]),
    ("a room that has no row", {
        "src/attic/old.h": ["util/error.h"],
        "src/util/error.h": [],
    }, ["src/attic/old.h:1: attic includes", "attic: 1 includes"]),
    ("files of one room in a cycle", {
        "src/kv/a.h": ["kv/b.h"],
        "src/kv/b.h": ["kv/c.h"],
        "src/kv/c.h": ["kv/a.h"],
    }, ["src/kv/a.h: found a cycle, src/kv/a.h -> src/kv/b.h -> src/kv/c.h -> src/kv/a.h"]),
]


def check(condition, name, why):
    global failed
    failed += not condition
    print(f"ok {name}" if condition else f"not ok {name}: {why}")


def main():
    for name, files, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for path, included in files.items():
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.writelines(f'#include "{other}"\n' for other in included)
            r = subprocess.run([sys.executable, "-B", SCRIPT, folder], capture_output=True, text=True)
            lines = r.stdout.splitlines()
            good = len(lines) == len(expected) and all(any(line.startswith(e) for line in lines) for e in expected)
            check(good and r.returncode == (1 if expected else 0) and r.stderr == "", name,
                  f"exit code {r.returncode}; found {lines}, expected {expected}; {r.stderr!r}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
