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


def with_template(model_path, path, template):
    """Writes the small model with another chat template. Returns the new file's name."""
    data = pathlib.Path(model_path).read_bytes()
    begin = data.index(b"{% for message in messages %}")
    end = data.index(b"{% endfor %}", begin) + len(b"{% endfor %}")
    comment = b"{#" + b" " * (end - begin - len(template) - 4) + b"#}"
    path.write_bytes(data[:begin] + template + comment + data[end:])
    return str(path)


@pytest.fixture(scope="session")
def tool_model_path(model_path, tmp_path_factory):
    """The small model with a template that writes tools as Hermes models do."""
    template = (
        b"{% for m in messages %}[INST] {{ m.content or m.tool_calls|tojson }} [/INST]{% endfor %}"
        b"{% if tools %}<tool_call>{{ tools|tojson }}{% endif %}"
    )
    return with_template(model_path, tmp_path_factory.mktemp("model") / "tools.gguf", template)


#: Two functions, as OpenAI's API has them.
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name} of a place",
            "parameters": {
                "type": "object",
                "properties": {"days": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "price")
]


@pytest.fixture(scope="session")
def riffle():
    import riffle

    return riffle


@pytest.fixture()
def model(riffle, model_path):
    with riffle.Model(model_path, **SMALL) as model:
        yield model
