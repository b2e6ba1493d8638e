"""The command line of riffle-serve.

Flags of a model, a context and an answer are riffle's own, from the table of settings."""

from __future__ import annotations

import argparse
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Any

from .. import Error, __version__
from .._library import nearest_word
from .._settings import Options, name_settings, table

#: The settings that are flags here, and the titles of their groups.
KINDS = {
    "context": "context",
    "selection": "selection of KV",
    "scheduler": "scheduling",
    "sampling": "answers, if the request does not say otherwise",
    "answer": "answers, if the request does not say otherwise",
}


class OptionError(Exception):
    """A flag has a wrong value. The text names it."""


@dataclass
class Serving:
    """All options of the server."""

    model: str = ""
    model_name: str = ""
    chat_template: str | None = None
    weights: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: list[str] = field(default_factory=list)
    api_key_file: str | None = None
    allow_origins: list[str] = field(default_factory=list)
    max_seqs: int = 0
    keep_seqs: int = 8
    max_waiting: int = 64
    max_body: int = 0
    timeout: float = 3600
    read_timeout: float = 30
    write_timeout: float = 60
    shutdown_timeout: float = 10
    max_connections: int = 512
    prefix_cache: str | None = None
    prefix_cache_size: int = 0
    ignore_unknown: bool = False
    access_log: bool = False
    quiet: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the engine
    defaults: Options = field(default_factory=Options)  # options of answers

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def size(text: str) -> int:
    """A number of bytes, such as 4M or 1.5G, as the library reads sizes."""
    options = Options()
    try:
        options.set("host-mem", text)
    except Error:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a size such as 4M") from None
    return int(options.get("host-mem"))


def number(low: float, high: float, kind: type = int) -> Any:
    """A reader of numbers from low to high."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"found {text!r}, expected a number from {low} to {high}"
            )
        return value

    return read


class Setting(argparse.Action):
    """Sets an option of the library's table. The library checks the value."""

    def __init__(self, *args: Any, row: dict[str, Any], **more: Any):
        self.row = row
        super().__init__(*args, **more)

    def __call__(self, parser: Any, space: Any, value: Any, flag: Any = None) -> None:
        row = self.row
        # Errors name the flag as it is typed: --ctx, not -c.
        if flag:
            name_settings({row["name"]: flag})
        checked = Options()
        if self.nargs == 0:  # --no-pin turns pin off
            value = "false" if row["flag"].startswith("--no-") else "true"
        try:
            checked.set(row["name"], value)
        except Error as error:
            parser.error(str(error))
        if row["options"] in ("sampling", "answer"):
            space.defaults.set(row["name"], value)
        elif self.nargs == 0:
            space.settings[row["name"].replace("-", "_")] = value == "true"
        else:
            space.settings[row["name"].replace("-", "_")] = value


