#!/usr/bin/env python3
"""Times prompts on a CUDA device beside torch's SDPA: many queries against a compressed past, in one process, checked before timed.

    prompt.py LIBRARY [--json FILE] [--caches NAME,NAME...] [--shapes NUMBER,NUMBER...]

Times are medians of CUDA events around all launches of a call. Ours is attention over the past and the new tokens themselves,
causal; SDPA's is over fp16 rows of the past alone, without a mask, which is less: the faster of flash and cuDNN, and of heads of a
group as heads or their keys and values repeated (the copy not counted).
"""

import ctypes
import sys

import torch
import torch.nn.functional as functional
from timing import chosen, median_ms, write
from torch.nn.attention import SDPBackend, sdpa_kernel

# Largest relative error of a result that is timed.
TOLERANCE = 1e-3
UNPACK, ATTEND, MERGE = 1, 2, 4


class Shape(ctypes.Structure):
    _fields_ = [("archive", ctypes.c_char_p), ("warm", ctypes.c_char_p), ("warm_tokens", ctypes.c_uint32),
                ("sinks", ctypes.c_uint32), ("past", ctypes.c_uint32), ("tokens", ctypes.c_uint32),
                ("query_heads", ctypes.c_uint32),
                ("kv_heads", ctypes.c_uint32), ("head_dim", ctypes.c_uint32)]


# Name -> (archive, warm, warm tokens, sinks)
CACHES = {
    "balanced": ("klt1.25+top4", "even4", 448, 4),
    "klt": ("klt1.875", "even4", 448, 4),
    "kivi2": ("kivi2", "even4", 0, 0),
    "fp16": ("fp16", "even4", 0, 0),
}
# Tokens, past, query heads, KV heads, head_dim
SHAPES = [(2048, 131072, 32, 8, 128), (2048, 131072, 32, 8, 64), (512, 131072, 32, 8, 128), (2048, 8192, 32, 8, 128),
          (64, 131072, 32, 8, 128), (2048, 131072, 32, 32, 128)]


def load(path):
    lib = ctypes.CDLL(path)
    lib.tierkv_prompt_make.restype = ctypes.c_void_p
    lib.tierkv_prompt_make.argtypes = [ctypes.POINTER(Shape)]
    lib.tierkv_prompt_free.argtypes = [ctypes.c_void_p]
    lib.tierkv_prompt_error.restype = ctypes.c_char_p
    lib.tierkv_prompt_run.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
    for name in ("check", "bytes", "scratch"):
        getattr(lib, "tierkv_prompt_" + name).restype = ctypes.c_double
        getattr(lib, "tierkv_prompt_" + name).argtypes = [ctypes.c_void_p]
    lib.tierkv_prompt_rounds.argtypes = [ctypes.c_void_p]
    return lib


def sdpa_ms(tokens, past, query_heads, kv_heads, dim, repeats):
    half = dict(device="cuda", dtype=torch.float16)
    q = torch.randn(1, query_heads, tokens, dim, **half)
    k, v = (torch.randn(1, kv_heads, past, dim, **half) for _ in range(2))
    group = query_heads // kv_heads
    wide = [x.repeat_interleave(group, 1) for x in (k, v)] if group > 1 else None
    times = {}
    for name, which in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        for repeated in (False, True) if wide else (False,):
            keys, values = wide if repeated else (k, v)
            try:
                with sdpa_kernel(which):
                    grouped = not repeated and group > 1
                    times[name + ("-repeated" if repeated else "")] = median_ms(
                        [lambda: functional.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped)], repeats, warm_up=2)
            except RuntimeError:
                continue
    return times


def run_case(lib, cache, shape, repeats):
    archive, warm, warm_tokens, sinks = CACHES[cache]
    tokens, past, query_heads, kv_heads, dim = shape
    bench = lib.tierkv_prompt_make(ctypes.byref(
        Shape(archive.encode(), warm.encode(), warm_tokens, sinks, past, tokens, query_heads, kv_heads, dim)))
    if not bench:
        raise RuntimeError(lib.tierkv_prompt_error().decode())
    try:
        result = {"cache": cache, "error": lib.tierkv_prompt_check(bench), "rounds": lib.tierkv_prompt_rounds(bench),
                  "past_bytes": lib.tierkv_prompt_bytes(bench), "scratch_bytes": lib.tierkv_prompt_scratch(bench)}
        if not result["error"] < TOLERANCE:
            return result
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for name, what in (("ms", 7), ("unpack_ms", UNPACK), ("attend_ms", ATTEND), ("merge_ms", MERGE)):
            result[name] = median_ms([lambda: lib.tierkv_prompt_run(bench, what, stream)], repeats, warm_up=2)
        return result
    finally:
        lib.tierkv_prompt_free(bench)


def main():
    lib = load(sys.argv[1])
    shapes, caches = chosen(SHAPES, CACHES)
    rows = []
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for shape in shapes:
        tokens, past, query_heads, kv_heads, dim = shape
        work = 4e-9 * tokens * past * query_heads * dim
        times = sdpa_ms(*shape, 9)
        best = min(times, key=times.get)
        print(f"{tokens} tokens, past {past}, {query_heads}/{kv_heads}, d{dim}: SDPA " +
              ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items()) + f"; {work / times[best]:.0f} TFLOP/s", flush=True)
        torch.cuda.empty_cache()
        for cache in caches:
            result = run_case(lib, cache, shape, 9)
            rows.append(result | {"shape": shape, "sdpa": times})
            if "ms" not in result:
                print(f"  {cache:10s} wrong: error {result['error']:.1e}", flush=True)
                continue
            print(f"  {cache:10s} {result['ms']:7.2f} ms  {times[best] / result['ms']:.2f}x  (unpack {result['unpack_ms']:.2f}, "
                  f"attend {result['attend_ms']:.2f}: {work / result['attend_ms']:.0f} TFLOP/s, merge {result['merge_ms']:.2f})  "
                  f"error {result['error']:.1e}, {result['rounds']} rounds, past {result['past_bytes'] / 1e6:.0f} MB, "
                  f"scratch and states {result['scratch_bytes'] / 1e6:.0f} MB", flush=True)
    write(rows)


if __name__ == "__main__":
    main()
