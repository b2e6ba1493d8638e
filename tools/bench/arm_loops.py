#!/usr/bin/env python3
"""Cycles of the inner loops of the ARM kernels, by a model: no ARM machine is needed or used.

usage: tools/bench/arm_loops.py [--peers FILE...]
       tools/bench/arm_loops.py --object FILE --function PATTERN --products N --numbers N --bytes N

Compiles the kernels with make CROSS=aarch64-linux-gnu, finds the loop of each decode product, of
decode attention and of the index (loop_model.py says how), and prints tables in Markdown:

  cycles   for 32 weights, or 32 numbers of keys or values, by llvm-mca. "deep" is a step in which
           activations keep 16 bits, so that every weight is multiplied twice.
  GB/s     weights that 4 cores use up in that time, if memory delivers them
  share    GB/s over the memory's bandwidth, at most 1: the part of that bandwidth that the loop
           can use. At 1 memory limits the speed.

llvm-mca takes every load as a hit in the L1 cache, every branch as predicted, and no store as read
by a later load. It has no model of the Cortex-A76: LLVM uses that of the A57. The Neoverse N1 has
the pipeline of the A76, so its model is used, with 4 micro-operations dispatched in a cycle in
place of its 3: both processors decode 4 instructions in a cycle.

--peers: objects of llama.cpp's ggml-cpu/arch/arm (quants.c, repack.cpp), compiled by the caller for
aarch64 with -march=armv8.2-a+dotprod+fp16. Each type is compared with the fastest of their loops
for it, whether or not llama.cpp chooses that one on such a processor.

--object: one loop of any object. PATTERN is a regular expression for the function's demangled
name. An iteration has --products products of numbers, and reads --numbers of them from --bytes.

Ends with 1 if a loop is not found. Needs llvm-mca and llvm-objdump of LLVM 16 or newer (--llvm).
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

import loop_model

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CROSS = "aarch64-linux-gnu"
CORES = 4
# memory: GB/s. options: of llvm-mca.
Machine = collections.namedtuple("Machine", "name options ghz memory")
A72 = Machine("A72", ("-mcpu=cortex-a72",), 1.8, 12.8)
A76 = Machine("A76", ("-mcpu=neoverse-n1", "-dispatch=4"), 2.4, 17)
V1 = Machine("V1", ("-mcpu=neoverse-v1",), 2.6, 100)
MACHINES = (A72, A76, V1)
# Decode products: name of the set, object, class of the byte products, instructions that multiply.
SETS = (
    ("dotprod", "kernels/cpu/linear/arm/linear_dotprod", "Dotting", {"sdot"}, (A76, V1)),
    ("neon", "kernels/cpu/linear/arm/linear_neon", "Widening", {"smull", "smlal"}, (A72, A76)),
)
FLOATS = ("F32", "F16", "BF16")
OBJECTS = [
    *(s[1] for s in SETS),
    "kernels/cpu/attention/arm/attention_neon",
    "kernels/cpu/select/arm/select_dotprod",
]
# llama.cpp's functions: columns and rows of an iteration, from the name.
PEER_COLUMNS = {"q8_0": 64, "q8_1": 64, "q8_K": 256}
PEER_NAME = re.compile(r"ggml_(?:vec_dot_(\w+?)|gemv_(\w+?)_(\d+)x\d+)_(q8_[01K])$")

Loop = collections.namedtuple("Loop", "path numbers bytes")


class Finder:
    """Finds loops, and keeps the list of those that are missing."""

    def __init__(self, llvm):
        self.llvm = llvm
        self.objects, self.missing = {}, []

    def functions(self, path):
        if path not in self.objects:
            self.objects[path] = loop_model.functions(path, f"llvm-objdump{self.llvm}")
        return self.objects[path]

    def find(self, path, pattern, products, counted, numbers, size, mark=None):
        """Returns the Loop of the first matching function that has one, or None."""
        names = [n for n in self.functions(path) if re.search(pattern, n)]
        why = "no such function"
        for name in names:
            try:
                found = loop_model.find_loop(self.functions(path)[name], products, counted, mark)
                return Loop(found, numbers, size)
            except loop_model.NotFound as e:
                why = str(e)
        self.missing.append(f"{path}: {pattern}: {why}")
        return None

    def cycles(self, loop, machine):
        """Returns the cycles for 32 numbers."""
        mca = [f"llvm-mca{self.llvm}", *machine.options]
        return loop_model.cycles(loop.path, mca) * 32 / loop.numbers


def types():
    """Returns {type: (number of its DType, values of a block, bytes of a block)}."""
    table = (ROOT / "kernels/common/dtype.h").read_text()
    rows = re.findall(r'^  \{\w+, +"(\w+)", +-?\d+, +(\d+), +(\d+),', table, re.M)
    return {name: (i, int(values), int(size)) for i, (name, values, size) in enumerate(rows)}


def rates(cycles, size, machine):
    """Returns the GB/s that the cores use up, and the share of the memory's bandwidth."""
    rate = size / cycles * machine.ghz * CORES
    return rate, min(1.0, rate / machine.memory)


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def heading(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def figures(finder, loop, machines):
    """Returns the cells cycles, GB/s and share of each machine."""
    cells = []
    for machine in machines:
        cycles = finder.cycles(loop, machine)
        rate, share = rates(cycles, loop.bytes * 32 / loop.numbers, machine)
        cells += [f"{cycles:.2f}", f"{rate:.0f}", f"{share:.2f}" if share < 1 else "1"]
    return cells


def machine_columns(machines):
    return [f"{m.name}: {c}" if c == "cycles" else c
            for m in machines for c in ("cycles", "GB/s", "share")]


def decode_loop(finder, build, which, name, deep=False):
    """Returns the loop of a decode product with one vector of activations."""
    _, path, dots, counted, _ = which
    index, values, size = types()[name]
    path = f"{build}/{path}.o"
    if name in FLOATS:
        pattern = rf"dot_rows<.*Neon, \(riffle::DType\){index}, 1>"
        return finder.find(path, pattern, 32, {"fmla"}, 32, 32 * size)
    columns = max(values, 128)
    # The last argument of the template is the number of rows that the function multiplies together.
    start = rf"RowProduct<.*{dots}, \(riffle::DType\){index}, 1, "
    found = [re.search(start + r"(\d+)>::rows\(", f) for f in finder.functions(path)]
    rows = max((int(f.group(1)) for f in found if f), default=1)
    numbers = columns * rows
    products = numbers * (2 if deep else 1)
    pattern = start + rf"{rows}>::rows\("
    return finder.find(path, pattern, products, counted, numbers, numbers // values * size)


def decode_tables(finder, build):
    """Prints a table for each set; returns {(type, machine): cycles} of sets with dot products."""
    best = {}
    for which in SETS:
        name, _, _, _, machines = which
        print(f"\nDecode products, set {name}, for 32 weights:\n")
        deep = [f"{m.name}, deep: cycles" for m in machines]
        heading("type", "bytes", *machine_columns(machines), *deep)
        for kind in types():
            loop = decode_loop(finder, build, which, kind)
            if loop is None:
                continue
            cells = figures(finder, loop, machines)
            twice = None if kind in FLOATS else decode_loop(finder, build, which, kind, deep=True)
            more = [f"{finder.cycles(twice, m):.2f}" if twice else "" for m in machines]
            row(kind, f"{loop.bytes * 32 / loop.numbers:g}", *cells, *more)
            if name == "dotprod":
                best.update({(kind, m): finder.cycles(loop, m) for m in machines})
    return best


def attention_table(finder, build):
    """Decode attention with 1 and 4 query heads for each head of keys, and the index."""
    path = f"{build}/kernels/cpu/attention/arm/attention_neon.o"
    machines = (A76, V1)
    print("\nDecode attention and the index, for 32 numbers:\n")
    heading("loop", "bytes", *machine_columns(machines))
    for rows, size in (("F16Rows", 64), ("F32Rows", 128), ("Q8Rows", 33)):
        for heads in (1, 4):
            pattern = rf"attend_heads<.*Neon, .*{rows}, {heads}, {heads}>"
            keys, values = 8 // heads * 8, (4 if heads == 1 else 2) * 8
            # Only the loop over values computes the address of a token's row, with a product.
            for part, numbers, address in (("keys", keys, False), ("values", values, True)):
                loop = finder.find(path, pattern, numbers * heads, {"fmla"}, numbers,
                                   size * numbers / 32, ("mul", address))
                if loop:
                    label = f"{part}, {rows[:-4].lower()}, {heads} query heads"
                    row(label, size, *figures(finder, loop, machines))
    path = f"{build}/kernels/cpu/select/arm/select_dotprod.o"
    for label, pattern, products, numbers, size in (
            ("index, 2-bit keys, 4 query heads", r"int2_heads<4>", 1024, 256, 64),
            ("index, 4-bit keys, 4 query heads", r"int4_score<", 512, 64, 32)):
        loop = finder.find(path, pattern, products, {"sdot"}, numbers, size)
        if loop:
            row(label, f"{size * 32 / numbers:g}", *figures(finder, loop, machines))


def peer_table(finder, paths, ours):
    """Prints riffle's cycles and those of the fastest function of the peer, for each type."""
    machines = (A76, V1)
    peers = collections.defaultdict(list)
    for path in paths:
        for name in finder.functions(path):
            found = PEER_NAME.match(name)
            if not found:
                continue
            vec_dot, gemv, rows, other = found.groups()
            kind = next((k for k in types() if k.lower() == (vec_dot or gemv).lower()), None)
            if kind is None or len(finder.functions(path)[name]) < 10:  # calls another function
                continue
            numbers = PEER_COLUMNS[other] if vec_dot else types()[kind][1] * int(rows)
            size = numbers // types()[kind][1] * types()[kind][2]
            loop = finder.find(path, f"^{name}$", numbers, {"sdot"}, numbers, size)
            if loop:
                peers[kind].append((name.removeprefix("ggml_"), loop))
    print("\nAgainst llama.cpp, cycles for 32 weights:\n")
    heading("type", *(f"{m.name}: {c}" for m in machines
                      for c in ("riffle", "llama.cpp", "its function", "ratio")))
    for kind, found in sorted(peers.items(), key=lambda p: list(types()).index(p[0])):
        cells = []
        for machine in machines:
            cycles, name = min((finder.cycles(loop, machine), name) for name, loop in found)
            mine = ours[kind, machine]
            cells += [f"{mine:.2f}", f"{cycles:.2f}", f"`{name}`", f"{mine / cycles:.2f}"]
        row(kind, *cells)


def one_loop(finder, arguments):
    counted = {"sdot", "udot", "usdot", "smmla", "smull", "smlal", "fmla"}
    if arguments.multiply:
        counted = set(arguments.multiply.split(","))
    loop = finder.find(arguments.object, arguments.function, arguments.products, counted,
                       arguments.numbers or arguments.products, arguments.bytes)
    if loop is None:
        return
    if arguments.print:
        print("\n".join(i.text for i in loop.path))
    heading("loop", "bytes", *machine_columns((A76, V1)))
    size = f"{loop.bytes * 32 / loop.numbers:g}"
    row(arguments.function, size, *figures(finder, loop, (A76, V1)))


def main():
    head, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=head, epilog=details,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--build", default=f"build-{CROSS}", help="build folder (default: %(default)s)")
    add("--llvm", default="-22", help="suffix of LLVM's programs (default: %(default)s)")
    add("--peers", nargs="+", default=[], metavar="FILE", help="objects of llama.cpp")
    add("--object", metavar="FILE", help="an object for aarch64")
    add("--function", metavar="PATTERN", help="regular expression for a function's name")
    add("--products", type=int, help="products of an iteration")
    add("--numbers", type=int, help="numbers that an iteration reads (default: products)")
    add("--bytes", type=int, help="bytes of these numbers")
    add("--multiply", help="instructions that multiply, with commas between them")
    add("--print", action="store_true", help="print the instructions of the loop")
    arguments = parser.parse_args()
    finder = Finder(arguments.llvm)
    if arguments.object:
        if not (arguments.function and arguments.products and arguments.bytes):
            parser.error("--object needs --function, --products and --bytes")
        one_loop(finder, arguments)
    else:
        objects = [f"{arguments.build}/{o}.o" for o in OBJECTS]
        subprocess.run(["make", "-j1", f"CROSS={CROSS}", f"BUILD={arguments.build}", *objects],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for m in MACHINES:
            options = " ".join(m.options)
            print(f"{m.name}: {CORES} cores, {m.ghz} GHz, memory {m.memory} GB/s, {options}")
        ours = decode_tables(finder, arguments.build)
        attention_table(finder, arguments.build)
        if arguments.peers:
            peer_table(finder, arguments.peers, ours)
    for line in finder.missing:
        print(f"no loop found: {line}", file=sys.stderr)
    return 1 if finder.missing else 0


if __name__ == "__main__":
    sys.exit(main())
