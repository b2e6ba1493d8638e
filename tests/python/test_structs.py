"""The package's structs, enums and functions against the headers, as the C compiler sees them."""

import ctypes
import re
import shutil
import subprocess

from conftest import ROOT

HEADERS = sorted((ROOT / "src").glob("riffle*.h"))


def declarations():
    """The text of all headers, without comments."""
    text = "".join(header.read_text() for header in HEADERS)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def layout_in_c(folder, structs, enums):
    lines = []
    for struct in structs:
        lines.append(f'printf("{struct.C_NAME} %zu\\n", sizeof({struct.C_NAME}));')
        for name, *_ in struct._fields_:
            lines.append(
                f'printf("{struct.C_NAME}.{name} %zu %zu\\n", offsetof({struct.C_NAME}, {name}), '
                f"sizeof((({struct.C_NAME}*)0)->{name}));"
            )
    lines += [f'printf("{name} %d\\n", (int){name});' for name in enums]
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(
        "".join(f"#include <{header.name}>\n" for header in HEADERS)
        + "#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    subprocess.run(
        [shutil.which("gcc") or "cc", "-std=c11", f"-I{ROOT}/src", source, "-o", program],
        check=True,
    )
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_structs_and_enums_are_those_of_the_headers(riffle, tmp_path):
    from riffle import _structs

    mirrored = []
    for struct in _structs.STRUCTS:
        mirrored.append(f"{struct.C_NAME} {ctypes.sizeof(struct)}")
        for name, *_ in struct._fields_:
            field = getattr(struct, name)
            mirrored.append(f"{struct.C_NAME}.{name} {field.offset} {field.size}")
    mirrored += [f"{name} {value}" for name, value in _structs.ENUMS.items()]
    found = layout_in_c(tmp_path, _structs.STRUCTS, _structs.ENUMS)
    assert len(found) > 40
    assert [line for line in found if line not in mirrored] == []


def test_every_member_is_mirrored(riffle):
    """A member that fits where the compiler pads would not change a size."""
    from riffle import _structs

    header = declarations()
    for struct in _structs.STRUCTS:
        body = re.search(r"typedef struct \w+ \{([^}]*)\} " + struct.C_NAME + ";", header)[1]
        names = [
            re.sub(r"\[.*\]", "", part.split()[-1].lstrip("*"))
            for member in body.split(";")
            if member.strip()
            for part in member.split(",")
        ]
        assert [name for name, *_ in struct._fields_] == names, struct.C_NAME


def test_functions_have_as_many_arguments_as_in_the_headers(riffle):
    from riffle import _library

    header = declarations()
    for name, (_, arguments) in _library.SIGNATURES.items():
        found = re.search(r"\b" + name + r"\s*\(([^)]*)\)", header)
        assert found, name
        assert len(arguments) == (0 if found[1] == "void" else found[1].count(",") + 1), name


def import_error(library):
    """Returns the last line that `import riffle` prints with this library."""
    import os
    import sys
    from conftest import PACKAGE

    done = subprocess.run(
        [sys.executable, "-B", "-c", "import riffle"],
        capture_output=True,
        text=True,
        env=dict(os.environ, RIFFLE_LIBRARY=str(library), PYTHONPATH=str(PACKAGE)),
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_a_library_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "none.so"
    assert import_error(missing).startswith(f"ImportError: riffle: {missing}: ")


def test_a_library_for_another_machine_is_named(tmp_path):
    import os

    here = os.uname().machine
    found, number = ("aarch64", 183) if here == "x86_64" else ("x86_64", 62)
    other = tmp_path / "libriffle.so"
    # The head of an ELF file of 64 bits: a shared object (3) for that machine.
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little")
    other.write_bytes(head + number.to_bytes(2, "little") + bytes(100))
    assert f"{other}: found a library for {found}, expected {here};" in import_error(other)
