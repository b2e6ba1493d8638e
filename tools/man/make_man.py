#!/usr/bin/env python3
"""Completes a man page: puts a command's options, as its help lists them, where the page says so.

    tools/man/make_man.py build/riffle tools/man/riffle-run.1 > riffle-run.1

The page's line `.\\" OPTIONS run` is replaced by an mdoc list of the options of `riffle run`. They
are read from `riffle run --help-all`, or from `riffle run --help` where that flag is unknown. The
rest of that section is left out: it tells readers of the source where the options are. All other
lines are copied. The program runs with the command in EMULATOR, if it is built for another machine.
"""
import os
import re
import shlex
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from paper_names import paper_names

EMULATOR = shlex.split(os.environ.get("EMULATOR", ""))
MARK = re.compile(r'\.\\" OPTIONS (\S+)$')
# An option's line: its names, a value or [=VALUE] and, after two blanks or more, its text.
OPTION = re.compile(r"^ {2,6}((?:-\w, )?--?[\w-]+(?:, --?[\w-]+)*)"
                    r"((?:\[=\S+\])|(?: \S+(?: \S+)*))?(?: {2,}(.*))?$")
DEFAULT = re.compile(r"; default: (.+)$")
SKIPPED = {"--help", "--help-all"}
# Words that begin a phrase and keep their small letter: values of flags.
NAMES = re.compile(rf"(dense|{'|'.join(paper_names())}|share|cuda|emu|cpu)\b")


def help_of(program, command):
    for flag in ("--help-all", "--help"):
        done = subprocess.run([*EMULATOR, program, command, flag], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return done.stdout
    sys.exit(f"{program} {command} --help: exit code {done.returncode}: {done.stderr.strip()}")


def escape(text):
    """Text that mdoc prints unchanged, on a line that is no request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("|", " | ")
    return "\\&" + text if text[:1] in (".", "'") else text


def parse(text):
    """The help's sections: (title, [(names, value, default, text)])."""
    sections = []
    current = None
    for line in text.splitlines():
        found = OPTION.match(line)
        if found and sections:
            current = [found[1].split(", "), (found[2] or "").strip(), "", found[3] or ""]
            sections[-1][1].append(current)
        elif current and re.match(r"^\s{8,}\S", line):
            current[3] = (current[3] + " " + line.strip()).strip()
        else:
            current = None
            title = re.match(r"^(\S.*):$", line)
            if title:
                sections.append((title[1], []))
    for _, options in sections:
        for o in options:
            default = DEFAULT.search(o[3])
            o[2] = default[1] if default else ""
            o[3] = DEFAULT.sub("", o[3])
    return [(title, options) for title, options in sections if options]


def sentence(text):
    """Returns the help's phrase as a sentence: a capital first letter, a full stop at its end."""
    if re.match(r"[a-z]+\b(?!:)", text) and not NAMES.match(text):
        text = text[:1].upper() + text[1:]
    return text if text.endswith(".") or not text else text + "."


def lines_of(text):
    """Returns one sentence a line, as mdoc demands. A sentence ends before a capital letter or a
    dash."""
    return re.split(r"(?<=[A-Za-z0-9)][.!?]) +(?=[A-Z-])", text)


def mdoc(sections):
    out = []
    for title, options in sections:
        shown = [o for o in options if not SKIPPED & set(o[0])]
        if not shown:
            continue
        if title not in ("Options", "OPTIONS"):
            out.append(f".Ss {title}")
        out.append(".Bl -tag -width Ds")
        for names, value, default, text in shown:
            flags = " , ".join("Fl " + escape(name[1:]) for name in names)
            if value.startswith("[="):  # one that may be left out
                value = f" Ns Oo Ns = Ns Ar {escape(value[2:-1])} Oc"
            elif value:
                value = f" Ar {escape(value)}"
            out.append(f".It {flags}{value}")
            out.extend(escape(line) for line in lines_of(sentence(text)))
            if default:
                out.append(f"Default: {escape(default)}.")
        out.append(".El")
    return out


def main():
    program, page = sys.argv[1:]
    replaced = False  # the rest of a section whose options are printed
    with open(page, encoding="utf-8") as file:
        for line in file.read().splitlines():
            found = MARK.match(line)
            if found:
                print("\n".join(mdoc(parse(help_of(program, found[1])))))
            replaced = bool(found) or (replaced and not line.startswith(".Sh "))
            if not replaced:
                print(line)


if __name__ == "__main__":
    main()
