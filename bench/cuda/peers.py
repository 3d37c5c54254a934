"""Attention of others on fp16 rows, which bench.py times beside ours: torch's SDPA (flash and cuDNN) and, where its package is
there, FlashInfer's decoding over pages.

All of them read the same keys and values, and each result is compared with double precision before it is timed. FlashInfer's
pages of 16 tokens are windows on SDPA's tensors, so that the rows of a head lie one behind the other for both.
"""

import functools
import math

import torch
import torch.nn.functional as functional
from timing import median_ms
from torch.nn.attention import SDPBackend, sdpa_kernel

ROTATED = 400e6  # bytes that calls take turns over, more than an L2 cache has
TOLERANCE = 2e-3  # largest relative error of a result that is timed
PAGE = 16
# Cycles in front of a call that keep the host out of it: FlashInfer does more there before it launches.
SLEEP, LONG_SLEEP = 200_000, 1_000_000


@functools.cache
def flashinfer():
    """The module, or None; says which in one line."""
    try:
        import flashinfer as module
    except Exception as error:  # a package without its parts fails in many ways
        print(f"FlashInfer is not here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})", flush=True)
        return None
    print("FlashInfer", module.__version__, flush=True)
    return module


class Rows:
    """Queries, keys and values of a shape, in as many copies as calls take turns over."""

    def __init__(self, batch, query_heads, kv_heads, dim, length, repeats):
        self.batch, self.query_heads, self.kv_heads, self.dim, self.length = batch, query_heads, kv_heads, dim, length
        self.group, self.repeats = query_heads // kv_heads, repeats
        half = dict(device="cuda", dtype=torch.float16)
        sets = min(repeats, max(1, math.ceil(ROTATED / (batch * kv_heads * length * dim * 4))))
        self.sets = [(torch.randn(batch, query_heads, 1, dim, **half), torch.randn(batch, kv_heads, length, dim, **half),
                      torch.randn(batch, kv_heads, length, dim, **half)) for _ in range(sets)]

    @functools.cached_property
    def expected(self):
        """Of the first set: the results of three KV heads in double precision."""
        q, k, v = self.sets[0]
        found = {}
        for at in {0, self.batch * self.kv_heads // 2, self.batch * self.kv_heads - 1}:
            b, h = divmod(at, self.kv_heads)
            heads = slice(h * self.group, (h + 1) * self.group)
            weights = (q[b, heads, 0].double() @ k[b, h].double().T / math.sqrt(self.dim)).softmax(-1)
            found[b, heads.start, heads.stop] = weights @ v[b, h].double()
        return found

    def error(self, result):
        result = result.view(self.batch, self.query_heads, self.dim)
        return max(float((result[b, i:j].double() - want).norm() / want.norm()) for (b, i, j), want in self.expected.items())

    def time(self, call, sleep=SLEEP):
        """Microseconds of call(q, k, v); None: its result is not the one of double precision."""
        error = self.error(call(*self.sets[0]))
        if not error < TOLERANCE:
            print(f"  a peer's error is {error:.1e}: not timed", flush=True)
            return None
        return median_us([lambda s=s: call(*s) for s in self.sets], self.repeats, sleep)


@functools.cache
def other_bytes():
    return torch.zeros(int(ROTATED) // 4, device="cuda", dtype=torch.int32)


def median_us(calls, repeats, sleep=SLEEP):
    """Calls take turns over more bytes than the L2 cache has, or each is called once after others were read."""
    return median_ms(calls, repeats, sleep=sleep, between=lambda: other_bytes().sum()) * 1e3


def sdpa(rows):
    """Name -> microseconds: the heads of a group as heads or as queries ("folded")."""
    times = {}
    for name, which in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        for folded in ((False, True) if rows.group > 1 else (False,)):
            def call(q, k, v):
                if folded:
                    q = q.view(rows.batch, rows.kv_heads, rows.group, rows.dim)
                return functional.scaled_dot_product_attention(q, k, v, enable_gqa=not folded and rows.group > 1)
            try:
                with sdpa_kernel(which):
                    times[name + ("-folded" if folded else "")] = rows.time(call)
            except RuntimeError:
                continue
    return {name: us for name, us in times.items() if us}


def pages(rows, tensor):
    """[page, KV head, token, channel] on [sequence, KV head, token, channel]: one begins PAGE tokens behind the other."""
    count = ((rows.batch - 1) * rows.kv_heads + 1) * rows.length // PAGE
    return tensor.as_strided((count, rows.kv_heads, PAGE, rows.dim),
                             (PAGE * rows.dim, rows.length * rows.dim, rows.dim, 1))


@functools.cache
def workspace():
    return torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)


def flashinfer_us(rows):
    """Name -> microseconds of BatchDecodeWithPagedKVCacheWrapper, with tensor cores and without; planning is not timed."""
    module = flashinfer()
    if module is None or rows.length % PAGE:
        return {}
    each = rows.length // PAGE
    first = torch.arange(rows.batch, dtype=torch.int32) * (rows.kv_heads * each)
    indices = (first[:, None] + torch.arange(each, dtype=torch.int32)).flatten().cuda()
    indptr = torch.arange(rows.batch + 1, dtype=torch.int32) * each
    last = torch.full((rows.batch,), PAGE, dtype=torch.int32)
    times = {}
    for name, tensor_cores in (("flashinfer-tensor", True), ("flashinfer", False)):
        try:
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace(), "HND", use_tensor_cores=tensor_cores)
            wrapper.plan(indptr.cuda(), indices, last.cuda(), rows.query_heads, rows.kv_heads, rows.dim, PAGE,
                         q_data_type=torch.float16, kv_data_type=torch.float16)

            def call(q, k, v):
                return wrapper.run(q.view(rows.batch, rows.query_heads, rows.dim), (pages(rows, k), pages(rows, v)))
            times[name] = rows.time(call, LONG_SLEEP)
        except Exception as error:
            print(f"  {name}: {str(error).strip().splitlines()[-1] if str(error) else error!r}", flush=True)
    return {name: us for name, us in times.items() if us}


def best_of(times):
    """The fastest: (name, microseconds); (None, None) of none."""
    return min(times.items(), key=lambda item: item[1]) if times else (None, None)
