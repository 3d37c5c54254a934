#!/usr/bin/env python3
"""Times whole decoding steps of an 8B-shaped model with random weights, its keys and values in a cache on the device, beside the same
model with SDPA over preallocated bf16 keys and values, in one process.

    model_step.py LIBRARY [--spec SPEC] [--tokens N] [--batch N] [--layers N] [--kept N] [--steps N] [--json FILE]

The model: hidden size 4096, 32 query heads and 8 KV heads of 128 channels, an MLP of 14336, a vocabulary of 128256, bf16. Its layers
take turns with `--kept` layers of keys and values (2), on both sides: bf16 rows of 32 layers of 8 x 131,072 tokens are 137 GB. Each of
these is larger than the device's L2 cache, so a layer never finds what the one before it read. A step appends a row a layer, attends,
and ends in the next token; steps follow one another without a wait, and their time is that of all of them over their number.
"""

import argparse
import ctypes
import json
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, HEADS, KV_HEADS, DIM, MLP, VOCABULARY = 4096, 32, 8, 128, 14336, 128256


class Model:
    def __init__(self, layers, device):
        torch.manual_seed(1)
        make = lambda *shape: torch.empty(*shape, dtype=torch.bfloat16, device=device).normal_(std=0.02)  # noqa: E731
        self.embedding, self.head = make(VOCABULARY, HIDDEN), make(VOCABULARY, HIDDEN)
        self.layers = [dict(qkv=make((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), out=make(HIDDEN, HEADS * DIM), up=make(2 * MLP, HIDDEN),
                            down=make(HIDDEN, MLP)) for _ in range(layers)]
        self.ones = torch.ones(HIDDEN, dtype=torch.bfloat16, device=device)
        self.angles = (10000.0 ** (-torch.arange(0, DIM, 2, device=device).float() / DIM))

    def turned(self, rows, position):
        angles = position * self.angles
        cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()
        a, b = rows[..., :DIM // 2], rows[..., DIM // 2:]
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), -1)

    def step(self, tokens, position, attend):
        """tokens [batch]; attend(layer, q [batch, heads, dim], k, v [batch, KV heads, dim]) -> [batch, heads * dim]."""
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            rows = functional.linear(functional.rms_norm(x, (HIDDEN,), self.ones), layer["qkv"]).view(-1, HEADS + 2 * KV_HEADS, DIM)
            turned = self.turned(rows[:, :HEADS + KV_HEADS], position)
            q, k, v = turned[:, :HEADS].contiguous(), turned[:, HEADS:].contiguous(), rows[:, HEADS + KV_HEADS:].contiguous()
            x = x + functional.linear(attend(index, q, k, v), layer["out"])
            gate, up = functional.linear(functional.rms_norm(x, (HIDDEN,), self.ones), layer["up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        return functional.linear(functional.rms_norm(x, (HIDDEN,), self.ones), self.head).argmax(-1)


class Tierkv:
    """Rows, queries and results by their addresses."""

    def __init__(self, path, spec, kept, batch, tokens):
        lib = self.lib = ctypes.CDLL(path)
        u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
        lib.tierkv_model_open.restype, lib.tierkv_model_error.restype = pointer, ctypes.c_char_p
        lib.tierkv_model_open.argtypes = [ctypes.c_char_p] + [u32] * 6
        lib.tierkv_model_step.argtypes = [pointer, u32, ctypes.c_int] + [u64] * 5
        lib.tierkv_model_reference.argtypes = [pointer, u32, u32, pointer, pointer]
        for name in ("close", "check", "bytes", "on_processor"):
            getattr(lib, "tierkv_model_" + name).argtypes = [pointer]
        lib.tierkv_model_bytes.restype = lib.tierkv_model_on_processor.restype = u64
        begin = time.time()
        self.model = lib.tierkv_model_open(spec.encode(), kept, HEADS, KV_HEADS, DIM, batch, tokens)
        self.fill_s = time.time() - begin
        if not self.model:
            raise SystemExit(lib.tierkv_model_error().decode())
        self.kept, self.host_us, self.calls = kept, 0.0, 0

    def checked(self, failed):
        if failed:
            raise SystemExit(self.lib.tierkv_model_error().decode())

    def attend(self, layer, q, k, v):
        out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        begin = time.perf_counter()
        self.checked(self.lib.tierkv_model_step(self.model, layer % self.kept, 2, k.data_ptr(), v.data_ptr(), q.data_ptr(),
                                                out.data_ptr(), torch.cuda.current_stream().cuda_stream))
        self.host_us, self.calls = self.host_us + (time.perf_counter() - begin) * 1e6, self.calls + 1
        return out.view(q.shape[0], -1).bfloat16()

    def check(self, batch):
        """Relative error of a step's results against the processor's."""
        worst = 0.0
        for layer in range(self.kept):
            q = torch.randn(batch, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(batch, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            out = torch.empty(q.shape, dtype=torch.float32, device="cuda")
            for _ in range(2):  # the second finds what the first left there
                self.checked(self.lib.tierkv_model_step(self.model, layer, 2, k.data_ptr(), v.data_ptr(), q.data_ptr(), out.data_ptr(),
                                                        torch.cuda.current_stream().cuda_stream))
            self.checked(self.lib.tierkv_model_check(self.model))
            for sequence in (0, batch - 1):
                queries, want = q[sequence].float().cpu(), torch.empty(HEADS, DIM)
                self.checked(self.lib.tierkv_model_reference(self.model, layer, sequence, queries.data_ptr(), want.data_ptr()))
                worst = max(worst, float((out[sequence].cpu() - want).norm() / want.norm()))
        return worst


class Sdpa:
    """The faster of flash and cuDNN, the heads of a group as queries."""

    def __init__(self, kept, batch, tokens, room):
        self.rows = [torch.empty(2, batch, KV_HEADS, tokens + room, DIM, dtype=torch.bfloat16, device="cuda").normal_()
                     for _ in range(kept)]
        self.kept, self.length = kept, tokens
        q = torch.randn(batch, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        times = {}
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                self.backend = backend
                for repeat in range(4):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    self.scored(q, self.rows[repeat % kept], tokens)
                    torch.cuda.synchronize()
                    times[backend] = time.perf_counter() - begin
            except RuntimeError as error:
                print("no", backend, str(error)[:100])
        self.backend = min(times, key=times.get)

    def scored(self, q, rows, length):
        folded = q.view(q.shape[0], KV_HEADS, HEADS // KV_HEADS, DIM)
        with sdpa_kernel(self.backend):
            return functional.scaled_dot_product_attention(folded, rows[0, :, :, :length], rows[1, :, :, :length])

    def attend(self, layer, q, k, v):
        rows = self.rows[layer % self.kept]
        rows[0, :, :, self.length], rows[1, :, :, self.length] = k, v
        return self.scored(q, rows, self.length + 1).reshape(q.shape[0], -1)


def timed(model, attend, batch, tokens, steps, after=lambda: None):
    token = torch.zeros(batch, dtype=torch.long, device="cuda")
    for step in range(3):
        token = model.step(token, tokens + step, attend)
        after()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for step in range(steps):
        token = model.step(token, tokens + 3 + step, attend)
        after()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--spec", default="hot=64,warm=448,warm_codec=even4,archive=rot2,sinks=4")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--kept", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json")
    o = parser.parse_args()
    with torch.no_grad():
        ours = Tierkv(o.library, o.spec, o.kept, o.batch, o.tokens)
        error = ours.check(o.batch)
        model = Model(o.layers, "cuda")
        empty = timed(model, lambda layer, q, k, v: q.view(q.shape[0], -1), o.batch, o.tokens, o.steps)
        ours_ms = timed(model, ours.attend, o.batch, o.tokens, o.steps)
        ours.checked(ours.lib.tierkv_model_check(ours.model))
        sdpa = Sdpa(o.kept, o.batch, o.tokens, o.steps + 4)

        def grown():
            sdpa.length += 1

        sdpa_ms = timed(model, sdpa.attend, o.batch, o.tokens, o.steps, grown)
    result = dict(spec=o.spec, tokens=o.tokens, batch=o.batch, layers=o.layers, kept=o.kept, error=error, fill_s=ours.fill_s,
                  without_attention_ms=empty, ours_ms=ours_ms, sdpa_ms=sdpa_ms, sdpa=str(sdpa.backend),
                  ours_tokens_s=o.batch / ours_ms * 1e3, sdpa_tokens_s=o.batch / sdpa_ms * 1e3, ratio=sdpa_ms / ours_ms,
                  host_us_per_layer=ours.host_us / max(ours.calls, 1), peak_device_bytes=ours.lib.tierkv_model_bytes(ours.model),
                  bf16_bytes=2 * o.kept * o.batch * KV_HEADS * o.tokens * DIM * 2,
                  on_processor=ours.lib.tierkv_model_on_processor(ours.model))
    print(json.dumps(result))
    if o.json:
        with open(o.json, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
