# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Caches side by side
#
# One model and one text, many caches: how many bytes each takes as the context grows, and what it costs in perplexity.
#
#     python compare.py                                   a tiny model of random weights: shows how, not what
#     python compare.py --model FOLDER --text FILE        a real model of yours (transformers' format, or FOLDER/NAME.gguf)
#
# Perplexity is over all tokens after the first, the text in pieces of 64, so that every cache is read as in decoding.

# %%
from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, QuantizedCache

import tierkv
from tierkv.hf import TieredCache

PIECE = 64

# %% [markdown]
# ## The caches
#
# Each is a function of the model. What is not installed is left out, and the table says so; `tools/python_env.sh peers` installs
# them. Ours are a loop over names: presets, then eviction policies that keep a quarter of the tokens. With a model of yours they
# use the tables that were learned of it in an earlier run, if there are any.


# %%
def akv_cache(model: Any, preset: str) -> Any:
    """AKV's drop-in cache (PyPI akv-cache). Not its for_model(), which keeps the last 32 *layers* of a Llama uncompressed."""
    from akv import AKVCache

    return AKVCache(preset=preset)


def caches(length: int, learn: bool = False) -> dict[str, Callable[[Any], Any]]:
    made: dict[str, Callable[[Any], Any]] = {"DynamicCache": lambda model: DynamicCache(config=model.config)}
    for backend in ("quanto", "hqq"):
        made[f"QuantizedCache {backend} 4"] = lambda model, backend=backend: QuantizedCache(backend, model.config, nbits=4)
    for preset in ("quality", "balanced", "compact"):
        made[f"AKV {preset}"] = lambda model, preset=preset: akv_cache(model, preset)
    for spec in ("fp16", "int8", "kivi4", "kivi2", "quality", "balanced", "balanced,calibrate=off"):
        made[f"tierkv {spec}"] = lambda model, spec=spec: TieredCache(spec, model, learn=learn)
    for policy in ("h2o", "snapkv", "tova", "streaming_llm", "pyramidkv", "scissorhands"):
        made[f"tierkv fp16, {policy} 1/4"] = lambda model, policy=policy: TieredCache(
            f"fp16,evict={policy}", model, learn=False, max_seq_len=max(length // 4, 64)
        )
    return made


def bytes_of(cache: Any) -> int:
    """What a cache holds. Of others: every tensor that its layers have, quantized ones by their parts."""
    if isinstance(cache, TieredCache):
        return cache.memory_usage().resident_bytes()
    seen: dict[int, int] = {}

    def count(thing: Any, depth: int = 0) -> None:
        if isinstance(thing, torch.Tensor):
            parts = [getattr(thing, name) for name in ("_data", "_scale", "_shift") if hasattr(thing, name)]
            if parts:
                for part in parts:
                    count(part, depth + 1)
            else:
                seen[thing.data_ptr()] = thing.numel() * thing.element_size()
        elif isinstance(thing, (list, tuple)) and depth < 6:
            for part in thing:
                count(part, depth + 1)
        elif isinstance(thing, dict) and depth < 6:
            for part in thing.values():
                count(part, depth + 1)

    for layer in cache.layers:
        count(list(vars(layer).values()))
    return sum(seen.values())


def says(cache: Any) -> int | None:
    """What a cache says of itself, where that is not what it holds: AKV counts packed bytes that it does not keep instead of the
    rows that it does."""
    report = getattr(cache, "memory_usage", None)
    if isinstance(cache, TieredCache) or report is None:
        return None
    return int(report()["total_bytes"])


# %% [markdown]
# ## One run: a text through a model with one cache


# %%
@torch.no_grad()
def run(model: Any, ids: torch.Tensor, cache: Any) -> dict[str, Any]:
    losses, sizes, start = [], [], time.process_time()
    for first in range(0, ids.shape[1] - 1, PIECE):
        piece = ids[:, first : first + PIECE + 1]
        count = piece.shape[1] - 1
        logits = model(piece[:, :count], past_key_values=cache).logits.float()
        losses.append(torch.nn.functional.cross_entropy(logits[0], piece[0, 1:], reduction="none"))
        sizes.append((first + count, bytes_of(cache)))
    loss = torch.cat(losses)
    so_far = loss.cumsum(0) / torch.arange(1, len(loss) + 1)
    return {
        "tokens": len(loss),
        "perplexity": math.exp(float(loss.mean())),
        "bytes": sizes,
        "says": says(cache),
        "perplexity_so_far": [(tokens, math.exp(float(so_far[tokens - 1]))) for tokens, _ in sizes],
        "processor_seconds": time.process_time() - start,
    }


def compare(
    model: Any, ids: torch.Tensor, out: pathlib.Path, only: str = "", learn: bool = False
) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    out.mkdir(parents=True, exist_ok=True)
    if (out / "compare.json").exists():
        results = json.loads((out / "compare.json").read_text())  # of an earlier run with other caches: one table for all
    for name, make in caches(ids.shape[1], learn).items():
        if not re.search(only, name) or name in results:
            continue
        try:
            cache = make(model)
        except ImportError as missing:
            print(f"{name:34} left out: {str(missing).splitlines()[0][:90]}", flush=True)
            continue
        results[name] = run(model, ids, cache)
        print(line_of(name, results[name]), flush=True)
        (out / "compare.json").write_text(json.dumps(results))
        (out / "compare.md").write_text(table_of(results))
    return results


def line_of(name: str, one: dict[str, Any]) -> str:
    claim = f"  (says {one['says'] / 2**20:.2f})" if one["says"] is not None else ""
    return (
        f"{name:34} {one['bytes'][-1][1] / 2**20:8.2f} MiB  perplexity {one['perplexity']:9.3f}  "
        f"{one['processor_seconds']:6.1f} s of processor time{claim}"
    )


def table_of(results: dict[str, dict[str, Any]]) -> str:
    """The same as a table for a document."""
    plain = results.get("DynamicCache")
    lines = ["| cache | MiB | of DynamicCache in 16 bits | perplexity | | processor s |", "|---|---|---|---|---|---|"]
    for name, one in results.items():
        size, share, more = one["bytes"][-1][1], "", ""
        if plain is not None:
            ratio = plain["bytes"][-1][1] / 2 / size
            share = f"1/{ratio:.1f}" if ratio > 1 else f"{1 / ratio:.2f}x"
            more = f"{(one['perplexity'] / plain['perplexity'] - 1) * 100:+.2f} %" if one is not plain else ""
        claim = f" (says {one['says'] / 2**20:.1f})" if one["says"] is not None else ""
        lines.append(
            f"| {name} | {size / 2**20:.1f}{claim} | {share} | {one['perplexity']:.3f} | {more} | {one['processor_seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


# %% [markdown]
# ## The plots


# %%
def plot(results: dict[str, dict[str, Any]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
    for name, one in results.items():
        style = "-" if "1/4" not in name else ":"
        left.plot([t for t, _ in one["bytes"]], [b / 2**20 for _, b in one["bytes"]], style, label=name)
        right.plot([t for t, _ in one["perplexity_so_far"]], [p for _, p in one["perplexity_so_far"]], style, label=name)
    left.set(xlabel="tokens", ylabel="MiB of the cache", title="memory")
    right.set(xlabel="tokens", ylabel="perplexity so far", title="perplexity")
    right.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path)


# %% [markdown]
# ## The model and the text


# %%
def tiny_model() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=211, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.15)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    return model, torch.randint(2, 211, (1, 641))


def real_model(where: str, text: str, tokens: int) -> tuple[Any, torch.Tensor]:
    path = pathlib.Path(where)
    options: dict[str, Any] = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = str(path.parent if options else path)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    ids = tokenizer(pathlib.Path(text).read_text()[: tokens * 20], return_tensors="pt", add_special_tokens=False).input_ids
    return model, ids[:, : tokens + 1]


def main(arguments: list[str] | None = None) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser(description=f"KV caches side by side; tierkv {tierkv.__version__}")
    parser.add_argument("--model", help="a folder of transformers' format, or a .gguf file; none: a tiny one of random weights")
    parser.add_argument("--text", help="a text file")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--only", default="", help="caches whose names match this expression")
    parser.add_argument("--threads", type=int, help="threads of torch (its own choice)")
    help_out = "where compare.svg, compare.md and compare.json go; what is in a compare.json there is kept"
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help=help_out)
    options = parser.parse_args(arguments)
    if options.model and not options.text:
        parser.error("--model takes a --text too")
    if options.threads:
        torch.set_num_threads(options.threads)
    model, ids = real_model(options.model, options.text, options.tokens) if options.model else tiny_model()
    results = compare(model, ids, options.out, options.only, learn=bool(options.model))
    try:
        plot(results, options.out / "compare.svg")
    except ImportError:
        print("no plots: matplotlib is not installed")
    return results


# %%
if __name__ == "__main__":
    main(sys.argv[1:])
