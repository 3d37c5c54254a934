#!/usr/bin/env python3
"""Times whole decoding steps of an 8B-shaped model with random weights, its keys and values in a cache on the device, beside the
same model with SDPA over preallocated bf16 keys and values, in one process.

    model_step.py LIBRARY [--spec SPEC] [--tokens N] [--batch N] [--layers N] [--kept N] [--steps N] [--json FILE]

The model: hidden size 4096, 32 query heads and 8 KV heads of 128 channels, an MLP of 14336, a vocabulary of 128256, bf16. Its
layers take turns with `--kept` layers of keys and values (2), on both sides: bf16 rows of 32 layers of 8 x 131,072 tokens are 137
GB. Each of these is larger than the device's L2 cache, so a layer never finds what the one before it read. A step appends a row a
layer, attends, and ends in the next token; steps follow one another without a wait, and their time is that of all of them over
their number. What is between calls of attention is a CUDA graph a layer. SDPA's step is that too, or one graph as a whole,
whichever is faster; its length stays the same. host_us is what the calls for a layer take of the caller's time, appending,
attending and graduating. With `--kept` as many as layers, and a torch that keeps its graphs, our step is timed as one graph too
(tierkv/cuda.h: record()): graph_ms, and graph_host_us, which is what a whole step takes of the caller's time.
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
    """A step in pieces, between which somebody attends: queries, keys and values lie in `q`, `k` and `v`, results in `out`."""

    def __init__(self, layers, batch, position):
        torch.manual_seed(1)
        make = lambda *shape: torch.empty(*shape, dtype=torch.bfloat16, device="cuda").normal_(std=0.02)  # noqa: E731
        self.embedding, self.head = make(VOCABULARY, HIDDEN), make(VOCABULARY, HIDDEN)
        self.layers = [dict(qkv=make((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), out=make(HIDDEN, HEADS * DIM), up=make(2 * MLP, HIDDEN),
                            down=make(HIDDEN, MLP)) for _ in range(layers)]
        self.ones = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.angles = 10000.0 ** (-torch.arange(0, DIM, 2, device="cuda").float() / DIM)
        self.position = torch.full((1,), float(position), device="cuda")
        self.tokens = torch.zeros(batch, dtype=torch.long, device="cuda")
        self.x, self.q = make(batch, HIDDEN), make(batch, HEADS, DIM)
        self.k, self.v = make(batch, KV_HEADS, DIM), make(batch, KV_HEADS, DIM)
        self.out = torch.zeros(batch, HEADS, DIM, device="cuda")

    def turned(self, rows):
        angles = self.position * self.angles
        cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()
        a, b = rows[..., :DIM // 2], rows[..., DIM // 2:]
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), -1)

    def piece(self, index):
        """From the results of layer index - 1 to the rows of layer index; the first begins at a token, the last ends at one."""
        if index == 0:
            self.x.copy_(self.embedding[self.tokens])
        else:
            layer = self.layers[index - 1]
            x = self.x + functional.linear(self.out.view(self.x.shape[0], -1).bfloat16(), layer["out"])
            gate, up = functional.linear(functional.rms_norm(x, (HIDDEN,), self.ones), layer["up"]).chunk(2, -1)
            self.x.copy_(x + functional.linear(functional.silu(gate) * up, layer["down"]))
        normed = functional.rms_norm(self.x, (HIDDEN,), self.ones)
        if index == len(self.layers):
            self.tokens.copy_(functional.linear(normed, self.head).argmax(-1))
            self.position.add_(1)
            return
        rows = functional.linear(normed, self.layers[index]["qkv"]).view(-1, HEADS + 2 * KV_HEADS, DIM)
        turned = self.turned(rows[:, :HEADS + KV_HEADS])
        self.q.copy_(turned[:, :HEADS]), self.k.copy_(turned[:, HEADS:]), self.v.copy_(rows[:, HEADS + KV_HEADS:])

    def whole(self, attend):
        for index in range(len(self.layers)):
            self.piece(index)
            attend(index)
        self.piece(len(self.layers))


def captured(work):
    """The work as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


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
        self.kept, self.host_us = kept, []

    def checked(self, failed):
        if failed:
            raise SystemExit(self.lib.tierkv_model_error().decode())

    def attend(self, model, layer):
        begin = time.perf_counter()
        self.checked(self.lib.tierkv_model_step(self.model, layer % self.kept, 2, model.k.data_ptr(), model.v.data_ptr(),
                                                model.q.data_ptr(), model.out.data_ptr(), torch.cuda.current_stream().cuda_stream))
        self.host_us.append((time.perf_counter() - begin) * 1e6)

    def graphed(self, model):
        """The whole step as one graph: a function that takes a step."""
        lib = self.lib
        lib.tierkv_model_graph.argtypes = lib.tierkv_model_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        lib.tierkv_model_record.argtypes = lib.tierkv_model_recorded.argtypes = [ctypes.c_void_p]
        self.checked(lib.tierkv_model_record(self.model))
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            model.whole(lambda index: self.attend(model, index))
            self.checked(lib.tierkv_model_recorded(self.model))
        self.checked(lib.tierkv_model_graph(self.model, self.graph.raw_cuda_graph()))
        self.step_us = []

        def step():
            begin = time.perf_counter()
            self.checked(lib.tierkv_model_launch(self.model, torch.cuda.current_stream().cuda_stream))
            self.step_us.append((time.perf_counter() - begin) * 1e6)

        return step

    def check(self, batch):
        """Relative error of a step's results against the processor's."""
        worst = 0.0
        for layer in range(self.kept):
            q = torch.randn(batch, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(batch, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            out = torch.empty(q.shape, dtype=torch.float32, device="cuda")
            for _ in range(2):  # the second finds what the first left there
                self.checked(self.lib.tierkv_model_step(self.model, layer, 2, k.data_ptr(), v.data_ptr(), q.data_ptr(),
                                                        out.data_ptr(), torch.cuda.current_stream().cuda_stream))
            self.checked(self.lib.tierkv_model_check(self.model))
            for sequence in (0, batch - 1):
                queries, want = q[sequence].float().cpu(), torch.empty(HEADS, DIM)
                self.checked(self.lib.tierkv_model_reference(self.model, layer, sequence, queries.data_ptr(), want.data_ptr()))
                worst = max(worst, float((out[sequence].cpu() - want).norm() / want.norm()))
        return worst


class Sdpa:
    """The faster of flash and cuDNN, the heads of a group as queries. The length stays, so that a whole step can be a graph."""

    def __init__(self, kept, batch, tokens):
        self.rows = [torch.empty(2, batch, KV_HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda").normal_()
                     for _ in range(kept)]
        self.kept, self.tokens = kept, tokens
        q = torch.randn(batch, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        times = {}
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                self.backend = backend
                for repeat in range(4):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    self.scored(q, self.rows[repeat % kept])
                    torch.cuda.synchronize()
                    times[backend] = time.perf_counter() - begin
            except RuntimeError as error:
                print("no", backend, str(error)[:100])
        self.backend = min(times, key=times.get)

    def scored(self, q, rows):
        folded = q.view(q.shape[0], KV_HEADS, HEADS // KV_HEADS, DIM)
        with sdpa_kernel(self.backend):
            return functional.scaled_dot_product_attention(folded, rows[0], rows[1])

    def attend(self, model, layer):
        rows = self.rows[layer % self.kept]
        rows[0, :, :, self.tokens - 1], rows[1, :, :, self.tokens - 1] = model.k, model.v
        model.out.copy_(self.scored(model.q, rows).view(model.out.shape))


def timed(step, steps, warm=3, began=lambda: None):
    """Milliseconds a step, of many that follow one another."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    began()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
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
        model = Model(o.layers, o.batch, o.tokens)
        pieces = [captured(lambda index=index: model.piece(index)) for index in range(o.layers + 1)]

        def step(attend):
            for index in range(o.layers):
                pieces[index]()
                attend(model, index)
            pieces[o.layers]()

        empty_ms = timed(lambda: step(lambda *_: None), o.steps)
        ours_ms = timed(lambda: step(ours.attend), o.steps, 8, ours.host_us.clear)
        ours.checked(ours.lib.tierkv_model_check(ours.model))
        host = sorted(ours.host_us)
        as_graph = {}
        if o.kept == o.layers and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
            once = ours.graphed(model)
            ms = timed(once, o.steps, 8, ours.step_us.clear)
            ours.checked(ours.lib.tierkv_model_check(ours.model))
            taken = sorted(ours.step_us)
            as_graph = dict(graph_ms=ms, graph_tokens_s=o.batch / ms * 1e3, graph_host_us_median=taken[len(taken) // 2],
                            graph_host_us_most=taken[-1])
        sdpa = Sdpa(o.kept, o.batch, o.tokens)
        pieces_ms = timed(lambda: step(sdpa.attend), o.steps)
        whole = captured(lambda: model.whole(lambda index: sdpa.attend(model, index)))
        sdpa_ms = min(pieces_ms, timed(whole, o.steps))
    result = dict(spec=o.spec, tokens=o.tokens, batch=o.batch, layers=o.layers, kept=o.kept, steps=o.steps, error=error,
                  fill_s=ours.fill_s, without_attention_ms=empty_ms, ours_ms=ours_ms, sdpa_ms=sdpa_ms, sdpa_in_pieces_ms=pieces_ms,
                  sdpa=str(sdpa.backend), ours_tokens_s=o.batch / ours_ms * 1e3, sdpa_tokens_s=o.batch / sdpa_ms * 1e3,
                  ratio=sdpa_ms / ours_ms, host_us_median=host[len(host) // 2], host_us_mean=sum(host) / len(host),
                  host_us_most=host[-1], peak_device_bytes=ours.lib.tierkv_model_bytes(ours.model),
                  bf16_bytes=2 * o.kept * o.batch * KV_HEADS * o.tokens * DIM * 2,
                  on_processor=ours.lib.tierkv_model_on_processor(ours.model), **as_graph)
    print(json.dumps(result))
    if o.json:
        with open(o.json, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
