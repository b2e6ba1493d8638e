"""Options by name, with the ranges and the words of the library's table of settings."""

from __future__ import annotations

import ctypes
import functools
import numbers
from typing import Any, Union

from . import _structs as C
from ._library import BadArgument, bool_argument, check, facts, lib, shown, unknown_name

#: A word, a number or a bool: what the setting takes.
SettingValue = Union[str, int, float, bool]


#: The library reads a text until the callback is called again, so the buffers are kept here.
_named: dict[bytes, Any] = {}


def _address_of_name(setting: bytes) -> int | None:
    text = _named.get(setting)
    return None if text is None else ctypes.addressof(text)


_name_of = C.SettingNameFn(_address_of_name)


def name_settings(names: dict[str, str]) -> None:
    """Sets the names that settings have in this process's errors and notices, such as a program's
    flags."""
    for setting, name in names.items():
        _named[setting.encode()] = ctypes.create_string_buffer(name.encode())


class Options:
    """riffle_options: the settings of everything, each function reads its own."""

    def __init__(self, copied: Any = None) -> None:
        """copied: a pointer to riffle_options that are copied."""
        self.pointer = lib.riffle_options_copy(copied) if copied else lib.riffle_options_create()
        if not self.pointer:
            raise MemoryError
        if _named:
            lib.riffle_options_set_names(self.pointer, _name_of)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            lib.riffle_options_free(self.pointer)

    def check(self, code: int) -> None:
        check(code, lib.riffle_options_error(self.pointer))

    def set(self, option: str, value: SettingValue, name: str = "") -> None:
        """name: the option in errors, as the caller knows it."""
        code = lib.riffle_options_set(self.pointer, option.encode(), text_of(value).encode())
        if code != C.OK:
            words = lib.riffle_options_error(self.pointer).decode("utf-8", "replace")
            text = words.replace(option, name or option, 1)
            check(code, text.encode())

    def get(self, option: str) -> str:
        return str(lib.riffle_options_get(self.pointer, option.encode()).decode())

    def set_progress(self, progress: Any) -> None:
        lib.riffle_options_set_progress(self.pointer, progress, None)

    def set_stop(self, texts: list[str]) -> None:
        self.check(lib.riffle_options_set_stop(self.pointer, strings(texts), len(texts)))

    def set_breakers(self, texts: list[str]) -> None:
        self.check(lib.riffle_options_set_breakers(self.pointer, strings(texts), len(texts)))

    def set_logit_bias(self, pairs: list[C.LogitBias]) -> None:
        array = (C.LogitBias * len(pairs))(*pairs)
        self.check(lib.riffle_options_set_logit_bias(self.pointer, array, len(pairs)))

    def set_grammar(self, grammar: ctypes.c_void_p) -> None:
        self.check(lib.riffle_options_set_grammar(self.pointer, grammar))


def strings(texts: list[str]) -> Any:
    # One more element, which is NULL: the array is not empty even without texts.
    return (ctypes.c_char_p * (len(texts) + 1))(*[text.encode() for text in texts])


def text_of(value: SettingValue) -> str:
    """The value as riffle_options_set takes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral) or float(value).is_integer():
        return str(int(value))
    return repr(float(value))


@functools.lru_cache(maxsize=None)
def table() -> tuple[dict[str, Any], ...]:
    """The rows of the library's table of settings."""
    rows: list[dict[str, Any]] = []
    while row := lib.riffle_setting_at(len(rows)):
        rows.append(facts(row))
    return tuple(rows)


#: The kinds of settings that a context takes.
OF_CONTEXT = ("context", "selection")


def settings_by_name(kinds: tuple[str, ...] = OF_CONTEXT) -> dict[str, dict[str, Any]]:
    """The settings of these kinds, by the names that riffle's JSON output uses and by those of the
    command's flags."""
    found: dict[str, dict[str, Any]] = {}
    for row in table():
        if row["options"] in kinds:
            found.setdefault(row["json"] or row["name"].replace("-", "_"), row)
            found.setdefault(row["name"].replace("-", "_"), row)
    return found


#: llama-cpp-python's names of settings, and the names to use here.
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


def set_setting(
    options: Options, name: str, value: SettingValue, kinds: tuple[str, ...] = OF_CONTEXT
) -> None:
    settings = settings_by_name(kinds)
    row = settings.get(name)
    if row is None:
        raise unknown_name("setting", name, settings, OTHER_NAMES, "riffle.settings() lists all")
    if not isinstance(value, (str, numbers.Real)):
        raise TypeError(f"{name}: found {shown(value)}, expected a str, a number or a bool")
    if row["type"] == "switch":
        bool_argument(name, value)
    elif isinstance(value, bool):
        raise BadArgument(f"{name}: found {value}, expected {row['expected']}", C.BAD_ARGUMENT)
    options.set(row["name"], value, name)


def settings() -> dict[str, str]:
    """The settings that Model and Context take as keyword arguments, and their effects."""
    return {name: row["help"] for name, row in settings_by_name().items() if row["help"]}
