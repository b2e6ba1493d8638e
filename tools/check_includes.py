#!/usr/bin/env python3
"""Includes go one way: cli -> riffle.h -> api -> engine -> {model, select, kv} -> backend.h -> kernels.

    tools/check_includes.py        prints each include that goes up, and ends with 1 if there is one

Rooms of src/ and what each may include besides itself; kernels/ includes nothing of src/. Folders
called papers are a room of their own wherever they are, and so are those called measure: the core
includes neither.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A room: the folders under src/ that its files may include. All rooms use the types of riffle.h and
# riffle_measure.h and the random numbers of ANYWHERE.
ANYWHERE = {"kernels/common/splitmix64.h"}
MAY = {
    "util": {"util"},
    "model": {"util", "model"},
    "kv": {"util", "model", "kv"},
    "select": {"util", "model", "kv", "select"},
    "backend": {"util", "model", "kv", "select", "backend"},
    "grammar": {"util", "model", "grammar"},
    "engine": {"util", "model", "kv", "select", "backend", "grammar", "engine"},
    "api": {"util", "model", "kv", "select", "backend", "grammar", "engine", "api"},
    "cli": {"cli"},
    "papers": {"util", "model", "kv", "select", "backend", "papers", "kernels"},
    "measure": {"util", "model", "kv", "select", "backend", "grammar", "engine", "api", "measure"},
    "commands": {"cli", "commands"},  # measuring's: clients of the interface, as cli is
}
# Arrows from the core that are still there.
WOVEN = {
    ("kernels/cuda/attend/attend.cuh", "kernels/cuda/select/papers/rank.cuh"),
    ("kernels/cuda/attend/attend_block.cuh", "kernels/cuda/attend/papers/stop.cuh"),
    ("kernels/cuda/attend/attend_mma.cuh", "kernels/cuda/attend/papers/stop.cuh"),
    ("kernels/cuda/attend/attend_row.cuh", "kernels/cuda/select/papers/rank.cuh"),
    ("src/api/api.cpp", "src/measure/synthetic_model.h"),
    ("src/backend/device.h", "src/measure/synthetic_attention.h"),
    ("src/backend/cuda/cuda_device.cpp", "src/measure/synthetic_model.h"),
    ("src/backend/cuda/cuda_device.h", "src/backend/cuda/papers/streamed_attention.h"),
    ("src/backend/cuda/cuda_prompt.cpp", "kernels/cuda/measure/measure.h"),
    ("src/backend/cuda/cuda_step.cpp", "kernels/cuda/measure/measure.h"),
    ("src/backend/cuda/weights.cpp", "kernels/cuda/measure/measure.h"),
    ("src/cli/info.cpp", "src/measure/commands/bench/bench.h"),
    ("src/model/quantize/quantize_model.cpp", "kernels/common/measure/synthetic.h"),
    ("src/engine/engine.cpp", "src/select/papers/tokenselect.h"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def room(path):
    """The room of a file, given relative to the root: a folder of src/, "papers", "measure",
    "commands", "kernels" or ""."""
    parts = path.parts
    if "papers" in parts[:-1]:
        return "papers"
    if "measure" in parts[:-1]:
        return "commands" if "commands" in parts else "measure"
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else ""
    return parts[0]


def parts_of(path):
    return (path.relative_to(ROOT) if path.is_absolute() else path).parts


def find(included, file):
    for base in (ROOT / "src", ROOT, file.parent):
        if (base / included).is_file():
            return (base / included).resolve().relative_to(ROOT)
    return None


def main():
    bad = 0
    for folder in ("src", "kernels"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            here = room(file.relative_to(ROOT))
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                target = find(found.group(1), file) if found else None
                if target is None:
                    continue
                there = room(target)
                if (str(file.relative_to(ROOT)), str(target)) in WOVEN:
                    ok = True
                elif there in ("papers", "measure", "commands") and here != there:
                    ok = False
                elif parts_of(file)[0] == "kernels":
                    ok = parts_of(target)[0] == "kernels"
                elif there == "":
                    ok = True
                elif there == "kernels":
                    ok = here not in ("cli", "commands") or str(target) in ANYWHERE
                else:
                    ok = there in MAY.get(here, set())
                if not ok:
                    bad += 1
                    print(f"{file.relative_to(ROOT)}:{number}: {here} includes {target}: "
                          f"expected {', '.join(sorted(MAY.get(here, {'kernels'})))}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
