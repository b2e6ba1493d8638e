"""Finds the hot loop of a function in an object for 64-bit ARM, and asks llvm-mca what it costs.

The loop is found by its products. An iteration over W weights has W products (twice that if every
weight is multiplied twice), and each multiply instruction has a fixed number of them: 16 for SDOT.
So a loop is the right one only if the multiply instructions on a path through it give the expected
number. The search goes from the smallest loops to the largest; an inner loop is repeated until the
number is reached. No match is an error.
"""
import collections
import itertools
import re
import subprocess

MOST_PATHS = 256  # through one loop
MOST_TRIPS = 64  # trips of an inner loop


class NotFound(Exception):
    """No loop of the function has the expected number of products."""


class Instruction:
    def __init__(self, address, text):
        self.address = address
        self.text = text
        self.name = text.split()[0]
        target = re.search(r"\b0x([0-9a-f]+)\s*(?:<.*)?$", text)
        self.target = int(target.group(1), 16) if self.is_branch() and target else None

    def is_branch(self):
        names = ("b", "br", "ret", "cbz", "cbnz", "tbz", "tbnz")
        return self.name in names or self.name.startswith("b.")

    def falls_through(self):
        return self.name not in ("b", "br", "ret")

    def products(self, counted):
        """Returns how many products the instruction adds up, if its name is in `counted`."""
        name = self.name[:-1] if self.name.endswith("2") else self.name
        if name not in counted:
            return 0
        if name in ("smmla", "usmmla", "ummla"):
            return 32
        shape = re.search(r"\.(\d+)([bhsd])", self.text)
        if not shape:
            return 0
        lanes, width = int(shape.group(1)), shape.group(2)
        if name in ("sdot", "udot", "usdot"):
            return 4 * lanes
        if name in ("smull", "smlal", "umull", "umlal"):  # bytes; scales have 16 bits
            return lanes if width == "h" else 0
        return lanes

    def for_model(self):
        """Returns the text that llvm-mca reads: targets become a label."""
        text = re.sub(r"\s*(<|//|;).*$", "", self.text)
        if self.is_branch() or self.name in ("adr", "adrp"):
            text = re.sub(r"(#?-?0x[0-9a-f]+|#-?\d+)$", ".Lelsewhere", text)
        return text


def functions(path, objdump):
    """Returns {demangled name: [Instruction]} of an object."""
    command = [objdump, "-d", "-C", "--no-show-raw-insn", path]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, current = {}, None
    for line in listing.splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if head:
            name = head.group(1)
            while name in found:  # clones of a function have one name
                name += "'"
            current = found.setdefault(name, [])
            continue
        body = re.match(r"\s*([0-9a-f]+):\s+(\S.*)$", line)
        if body and current is not None:
            current.append(Instruction(int(body.group(1), 16), " ".join(body.group(2).split())))
    return found


class Graph:
    """Basic blocks of a function, and its natural loops."""

    def __init__(self, instructions):
        inside = {i.address for i in instructions}
        leaders = {instructions[0].address}
        for this, after in zip(instructions, instructions[1:] + [None]):
            if this.is_branch():
                if this.target in inside:
                    leaders.add(this.target)
                if after:
                    leaders.add(after.address)
        self.blocks, block = {}, None
        for i in instructions:
            if i.address in leaders:
                block = self.blocks.setdefault(i.address, [])
            block.append(i)
        order = sorted(self.blocks)
        self.after = {}
        for at, following in zip(order, order[1:] + [None]):
            last, out = self.blocks[at][-1], []
            if last.is_branch() and last.target in self.blocks:
                out.append(last.target)
            if last.falls_through() and following is not None:
                out.append(following)
            self.after[at] = out
        self.loops = self._loops(order[0])

    def _loops(self, entry):
        """Returns {header: blocks of the loop}."""
        before = collections.defaultdict(set)
        for at, out in self.after.items():
            for to in out:
                before[to].add(at)
        loops = {}
        for latch, header in self._back_edges(entry):
            body, rest = loops.setdefault(header, {header}), [latch]
            while rest:
                at = rest.pop()
                if at not in body:
                    body.add(at)
                    rest.extend(before[at])
        return loops

    def _back_edges(self, entry):
        edges, on_path, seen = [], {entry}, {entry}
        stack = [(entry, iter(self.after[entry]))]
        while stack:
            at, rest = stack[-1]
            to = next(rest, None)
            if to is None:
                stack.pop()
                on_path.discard(at)
            elif to in on_path:
                edges.append((at, to))
            elif to not in seen:
                seen.add(to)
                on_path.add(to)
                stack.append((to, iter(self.after[to])))
        return edges

    def paths(self, header, trips):
        """Yields the blocks of one iteration of a loop, on each path from its header back to it;
        inner loops run `trips` times each time."""
        body = self.loops[header]
        stack = [(header, ())]
        while stack:
            at, done = stack.pop()
            inner = at != header and self.loops.get(at)
            if inner and inner < body:
                targets = {to for b in inner for to in self.after[b]} - inner
                for path in itertools.islice(self.paths(at, trips), MOST_PATHS):
                    now = done + path * trips
                    if header in targets:
                        yield now
                    stack.extend((to, now) for to in targets & body - {header})
                continue
            now = (*done, at)
            for to in self.after[at]:
                if to == header:
                    yield now
                elif to in body:
                    stack.append((to, now))

    def has_inner(self, header):
        return any(body < self.loops[header] for body in self.loops.values())


def find_loop(instructions, products, counted, mark=None):
    """Returns the instructions of one iteration of the smallest loop that has `products` products.
    On several such paths through the loop, the longest. mark: (name of an instruction, whether the
    loop has it), where two loops have the same number. Raises NotFound."""
    graph = Graph(instructions)
    seen = set()
    size = {b: len(block) for b, block in graph.blocks.items()}
    count = {b: sum(i.products(counted) for i in block) for b, block in graph.blocks.items()}
    for header in sorted(graph.loops, key=lambda h: sum(size[b] for b in graph.loops[h])):
        best = None
        for trips in range(1, MOST_TRIPS + 1 if graph.has_inner(header) else 2):
            found = list(itertools.islice(graph.paths(header, trips), MOST_PATHS))
            counts = [sum(count[b] for b in path) for path in found]
            seen.update(counts)
            for path, total in zip(found, counts):
                code = [i for b in path for i in graph.blocks[b]] if total == products else []
                if mark and mark[1] != any(i.name == mark[0] for i in code):
                    continue
                if code and (best is None or len(code) > len(best)):
                    best = code
            if best:
                calls = [i.text for i in best if i.name in ("bl", "blr")]
                if calls:
                    raise NotFound(f"the loop calls a function: {calls[0]}")
                return best
            if not counts or min(counts) > products:
                break
    counts = ", ".join(str(n) for n in sorted(seen)[:12]) or "no loop"
    names = ", ".join(sorted(counted))
    raise NotFound(f"no loop has {products} products of {names}; found {counts}")


def cycles(path, mca):
    """Returns the cycles of one iteration in a long run of iterations. mca: llvm-mca's command."""
    text = "\n".join(i.for_model() for i in path)

    def total(iterations):
        command = [*mca, "-mtriple=aarch64-linux-gnu", f"-iterations={iterations}"]
        run = subprocess.run(command, input=text, capture_output=True, text=True)
        found = re.search(r"Total Cycles:\s+(\d+)", run.stdout)
        if run.returncode != 0 or not found:
            raise RuntimeError(f"{' '.join(command)}: {run.stderr.strip()}")
        return int(found.group(1))

    return (total(60) - total(20)) / 40
