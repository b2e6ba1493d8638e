"""Installed files and how programs find them: make install and uninstall, pkg-config, CMake, shell
completion, the exported symbols and the recorded binary interface."""

import fcntl
import pathlib
import pty
import re
import shutil
import struct
import termios
import time

from builds import *

PUBLIC = sorted(str(p.relative_to(ROOT)) for p in pathlib.Path(ROOT, "src").glob("riffle*.h"))


def files(folder):
    return sorted(
        str(p.relative_to(folder))
        for p in pathlib.Path(folder).rglob("*")
        if not p.is_dir() or p.is_symlink()
    )


def installation(folder):
    root = os.path.join(folder, "a root")  # DESTDIR may hold a blank
    where = [f"DESTDIR={root}", "PREFIX=/opt/riffle", "LIBDIR=/opt/riffle/lib64"]
    if not passed("make install into DESTDIR", make("install", *where)):
        return
    found = files(root)
    for name in (
        "bin/riffle",
        "lib64/libriffle.a",
        "lib64/libriffle.so",
        "lib64/libriffle.so.0",
        *(header.replace("src/", "include/") for header in PUBLIC),
        "lib64/pkgconfig/riffle.pc",
        "lib64/cmake/riffle/riffle-config.cmake",
        "share/man/man1/riffle-run.1",
        "share/bash-completion/completions/riffle",
        "share/zsh/site-functions/_riffle",
        "share/fish/vendor_completions.d/riffle.fish",
        "share/riffle/models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf",
    ):
        check(f"opt/riffle/{name}" in found, f"make install: {name}", found)
    prefix = os.path.join(root, "opt/riffle")
    done = answer(os.path.join(prefix, "bin/riffle"), folder)
    passed("the installed program finds the installed model", done)
    example = os.path.join(ROOT, "tests/capi/example.c")
    if sanitized():
        skip("programs that use the library", "it is built with a sanitizer")
    else:
        compiled_by_pkg_config(folder, root, prefix, example)
        compiled_by_cmake(folder, prefix, example)
    theirs = os.path.join(prefix, "share/riffle/models/mine.gguf")
    pathlib.Path(theirs).touch()
    passed("make uninstall", make("uninstall", *where))
    check(
        files(root) == ["opt/riffle/share/riffle/models/mine.gguf"],
        "make uninstall leaves only others' files",
        files(root),
    )
    os.remove(theirs)
    os.rmdir(os.path.dirname(theirs))
    passed("make uninstall where nothing is left", make("uninstall", *where))
    left = [
        str(p)
        for p in pathlib.Path(root).rglob("*")
        if p.name == "riffle" and p != pathlib.Path(prefix)
    ]
    check(not files(root) and not left, "make uninstall leaves nothing", files(root) + left)


def runs(name, program, **env):
    done = run(program, MODEL, env=environment(**env))
    return passed(name, done, "ok abort from another thread")


def compiled_by_pkg_config(folder, root, prefix, example):
    if not shutil.which("pkg-config"):
        return skip("pkg-config", "it is not installed (Debian: apt-get install pkgconf)")
    link = os.path.join(folder, "root")  # flags of pkg-config are split at blanks
    os.symlink(root, link)
    env = dict(
        os.environ, PKG_CONFIG_LIBDIR=f"{prefix}/lib64/pkgconfig", PKG_CONFIG_SYSROOT_DIR=link
    )
    done = run("pkg-config", "--modversion", "riffle", env=env)
    version = riffle("--version").out.decode().split()[1]
    check(
        done.stdout.strip() == version,
        "pkg-config --modversion",
        f"found {done.stdout.strip()}, expected {version}",
    )
    for kind, flags in {"shared": [], "static": ["--static"]}.items():
        found = run("pkg-config", "--cflags", "--libs", *flags, "riffle", env=env).stdout.split()
        if flags:  # the archive, not the shared object in the same folder
            found = ["-l:libriffle.a" if f == "-lriffle" else f for f in found]
        program = os.path.join(folder, f"example-{kind}")
        done = run("cc", "-std=c11", "-O1", example, *found, "-lpthread", "-o", program)
        if passed(f"the C example compiles by pkg-config, {kind}", done):
            runs(
                f"and runs, {kind}",
                program,
                **({} if flags else {"LD_LIBRARY_PATH": f"{prefix}/lib64"}),
            )


