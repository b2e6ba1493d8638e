"""tools/check_words.py: wording that it must find, with its line and pattern, and wording that it must let pass."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools/check_words.py")
failed = 0

# (name, text of the file, expected "line pattern" of each finding)
CASES = [
    ("begins.cpp", """\
// What a row needs.
int a;
// Rows are read. Who is late
// waits. Of two rows the first wins. As many as fit are read.
int b;
/* Whether a row is read. */
int c;
/* ---- rows
 * What rows hold. Those rows that are read are last. Those that are not come first. */
int d;
""", ["1 1", "3 1", "4 1", "4 1", "6 1", "9 1", "9 1"]),
    ("questions.cpp", """\
// Could a row be late? What happens then? It waits.
int a = '"';  // a quotation mark does not begin a string
int b = 1'000;  // nor does the mark in a number
""", []),
    ("behind_code.cpp", """\
int a;  // of a row
int b;  // a row, in bytes
        // of a block
int c;  // that are read
int d;  // how often a row is read, next to
        // whether it is
""", ["1 5", "4 5", "5 5"]),
    ("anywhere.cpp", """\
// All rows but
// for the first lie beside it. So many rows, so much
// time.
const char* url = "http://x";  // no comment begins inside of a string, but for this one
""", ["1 2", "2 3", "2 4", "2 4", "4 2"]),
    ("passes.cpp", """\
// The index of a row. It holds for all but the first, for each block, and side by side.
// A value is so large that many are cut; beside_row is a name. Whatever happens, it is read.
int a;  // blocks of a row
int b;  // offset of the row
""", []),
    ("strings.cpp", """\
#include "what is beside.h"
const char* a = "found two rows, expected one "
                "but for the last";
const char* b = R"x(What is left: "is an error".)x";
const char* c = "What is the number of";
""", ["3 2", "4 1"]),
    ("functions.h", """\
// True if the row is read.
bool is_read(int row);
// Number of rows.
int n_rows(const Table& table);
// Number of rows, which is no function.
int rows = 1;
// Returns the number of rows.
int n_blocks() const;
// Number of rows.
#define ROWS(x) x
struct S {
  // The size of a row.
  virtual uint64_t size() const = 0;
};
""", ["1 6", "3 6", "12 6"]),
    ("words.py", '''\
#!/usr/bin/env python3
"""What the module does."""
# As before.
def f():
    """True if it works."""
    return 1  # of a kind


def g():
    """Returns what f returns.

    Of two values the first.
    """
    return "Beside it"
''', ["2 1", "3 1", "5 6", "6 5", "12 1", "14 3"]),
    ("document.md", """\
# What riffle does
What it does is read
files. All but
for one.

    What is code is not read.

- Of two items the first
| What a cell says | next to it |
|---|---|
```
so many lines of code
```
1. Is it read? Yes.
How is it read? As text.
""", ["2 1", "3 2", "8 1", "9 1", "15 1"]),
    ("page.1", """\
.TH riffle 1
.SH WHAT IT DOES
It reads a row.
.B What
is left is kept, but
.I for
the tail.
.nf
so many rows
.fi
A row lies beside the tail.
""", ["4 1", "5 2", "11 3"]),
    ("script.sh", """\
#!/bin/sh
# Of all files the first.
a="# what"; b=${a#x}  # what is left
""", ["2 1", "3 5"]),
    ("data.tsv", "What\tbeside\n", []),
]


def check(condition, name, why):
    global failed
    failed += not condition
    print(f"ok {name}" if condition else f"not ok {name}: {why}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, text, expected in CASES:
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            r = subprocess.run([sys.executable, "-B", SCRIPT, path], capture_output=True, text=True)
            found = re.findall(rf"^{re.escape(path)}:(\d+): found '[^']+', write .* \((\d)\)$", r.stdout, re.M)
            found = [f"{line} {pattern}" for line, pattern in found]
            good = found == expected and len(r.stdout.splitlines()) == len(found) and r.stderr == ""
            check(good and r.returncode == (1 if expected else 0), name,
                  f"found {found}, expected {expected}; exit code {r.returncode}; {r.stdout!r} {r.stderr!r}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
