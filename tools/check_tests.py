#!/usr/bin/env python3
"""Tests that never run and checks that cannot fail.

    tools/check_tests.py [FILE...]     prints each in FILE (default: all of tests/), and ends with 1 if there is one

In Python: a function that nothing uses, such as a test that main() is not given; a function that another of the same
name replaces; a check or an assert of a constant. In C++ and C: a check of a constant. pytest finds test_* and
fixtures by itself.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONSTANT = re.compile(r"\b(CHECK|REQUIRE|EXPECT_TRUE|ASSERT_TRUE|assert|check|expect)\s*\(\s*(true|1)\s*[,)]|\bSUCCEED\s*\(")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions(tree):
    """Yields the module with its functions, and each class with its own."""
    for owner in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        yield owner, [node for node in owner.body if isinstance(node, FUNCTION)]


def names(node):
    """Counts how often each name is read below the node."""
    out = {}
    for part in ast.walk(node):
        name = part.id if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) else None
        if name:
            out[name] = out.get(name, 0) + 1
    return out


def found_by_pytest(function, file):
    """Tells whether pytest calls the function by itself: a test, by its name, or a fixture."""
    decorators = " ".join(ast.unparse(d) for d in function.decorator_list)
    return "fixture" in decorators or (file.parent.name == "python" and function.name.startswith("test_"))


def is_constant(node):
    """Tells whether the value is known before the test runs: it holds no name, or "... or True"."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return any(isinstance(v, ast.Constant) and v.value or is_constant(v) for v in node.values)
    return not any(isinstance(part, (ast.Name, ast.Attribute, ast.Call)) for part in ast.walk(node))


def of_python(file, shared):
    tree = ast.parse(file.read_text(), str(file))
    used = names(tree)
    for owner, defined in functions(tree):
        last = {function.name: function for function in defined}
        for function in defined:
            if last[function.name] is not function and not function.decorator_list:
                yield function.lineno, f"{function.name} is replaced by another of this name"
            own = names(function).get(function.name, 0)  # it may call itself
            if (owner is tree and used.get(function.name, 0) == own and function.name not in shared
                    and not found_by_pytest(function, file)):
                yield function.lineno, f"{function.name} is never called: expected it in main(), or a caller"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            value = node.test
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check" and node.args:
            value = node.args[0]
        else:
            continue
        # A test that must not get here says check(False).
        if is_constant(value) and not (isinstance(value, ast.Constant) and not value.value):
            yield node.lineno, f"{ast.unparse(value)} is a check that cannot fail"


def of_c(file):
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if found := CONSTANT.search(line.split("//")[0]):
            yield number, f"{found[0]} is a check that cannot fail"


def imported(files):
    """Names that other files of the tests take from a module: their functions are called there."""
    out = {}
    trees = [(file, ast.parse(file.read_text(), str(file))) for file in files]
    for file, tree in trees:
        used = set(names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                given = {alias.name for alias in node.names}
                out.setdefault(node.module, set()).update(used if given == {"*"} else given)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                out.setdefault(node.value.id, set()).add(node.attr)
    return out


def main():
    tests = sorted((ROOT / "tests").rglob("*.*"))
    files = [pathlib.Path(name).resolve() for name in sys.argv[1:]] or tests
    shared = imported([file for file in {*tests, *files} if file.suffix == ".py"])
    bad = 0
    for file in files:
        found = ()
        if file.suffix == ".py":
            found = of_python(file, shared.get(file.stem, set()))
        elif file.suffix in (".cpp", ".c", ".h", ".cu"):
            found = of_c(file)
        for line, what in sorted(found):
            bad += 1
            print(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{line}: {what}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