def compiled_by_cmake(folder, prefix, example):
    if not shutil.which("cmake"):
        return skip("CMake", "it is not installed (Debian: apt-get install cmake)")
    source = pathlib.Path(folder, "cmake")
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(app C)\nset(CMAKE_C_STANDARD 11)\n"
        "find_package(Threads REQUIRED)\nfind_package(riffle ${ASKED} REQUIRED)\n"
        f'add_executable(app "{example}")\ntarget_link_libraries(app riffle::riffle Threads::Threads)\n'
        f'add_executable(app_static "{example}")\n'
        "target_link_libraries(app_static riffle::static Threads::Threads)\n"
    )

    def configure(asked):
        return run(
            "cmake",
            "-S",
            source,
            "-B",
            source / "build",
            f"-Driffle_DIR={prefix}/lib64/cmake/riffle",
            f"-DASKED={asked}",
            "-DCMAKE_C_COMPILER=cc",
        )

    version = riffle("--version").out.decode().split()[1]
    for asked in ("", version):
        passed(f"find_package(riffle {asked})", configure(asked))
    if passed("the C example compiles by CMake", run("cmake", "--build", source / "build")):
        runs("and runs", source / "build/app")
        linked = run("ldd", source / "build/app_static").stdout
        check("libriffle" not in linked, "riffle::static needs no libriffle.so", linked)
    for asked in (str(int(version.split(".")[0]) + 1), "0.999"):
        refused = configure(asked)
        check(
            refused.returncode != 0 and "requested version" in refused.stdout,
            f"find_package(riffle {asked}) is refused",
            refused.stdout,
        )


def declared():
    """Returns the names of the RIFFLE_API functions of the headers."""
    names = []
    for header in PUBLIC:
        text = re.sub(r"/\*.*?\*/", "", pathlib.Path(ROOT, header).read_text(), flags=re.S)
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        names += re.findall(r"\bRIFFLE_API\b[^;{]*?\b(riffle_\w+)\s*\(", text)
    return names


def symbols(_):
    names = declared()
    check(
        len(names) == len(set(names)) and len(names) > 40,
        "functions are declared once",
        sorted(names),
    )
    done = run("nm", "-D", "--defined-only", os.path.join(BUILD, "libriffle.so"))
    found = {line.split()[-1] for line in done.stdout.splitlines() if " A " not in line}
    want = {f"{name}@@RIFFLE_0" for name in names}
    check(
        found == want,
        "libriffle.so exports the functions of its headers, with their version, and nothing else",
        f"more: {sorted(found - want)[:5]}; missing: {sorted(want - found)[:5]}",
    )
    soname = re.search(
        r"SONAME\s+(\S+)", run("objdump", "-p", os.path.join(BUILD, "libriffle.so")).stdout
    )
    check(
        soname and soname[1] == "libriffle.so.0",
        "the SONAME and the symbols' version go together",
        soname,
    )


def interface(folder):
    script, library = os.path.join(ROOT, "tools/package/abi.sh"), os.path.join(
        BUILD, "libriffle.so"
    )
    done = run(script, "check", library)
    if done.returncode == 77:
        return skip("the recorded interface", done.stdout.strip())
    if done.returncode != 0:
        print(done.stdout)
    passed("the interface is the recorded one", done)
    # The check must be able to fail: these copies of the record have one change each.
    changes = {
        "a struct of another size": (
            "name='riffle_token' size-in-bits='384'",
            "name='riffle_token' size-in-bits='416'",
        ),
        "a member of another name": ("<var-decl name='n_tokens'", "<var-decl name='tokens'"),
        "an enum's value": ("name='RIFFLE_IO' value='4'", "name='RIFFLE_IO' value='40'"),
        "a function that is gone": (
            "<elf-symbol name='riffle_abort'",
            "<elf-symbol name='riffle_gone'",
        ),
    }
    for folder_name in ("tools/package/abi", "src"):
        shutil.copytree(
            os.path.join(ROOT, folder_name),
            os.path.join(folder, folder_name),
            ignore=shutil.ignore_patterns("*.cpp", "*.cu"),
        )
    shutil.copy(script, os.path.join(folder, "tools/package"))
    recorded = pathlib.Path(folder, "tools/package/abi/libriffle.xml")
    text = recorded.read_text()
    for name, (old, new) in changes.items():
        check(old in text, f"the record holds {old}", recorded)
        recorded.write_text(text.replace(old, new, 1))
        done = run(os.path.join(folder, "tools/package/abi.sh"), "check", library)
        check(
            done.returncode == 1 and re.search("abi.sh: (old programs|the interface)", done.stdout),
            f"noticed: {name}",
            done.stdout,
        )


