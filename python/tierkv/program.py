"""The program `tierkv` of the wheel, and the script of that name that runs it.

The program is C++ and brings libllama along: it lies beside this file in `_program`, unless the wheel was built without it.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

BUNDLED = pathlib.Path(__file__).parent / "_program" / "bin" / "tierkv"

MISSING = (
    "the program tierkv is not in this wheel, because libllama or a library it needs could not be had when the wheel was built. "
    "Build again where there is a network and `make deps` has run: "
    "`pip install --force-reinstall --no-deps -C cmake.define.TIERKV_PYTHON_PROGRAM=ON .` says what is missing; or `make install` "
    "in a clone puts the program on the PATH"
)


def bundled() -> str | None:
    """The path of the program in the wheel, or None."""
    return str(BUNDLED) if BUNDLED.is_file() else None


def run(program: str, arguments: Sequence[str], who: str) -> int:
    """The program in our place: its signals, its exit status. Returns only when it cannot be started."""
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        print(f"{who}: {program} cannot be run: {error.strerror}", file=sys.stderr)
        return 2


def main() -> int:
    """The script `tierkv`."""
    program = bundled()
    if program is None:
        print(f"tierkv: {MISSING}. `python -m tierkv --help` shows what there is without it", file=sys.stderr)
        return 2
    return run(program, sys.argv[1:], "tierkv")
