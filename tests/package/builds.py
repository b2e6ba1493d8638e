"""Helpers of the tests of packages, in addition to tests/cli/harness.py."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness
from harness import *

BUILD = os.path.dirname(BIN)


def run(*args, timeout=300, **more):
    """Runs a program in the root folder of the source, with the output of both streams as text."""
    return subprocess.run(
        [*map(os.fspath, args)],
        cwd=more.pop("cwd", ROOT),
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **more,
    )


def answer(program, folder):
    """Runs a prompt with a riffle that has to find its own model."""
    env = environment(HOME=folder)
    env.pop("RIFFLE_MODEL")
    prompt = ["--raw", "-q", "-p", "The rain", "-n", "4", *GREEDY, *SMALL]
    return run(program, "run", *prompt, cwd=folder, env=env)


def passed(name, done, want=""):
    last = done.stdout.strip().splitlines()[-1:] or [""]
    return check(
        done.returncode == 0 and want in done.stdout,
        name,
        f"exit code {done.returncode}: {last[0]}",
    )


def skip(name, why):
    print(f"skip {name}: {why}", flush=True)


def make(target, *variables):
    """Runs make for this build folder, with its GPU architectures, so that nothing is compiled again."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    built = pathlib.Path(BUILD, "cuarch")
    cuarch = built.read_text().strip() if built.exists() else ""
    return run(
        "make",
        "--no-print-directory",
        target,
        f"BUILD={os.path.relpath(BUILD, ROOT)}",
        f"CUARCH={cuarch}",
        *variables,
        env=env,
    )


def sanitized():
    """Returns true if the library is built with a sanitizer: programs without one cannot load
    it."""
    return "san.so" in run("ldd", os.path.join(BUILD, "libriffle.so")).stdout


__all__ = [*harness.__all__, "BUILD", "answer", "make", "passed", "run", "sanitized", "skip"]
