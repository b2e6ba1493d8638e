#!/usr/bin/env python3
"""Packs the Python module riffle and a libriffle.so as a wheel. Needs only the standard library.

    tools/package/make_wheel.py build-dist/libriffle.so dist [LICENCE_FILE...]

The library must need nothing but glibc. The wheel's tag names the library's machine and the newest
version of glibc that it asks for. ctypes works with every Python 3, so the tag is
py3-none-PLATFORM. The variable STRIP names the program that strips the library (strip).
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools/package/python"
GLIBC = r"(libc|libm|libdl|libpthread|librt)\.so\.\d+|ld-linux-.*"
STRIP = os.environ.get("STRIP") or "strip"
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}


def readelf(flag, library):
    return subprocess.run(
        ["readelf", "--wide", flag, library],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ, LC_ALL="C"),
    ).stdout


def platform(library):
    """Returns manylinux_2_NN_MACHINE, from the symbols that the library needs."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library))
    other = [name for name in needed if not re.fullmatch(GLIBC, name)]
    if other or not needed:
        sys.exit(
            f"{library}: needs {', '.join(other) or 'no libraries'}, expected glibc alone; "
            "make wheel builds such a library"
        )
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("-V", library))
    major, minor = max((int(a), int(b)) for a, b in versions)
    machine = re.search(r"Machine: +(.*)", readelf("-h", library))[1].strip()
    if machine not in MACHINES:
        sys.exit(f"{library}: is for {machine}, expected one of {', '.join(MACHINES)}")
    return f"manylinux_{major}_{minor}_{MACHINES[machine]}"


def version_of(header):
    return re.search(r'#define RIFFLE_VERSION "(.*)"', header.read_text())[1]


def stripped(library):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "libriffle.so")
        subprocess.run([STRIP, "--strip-unneeded", "-o", out, library], check=True)
        return pathlib.Path(out).read_bytes()


def metadata(version):
    readme = (PACKAGE / "README.md").read_text()
    return (
        "Metadata-Version: 2.1\nName: riffle\n"
        f"Version: {version}\n"
        "Summary: Language models on very long texts\n"
        "Requires-Python: >=3.9\n"
        "Provides-Extra: serve\n"
        "Requires-Dist: starlette>=0.40; extra == 'serve'\n"
        "Requires-Dist: uvicorn>=0.30; extra == 'serve'\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Typing :: Typed\n"
        "Description-Content-Type: text/markdown\n\n" + readme
    )


ENTRY_POINTS = "[console_scripts]\nriffle-serve = riffle.serve.__main__:main\n"


def package_files():
    """Yields the files of the package: modules, py.typed, and the server's page."""
    for path in sorted((PACKAGE / "riffle").rglob("*")):
        if path.suffix in (".py", ".html", ".js", ".css") or path.name == "py.typed":
            yield path


def wheel(tag):
    return f"Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: make_wheel.py LIBRIFFLE.SO FOLDER [LICENCE_FILE...]")
    library, folder, licences = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    version = version_of(ROOT / "src/riffle.h")
    tag = f"py3-none-{platform(library)}"
    info = f"riffle-{version}.dist-info"
    files = {
        path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in package_files()
    }
    files["riffle/libriffle.so"] = stripped(library)
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/WHEEL"] = wheel(tag).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    for licence in licences:  # Debian's: /usr/share/doc/PACKAGE/copyright, SOURCE/debian/copyright
        parts = [part for part in pathlib.Path(licence).parts[:-1] if part != "debian"]
        files[f"{info}/licenses/{parts[-1]}"] = pathlib.Path(licence).read_bytes()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join(record + [f"{info}/RECORD,,", ""]).encode()

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"riffle-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as out:
        for name, data in files.items():
            # The same files give the same wheel on every day.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            out.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    main()
