"""What the tests share: a small shape, made-up rows, and attention in double precision to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tierkv

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64
SHAPE = {"num_layers": LAYERS, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
ROOT = Path(__file__).resolve().parents[2]


def rows(tokens: int, heads: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, heads, DIM), dtype=np.float32)


def reference(keys: np.ndarray, values: np.ndarray, queries: np.ndarray, softcap: float = 0.0) -> np.ndarray:
    """Causal attention of the newest tokens, in double precision."""
    keys, values, queries = (a.astype(np.float64) for a in (keys, values, queries))
    out, past, group = np.empty_like(queries), len(keys) - len(queries), queries.shape[1] // keys.shape[1]
    for i, query in enumerate(queries):
        for head in range(queries.shape[1]):
            scores = keys[: past + i + 1, head // group] @ query[head] / np.sqrt(keys.shape[2])
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ values[: past + i + 1, head // group]
    return out


@pytest.fixture
def cache() -> Iterator[tierkv.Cache]:
    with tierkv.Cache("fp16", **SHAPE) as made:
        yield made


def fill(cache: tierkv.Cache, tokens: int, seed: int = 0) -> int:
    """A sequence of made-up tokens in every layer."""
    seq = cache.add_sequence()
    for layer in range(LAYERS):
        cache.append(seq, layer, rows(tokens, KV_HEADS, seed + layer), rows(tokens, KV_HEADS, seed + layer + 100))
    return seq
