"""The wheel: its form by a library in place, and, if make wheel has been run, the wheel itself."""

import base64
import hashlib
import os
import subprocess
import sys
import venv
import zipfile

import pytest
from conftest import BUILD, ROOT

MAKE = ROOT / "tools/package/make_wheel.py"


def version():
    return subprocess.run(
        [BUILD / "riffle", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]


def built():
    return sorted((ROOT / "dist").glob(f"riffle-{version()}-py3-none-manylinux_*.whl"))


def make(library, folder):
    return subprocess.run(
        [sys.executable, "-B", MAKE, library, folder], capture_output=True, text=True
    )


def tiny_library(folder, source, *flags):
    code = folder / "tiny.c"
    code.write_text(source)
    library = folder / "tiny.so"
    subprocess.run(["cc", "-shared", "-fPIC", code, "-o", library, *flags], check=True)
    return library


def check_record(path):
    with zipfile.ZipFile(path) as wheel:
        assert wheel.testzip() is None
        names = wheel.namelist()
        info = f"riffle-{version()}.dist-info"
        record = wheel.read(f"{info}/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == names
        for line in record[:-1]:
            name, digest, size = line.split(",")
            data = wheel.read(name)
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(data)), name
        assert record[-1] == f"{info}/RECORD,,"
        assert f"Version: {version()}" in wheel.read(f"{info}/METADATA").decode()
        tag = path.stem.split("-", 2)[2]
        assert f"Tag: {tag}" in wheel.read(f"{info}/WHEEL").decode().splitlines()
        assert {"riffle/__init__.py", "riffle/py.typed", "riffle/libriffle.so"} <= set(names)
        assert {"riffle/serve/__main__.py", "riffle/serve/page/index.html"} <= set(names)
        assert "riffle-serve = riffle.serve" in wheel.read(f"{info}/entry_points.txt").decode()
        assert "Provides-Extra: serve" in wheel.read(f"{info}/METADATA").decode()
        return names


def test_a_wheel_has_the_form_of_a_wheel(tmp_path):
    library = tiny_library(
        tmp_path, "#include <math.h>\ndouble f(double x) { return exp(x); }", "-lm"
    )
    done = make(library, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "dist").iterdir()
    assert done.stdout.strip() == str(path)
    assert (
        path.name.endswith(f"_{os.uname().machine}.whl") and "-py3-none-manylinux_2_" in path.name
    )
    check_record(path)
    first = path.read_bytes()
    make(library, tmp_path / "dist")
    assert path.read_bytes() == first


def test_a_library_that_needs_more_than_glibc_is_refused(tmp_path):
    library = tiny_library(tmp_path, "int cxx;", "-Wl,--no-as-needed", "-lstdc++")
    done = make(library, tmp_path / "dist")
    assert done.returncode == 1 and "libstdc++.so.6" in done.stderr and "make wheel" in done.stderr


@pytest.mark.skipif(not built(), reason="make wheel has not been run")
def test_the_wheel_of_make_wheel_in_a_venv(tmp_path, model_path):
    path = built()[-1]
    names = check_record(path)
    assert any("/licenses/" in name for name in names)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "-q", path],
        capture_output=True,
        text=True,
    )
    if pip.returncode != 0:  # this Python has no pip: a wheel is installed by unpacking it
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(site)
    program = (
        "import riffle, sys\n"
        "model = riffle.Model(sys.argv[1], n_ctx=1024, threads=2)\n"
        "print(riffle.__file__)\n"
        "print(repr(model.generate('The rain', max_tokens=8, temperature=0).text))\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("RIFFLE_LIBRARY", "PYTHONPATH")}
    done = subprocess.run(
        [python, "-c", program, model_path], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    where, text = done.stdout.splitlines()
    assert where.startswith(str(tmp_path)) and len(text) > 4
