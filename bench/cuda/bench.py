#!/usr/bin/env python3
"""Times attention on a CUDA device beside torch's SDPA, in one process, every result checked before it is timed.

    bench.py LIBRARY [--brief | --grid] [--json FILE] [--caches NAME,NAME...] [--shapes NUMBER,NUMBER...]

--brief takes the four shapes that the project is judged by. --grid takes every shape of 1, 8 and 32 sequences, 8K to 512K tokens,
32/8, 32/32 and 32/4 heads of 64 and 128 channels whose FP16 rows have room in 48 GB, with kivi2, kivi4 and balanced.
Times are medians of CUDA events around one call, the host kept out by a sleep in front, inputs rotated over more than the L2 cache.
A ratio is against the faster of SDPA's flash and cuDNN kernels on fp16 rows of the same shape in the same run.
"""

import ctypes
import itertools
import math
import sys

import torch
import torch.nn.functional as functional
from timing import chosen, median_ms, write
from torch.nn.attention import SDPBackend, sdpa_kernel

ROTATED = 400e6
# Largest relative error of a result that is timed.
TOLERANCE = 2e-3


class Shape(ctypes.Structure):
    _fields_ = [("archive", ctypes.c_char_p), ("warm", ctypes.c_char_p), ("warm_tokens", ctypes.c_uint32), ("hot", ctypes.c_uint32),
                ("sinks", ctypes.c_uint32), ("sequences", ctypes.c_uint32), ("lengths", ctypes.POINTER(ctypes.c_uint32)),
                ("query_heads", ctypes.c_uint32), ("kv_heads", ctypes.c_uint32), ("head_dim", ctypes.c_uint32),
                ("sets", ctypes.c_uint32)]


# Name -> (archive, warm, warm tokens, hot, sinks)
CACHES = {
    "kivi2": ("kivi2", "", 0, 0, 0),
    "rot2": ("rot2", "", 0, 0, 0),
    "kivi4": ("kivi4", "", 0, 0, 0),
    "rot4": ("rot4", "", 0, 0, 0),
    "klt": ("klt1.875", "", 0, 0, 0),
    "klt1.25": ("klt1.25", "", 0, 0, 0),
    "klt+top": ("klt1.25+top4", "", 0, 0, 0),
    "balanced": ("klt1.875", "even4", 448, 64, 4),
    "balanced+top": ("klt1.25+top4", "even4", 448, 64, 4),
}


def load(path):
    lib = ctypes.CDLL(path)
    lib.tierkv_bench_make.restype = ctypes.c_void_p
    lib.tierkv_bench_make.argtypes = [ctypes.POINTER(Shape)]
    lib.tierkv_bench_free.argtypes = [ctypes.c_void_p]
    lib.tierkv_bench_error.restype = ctypes.c_char_p
    lib.tierkv_bench_run.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
    lib.tierkv_bench_check.restype = ctypes.c_double
    lib.tierkv_bench_check.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.tierkv_bench_bytes.restype = ctypes.c_double
    lib.tierkv_bench_bytes.argtypes = [ctypes.c_void_p]
    lib.tierkv_bench_says.restype = ctypes.c_char_p
    lib.tierkv_bench_says.argtypes = [ctypes.c_void_p]
    return lib


def median_us(calls, repeats):
    return median_ms(calls, repeats, sleep=200000) * 1e3


def sdpa_us(batch, query_heads, kv_heads, dim, length, repeats):
    """The faster of flash and cuDNN, heads of a group as heads or as queries, whichever is faster."""
    sets = max(1, math.ceil(ROTATED / (batch * kv_heads * length * dim * 4)))
    group = query_heads // kv_heads
    half = dict(device="cuda", dtype=torch.float16)
    data = [(torch.randn(batch, query_heads, 1, dim, **half), torch.randn(batch, kv_heads, length, dim, **half),
             torch.randn(batch, kv_heads, length, dim, **half)) for _ in range(sets)]
    times = {}
    for name, which in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        for folded in ((False, True) if group > 1 else (False,)):
            def call(q, k, v):
                if folded:
                    q = q.view(batch, kv_heads, group, dim)
                return functional.scaled_dot_product_attention(q, k, v, enable_gqa=not folded and group > 1)
            try:
                with sdpa_kernel(which):
                    times[name + ("-folded" if folded else "")] = median_us([lambda s=s: call(*s) for s in data], repeats)
            except RuntimeError:
                continue
    best = min(times, key=times.get)
    return best, times[best]


