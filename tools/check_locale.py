#!/usr/bin/env python3
"""Checks that no function of the library reads the locale of the program that uses it.

    tools/check_locale.py [BUILD]      prints each object file of BUILD/src and BUILD/kernels that calls one, and each
                                       function of the C interface that tests/capi/locale does not call

Numbers are read and written by std::from_chars, std::to_chars, format() of util/error.h, or functions that are given a
locale, such as strtod_l(text, &end, c_locale()). util/c_locale.h says more. The command (src/cli) is a program of its
own: it sets LC_CTYPE alone.
"""
import pathlib
import re
import subprocess
import sys

# printf and scanf with their relatives, numbers out of text, characters by LC_CTYPE, order by LC_COLLATE, times by
# LC_TIME, messages by LC_MESSAGES. In C++: streams that read or write numbers, error categories.
C_NAMES = re.compile(
    r"^(__isoc\d+_)?(v?[fsd]?n?w?printf|v?as?printf|v?[fs]?w?scanf|strto(d|f|ld|l|ll|ul|ull|imax|umax)|ato(f|i|l|ll)"
    r"|wcsto\w+|is(alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit)|to(lower|upper)|isw\w+"
    r"|tow\w+|mbr?towc|mbr?len|mbs\w*towcs|wcr?tomb|wcs\w*tombs|btowc|wctob|str(n)?casecmp|strcasestr|strcoll|strxfrm"
    r"|strftime|strptime|strfmon|strfromd|strerror(_r)?|perror|__xpg_strerror_r|localeconv|setlocale|nl_langinfo"
    r"|regcomp|regexec|fnmatch|__ctype_\w+|__\w*printf_chk)(@.*)?$")
CPP_NAMES = re.compile(
    r"(std::(__cxx11::)?(num_get|num_put|collate|moneypunct|numpunct|regex_traits)<|_M_(extract|insert)<"
    r"|std::(_V2::)?(generic|system)_category|ostream::operator<<\((int|unsigned|long|short|float|double|bool)"
    r"|istream::operator>>\((int|unsigned|long|short|float|double|bool))")
# The functions that may call them, and why.
MAY = {
    "src/util/c_locale.o": {"vsnprintf"},  # in a CLocale
    # nlohmann's parser, in a CLocale.
    "src/util/json.o": {"localeconv", "strtod", "strtof", "strtold", "strtoll", "strtoull", "snprintf"},
}


def calls(path):
    text = subprocess.run(["nm", "-u", "-C", str(path)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        name = line.split(" U ", 1)[-1].strip()
        if C_NAMES.match(name) or CPP_NAMES.search(name):
            yield re.sub(r"^__isoc\d+_", "", name)


# The files in TEST call the interface's functions in other locales.
ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = sorted(ROOT.glob("src/riffle*.h"))
TEST = "tests/capi/locale"


def code_of(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def uncalled():
    """Returns the number of functions, and the names of those that the test does not call."""
    names = set()
    for header in HEADERS:
        names |= set(re.findall(r"\bRIFFLE_API\b[^;{(]*?\b(riffle_\w+)\s*\(", code_of(header)))
    called = set()
    for file in sorted((ROOT / TEST).glob("*.c")):
        called |= set(re.findall(r"\b(riffle_\w+)\s*\(", code_of(file)))
    return len(names), sorted(names - called)


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    paths = [p for room in ("src", "kernels") for p in sorted((build / room).rglob("*.o"))]
    paths = [(p, p.relative_to(build).as_posix()) for p in paths]
    paths = [(p, name) for p, name in paths if not name.startswith(("src/cli/", "src/measure/commands/"))]
    if not any(name == "src/util/c_locale.o" for _, name in paths):
        sys.exit(f"not ok {build}: found no objects of the library, expected a build; run make")
    found = [(name, call) for p, name in paths for call in calls(p) if call not in MAY.get(name, ())]
    for name, call in found:
        print(f"not ok {name} calls {call}, which reads the locale")
    if not found:
        print(f"ok none of {len(paths)} object files reads the locale")
    n_functions, missing = uncalled()
    for name in missing:
        print(f"not ok {TEST}: found no call of {name}, expected one of each function of the interface")
    if n_functions == 0:
        print(f"not ok src/riffle*.h: found no function, expected RIFFLE_API before each")
    elif not missing:
        print(f"ok {TEST} calls all {n_functions} functions of the interface")
    sys.exit(1 if found or missing or n_functions == 0 else 0)


if __name__ == "__main__":
    main()
