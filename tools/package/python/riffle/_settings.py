"""Settings of a context by name, from the library's table of them."""

from __future__ import annotations

import ctypes
import numbers
import re
from typing import Any, Union

from . import _structs as C
from ._library import BadArgument, bool_argument, lib, shown, unknown_name

#: A word, a number or a bool: what the setting takes.
SettingValue = Union[str, int, float, bool]


def settings_by_name() -> dict[str, Any]:
    """The settings of a context and its selection, by the names that riffle's JSON output uses and
    by those of riffle.h."""
    found: dict[str, Any] = {}
    index = 0
    while setting := lib.riffle_setting_at(index):
        s = setting.contents
        if s.options in (C.OPTIONS_CONTEXT, C.OPTIONS_SELECTION):
            found.setdefault(s.json.decode() or s.id.decode(), setting)
            found.setdefault(s.id.decode().split(".")[-1], setting)
        index += 1
    return found


# : llama-cpp-python's names of settings, and the names to use here.
OTHER_NAMES = {
    "n_gpu_layers": "use device='cuda' or device='cpu'; gpu_mem='12G' limits the GPU memory",
    "main_gpu": "set the environment variable CUDA_VISIBLE_DEVICES",
    "n_batch": "use prefill_chunk",
    "n_ubatch": "use prefill_chunk",
    "n_threads_batch": "use threads",
    "chat_format": "use chat_template",
    "type_k": "use kv",
    "type_v": "use kv",
    "verbose": "leave it out: riffle prints nothing",
    "seed": "use the seed of chat, generate and ask",
    "use_mmap": "leave it out: riffle maps the weights",
    "use_mlock": "leave it out: riffle maps the weights",
    "flash_attn": "leave it out: riffle's attention needs no switch",
    "logits_all": "use logprobs=True of chat, generate and ask",
}


def bytes_of(text: str) -> int | None:
    """A size such as 12G or 1.5G, as on the command line; None: the text is no size."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:([kmgt])(?:i?b)?)?", text, re.I | re.A)
    if not found:
        return None
    size = float(found[1]) * 2.0 ** (10 * " kmgt".index((found[2] or " ").lower()))
    if size >= 2.0**63 or (not found[2] and not size.is_integer()):
        return None
    return int(size)


def set_setting(options: C.ContextOptions, name: str, value: SettingValue) -> None:
    settings = settings_by_name()
    setting = settings.get(name)
    if setting is None:
        raise unknown_name("setting", name, settings, OTHER_NAMES, "riffle.settings() lists all")
    s = setting.contents
    words = s.words.decode().split("|") if s.words else []
    if not isinstance(value, (str, numbers.Real)):
        raise TypeError(f"{name}: found {shown(value)}, expected a str, a number or a bool")
    is_size = s.id in (b"gpu_mem", b"host_mem")
    is_bool = s.type == C.MEMBER_BOOL and not words
    if is_bool:
        bool_argument(name, value)
    number: Any = value
    if isinstance(value, str) and value in words and not words[0].isdigit():
        number = s.low + words.index(value)
    elif isinstance(value, str) and is_size:
        number = bytes_of(value)
    # A plain number is refused, as on the command line: nobody who types 12 means 12 bytes.
    plain = not isinstance(value, str) or value.isdigit()
    if is_size and plain and isinstance(number, numbers.Real) and 0 < number < 2**20:
        unit = "G" if number < 1000 else "M"
        raise BadArgument(
            f"{name}: found {value!r}, which is {number} bytes, "
            f"expected a size such as '{number}{unit}'",
            C.BAD_ARGUMENT,
        )
    target = options.selection if s.options == C.OPTIONS_SELECTION else options
    if not isinstance(number, numbers.Real) or not lib.riffle_setting_set(
        setting, ctypes.byref(target), float(number)
    ):
        expected = s.range.decode()
        if words and not words[0].isdigit():
            expected = ", ".join(words[:-1]) + f" or {words[-1]}"
        elif is_size:
            expected = "a number of bytes, at least 1048576, or a text such as '512M' or '12G'"
        elif isinstance(value, str):
            what = "a number of tokens" if s.id == b"n_ctx" else "a number"
            expected = f"{what}: {expected}"
        raise BadArgument(f"{name}: found {value!r}, expected {expected}", C.BAD_ARGUMENT)


def settings() -> dict[str, str]:
    """The settings that Model and Context take as keyword arguments, and their effects."""
    found = settings_by_name()
    return {name: s.contents.help.decode() for name, s in found.items() if s.contents.help}
