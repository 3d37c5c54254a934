"""What tierkv raises: one class for each code of tierkv/status.h, with the sentence that says what was wrong and what to do.

A failed call changes nothing, unless its own documentation says what. Each class is also the built-in one that people expect:
`except ValueError` catches an :class:`InvalidArgument`, `except MemoryError` a :class:`ResourceExhausted`.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The numbers of tierkv/status.h; they never change meaning."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    OUT_OF_RANGE = 3
    RESOURCE_EXHAUSTED = 4
    FAILED_PRECONDITION = 5
    DATA_LOSS = 6
    UNSUPPORTED = 7
    IO_ERROR = 8
    INTERNAL = 9


class Error(Exception):
    """A call that failed. `code` is for programs, `str(error)` for people."""

    code: Code = Code.INTERNAL

    @property
    def message(self) -> str:
        """The sentence."""
        return str(self)


class InvalidArgument(Error, ValueError):
    """Something that can never work: a shape, a NaN, an unknown key."""

    code = Code.INVALID_ARGUMENT


class NotFound(Error, LookupError):
    """An unknown sequence, an evicted position, a missing file."""

    code = Code.NOT_FOUND


class OutOfRange(Error, IndexError):
    """A position or a layer past the end."""

    code = Code.OUT_OF_RANGE


class ResourceExhausted(Error, MemoryError):
    """The byte budget, max_seq_len or the machine's memory is used up, and nothing may be evicted."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(Error, RuntimeError):
    """The right call at the wrong moment: a parked sequence, a closed cache."""

    code = Code.FAILED_PRECONDITION


class DataLoss(Error):
    """Truncated or damaged bytes."""

    code = Code.DATA_LOSS


class Unsupported(Error, NotImplementedError):
    """A newer file, a codec that this build does not have, a model that cannot be served."""

    code = Code.UNSUPPORTED


class IoError(Error, OSError):
    """The operating system said no."""

    code = Code.IO_ERROR


class Internal(Error):
    """A bug in tierkv."""

    code = Code.INTERNAL


CLASSES: dict[int, type[Error]] = {
    int(kind.code): kind
    for kind in (
        InvalidArgument,
        NotFound,
        OutOfRange,
        ResourceExhausted,
        FailedPrecondition,
        DataLoss,
        Unsupported,
        IoError,
        Internal,
    )
}
