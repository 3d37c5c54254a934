"""`generate` of two or more caches in turns, in one process: on a shared machine processes differ by half, turns do not.

    python gpu_turns.py --ctx 32768 --batch 1 --layers 8 --rounds 9

Contexts as gpu.py makes them, all caches filled first. Then round after round each makes --tokens tokens behind what it has:
medians of tokens a second, and of the ratio to the first cache in the same round. What the caller's thread takes of a token is
printed too: where that is as much as the time, the device waits for the caller. And the bytes on the device: of ours the most that
the cache had there, of others what their tensors take.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from common import say, settings
from gpu import bytes_of, fill_other, fill_ours, fp16_bytes, generate, make, make_model

from tierkv.hf import TieredCache


def main() -> None:
    parser = argparse.ArgumentParser(description="caches in turns on a CUDA device")
    parser.add_argument("--ctx", type=int, default=32768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--caches", default="DynamicCache flash,[balanced,calibrate=off]")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--tables", help="a calibration file for ours")
    options = parser.parse_args()
    model = make_model(options.layers, "cuda", getattr(torch, options.dtype))
    caches = {}
    for name in settings(options.caches):
        cache = make(name, model, options.tables)
        if isinstance(cache, TieredCache):
            fill_ours(cache, options.batch, options.ctx)
        else:
            fill_other(cache, model, options.batch, options.ctx)
        caches[name] = cache
    torch.backends.cuda.enable_cudnn_sdp(False)  # its plans anew for every length
    rates: dict[str, list[float]] = {name: [] for name in caches}
    thread: dict[str, list[float]] = {name: [] for name in caches}
    for turn in range(options.rounds + 1):
        for name, cache in caches.items():
            begin = time.thread_time()
            rate = generate(model, cache, options.batch, options.tokens, cache.get_seq_length())
            if turn != 0:  # the first one warms up
                rates[name].append(rate)
                thread[name].append(1e3 * (time.thread_time() - begin) / options.tokens)
    first = next(iter(caches))
    for name, own in rates.items():
        ratio = statistics.median(a / b for a, b in zip(own, rates[first], strict=True))
        say(f"{name:32} {options.ctx:7} x {options.batch}, {options.layers} layers: {statistics.median(own):8.1f} tokens/s "
            f"(best {max(own):.1f}), {ratio:.3f} times {first}; the caller's thread {statistics.median(thread[name]):.2f} ms "
            f"of {1e3 * options.batch / statistics.median(own):.2f} a token")  # fmt: skip
        cache = caches[name]
        there = cache.device_usage().peak_bytes if isinstance(cache, TieredCache) else bytes_of(cache)
        fp16 = fp16_bytes(model, options.batch * cache.get_seq_length())
        say(f"{'':32} {there / 2**30:.2f} GiB on the device, FP16 is {fp16 / 2**30:.2f}: {fp16 / there:.2f}x")


if __name__ == "__main__":
    main()
