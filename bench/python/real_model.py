"""tierkv on a real model in torch: the same tokens, the same perplexity, how fast, how large.

    python real_model.py greedy                     256 tokens with `fp16` beside DynamicCache
    python real_model.py ppl --kv fp16,balanced     perplexity over the windows of `tierkv ppl`; --command beside the command's own
    python real_model.py decode --kv fp16,balanced  milliseconds of a token at 4,096 tokens, in turns with DynamicCache
    python real_model.py parts --kv balanced        what of a token's time is the cache's C++
    python real_model.py memory --kv balanced       resident bytes at 8,192 tokens beside DynamicCache
    python real_model.py greedy decode memory       one after the other

Each prints its findings and, with --json FILE, writes them. SmolLM2 and WikiText-2 come from the cache folder; see model.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import pathlib
import statistics
import subprocess
import time
from typing import Any

import torch
from common import Clock, say, settings
from model import load, machine, text_tokens
from transformers import DynamicCache

from tierkv.hf import TieredCache

PROMPT = "The history of the lighthouse begins with"
GGUF_OF_COMMAND = "smollm2"


def read_prompt(model: Any, ids: torch.Tensor, cache: Any, piece: int = 512) -> torch.Tensor:
    """Feeds the prompt in pieces; the logits after its last token."""
    logits = torch.empty(0)
    for first in range(0, ids.shape[1], piece):
        logits = model(ids[:, first : first + piece], past_key_values=cache, logits_to_keep=1).logits
    return logits[0, -1]


# --- the same tokens


def greedy(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Greedy tokens with `fp16` and with DynamicCache, and how far their logits are apart."""
    ids = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False).input_ids
    wanted = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}
    more = {"return_dict_in_generate": True, "output_logits": True, "attention_mask": torch.ones_like(ids)}
    plain = model.generate(ids, past_key_values=DynamicCache(config=model.config), **wanted, **more)
    ours = model.generate(ids, past_key_values=TieredCache("fp16", model), **wanted, **more)
    one, other = plain.sequences[0, ids.shape[1] :], ours.sequences[0, ids.shape[1] :]
    same = one == other
    equal = int(same.numel() if bool(same.all()) else same.int().argmin())
    # Up to the first other token both read the same text, that step included.
    steps = min(equal + 1, len(plain.logits))
    apart = max(float((plain.logits[i] - ours.logits[i]).abs().max()) for i in range(steps))
    spread = float(torch.stack([step[0] for step in plain.logits[:steps]]).std())
    found: dict[str, Any] = {"tokens": options.tokens, "equal": equal, "logits_apart": apart, "logits_spread": spread}
    if equal < options.tokens:
        row = plain.logits[equal][0]
        found["tie"] = float(row[one[equal]] - row[other[equal]])
    say(f"{equal} of {options.tokens} tokens are equal; logits at most {apart:.2g} apart, their spread is {spread:.2f}")
    if "tie" in found:
        say(f"Token {equal} parts: the two choices are {found['tie']:.2g} apart in DynamicCache's logits")
    return found


# --- perplexity over the command's windows


def windows(ids: torch.Tensor, ctx: int) -> list[torch.Tensor]:
    """As `tierkv ppl` cuts a text for a model without a first token of its own."""
    return [ids[:, at : at + ctx] for at in range(0, ids.shape[1], ctx)]


def losses_of(model: Any, window: torch.Tensor, cache: Any, chunk: int, skip: int) -> torch.Tensor:
    """Of each scored token of a window, its negative log likelihood."""
    losses = []
    for at in range(0, window.shape[1], chunk):
        logits = model(window[:, at : at + chunk], past_key_values=cache).logits[0].double()
        targets = window[0, at + 1 : at + chunk + 1]
        part = torch.nn.functional.cross_entropy(logits[: len(targets)], targets, reduction="none")
        losses.append(part[max(0, skip - at - 1) :])
    return torch.cat(losses)


