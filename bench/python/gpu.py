"""`generate` of a large model on a CUDA device: tierkv beside DynamicCache and, where it is installed, AKV.

    python gpu.py --ctx 32768 --batch 1,8                        a Llama in the shape of 8B, random weights, made on the device
    python gpu.py --ctx 131072 --batch 8 --layers 16             where the other cache would not fit in 32 layers
    python gpu.py --ctx 32768 --batch 1 --caches 'DynamicCache,balanced,[balanced,calibrate=off]'
    python gpu.py --ctx 32768 --batch 1 --dtype float16 --caches 'DynamicCache flash,balanced,AKV balanced'

Weights are random, so texts mean nothing and speed and bytes do. The context is rows of noise that go straight into each cache: of
ours through append(), each sequence its own blocks; of others as tensors. Then `generate` makes --tokens tokens behind it. Time is
of all of them but the first few; everything that happens on the way is in it, coding of blocks on the processor too: 128 tokens are
one turn of every tier of `balanced`. Bytes of ours are the most that the cache had on the device (copies of blocks, hot rows,
scratch); of others, what their tensors take. `--tables FILE` is a calibration for ours: any that fits the shape will do for speed.

AKV (PyPI `akv-cache` 1.4.0) serves one sequence: it drops the dimension of a batch of one before it quantizes and adds it again
afterwards, and of a larger batch makes tensors of five dimensions. And its warm tier is float16, which joined with bfloat16 makes
float32, which attention refuses beside bfloat16 queries: so `--dtype float16`. It keeps the warm tier dequantized, and all rows in
order beside that: what its tensors take is more than FP16.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from common import Clock, say, settings
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import tierkv
from tierkv.hf import TieredCache

WARM_UP = 6


def make_model(layers: int, device: str, dtype: torch.dtype) -> Any:
    """Llama in the shape of 8B, or a small part of it."""
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=262144, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.pad_token_id = 0
    return model


def noise(tokens: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    """[tokens, heads, head_dim] in host memory: keys whose channels differ in size, as real ones do."""
    generator = torch.Generator("cpu").manual_seed(seed)
    rows = torch.randn((tokens, *shape), generator=generator, device="cpu")
    return (rows * torch.linspace(0.3, 2.0, shape[1], device="cpu")).to(torch.bfloat16)


def fill_ours(cache: TieredCache, batch: int, tokens: int, piece: int = 1024) -> None:
    """The context, each sequence by a thread of its own: coding is the processor's work, and a sequence's appends take turns."""
    shape = (cache.shape.num_kv_heads, cache.shape.head_dim)
    cache.sequence_ids = [cache.tiered.add_sequence() for _ in range(batch)]

    def one(row: int) -> None:
        keys, values = noise(piece, shape, 2 * row), noise(piece, shape, 2 * row + 1)
        generator = torch.Generator("cpu").manual_seed(row)
        for layer in range(cache.shape.num_layers):
            for first in range(0, tokens, piece):
                count = min(piece, tokens - first)
                # Other signs for every piece: no two blocks are alike. The device has equal ones only once.
                sign = torch.randint(0, 2, (2, 1, *shape), generator=generator, device="cpu").to(torch.bfloat16) * 2 - 1
                cache.tiered.append(cache.sequence_ids[row], layer, keys[:count] * sign[0], values[:count] * sign[1])

    with ThreadPoolExecutor(batch) as threads:
        list(threads.map(one, range(batch)))
    for layer in cache.layers:
        layer.seen, layer.is_initialized = tokens, True


def fill_other(cache: Any, model: Any, batch: int, tokens: int) -> None:
    """Rows of noise as the model would hand them over."""
    config = model.config
    size = (batch, config.num_key_value_heads, tokens, config.hidden_size // config.num_attention_heads)
    for layer in range(config.num_hidden_layers):
        rows = torch.randn(size, dtype=model.dtype, device=model.device)
        cache.update(rows, rows.clone(), layer)


def make(name: str, model: Any, tables: str | None) -> Any:
    # cuDNN's attention, torch's first choice on an H200, plans anew for every length: 45 ms a token. Without it torch takes flash.
    torch.backends.cuda.enable_cudnn_sdp(name == "DynamicCache")
    if name.startswith("DynamicCache"):
        return DynamicCache(config=model.config)
    if name.startswith("AKV"):
        from akv import AKVCache

        return AKVCache(preset=name.split()[1])
    return TieredCache(name, model, learn=False, calibration=None if "calibrate=off" in name else tables)


@torch.no_grad()
def generate(model: Any, cache: Any, batch: int, tokens: int, context: int) -> float:
    """Tokens a second of `generate` behind the context."""
    ids = torch.randint(2, 200, (batch, context + 1), device=model.device)
    options = {"do_sample": False, "attention_mask": torch.ones_like(ids), "past_key_values": cache}
    ids = model.generate(ids, max_new_tokens=WARM_UP, min_new_tokens=WARM_UP, **options)
    torch.cuda.synchronize()
    options["attention_mask"] = torch.ones_like(ids)
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **options)
    torch.cuda.synchronize()
    return batch * tokens / (time.perf_counter() - start)


def bytes_of(cache: Any) -> int:
    """What the tensors of another cache take."""
    seen: dict[int, int] = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor):
                    seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def fp16_bytes(model: Any, rows: int) -> int:
    """What so many tokens of all layers take in 16 bits."""
    config = model.config
    width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    return 2 * 2 * config.num_hidden_layers * width * rows


def measure(name: str, model: Any, context: int, batches: list[int], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A cache filled once, for the largest batch; then smaller ones, of its first rows."""
    start, batches = time.perf_counter(), sorted(batches, reverse=True)
    if name.startswith("AKV"):
        if model.dtype == torch.bfloat16:
            raise ValueError("AKV joins float16 with the model's rows; give --dtype float16")
        batches = [1]
    cache = make(name, model, options.tables)
    ours = isinstance(cache, TieredCache)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if ours:
        fill_ours(cache, batches[0], context)
    else:
        fill_other(cache, model, batches[0], context)
    filled = time.perf_counter() - start
    for batch in batches:
        one: dict[str, Any] = {"cache": name, "layers": options.layers, "context": context, "batch": batch, "fill_seconds": filled}
        if batch != batches[0]:
            cache.batch_select_indices(torch.arange(batch, device=model.device))
            cache.crop(context - cache.get_seq_length())
        if ours:
            cache.step = Clock(cache.tiered._core.step)
        one["tokens_per_second"] = generate(model, cache, batch, options.tokens, context)
        one["torch_peak_bytes"] = torch.cuda.max_memory_allocated() - before
        if ours:
            cache.device.check()
            usage = cache.device_usage()
            one.update(block_bytes=usage.block_bytes, blocks=usage.blocks, uploads=usage.uploads, launches=usage.launches)
            one.update(on_processor=usage.on_processor, device_bytes=usage.peak_bytes)
            one["host_bytes"] = cache.memory_usage().resident_bytes()
            one["archive"] = cache.tiered.archive_codec(0)
            calls = sorted(cache.step.times[WARM_UP * options.layers :])
            one["call_us"] = {"median": calls[len(calls) // 2], "mean": sum(calls) / len(calls), "most": calls[-1]}
        else:
            one["device_bytes"] = bytes_of(cache)
        # Copies of blocks that nobody reads any more stay until their room is wanted: bytes of ours are the largest batch's.
        rows = (context + options.tokens + WARM_UP) * (batches[0] if ours else batch)
        one["of_fp16"] = fp16_bytes(model, rows) / one["device_bytes"]
        yield one


def line_of(where: str, one: dict[str, Any]) -> str:
    line = (
        f"{where} x {one['batch']}: {one['tokens_per_second']:8.1f} tokens/s, {one['device_bytes'] / 2**30:7.2f} GiB there, "
        f"FP16 is {one['of_fp16']:.2f}x; filled in {one['fill_seconds']:.0f} s"
    )
    if "call_us" in one:
        line += f"; a call {one['call_us']['median']:.0f} us, mean {one['call_us']['mean']:.0f}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="generate on a CUDA device, tierkv beside others")
    parser.add_argument("--ctx", default="32768", help="tokens of context, separated by commas")
    parser.add_argument("--batch", default="1,8", help="sequences, separated by commas")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate and to time")
    help_caches = "DynamicCache (torch's choice of kernel), DynamicCache flash, AKV PRESET, or a setting of ours"
    parser.add_argument("--caches", default="DynamicCache flash,balanced", help=help_caches)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"], help="of the model")
    parser.add_argument("--tables", help="a calibration file for ours")
    parser.add_argument("--seconds", type=float, default=1e9, help="do not start another one after this many")
    parser.add_argument("--json", type=pathlib.Path, help="where the findings go, a line each")
    options = parser.parse_args()
    start = time.perf_counter()
    model = make_model(options.layers, "cuda", getattr(torch, options.dtype))
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, tierkv {tierkv.__version__}; {options.layers} layers, "
        f"{options.dtype}; "
        f"the model took {time.perf_counter() - start:.1f} s")  # fmt: skip
    batches = [int(text) for text in options.batch.split(",")]
    for context in [int(text) for text in options.ctx.split(",")]:
        for name in settings(options.caches):
            where = f"{name:32} {context:7}"
            if time.perf_counter() - start > options.seconds:
                say(f"{where}: no time left")
                continue
            try:
                for one in measure(name, model, context, batches, options):
                    say(line_of(where, one))
                    if options.json:
                        with options.json.open("a") as out:
                            out.write(json.dumps(one) + "\n")
            except (torch.OutOfMemoryError, tierkv.ResourceExhausted) as error:
                say(f"{where}: does not fit: {str(error).splitlines()[0][:100]}")
            except ImportError as error:
                say(f"{where}: left out, {error}")
            except Exception as error:  # other people's caches fail in ways of their own; the table goes on
                say(f"{where}: failed with {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
