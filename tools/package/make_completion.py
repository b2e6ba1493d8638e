#!/usr/bin/env python3
"""Writes shell completion for riffle from the program's own help.

    tools/package/make_completion.py build/riffle bash|zsh|fish

It completes commands, options, the values of options with a fixed set, and files. Options come from
`riffle COMMAND --help-all`, read as for the man pages (tools/man/make_man.py).
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "man"))
import make_man  # noqa: E402

FILES = {"FILE", "FILE...", "PATH"}
WORD = r"[\w.-]+"
# Remarks that the help puts after an option's text.
TAIL = re.compile(r"(; required|; default: [^;()]*| \((?:not )?with [^)]*\))+$")
# "..., such as: a, b, c": the names that a NAME or TYPE can be.
NAMED = re.compile(rf": ({WORD}(?:, {WORD})+)$")


class Option:
    """One option: its names, its text, and the completions of its value.

    kind: "" (no value), "words", "file", "folder" or "other"."""

    def __init__(self, names, value, text):
        self.names = names
        self.words = []
        text = TAIL.sub("", text)
        named = NAMED.search(text) if value in ("NAME", "TYPE") else None
        if not value or value.startswith("[="):
            self.kind = ""
        elif re.fullmatch(rf"{WORD}(\|{WORD})+", value):
            self.kind, self.words = "words", value.split("|")
        elif named:
            self.kind, self.words = "words", named[1].split(", ")
            text = text[: named.start()]
        elif value in FILES:
            self.kind = "file"
        elif value == "DIR":
            self.kind = "folder"
        else:
            self.kind = "other"
        # The first phrase tells enough where a shell shows a line.
        self.text = re.split(r"; |: ", text)[0]


def help_of(program, *args):
    done = subprocess.run(
        [*make_man.EMULATOR, program, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(args)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def options_in(text):
    sections = make_man.parse(text)
    return [
        Option(names, value, words) for _, options in sections for names, value, _, words in options
    ]


def read(program):
    """([(command, text)], {command or "": [Option]})"""
    top = help_of(program, "--help")
    found = re.search(r"^Commands:\n((?:  .*\n)+)", top, re.M)
    if not found:
        sys.exit(f"{program} --help: found no line 'Commands:', expected the list of commands")
    commands = re.findall(r"^  (\S+) +(.*)$", found[1], re.M)
    options = {"": options_in(top.replace(found[0], ""))}
    for command, _ in commands:
        options[command] = options_in(help_of(program, command, "--help-all"))
    for command, own in options.items():
        if not own:
            sys.exit(f"{program} {command} --help-all: found no options, expected a list")
    return commands, options


HEAD = "made from the help of riffle by make_completion.py\n"


def bash(commands, options):
    names = " ".join(c for c, _ in commands)
    out = ["# Completion of riffle for bash, " + HEAD + r"""
