"""Memory by tier as a small table."""

from __future__ import annotations

from html import escape

from ._core import TIER_NAMES, MemoryStats


def size_text(count: int) -> str:
    """ "12.3 MiB" """
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


class TierTable:
    """Tokens, bytes and bits a value of each tier. `print` it, or leave it as the last line of a notebook's cell."""

    def __init__(self, memory: MemoryStats, streams: int, head_dim: int) -> None:
        """`streams`: layers times KV heads, over which the statistics sum their tokens."""
        self.memory = memory
        self.rows: list[tuple[str, str, str, str]] = []
        for name, tier in zip(TIER_NAMES, memory.tier):
            if tier.tokens:
                tokens = f"{tier.tokens / max(streams, 1):,.0f}"
                self.rows.append((name, tokens, size_text(tier.bytes()), f"{tier.bits_per_value(head_dim):.2f}"))
        if memory.parked_tokens:
            self.rows.append(("parked", f"{memory.parked_tokens / max(streams, 1):,.0f}", size_text(memory.parked_bytes), ""))

    HEADER = ("tier", "tokens", "bytes", "bits a value")

    @property
    def summary(self) -> str:
        """ "12.3 MiB, 5.7x smaller than FP16" """
        memory = self.memory
        times = memory.compression()
        verdict = f"{times:.1f}x smaller than FP16" if times >= 1 else f"FP16 alone would be {size_text(memory.fp16_bytes)}"
        return f"{size_text(memory.resident_bytes())}, {verdict}"

    def __str__(self) -> str:
        lines = [self.HEADER, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(4)]
        text = ["  ".join([line[0].ljust(widths[0])] + [line[i].rjust(widths[i]) for i in (1, 2, 3)]) for line in lines]
        return "\n".join([*text, self.summary])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def cells(line: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag} style='text-align:right'>{escape(cell)}</{tag}>" for cell in line) + "</tr>"

        body = "".join(cells(row, "td") for row in self.rows)
        return f"<table>{cells(self.HEADER, 'th')}{body}</table><p>{escape(self.summary)}</p>"
