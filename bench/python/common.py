"""What the measurements of this folder share: lines, lists of settings, and a clock around a function."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def say(line: str) -> None:
    """A line at once: some take minutes."""
    print(line, flush=True)


def settings(text: str) -> list[str]:
    """Names of a list; one with commas of its own is put in brackets: fp16,[balanced,hot=128]."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(text[start:i].strip("[]"))
            start = i + 1
    return [name for name in found if name]


class Clock:
    """A function that keeps count of its time, microseconds of each call: what is spent in the cache, layer by layer."""

    def __init__(self, function: Any, now: Callable[[], float] = time.perf_counter) -> None:
        self.function, self.now, self.times = function, now, []

    def __call__(self, *arguments: Any) -> Any:
        start = self.now()
        try:
            return self.function(*arguments)
        finally:
            self.times.append((self.now() - start) * 1e6)