def run_case(lib, cache, lengths, query_heads, kv_heads, dim, repeats):
    archive, warm, warm_tokens, hot, sinks = CACHES[cache]
    bits = {"kivi2": 2.3, "rot2": 2.2, "kivi4": 4.3, "rot4": 4.2}.get(cache, 2.0)
    size = sum(lengths) * kv_heads * dim * 2 * bits / 8
    array = (ctypes.c_uint32 * len(lengths))(*lengths)
    shape = Shape(archive.encode(), warm.encode(), warm_tokens, hot, sinks, len(lengths), array, query_heads, kv_heads, dim,
                  max(1, math.ceil(ROTATED / size)))
    bench = lib.tierkv_bench_make(ctypes.byref(shape))
    if not bench:
        raise RuntimeError(lib.tierkv_bench_error().decode())
    try:
        error = lib.tierkv_bench_check(bench, 0)
        if not error < TOLERANCE:
            return {"error": error, "us": float("nan"), "says": lib.tierkv_bench_says(bench).decode(), "tbs": 0.0}
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        calls = [lambda s=s: lib.tierkv_bench_run(bench, s, stream) for s in range(shape.sets)]
        us = median_us(calls, repeats)
        return {"error": error, "us": us, "says": lib.tierkv_bench_says(bench).decode(),
                "tbs": lib.tierkv_bench_bytes(bench) / us / 1e6}
    finally:
        lib.tierkv_bench_free(bench)


def whole_grid():
    shapes = itertools.product((1, 8, 32), ((32, 8), (32, 32), (32, 4)), (128, 64), (8192, 32768, 131072, 524288))
    return [(batch, query, kv, dim, length) for batch, (query, kv), dim, length in shapes if batch * kv * length * dim * 4 < 48e9]


def main():
    lib = load(sys.argv[1])
    brief, all_shapes = "--brief" in sys.argv, "--grid" in sys.argv
    grid = [(8, 32, 8, 128, 131072), (8, 32, 8, 128, 32768), (1, 32, 8, 128, 131072), (1, 32, 32, 128, 131072)]
    if all_shapes:
        grid = whole_grid()
    elif not brief:
        grid += [(1, 32, 8, 128, 8192), (1, 32, 8, 128, 32768), (8, 32, 8, 128, 8192), (32, 32, 8, 128, 8192),
                 (1, 32, 4, 128, 131072), (8, 32, 8, 64, 32768)]
    grid, caches = chosen(grid, CACHES)
    rows = []
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for batch, query_heads, kv_heads, dim, length in grid:
        peer, base = sdpa_us(batch, query_heads, kv_heads, dim, length, 21)
        print(f"B{batch} {query_heads}/{kv_heads} d{dim} L{length}: SDPA {peer} {base:.1f} us, "
              f"{batch * kv_heads * length * dim * 4 / base / 1e6:.2f} TB/s", flush=True)
        torch.cuda.empty_cache()
        for cache in caches:
            small = dim != 128 or length * batch * kv_heads < 1 << 20
            if all_shapes and cache not in ("kivi2", "kivi4", "balanced"):
                continue
            if small and cache not in ("kivi2", "kivi4", "balanced", "balanced+top"):
                continue
            result = run_case(lib, cache, [length] * batch, query_heads, kv_heads, dim, 21)
            result.update(cache=cache, batch=batch, query_heads=query_heads, kv_heads=kv_heads, dim=dim, length=length, sdpa=peer,
                          sdpa_us=base, ratio=base / result["us"])
            rows.append(result)
            print(f"  {cache:12s} {result['us']:8.1f} us  {result['ratio']:.2f}x  {result['tbs']:.2f} TB/s  "
                  f"error {result['error']:.1e}  {result['says']}", flush=True)
    ragged = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
    equal = [sum(ragged) // len(ragged) // 128 * 128] * len(ragged)
    for cache in ("kivi2", "kivi4", "balanced+top") if "--caches" not in sys.argv and not all_shapes else ():
        uneven, even = (run_case(lib, cache, lengths, 32, 8, 128, 21) for lengths in (ragged, equal))
        rows.append({"cache": cache, "ragged_us": uneven["us"], "equal_us": even["us"]})
        print(f"ragged 1K..128K {cache}: {uneven['us']:.1f} us, the same bytes in equal lengths {even['us']:.1f} us, "
              f"{100 * (uneven['us'] / even['us'] - 1):+.0f} %", flush=True)
    write(rows)


if __name__ == "__main__":
    main()