# Uses cur of _riffle. A name may hold blanks.
_riffle_reply() {
  mapfile -t COMPREPLY < <(compgen "$@" -- "$cur")
}
_riffle_paths() {
  compopt -o filenames 2>/dev/null
  _riffle_reply "$1"
}
_riffle() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= options= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      -*) ;;
      *) command=${COMP_WORDS[i]}; break ;;
    esac
  done
  # --device=cpu is three words.
  if [ "$cur" = = ]; then
    cur=
  elif [ "$prev" = = ] && [ "$COMP_CWORD" -ge 2 ]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  case $command in"""]
    for command, own in options.items():
        out.append(f"    {command or quoted('')})")
        if not command:
            words = names + " help " + " ".join(n for o in own for n in o.names)
            out.append(f'      options="{words}" ;;')
            continue
        groups = {}
        for o in own:
            if o.kind:
                groups.setdefault((o.kind, " ".join(o.words)), []).extend(o.names)
        out.append("      case $prev in")
        for (kind, words), flags in groups.items():
            act = {
                "words": f'_riffle_reply -W "{words}"',
                "file": "_riffle_paths -f",
                "folder": "_riffle_paths -d",
                "other": ":",
            }[kind]
            out.append(f"        {' | '.join(flags)}) {act}; return ;;")
        out.append("      esac")
        out.append(f"      options=\"{' '.join(n for o in own for n in o.names)}\" ;;")
    out.append(f'    help) options="{names}" ;;')
    out.append(r"""  esac
  _riffle_reply -W "$options"
}
complete -F _riffle riffle""")
    return "\n".join(out)


def quoted(text):
    """A word for a POSIX shell or zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def zsh(commands, options):
    def spec(o):
        text = re.sub(r"([\[\]:\\])", r"\\\1", o.text)
        action = {
            "": "",
            "words": f":value:({' '.join(o.words)})",
            "file": ":file:_files",
            "folder": ":folder:_files -/",
            "other": ":value: ",
        }[o.kind]
        # An option may be repeated; its other names go with it.
        return "  " + " ".join(quoted(f"*{n}[{text}]{action}") for n in o.names)

    out = [
        "#compdef riffle",
        "# Completion of riffle for zsh, " + HEAD,
        "_riffle() {",
        "  local -a commands specs",
        "  commands=(",
    ]
    out += [f"    {quoted(c + ':' + text.replace(':', chr(92) + ':'))}" for c, text in commands]
    out += [
        "    'help:Show the help of a command'",
        "  )",
        "  if (( CURRENT == 2 )); then",
        "    specs=(",
    ]
    out += ["    " + spec(o) for o in options[""]]
    out += [
        "    )",
        "    _describe -t commands 'command of riffle' commands",
        "    _arguments $specs",
        "    return",
        "  fi",
        "  local command=$words[2]",
        "  shift words",
        "  (( CURRENT-- ))",
        "  case $command in",
    ]
    for command, own in options.items():
        if command:
            out.append(f"    {command}) specs=(")
            out += ["    " + spec(o) for o in own]
            out.append("      ) ;;")
    out += [
        "    help) _describe -t commands 'command of riffle' commands; return ;;",
        "    *) return 1 ;;",
        "  esac",
        "  _arguments -s $specs",
        "}",
        '[ "$funcstack[1]" != _riffle ] || _riffle "$@"',
    ]
    return "\n".join(out)


def fish(commands, options):
    def word(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    names = " ".join(c for c, _ in commands)
    out = ["# Completion of riffle for fish, " + HEAD, "complete -c riffle -f"]
    for command, text in commands:
        out.append(f"complete -c riffle -n __fish_use_subcommand -a {command} -d {word(text)}")
    out.append(
        "complete -c riffle -n __fish_use_subcommand -a help " "-d 'Show the help of a command'"
    )
    out.append(f"complete -c riffle -n '__fish_seen_subcommand_from help' -a '{names}'")
    for command, own in options.items():
        when = (
            f"'__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from help'"
            if command
            else "__fish_use_subcommand"
        )
        for o in own:
            flags = " ".join(
                (
                    f"-l {n[2:]}"
                    if n.startswith("--")
                    else f"-s {n[1:]}" if len(n) == 2 else f"-o {n[1:]}"
                )
                for n in o.names
            )
            value = {
                "": "",
                "words": f" -x -a {word(' '.join(o.words))}",
                "file": " -r -F",
                "folder": " -x -a '(__fish_complete_directories)'",
                "other": " -x",
            }[o.kind]
            out.append(f"complete -c riffle -n {when} {flags}{value} -d {word(o.text)}")
    return "\n".join(out)


def main():
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    if len(sys.argv) != 3 or sys.argv[2] not in writers:
        sys.exit("usage: make_completion.py PROGRAM bash|zsh|fish")
    print(writers[sys.argv[2]](*read(sys.argv[1])))


if __name__ == "__main__":
    main()