def ppl(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Perplexity by setting, DynamicCache first, and the command's beside it when --command is given."""
    ids = text_tokens(tokenizer, options.tokens, options.text)
    skip = max(1, min(512, options.ctx // 4))
    found: dict[str, Any] = {"ctx": options.ctx, "tokens": options.tokens, "skip": skip, "chunk": options.chunk, "settings": {}}
    for spec in ["DynamicCache", *settings(options.kv)]:
        start, parts = time.process_time(), []
        for window in windows(ids, options.ctx):
            cache = DynamicCache(config=model.config) if spec == "DynamicCache" else make(spec, model, options)
            parts.append(losses_of(model, window, cache, options.chunk, skip))
        value = math.exp(float(torch.cat(parts).mean()))
        found["settings"][spec] = {"ppl": value, "scored": sum(len(part) for part in parts)}
        if isinstance(cache, TieredCache):
            found["settings"][spec]["resident_bytes"] = cache.memory_usage().resident_bytes()
            found["settings"][spec]["archive"] = cache.describe()
        say(f"{spec:24} PPL {value:9.4f}   {time.process_time() - start:6.0f} s of processor time")
    if options.command:
        found["command"] = beside_command(options, found["settings"])
    return found


def make(spec: str, model: Any, options: argparse.Namespace) -> TieredCache:
    """A cache; with the tables that were named, or those that an earlier run learned."""
    return TieredCache(spec, model, calibration=options.calibration) if options.calibration else TieredCache(spec, model)


def beside_command(options: argparse.Namespace, ours: dict[str, Any]) -> dict[str, Any]:
    """The same through `tierkv ppl`: absolute values, and what a setting adds to fp16."""
    specs = [spec for spec in ours if spec != "DynamicCache"]
    line = [options.command, "ppl", "-m", str(options.command_model), "--ctx", str(options.ctx), "--tokens", str(options.tokens)]
    line += ["--chunk", str(options.chunk), "-t", str(torch.get_num_threads()), "-q", "--json"]
    line += ["-f", str(options.text)] if options.text else []
    for spec in specs:
        line += ["--kv", spec]
    rows = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    theirs = {row["kv"]: row["ppl"] for row in rows}
    for spec in specs:
        value, other = ours[spec]["ppl"], theirs[spec]
        extra = (value / ours["fp16"]["ppl"] - other / theirs["fp16"]) * 100 if "fp16" in theirs and "fp16" in ours else math.nan
        say(
            f"{spec:24} PPL {value:9.4f} here, {other:9.4f} by the command: {(value / other - 1) * 100:+.3f} %; "
            f"relative to fp16 {extra:+.3f} % of difference"
        )
    return theirs


# --- speed


def decode(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of one token behind a long prompt. All caches take turns, a token each, so that a busy machine slows all."""
    ids = text_tokens(tokenizer, options.ctx, options.text)
    caches: dict[str, Any] = {"DynamicCache": DynamicCache(config=model.config)}
    for spec in settings(options.kv):
        caches[spec] = make(spec, model, options)
    tokens = {name: read_prompt(model, ids, cache).argmax().view(1, 1) for name, cache in caches.items()}
    times: dict[str, list[float]] = {name: [] for name in caches}
    work: dict[str, list[float]] = {name: [] for name in caches}
    for _ in range(options.steps):
        for name, cache in caches.items():
            start, processor = time.perf_counter(), time.process_time()
            logits = model(tokens[name], past_key_values=cache).logits
            times[name].append((time.perf_counter() - start) * 1000)
            work[name].append((time.process_time() - processor) * 1000)
            tokens[name] = logits[0, -1].argmax().view(1, 1)
    found: dict[str, Any] = {"ctx": options.ctx, "threads": torch.get_num_threads(), "steps": options.steps, "settings": {}}
    base = times["DynamicCache"]
    for name in caches:
        ratio = statistics.median(a / b for a, b in zip(base, times[name]))
        processor = statistics.median(a / b for a, b in zip(work["DynamicCache"], work[name]))
        one = {"median_ms": statistics.median(times[name]), "best_ms": min(times[name]), "speedup": ratio, "processor": processor}
        found["settings"][name] = one
        say(
            f"{name:24} {one['median_ms']:7.1f} ms a token in the median, {one['best_ms']:7.1f} at best; "
            f"{ratio:5.2f}x DynamicCache, {processor:5.2f}x by processor time"
        )
    return found


def parts(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of processor time of one token, and how many of them are the cache's C++; the rest is the model and Python."""
    ids = text_tokens(tokenizer, options.ctx, options.text)
    found: dict[str, Any] = {"ctx": options.ctx, "steps": options.steps, "settings": {}}
    for spec in settings(options.kv):
        cache = make(spec, model, options)
        token = read_prompt(model, ids, cache).argmax().view(1, 1)
        whole = Clock(lambda: model(token, past_key_values=cache), time.process_time)  # noqa: B023
        cache.step = Clock(cache.step, time.process_time)
        for _ in range(options.steps):
            whole()
        layers = len(cache.layers)
        inside = [sum(cache.step.times[i : i + layers]) for i in range(0, len(cache.step.times), layers)]
        one = {"best_ms": min(whole.times) / 1000, "median_ms": statistics.median(whole.times) / 1000}
        one.update(best_cache_ms=min(inside) / 1000, median_cache_ms=statistics.median(inside) / 1000)
        found["settings"][spec] = one
        say(
            f"{spec:24} {one['best_ms']:7.1f} ms a token at best, {one['median_ms']:7.1f} in the median; of that in the cache's "
            f"C++ {one['best_cache_ms']:6.2f} and {one['median_cache_ms']:6.2f}"
        )
    return found


# --- memory


def bytes_of(cache: DynamicCache) -> int:
    """What the tensors of a DynamicCache take."""
    return sum(rows.numel() * rows.element_size() for layer in cache.layers for rows in (layer.keys, layer.values))


def fill(cache: TieredCache, tokens: int) -> None:
    """Made-up rows straight into the tiers. Blocks have a fixed size, so the bytes are those of a text."""
    seq, shape = cache.tiered.add_sequence(), cache.shape
    rows = torch.randn((512, shape.num_kv_heads, shape.head_dim), generator=torch.Generator().manual_seed(0))
    for first in range(0, tokens, len(rows)):
        for layer in range(shape.num_layers):
            cache.tiered.append(seq, layer, rows[: tokens - first], rows[: tokens - first])


def memory(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Resident bytes behind a long text: ours count everything, tables and free memory too."""
    ids = text_tokens(tokenizer, options.ctx, options.text)
    cache: Any = DynamicCache(config=model.config)
    read_prompt(model, ids[:, :64], cache)
    plain = bytes_of(cache) // 64 * options.ctx  # it keeps each row as it comes: what 64 take says what all do
    found: dict[str, Any] = {"ctx": options.ctx, "DynamicCache": plain, "settings": {}}
    say(f"{'DynamicCache, float32':24} {plain / 2**20:8.1f} MiB; in 16 bits it would be {plain / 2**21:.1f}")
    for spec in settings(options.kv):
        cache = make(spec, model, options)
        if options.made_up:
            fill(cache, options.ctx)
        else:
            read_prompt(model, ids, cache)
        size = cache.memory_usage().resident_bytes()
        found["settings"][spec] = {"resident_bytes": size, "archive": cache.describe()}
        say(f"{spec:24} {size / 2**20:8.1f} MiB: {plain / size:.1f}x smaller, beside 16 bits {plain / 2 / size:.2f}x")
        say(f"{'':24} {cache.describe()}")
        if options.fork:
            twin = copy.deepcopy(cache)
            say(f"{'':24} with a second continuation {twin.memory_usage().resident_bytes() / 2**20:8.1f} MiB")
    return found


MEASUREMENTS = {"greedy": greedy, "ppl": ppl, "decode": decode, "parts": parts, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description="tierkv on a real model in torch")
    parser.add_argument("what", nargs="+", choices=MEASUREMENTS)
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file (SmolLM2 of the cache folder)")
    parser.add_argument("--text", type=pathlib.Path, help="a text file (WikiText-2 test of the cache folder)")
    parser.add_argument("--kv", default="fp16,balanced", help="settings, separated by commas; [balanced,hot=128] is one")
    parser.add_argument("--calibration", help="tables to use; otherwise those that an earlier run learned, or none")
    parser.add_argument("--ctx", type=int, help="tokens of a window or of the prompt (4096; memory: 8192)")
    parser.add_argument("--tokens", type=int, help="greedy: tokens to generate (256); ppl: tokens of the text (4096)")
    parser.add_argument("--chunk", type=int, default=32, help="ppl: tokens fed at a time (32)")
    parser.add_argument("--steps", type=int, default=48, help="decode, parts: tokens to time (48)")
    parser.add_argument("--threads", type=int, help="threads of torch and of tierkv (torch's own choice)")
    parser.add_argument("--command", help="ppl: the program `tierkv`, to measure the same with")
    parser.add_argument("--command-model", default=GGUF_OF_COMMAND, help="ppl: the model that the program reads (smollm2)")
    parser.add_argument("--made-up", action="store_true", help="memory: rows of noise instead of the model's, in seconds")
    parser.add_argument("--fork", action="store_true", help="memory: also a second continuation of the same text")
    parser.add_argument("--json", type=pathlib.Path, help="where the findings go")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(machine(), flush=True)
    model, tokenizer = load(options.model)
    found: dict[str, Any] = {"machine": machine()}
    for what in options.what:
        mine = argparse.Namespace(**vars(options))
        mine.ctx = options.ctx or (8192 if what == "memory" else 4096)
        mine.tokens = options.tokens or (256 if what == "greedy" else 4096)
        with torch.no_grad():
            found[what] = MEASUREMENTS[what](model, tokenizer, mine)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
