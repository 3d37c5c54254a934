"""What Python itself costs in a layer of a step: all of update() and the attention function but the call into C++.

python step_cost.py

The model is a tiny one of random weights: its size does not matter, because what it computes is not counted.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tierkv.hf import TieredCache
from tierkv.hf.attention import attention

LAYERS, HEADS, KV_HEADS, DIM = 3, 4, 2, 32
ROUNDS, STEPS = 15, 60


@torch.no_grad()
def measure() -> list[tuple[float, float]]:
    """Microseconds for a layer and a step, for each round: Python's own, and with the call."""
    torch.set_num_threads(1)
    config = LlamaConfig(vocab_size=99, hidden_size=HEADS * DIM, intermediate_size=64, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    cache = TieredCache("fp16", model, learn=False)
    module, below, inside = model.model.layers[0].self_attn, cache.step, 0

    def step(*arguments: Any) -> None:
        nonlocal inside
        start = time.perf_counter_ns()
        below(*arguments)
        inside += time.perf_counter_ns() - start

    cache.step = step
    query, key, value = torch.randn(1, HEADS, 1, DIM), torch.randn(1, KV_HEADS, 1, DIM), torch.randn(1, KV_HEADS, 1, DIM)
    rounds: list[Any] = []
    for _ in range(ROUNDS):
        inside, start = 0, time.perf_counter_ns()
        for _ in range(STEPS):
            for layer in range(LAYERS):
                keys, values = cache.update(key, value, layer)
                attention(module, query, keys, values, None, scaling=0.2)
        all_of_it = time.perf_counter_ns() - start
        rounds.append(tuple(spent / (STEPS * LAYERS) / 1000 for spent in (all_of_it - inside, all_of_it)))
    return rounds


if __name__ == "__main__":
    own, whole = zip(*measure())
    print(
        f"{min(own):.1f} us a layer and step in the best of {ROUNDS} rounds, {statistics.median(own):.1f} in the median; "
        f"with the call into C++ {min(whole):.1f} and {statistics.median(whole):.1f}"
    )