def add_settings(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, Any] = {}
    defaults = Options()
    for row in table():
        title = KINDS.get(row["options"])
        if title is None or not row["help"] or row["comparison"]:
            continue
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        switch = row["type"] == "switch" and not row["words"]
        standard = defaults.get(row["name"])
        text = row["help"].replace("%", "%%")
        value: dict[str, Any] = {"nargs": 0} if switch else {}
        if not switch:
            names = {"number": "X", "size": "SIZE"}
            value["metavar"] = "NAME" if row["words"] else names.get(row["type"], "N")
            if row["words"]:
                text += ": " + row["words"].replace("|", ", ")
            text += f" (default: {standard})" if standard else ""
        groups[title].add_argument(
            *row["flag"].split(","),
            action=Setting,
            row=row,
            dest=argparse.SUPPRESS,
            help=text,
            **value,
        )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="riffle-serve",
        usage="riffle-serve -m MODEL [options]",
        description="Answers requests in the form of OpenAI's HTTP API. The page / shows what is "
        "loaded and what runs.",
        epilog="The base URL, such as http://127.0.0.1:8080/v1, is the only line on stdout. It is "
        "printed as soon as requests are answered. The server also answers the paths without the "
        "prefix /v1. Exit codes: 0 after SIGTERM or Ctrl-C, 1 an error such as a port in use, 2 "
        "wrong flags, 3 a bad model file, 4 too little memory, 130 Ctrl-C while the model is "
        "loaded. Environment: RIFFLE_MODEL is the model without -m; RIFFLE_API_KEY is a key in "
        "addition to --api-key.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"riffle-serve {__version__}")
    add("-m", "--model", metavar="PATH", default=os.environ.get("RIFFLE_MODEL", ""),
        help="a GGUF file, a folder with one, or a Hugging Face folder")  # fmt: skip
    add("--model-name", metavar="NAME", default="",
        help="the model's name in requests (default: the name in its file)")  # fmt: skip
    add("--chat-template", metavar="NAME", help="a format in place of the model's own template")
    add("--weights", metavar="TYPE", help="convert the weights while loading, such as q4_k_m")
    add("-q", "--quiet", action="store_true", help="print errors alone")

    http = parser.add_argument_group("HTTP")
    add = http.add_argument
    add("--host", metavar="ADDRESS", default="127.0.0.1",
        help="address to listen on; with the default, only programs on this machine can connect "
        "(default: 127.0.0.1)")  # fmt: skip
    add("--port", metavar="N", type=number(0, 65535), default=8080,
        help="0: any free port; the line on stdout tells which (default: 8080)")  # fmt: skip
    add("--api-key", metavar="KEY", action="append", dest="api_keys", default=[],
        help="refuse requests without this key; may be given again. Other users of the machine can "
        "see it in the list of processes; --api-key-file hides it")  # fmt: skip
    add("--api-key-file", metavar="FILE", help="file with one key a line")
    add("--allow-origin", metavar="URL", action="append", dest="allow_origins", default=[],
        help="let web pages of this origin, such as https://example.org, send requests; may be "
        "given again. Without it, only riffle's own page may")  # fmt: skip
    add("--access-log", action="store_true",
        help="print a line for each request, also for one that is not HTTP")  # fmt: skip

    limits = parser.add_argument_group("limits")
    add = limits.add_argument
    add("--max-seqs", "--parallel", metavar="N", type=number(1, 256), default=0,
        help="number of answers computed at once (default: 8, or fewer if memory is short)"
        )  # fmt: skip
    add("--keep-seqs", metavar="N", type=number(0, 256), default=8,
        help="finished prompts whose KV stays in memory for later ones that begin alike "
        "(default: 8)")  # fmt: skip
    add("--max-waiting", metavar="N", type=number(0, 100000), default=64,
        help="answers that may wait; further requests get status 429 (default: 64)")  # fmt: skip
    add("--max-body", metavar="SIZE", type=size, default=0,
        help="largest body of a request (default: 4M and 32 bytes a token of the context)"
        )  # fmt: skip
    seconds = number(0.1, 1e9, float)
    add("--timeout", metavar="SECONDS", type=seconds, default=3600,
        help="time for a request, from its first byte to the end of its answer (default: 3600)"
        )  # fmt: skip
    add("--read-timeout", metavar="SECONDS", type=seconds, default=30,
        help="time for the headers, and again for the body (default: 30)")  # fmt: skip
    add("--write-timeout", metavar="SECONDS", type=seconds, default=60,
        help="a client that reads nothing for this time is cut off, and its answer ends "
        "(default: 60)")  # fmt: skip
    add("--shutdown-timeout", metavar="SECONDS", type=seconds, default=10,
        help="time for running answers after SIGTERM or Ctrl-C (default: 10)")  # fmt: skip
    add("--max-connections", metavar="N", type=number(1, 100000), default=512,
        help="open connections (default: 512)")  # fmt: skip
    add("--ignore-unknown", action="store_true",
        help="ignore fields of a body that riffle does not know")  # fmt: skip

    cache = parser.add_argument_group("prefix cache")
    add = cache.add_argument
    add("--prefix-cache", metavar="DIR",
        help="folder that keeps prompts of 512 tokens or more for later runs; riffle batch can use "
        "the same folder")  # fmt: skip
    add("--prefix-cache-size", metavar="SIZE", type=size, default=0,
        help="largest size of the folder, such as 100G; prompts least recently used are deleted "
        "first (default: half of the disk's free space)")  # fmt: skip
    add_settings(parser)
    return parser


def unknown_text(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """The error about words that are no flags of this program, on one line."""
    flags = [word.split("=")[0] for word in unknown if word.startswith("-")]
    if not flags:
        return f"found {unknown[0]!r}, expected a flag"
    words = [own.lstrip("-") for own in parser._option_string_actions if own.startswith("--")]
    near = [nearest_word(flag.lstrip("-").replace("_", "-"), words) for flag in flags]
    if len(flags) == 1:
        advice = f"did you mean --{near[0]}?" if near[0] else "--help lists all flags"
        return f"found the unknown flag {flags[0]}; {advice}"
    named = [
        flag + (f" (did you mean --{word}?)" if word else "") for flag, word in zip(flags, near)
    ]
    return f"found the unknown flags {', '.join(named)}; --help lists all flags"


def parse(arguments: list[str]) -> Serving:
    """Reads the command line; a wrong flag ends the program with code 2."""
    name_settings({row["name"]: row["flag"].split(",")[0] for row in table() if row["flag"]})
    parser = make_parser()
    serving = Serving()
    _, unknown = parser.parse_known_args(arguments, namespace=serving)
    if unknown:
        parser.error(unknown_text(parser, unknown))
    if not serving.model:
        parser.error("-m: found no model, expected a GGUF file or a Hugging Face folder")
    return serving


def read_key_files(serving: Serving) -> None:
    """Adds the keys of --api-key-file and of the environment."""
    if serving.api_key_file is not None:
        try:
            with open(serving.api_key_file, encoding="utf-8") as file:
                keys = [line.strip() for line in file if line.strip()]
        except OSError as error:
            raise OSError(f"--api-key-file {serving.api_key_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise OptionError(
                f"--api-key-file {serving.api_key_file}: found bytes that are not UTF-8, expected "
                "keys"
            ) from None
        if not keys:
            raise OptionError(
                f"--api-key-file {serving.api_key_file}: found no key, expected one a line"
            )
        serving.api_keys += keys
    if os.environ.get("RIFFLE_API_KEY"):
        serving.api_keys.append(os.environ["RIFFLE_API_KEY"])
    if any(not key for key in serving.api_keys):
        raise OptionError("--api-key: found an empty text, expected a key")
