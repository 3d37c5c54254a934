#!/usr/bin/env python3
"""Times attention on a CUDA device beside torch's SDPA and FlashInfer, in one process, every result checked before it is timed.

    bench.py LIBRARY [--brief | --grid [--part I/N]] [--json FILE] [--caches NAME,NAME...] [--shapes NUMBER,NUMBER...]

--brief takes the four shapes that the project is judged by. --grid takes every shape of 1, 8 and 32 sequences, 8K to 512K tokens,
32/8, 32/32 and 32/4 heads of 64 and 128 channels whose FP16 rows have room in 75 GB, with kivi2, kivi4 and balanced; --part takes
every Nth of them. The grid's file is written after each shape, and shapes that it has are not measured again.
Times are medians of CUDA events around one call, the host kept out by a sleep in front, inputs rotated over more than the L2 cache.
A ratio is against the faster of SDPA's flash and cuDNN kernels on fp16 rows of the same shape in the same run. FlashInfer is timed
where Python finds its package, and has a ratio of its own.
"""

import ctypes
import itertools
import json
import math
import sys
import time
from pathlib import Path

import peers
import torch
from peers import ROTATED, TOLERANCE, median_us
from timing import chosen, option, write


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


def run_case(lib, cache, lengths, query_heads, kv_heads, dim, repeats):
    archive, warm, warm_tokens, hot, sinks = CACHES[cache]
    bits = {"kivi2": 2.3, "rot2": 2.2, "kivi4": 4.3, "rot4": 4.2}.get(cache, 2.0)
    size = sum(lengths) * kv_heads * dim * 2 * bits / 8
    array = (ctypes.c_uint32 * len(lengths))(*lengths)
    shape = Shape(archive.encode(), warm.encode(), warm_tokens, hot, sinks, len(lengths), array, query_heads, kv_heads, dim,
                  min(repeats, max(1, math.ceil(ROTATED / size))))
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
    """The shapes of --grid, or of its --part."""
    shapes = itertools.product((1, 8, 32), ((32, 8), (32, 32), (32, 4)), (128, 64), (8192, 32768, 131072, 524288))
    grid = [(batch, query, kv, dim, length) for batch, (query, kv), dim, length in shapes if batch * kv * length * dim * 4 < 75e9]
    part, parts = (int(n) for n in (option("--part") or "1/1").split("/"))
    return grid[part - 1::parts]


def shape_of(row):
    return tuple(row.get(name) for name in ("batch", "query_heads", "kv_heads", "dim", "length"))


def measured_peers(shape, repeats):
    """What a row has of the others; prints it."""
    rows = peers.Rows(*shape, repeats)
    times = peers.sdpa(rows)
    name, us = peers.best_of(times)
    others = peers.flashinfer_us(rows)
    other, other_us = peers.best_of(others)
    batch, query_heads, kv_heads, dim, length = shape
    size = batch * kv_heads * length * dim * 4
    print(f"B{batch} {query_heads}/{kv_heads} d{dim} L{length}: SDPA {name} {us:.1f} us, {size / us / 1e6:.2f} TB/s"
          + (f"; {other} {other_us:.1f} us, {size / other_us / 1e6:.2f} TB/s" if other else ""), flush=True)
    del rows
    torch.cuda.empty_cache()
    return {"sdpa": name, "sdpa_us": us, "flashinfer": other, "flashinfer_us": other_us,
            "peers_us": {key: round(value, 2) for key, value in {**times, **others}.items()}}


def measure(lib, shape, caches, repeats):
    """A row for each cache."""
    beside = measured_peers(shape, repeats)
    batch, query_heads, kv_heads, dim, length = shape
    rows = []
    for cache in caches:
        result = run_case(lib, cache, [length] * batch, query_heads, kv_heads, dim, repeats)
        result.update(cache=cache, batch=batch, query_heads=query_heads, kv_heads=kv_heads, dim=dim, length=length, **beside)
        result["ratio"] = beside["sdpa_us"] / result["us"]
        if beside["flashinfer_us"]:
            result["flashinfer_ratio"] = beside["flashinfer_us"] / result["us"]
        rows.append(result)
        print(f"  {cache:12s} {result['us']:8.1f} us  {result['ratio']:.2f}x"
              + (f"  {result['flashinfer_ratio']:.2f}x FlashInfer" if "flashinfer_ratio" in result else "")
              + f"  {result['tbs']:.2f} TB/s  error {result['error']:.1e}  {result['says']}", flush=True)
    return rows


def measure_grid(lib):
    """Shape by shape into the file, which may have some already. False: some could not be measured."""
    grid, caches = chosen(whole_grid(), CACHES)
    caches = [name for name in caches if name in ("kivi2", "kivi4", "balanced")]
    file = option("--json")
    rows = json.loads(Path(file).read_text(encoding="utf-8")) if file and Path(file).exists() else []
    known, whole = {shape_of(row) for row in rows}, True
    for shape in grid:
        if shape in known:
            continue
        begin = time.monotonic()
        try:
            rows += measure(lib, shape, caches, 11)
        except RuntimeError as error:  # memory, say
            print(f"{shape}: {error}", flush=True)
            whole = False
            continue
        print(f"  {time.monotonic() - begin:.1f} s", flush=True)
        write(rows)
    return whole


def measure_ragged(lib):
    ragged = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
    equal = [sum(ragged) // len(ragged) // 128 * 128] * len(ragged)
    rows = []
    for cache in ("kivi2", "kivi4", "balanced+top"):
        uneven, even = (run_case(lib, cache, lengths, 32, 8, 128, 21) for lengths in (ragged, equal))
        rows.append({"cache": cache, "ragged_us": uneven["us"], "equal_us": even["us"]})
        print(f"ragged 1K..128K {cache}: {uneven['us']:.1f} us, the same bytes in equal lengths {even['us']:.1f} us, "
              f"{100 * (uneven['us'] / even['us'] - 1):+.0f} %", flush=True)
    return rows


def main():
    lib = load(sys.argv[1])
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    if "--grid" in sys.argv:
        sys.exit(0 if measure_grid(lib) else 1)
    grid = [(8, 32, 8, 128, 131072), (8, 32, 8, 128, 32768), (1, 32, 8, 128, 131072), (1, 32, 32, 128, 131072)]
    if "--brief" not in sys.argv:
        grid += [(1, 32, 8, 128, 8192), (1, 32, 8, 128, 32768), (8, 32, 8, 128, 8192), (32, 32, 8, 128, 8192),
                 (1, 32, 4, 128, 131072), (8, 32, 8, 64, 32768)]
    grid, caches = chosen(grid, CACHES)
    rows = []
    for shape in grid:
        batch, _, kv_heads, dim, length = shape
        small = dim != 128 or length * batch * kv_heads < 1 << 20
        rows += measure(lib, shape, [name for name in caches
                                     if not small or name in ("kivi2", "kivi4", "balanced", "balanced+top")], 21)
    if "--caches" not in sys.argv:
        rows += measure_ragged(lib)
    write(rows)


if __name__ == "__main__":
    main()
