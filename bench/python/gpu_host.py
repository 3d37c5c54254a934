"""Where the caller's time goes in a step of `generate` on a CUDA device: calls of the cache, Python around them, the rest.

    python gpu_host.py --ctx 32768 --batch 1 --layers 4

A context as gpu.py makes it, then `generate` with clocks around the functions of tierkv that every layer calls, then the calls of
the cache one by one: on a device that has nothing else to do; after other work of the processor, which leaves nothing of ours in
its caches, as a model does; and behind each other, with the time that the device takes for one. Microseconds: medians, of the
wall's clock and of the thread's own; where the two differ the thread waits. `--profile N` is cProfile's list of so many functions,
whose own cost makes all slower.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import time
from typing import Any

import torch
from common import Clock, say
from gpu import WARM_UP, fill_ours, generate, make_model

from tierkv.hf import TieredCache
from tierkv.hf.layer import TieredLayer


class Both:
    """A function under two clocks, as a method too."""

    def __init__(self, function: Any) -> None:
        self.thread = Clock(function, time.thread_time)
        self.wall = Clock(self.thread)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else lambda *arguments, **more: self.wall(owner, *arguments, *more.values())

    def __call__(self, *arguments: Any) -> Any:
        return self.wall(*arguments)

    def text(self, skip: int = 0) -> str:
        wall, thread = self.wall.times[skip:], self.thread.times[skip:]
        return f"{statistics.median(wall):7.1f} us, thread {statistics.median(thread):7.1f}, mean {statistics.fmean(wall):7.1f}"


def clocked(model: Any, cache: TieredCache, batch: int, tokens: int, context: int) -> None:
    """`generate` with a clock around what every layer calls."""
    layers = cache.shape.num_layers
    step, attend, update = Both(cache.tiered._core.step), Both(TieredLayer.attend), Both(TieredCache.update)
    plain = (TieredLayer.attend, TieredCache.update)
    cache.step = step
    TieredLayer.attend, TieredCache.update = attend, update  # type: ignore[assignment, method-assign]
    try:
        rate = generate(model, cache, batch, tokens, context)
    finally:
        TieredLayer.attend, TieredCache.update = plain  # type: ignore[method-assign]
        cache.step = cache.tiered._core.step
    skip = WARM_UP * layers
    say(f"generate, clocks on: {rate:.1f} tokens/s, {1e6 * batch / rate / layers:.0f} us a layer and token")
    for name, clock in (("update, of a layer", update), ("attend, of a layer", attend), ("  step, in it", step)):
        say(f"  {name:28} {clock.text(skip)}")


@torch.no_grad()
def one_by_one(cache: TieredCache, batch: int, repeats: int, dtype: torch.dtype) -> None:
    """The calls of the cache alone: each on an idle device, hot and cold; and behind each other."""
    shape, core, device = cache.shape, cache.tiered._core, f"cuda:{cache.shape.device}"
    stream = torch.cuda.current_stream().cuda_stream

    def rows(heads: int) -> torch.Tensor:
        return torch.randn((batch, 1, heads, shape.head_dim), device=device, dtype=dtype).transpose(1, 2)

    other = torch.zeros(8 << 20, dtype=torch.uint8, device="cpu")
    query, key, value = rows(shape.num_heads), rows(shape.num_kv_heads), rows(shape.num_kv_heads)
    size = (batch, 1, shape.num_heads, shape.head_dim)
    out, floats = (torch.empty(size, device=device, dtype=kind) for kind in (dtype, torch.float32))
    ids, queries = cache.sequence_ids, [query[row].transpose(0, 1) for row in range(batch)]
    outs, firsts, masses = list(floats), [-1] * batch, [None] * batch
    calls = {
        "step, append and attention": lambda: core.step(0, ids, [], query, key, value, out, 0.0, 0.0, 0, stream, False),
        "step, append alone": lambda: core.step(0, ids, [], None, key, value, None, 0.0, 0.0, 0, stream, False),
        "attention alone": lambda: core.attention_many(0, ids, queries, outs, firsts, masses, True, 0.0, 0.0, None, False, stream),
        "step, results in float32": lambda: core.step(0, ids, [], query, key, value, floats, 0.0, 0.0, 0, stream, False),
        "results of all layers, made": lambda: query.new_empty((shape.num_layers, *size)).unbind(),
        "the current stream": lambda: torch.cuda.current_stream(device).cuda_stream,
        "learning()": cache.tiered.learning,
    }
    for name, call in calls.items():
        idle, cold, busy = Both(call), Both(call), Both(call)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(repeats):
            torch.cuda.synchronize()
            idle()
        for _ in range(repeats):
            torch.cuda.synchronize()
            other.add_(1)
            cold()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            busy()
        end.record()
        torch.cuda.synchronize()
        there = 1e3 * begin.elapsed_time(end) / repeats
        say(f"  {name:28} {idle.text(4)}; cold {cold.text(4)}; behind each other {busy.text(4)}, on the device {there:.1f}")


def profiled(model: Any, cache: TieredCache, batch: int, context: int, lines: int) -> None:
    """cProfile of `generate`."""
    profile, text = cProfile.Profile(), io.StringIO()
    profile.enable()
    generate(model, cache, batch, 32, context)
    profile.disable()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(lines)
    say("\n".join(line[:150] for line in text.getvalue().splitlines() if line.strip()))


def main() -> None:
    parser = argparse.ArgumentParser(description="the caller's time of a step on a CUDA device")
    parser.add_argument("--ctx", type=int, default=32768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--cache", default="balanced,calibrate=off")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"], help="of the model")
    parser.add_argument("--tables", help="a calibration file")
    parser.add_argument("--profile", type=int, default=0, help="functions of cProfile's list")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = make_model(options.layers, "cuda", dtype)
    torch.backends.cuda.enable_cudnn_sdp(False)
    cache = TieredCache(options.cache, model, learn=False, calibration=options.tables)
    fill_ours(cache, options.batch, options.ctx)
    say(f"{torch.cuda.get_device_name()}, {options.layers} layers, {options.batch} x {options.ctx}, "
        f"{options.dtype}, {cache.describe()}")  # fmt: skip

    def again() -> None:
        cache.crop(options.ctx - cache.get_seq_length())

    rate = generate(model, cache, options.batch, options.tokens, options.ctx)
    say(f"generate: {rate:.1f} tokens/s, {1e6 * options.batch / rate / options.layers:.0f} us a layer and token")
    again()
    clocked(model, cache, options.batch, options.tokens, options.ctx)
    again()
    one_by_one(cache, options.batch, 40, dtype)
    if options.profile:
        cache.roll_back(options.ctx)
        profiled(model, cache, options.batch, options.ctx, options.profile)
    cache.device.check()


if __name__ == "__main__":
    main()
