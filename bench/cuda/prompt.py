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
from timing import chosen, median_ms, medians_in_turns, write
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


def sdpa_calls(tokens, past, query_heads, kv_heads, dim):
    """Name -> a call of torch's SDPA over the past."""
    half = dict(device="cuda", dtype=torch.float16)
    q = torch.randn(1, query_heads, tokens, dim, **half)
    k, v = (torch.randn(1, kv_heads, past, dim, **half) for _ in range(2))
    group = query_heads // kv_heads
    wide = [x.repeat_interleave(group, 1) for x in (k, v)] if group > 1 else None

    def call(which, keys, values, grouped):
        with sdpa_kernel(which):
            functional.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped)

    calls = {}
    for name, which in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        calls[name] = lambda which=which: call(which, k, v, group > 1)
        if wide:
            calls[name + "-repeated"] = lambda which=which: call(which, *wide, False)
    return calls


def sdpa_times(calls, repeats):
    times = {}
    for name, call in calls.items():
        try:
            times[name] = median_ms([call], repeats, warm_up=2)
        except RuntimeError:
            continue
    return times


def run_case(lib, cache, shape, peer, repeats):
    """`peer`: a call that is timed in turns with ours. What a device at full load has warmed up to is the same for both then."""
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
        ours, theirs = medians_in_turns([lambda: lib.tierkv_prompt_run(bench, 7, stream), peer], 2 * repeats + 1)
        result["turns_ms"], result["turns_sdpa_ms"] = ours, theirs
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
        calls = sdpa_calls(*shape)
        times = sdpa_times(calls, 9)
        best = min(times, key=times.get)
        print(f"{tokens} tokens, past {past}, {query_heads}/{kv_heads}, d{dim}: SDPA " +
              ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items()) + f"; {work / times[best]:.0f} TFLOP/s", flush=True)
        for cache in caches:
            result = run_case(lib, cache, shape, calls[best], 9)
            rows.append(result | {"shape": shape, "sdpa": times})
            if "ms" not in result:
                print(f"  {cache:10s} wrong: error {result['error']:.1e}", flush=True)
                continue
            print(f"  {cache:10s} {result['ms']:7.2f} ms  {times[best] / result['ms']:.2f}x, in turns {result['turns_ms']:.2f} of "
                  f"{result['turns_sdpa_ms']:.2f}: {result['turns_sdpa_ms'] / result['turns_ms']:.2f}x  "
                  f"(unpack {result['unpack_ms']:.2f}, attend {result['attend_ms']:.2f}: {work / result['attend_ms']:.0f} TFLOP/s, "
                  f"merge {result['merge_ms']:.2f})  "
                  f"error {result['error']:.1e}, {result['rounds']} rounds, past {result['past_bytes'] / 1e6:.0f} MB, "
                  f"scratch and states {result['scratch_bytes'] / 1e6:.0f} MB", flush=True)
        del calls
        torch.cuda.empty_cache()
    write(rows)


if __name__ == "__main__":
    main()