def completions(folder):
    done = make("completion")
    if not passed("make completion", done):
        return
    scripts = os.path.join(BUILD, "completion")
    pathlib.Path(folder, "a file.gguf").touch()
    pathlib.Path(folder, "kept").mkdir()
    templates = re.search(
        r"is not one of (\S+)", riffle("run", "-p", "x", "--chat-template", "?").err.decode()
    )[1].split("|")
    weights = re.search(
        r"is not one of (.*)", riffle("run", "-p", "x", "--weights", "?").err.decode()
    )[1]
    weights = re.split(r"[,|] ?", weights)
    cases = {  # typed text: completions that must appear, completions that must not
        ("riffle", "ch"): (["chat"], ["run"]),
        ("riffle", ""): (["chat", "run", "read", "batch", "info", "quantize", "help"], ["--temp"]),
        ("riffle", "run", "--dev"): (["--device"], ["--temp"]),
        ("riffle", "run", "--device", ""): (["auto", "cpu", "emu", "cuda"], ["share", "--temp"]),
        ("riffle", "run", "--selector", "t"): (
            ["topk", "twilight", "tokenselect"],
            ["psa", "dense"],
        ),
        ("riffle", "chat", "--chat-template", ""): (templates, []),
        ("riffle", "run", "--weights", ""): (weights, []),
        ("riffle", "quantize", "--type", "q4"): (["q4_k_m", "q4_0"], ["q8_0"]),
        ("riffle", "run", "--kv", ""): (["f16", "f32", "q8"], []),
        ("riffle", "run", "-m", "a"): (["a file.gguf"], ["--temp"]),
        ("riffle", "batch", "--prefix-cache", "k"): (["kept"], ["a file.gguf"]),
        ("riffle", "run", "--max-s"): ([], ["--max-seqs"]),
        ("riffle", "batch", "--max-s"): (["--max-seqs"], []),
        ("riffle", "help", "to"): (["tokenize"], ["chat"]),
    }

    def bash(words):
        script = (
            f"source '{scripts}/riffle'; complete -p riffle | grep -qx 'complete -F _riffle riffle' || exit 1\n"
            f"COMP_WORDS=({' '.join(repr(w) for w in words)}) COMP_CWORD={len(words) - 1}\n"
            "_riffle; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        return run("bash", "-c", script, cwd=folder)

    def fish(words):
        line = " ".join(words)
        return run(
            "fish",
            "--no-config",
            "-c",
            f"source '{scripts}/riffle.fish'; complete -C '{line}'",
            cwd=folder,
            env=dict(os.environ, HOME=folder),
        )

    def answers(shell, words, done, lines):
        want, not_want = cases[words]
        check(
            done.returncode == 0 and set(want) <= set(lines) and not set(not_want) & set(lines),
            f"{shell}: {' '.join(words)}",
            f"found {lines[:12]}, expected {want[:12]}",
        )

    for words in cases:
        done = bash(words)
        answers("bash", words, done, done.stdout.splitlines())
    done = bash(("riffle", "run", "--device", "=", "c"))
    check(set(done.stdout.split()) == {"cpu", "cuda"}, "bash: riffle run --device=c", done.stdout)
    if not shutil.which("fish"):
        skip("fish", "it is not installed (Debian: apt-get install fish)")
    else:
        for words in cases:
            done = fish(words)
            answers(
                "fish",
                words,
                done,
                [
                    line.split("\t")[0].replace("\\ ", " ").rstrip("/")
                    for line in done.stdout.splitlines()
                ],
            )
    if not shutil.which("zsh"):
        return skip("zsh", "it is not installed (Debian: apt-get install zsh)")
    zsh(folder, scripts, cases)


# A zsh in a terminal of its own, in which each line is typed and completed.
ZSH = r"""
fpath=(SCRIPTS $fpath)
autoload -Uz compinit && compinit -u -D
PS1= PS2= LISTMAX=100000
unsetopt list_ambiguous
end-of-case() { print -r -- "${(Q)${(z)BUFFER}[-1]}" >>ENDS; BUFFER=; zle -I; }
zle -N end-of-case
bindkey '^G' end-of-case
"""


def zsh(folder, scripts, cases):
    home = pathlib.Path(folder, "zsh")
    home.mkdir()
    ends = home / "ends"
    ends.touch()
    (home / ".zshrc").write_text(
        ZSH.replace("SCRIPTS", f"'{scripts}'").replace("ENDS", f"'{ends}'")
    )
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 300, 0, 0))
        os.chdir(folder)
        os.execvpe(
            "zsh", ["zsh", "-i"], dict(os.environ, ZDOTDIR=str(home), HOME=str(home), TERM="dumb")
        )
    os.set_blocking(terminal, False)

    def shown():
        try:
            return os.read(terminal, 65536).decode("utf-8", "replace")
        except BlockingIOError:
            return ""

    try:
        for n, (words, (want, not_want)) in enumerate(cases.items(), 1):
            os.write(terminal, (" ".join(words) + "\t\x07").encode())
            screen, limit = "", time.monotonic() + 30
            while len(ends.read_text().splitlines()) < n and time.monotonic() < limit:
                screen += shown()
                time.sleep(0.01)
            screen += shown()
            # The choices that are listed, or the only one, which is the line's last word now.
            found = [
                w.rstrip("/") for w in re.split(r"  +|[\r\n]+| -- ", screen) if w
            ] + ends.read_text().splitlines()[-1:]
            found = {word for f in found for word in (f, f.split(" ")[-1])}
            check(
                set(want) <= found and not set(not_want) & found,
                f"zsh: {' '.join(words)}",
                f"found {sorted(found)[:12]}, expected {want[:12]}",
            )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


main(symbols, interface, completions, installation)
