"""Helpers of the command line's tests. They use the binary as a user does: RIFFLE_BIN, and RIFFLE_MODEL to run on."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback

BIN = os.path.abspath(os.environ.get("RIFFLE_BIN", "build/riffle"))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.environ.get("RIFFLE_MODEL", os.path.join(ROOT, "models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf"))
GREEDY = ["--temp", "0"]
# The long tests in full (tests/run.sh, which has few rounds by default).
THOROUGH = os.environ.get("RIFFLE_TEST_ROUNDS", "few") != "few"


def instruction_set():
    """Returns the instruction set for --isa. With --isa auto each process chooses instruction sets by time, so the last
    bits of the results of two processes may differ. With few rounds it is AVX-512 if the CPU has it, which reads prompts
    twice as fast as AVX2."""
    if os.uname().machine == "aarch64":
        return "neon"
    with open("/proc/cpuinfo") as f:
        has = set(f.read().split())
    if not THOROUGH and has >= {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma", "f16c"}:
        return "avx512"
    return "avx2" if "avx2" in has else "scalar"


ISA = instruction_set()
# tests/run.sh runs each script on one CPU, where two threads wait for each other and a decode step takes twice the CPU
# time. Only the tests in full use two threads.
THREADS = "2" if THOROUGH else "1"
SMALL = ["-c", "2048", "--threads", THREADS, "--isa", ISA]
_failed = 0


def environment(**changes):
    env = dict(os.environ, RIFFLE_MODEL=MODEL, RIFFLE_HISTORY="", LC_ALL="C.UTF-8")
    env.pop("NO_COLOR", None)
    env.update(changes)
    return env


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit code {self.code}, stdout {self.out[:300]!r}, stderr {self.err[-300:]!r}"


def shown(text):
    """Returns an answer as run prints it, with a line break at its end."""
    return text if text.endswith("\n") else text + "\n"


def riffle(*args, stdin=b"", timeout=240, **env):
    """Runs the binary with pipes for all three streams."""
    p = subprocess.run([BIN, *map(os.fspath, args)], input=stdin, capture_output=True, timeout=timeout,
                       env=environment(**env))
    return Result(p.returncode, p.stdout, p.stderr)


def start(*args, **more):
    return subprocess.Popen([BIN, *map(os.fspath, args)], stdin=more.pop("stdin", subprocess.DEVNULL),
                            stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, env=environment(), **more)


def check(condition, name, why=""):
    global _failed
    if condition:
        print(f"ok {name}", flush=True)
    else:
        _failed += 1
        print(f"not ok {name}: {str(why).splitlines()[0][:900] if str(why) else 'no'}", flush=True)
    return bool(condition)


def one_line_error(r, code, *words):
    """The error contract: exit code, nothing on stdout, "riffle: ..." on stderr with these words, no crash."""
    text = r.err.decode("utf-8", "replace")
    return r.code == code and r.out == b"" and text.startswith("riffle: ") and all(w in text for w in words)


def words(n):
    """About n tokens of plain English."""
    sentence = "The old clock in the hall struck nine, and the rain went on against the windows. "
    return (sentence * (n // 18 + 1))[: n * 4]


def written(folder, name, data):
    """A file with a text, or with a value as JSON."""
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(data if isinstance(data, str) else json.dumps(data))
    return path


def changed(folder, name, old, new):
    """The model with a piece of its file's head replaced by one of the same length."""
    with open(MODEL, "rb") as f:
        data = f.read()
    at = data.find(old)
    assert at >= 0 and len(old) == len(new)
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data[:at] + new + data[at + len(old):])
    return path


# A template shorter than the shipped model's own. It drops earlier reasoning; with enable_thinking it begins reasoning.
THINKER = ("{% for m in messages %}{% if m.role == 'user' %}"
           "{{ bos_token ~ '[INST] ' ~ m.content ~ ' [/INST]' }}"
           "{% else %}{{ ' ' ~ m.content ~ eos_token }}{% endif %}{% endfor %}"
           "{% if enable_thinking %}<think>{% endif %}{#</think>#}")


def with_template(folder, name, template):
    """The shipped model with another template, which holds "{#"."""
    own = json.loads(riffle("info", "--json", "-q").out)["chat_template"].encode()
    new = template.encode()
    assert len(new) <= len(own), (len(new), len(own))
    return changed(folder, name, own, new.replace(b"{#", b"{#" + b" " * (len(own) - len(new))))


def thinker(folder):
    """The shipped model with a template that asks for enable_thinking."""
    return with_template(folder, "thinker.gguf", THINKER)


def main(*tests):
    global _failed
    if not os.path.exists(BIN):
        sys.exit(f"not ok setup: {BIN} is missing")
    if not os.path.exists(MODEL):
        sys.exit(f"not ok setup: {MODEL} is missing")
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(folder)
            except Exception as e:  # a test that raises has failed; the others go on
                traceback.print_exc()
                check(False, test.__name__, repr(e))
    sys.exit(1 if _failed else 0)


__all__ = ["BIN", "GREEDY", "ISA", "MODEL", "ROOT", "Result", "SMALL", "THOROUGH", "THREADS", "changed", "check", "environment", "json", "main", "shown",
           "one_line_error", "os", "riffle", "signal", "start", "subprocess", "thinker", "with_template", "written", "words"]
