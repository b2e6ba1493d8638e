#!/usr/bin/env python3
"""Includes go one way, between rooms and between files.

    tools/check_includes.py [ROOT]     prints each include that goes up, each cycle of files, and the number of includes
                                       that go up by room; ends with 1 if there is one. ROOT: a tree other than this one

A room is a folder with the files in it. A folder inside it belongs to it unless it is a room of its own. Folders called
papers are one room wherever they are, and so are those called measure (with measure/commands as another one): the core
includes none of these. All rooms use the types of the library's headers, src/riffle*.h. kernels/ includes nothing of src/.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files that src/cli may include too: the random numbers.
ANYWHERE = {"kernels/common/splitmix64.h"}

# The rooms, and what each may include besides itself.
FILES = {"util", "formats", "text", "chat", "model"}
STORE = FILES | {"kv", "kv/file"}
DEVICES = STORE | {"select", "backend", "backend/cpu", "backend/cuda"}
ENGINE = DEVICES | {"grammar", "engine", "engine/plan", "engine/schedule"}
MAY = {
    "util": set(),
    "formats": {"util"},
    "text": {"util"},
    "chat": {"util", "text"},
    "model": {"util", "formats", "text", "chat"},
    "model/families": FILES,
    "import": FILES | {"model/families"},
    "quantize": FILES | {"model/families", "import"},
    "kv": {"util", "model"},
    "kv/file": {"util", "model", "kv"},
    "select": {"util", "model", "kv"},
    "backend": {"util", "model", "kv", "select"},
    "backend/cpu": {"util", "model", "kv", "select", "backend"},
    "backend/cuda": {"util", "model", "kv", "select", "backend", "backend/cpu"},
    "grammar": {"util", "text", "chat", "model"},
    "engine/plan": DEVICES,
    "engine": ENGINE - {"engine", "engine/schedule"},
    "engine/schedule": ENGINE - {"engine/schedule"},
    "requests": FILES | {"grammar"},
    "api": ENGINE | {"model/families", "import", "quantize", "requests"},
    "cli": set(),
    "cli/batch": {"cli"},
    "papers": DEVICES - {"kv/file"},
    "measure": ENGINE | {"model/families", "import", "api"},
    "commands": {"cli"},  # measuring's: clients of the interface, as cli is
}
# Rooms that no other one includes.
APART = {"papers", "measure", "commands"}
# Files that join rooms, and the rooms that they may include besides: for a program's commands, and for the device that
# stands for a missing one.
JOINTS = {
    "src/cli/main.cpp": {"cli/batch"},
    "src/backend/no_cuda.cpp": {"backend/cuda"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def room(path):
    """Returns the room of a file (relative to the root): the innermost of MAY, "kernels", or "" for src/ itself."""
    folders = path.parts[:-1]
    if "papers" in folders:
        return "papers"
    if "measure" in folders:
        return "commands" if "commands" in folders else "measure"
    if folders[0] != "src":
        return folders[0]
    for n in range(len(folders), 1, -1):
        if "/".join(folders[1:n]) in MAY:
            return "/".join(folders[1:n])
    return "/".join(folders[1:2])


def find(root, included, file):
    for base in (root / "src", root, file.parent):
        if (base / included).is_file():
            return (base / included).resolve().relative_to(root)
    return None


def includes(root):
    """(file, line, included file) of src/ and kernels/, relative to the root."""
    for folder in ("src", "kernels"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                target = find(root, found.group(1), file) if found else None
                if target is not None:
                    yield file.relative_to(root), number, target


def may_include(file):
    here = room(file)
    if file.parts[0] == "kernels":
        return {"kernels", here}
    return MAY.get(here, set()) | {here, ""} | JOINTS.get(file.as_posix(), set())


def goes_up(file, target):
    here, there = room(file), room(target)
    if there in APART and here != there:
        return True
    if file.parts[0] == "kernels":
        return target.parts[0] != "kernels"
    if target.parts[0] == "kernels":
        return here.split("/")[0] in ("cli", "commands") and target.as_posix() not in ANYWHERE
    return there not in may_include(file)


def cycles(edges):
    """Returns a list for each group of files that include each other. It begins and ends with the same file."""
    state, path, found = {}, [], []

    def visit(file):
        state[file] = "open"
        path.append(file)
        for target in sorted(edges.get(file, ())):
            if state.get(target) == "open":
                found.append(path[path.index(target):] + [target])
            elif target not in state:
                visit(target)
        path.pop()
        state[file] = "done"

    for file in sorted(edges):
        if file not in state:
            visit(file)
    return found


def check(root):
    """Prints the includes and cycles under root that break the rules; returns their number."""
    up = collections.Counter()
    edges = collections.defaultdict(set)
    for file, number, target in includes(root):
        edges[file].add(target)
        if goes_up(file, target):
            up[room(file)] += 1
            expected = ", ".join(sorted(may_include(file) - {""}))
            print(f"{file}:{number}: {room(file)} includes {target}: expected {expected}")
    knots = cycles(edges)
    for knot in knots:
        print(f"{knot[0]}: found a cycle, {' -> '.join(map(str, knot))}: expected none")
    for here, count in sorted(up.items()):
        print(f"{here}: {count} includes go up")
    return sum(up.values()) + len(knots)


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    sys.exit(1 if check(pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT) else 0)
