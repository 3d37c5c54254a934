"""A prompt on a device that nothing came before: torch attends over its rows as they are.

Attention through the cache would read what leaves the hot tier in its compressed form, as later tokens do. Over the rows themselves
it is exact, and torch's kernel for it is the fastest there is. The rows are stored all the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

PIECE = 2048
"""Queries at a time where a window hides tokens: only the keys they can see are read."""

SHOWN = 2048
"""Tokens of a sequence whose queries learning is shown at least: the first 516 see nothing that an archive would have."""

SHOWN_AT_ONCE = 4096
"""Of all sequences, so that results that nobody wants take little room."""


def is_plain(more: dict[str, Any]) -> bool:
    """Whether torch can do it: neither a softcap nor sinks."""
    return not more.get("softcap") and more.get("s_aux") is None


def shown_of(wanted: int, batch: int, tokens: int, starts: list[int]) -> int:
    """Of how many tokens of a prompt learning, which wants to see so many more, is shown the queries."""
    if wanted == 0:
        return 0
    return min(tokens, max(starts, default=0) + max(-(-wanted // batch), SHOWN))


def pieces_of(tokens: int, batch: int) -> list[tuple[int, int]]:
    """These tokens in pieces, none of them too large for a batch."""
    size = max(1, SHOWN_AT_ONCE // batch)
    return [(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def behind(starts: list[int], first: int) -> list[int]:
    """Where the tokens of each row start, counted from another one."""
    return [max(0, start - first) for start in starts]


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, window: int) -> torch.Tensor:
    tokens = query.shape[2]
    if window == 0 or window >= tokens:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    pieces = []
    for first in range(0, tokens, PIECE):
        last, start = min(first + PIECE, tokens), max(0, first - window + 1)
        own = torch.arange(first, last, device=query.device)[:, None]
        other = torch.arange(start, last, device=query.device)[None, :]
        seen = (other <= own) & (other > own - window)
        q, k, v = query[:, :, first:last], key[:, :, start:last], value[:, :, start:last]
        pieces.append(scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True))
    return torch.cat(pieces, dim=2)


def prompt_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: list[int],
    picks: list[torch.Tensor] | None,
    scale: float | None,
    window: int,
) -> torch.Tensor:
    """[batch, heads, tokens, head_dim] in, [batch, tokens, heads, head_dim] out.

    Padding, before `starts` or not in `picks`, gets zeros.
    """
    if not starts and picks is None:
        return _attend(query, key, value, scale, window).transpose(1, 2)
    batch, heads, tokens, dim = query.shape
    out = query.new_zeros((batch, tokens, heads, dim))
    for row in range(batch):
        places = torch.arange(starts[row], tokens, device=query.device) if picks is None else picks[row]
        if len(places) == 0:
            continue
        places = places.to(query.device)
        q, k, v = (rows[row : row + 1].index_select(2, places) for rows in (query, key, value))
        out[row].index_copy_(0, places, _attend(q, k, v, scale, window)[0].transpose(0, 1))
    return out
