"""Text as it comes, and what the cache takes meanwhile."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from transformers import TextStreamer

from .cache import TieredCache

LETTERS = "SHWA"


class TieredStreamer(TextStreamer):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """A TextStreamer that says every `every` tokens in a line what the tiers hold, and ends with the table.

    >>> model.generate(**inputs, past_key_values=cache, streamer=TieredStreamer(tokenizer, cache))

    Text goes to standard output, the lines about tiers to `notes`, by default standard error.
    """

    def __init__(
        self,
        tokenizer: Any,
        cache: TieredCache,
        every: int = 64,
        skip_prompt: bool = True,
        notes: TextIO | None = None,
        **decode: Any,
    ) -> None:
        super().__init__(tokenizer, skip_prompt=skip_prompt, **decode)
        self.cache = cache
        self.every = every
        self.notes = notes or sys.stderr
        self.steps = 0

    def line(self) -> str:
        """ "[SHHWWWWAAAA·········] 12.3 MiB, 5.7x smaller than FP16": a full bar is what FP16 would take."""
        memory, width = self.cache.memory_usage(), 20
        whole = max(memory.fp16_bytes, memory.resident_bytes(), 1)
        bar = "".join(letter * round(width * tier.bytes() / whole) for letter, tier in zip(LETTERS, memory.tier))
        return f"[{bar[:width].ljust(width, '·')}] {self.cache.tiers().summary}"

    def put(self, value: Any) -> None:
        """Tokens from generate(); the prompt comes first."""
        super().put(value)
        self.steps += 1
        if self.every and self.steps % self.every == 0:
            print(f"\n{self.line()}", file=self.notes, flush=True)

    def end(self) -> None:
        """The last words, and the table."""
        super().end()
        print(self.cache.tiers(), file=self.notes, flush=True)
