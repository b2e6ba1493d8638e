"""The package of the source tree, on the library and the model that tests/run.sh names."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools/package/python"
BUILD = pathlib.Path(os.environ.get("RIFFLE_BIN", ROOT / "build/riffle")).resolve().parent
os.environ.setdefault("RIFFLE_LIBRARY", str(BUILD / "libriffle.so"))
sys.path.insert(0, str(PACKAGE))

SMALL = {"n_ctx": 2048, "threads": 2}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="session")
def model_path():
    return os.environ.get(
        "RIFFLE_MODEL", str(ROOT / "models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf")
    )


@pytest.fixture(scope="session")
def riffle():
    import riffle

    return riffle


@pytest.fixture()
def model(riffle, model_path):
    with riffle.Model(model_path, **SMALL) as model:
        yield model
