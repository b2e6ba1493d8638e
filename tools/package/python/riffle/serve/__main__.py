"""The program riffle-serve."""

from __future__ import annotations

import sys

from .. import Error
from .. import _structs as C
from .options import OptionError, parse, read_key_files


def fail(code: int, text: str) -> int:
    print(f"riffle-serve: {text}", file=sys.stderr)
    return code


#: Exit codes of the library's errors, as riffle(1) has them; all others are 1.
EXIT_CODES = {C.BAD_MODEL: 3, C.OUT_OF_MEMORY: 4, C.NO_SLOT: 4}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code; --help lists them."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        from .server import serve
    except ImportError as error:
        return fail(1, f"{error}; install the wheel with [serve]: pip install 'riffle-....whl[serve]'")
    try:
        read_key_files(options)
        serve(options)
    except OptionError as error:
        return fail(2, str(error))
    except Error as error:
        return fail(EXIT_CODES.get(error.code, 1), str(error))
    except OSError as error:
        return fail(1, str(error))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
