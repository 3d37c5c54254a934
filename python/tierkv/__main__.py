"""A small command: what there is, and what a cache will take. Any other word goes to the program `tierkv`.

python -m tierkv presets
python -m tierkv plan --kv balanced --layers 30 --heads 9 --kv-heads 3 --head-dim 64 --tokens 8192
python -m tierkv ppl --kv balanced
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

import numpy as np

from . import Cache, CacheConfig, Error, __version__, codecs, configure, policies, presets
from .program import MISSING, bundled, run
from .tables import size_text


def _layer_bytes(config: CacheConfig, layer: int, tokens: int) -> tuple[int, int]:
    """(resident, FP16) bytes of one layer, measured: a cache of that layer alone reads made-up rows."""
    tiers = config.layer(layer)
    one = configure(
        num_layers=1,
        num_heads=config.num_kv_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hot_type=config.hot_type,
        warm_block=config.warm_block,
        archive_block=config.archive_block,
    )
    one.tiers = tiers
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((512, config.num_kv_heads, config.head_dim), dtype=np.float32)
    with Cache(one) as cache:
        seq = cache.add_sequence()
        for first in range(0, tokens, len(rows)):
            piece = rows[: min(len(rows), tokens - first)]
            cache.append(seq, 0, piece, piece)
        cache.flush()
        memory = cache.memory_usage(seq)
        return memory.total_bytes, tokens * config.num_kv_heads * config.head_dim * 4


def _plan(options: argparse.Namespace) -> None:
    config = configure(
        options.kv,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
    )
    config.validate()
    known: list[tuple[object, tuple[int, int]]] = []
    resident = fp16 = 0
    for layer in range(config.num_layers):
        tiers = config.layer(layer)
        found = next((sizes for other, sizes in known if other == tiers), None)
        if found is None:
            found = _layer_bytes(config, layer, options.tokens)
            known.append((tiers, found))
        resident, fp16 = resident + found[0], fp16 + found[1]
    print(
        f"{options.tokens:,} tokens with {options.kv}: {size_text(resident)}, as FP16 {size_text(fp16)}: {fp16 / resident:.1f}x"
    )
    print("Measured on made-up rows, without a calibration; with one the archive of `auto` is smaller.")


def _names(title: str, names: dict[str, str]) -> None:
    print(title)
    width = max(len(name) for name in names)
    for name, sentence in names.items():
        print(f"  {name.ljust(width)}  {sentence}")


OURS = ("version", "presets", "codecs", "policies", "plan")


def _forward(arguments: Sequence[str]) -> int:
    """The program in our place: the one that TIERKV_PROGRAM names, the wheel's own, or one on the PATH."""
    program = os.environ.get("TIERKV_PROGRAM") or bundled() or shutil.which("tierkv")
    if program is None:
        print(
            f"python -m tierkv: {arguments[0]!r} is a command of the program tierkv; {MISSING}, and TIERKV_PROGRAM says where it "
            f"is. Without it there are {', '.join(OURS)}",
            file=sys.stderr,
        )
        return 2
    return run(program, arguments, "python -m tierkv")


def parser() -> argparse.ArgumentParser:
    """The options."""
    top = argparse.ArgumentParser(
        prog="python -m tierkv",
        description="A tiered, compressed KV cache for language models.",
        epilog="Other commands (chat, ppl, serve, ...) go to the program tierkv, which is in the wheel.",
    )
    top.add_argument("--version", action="version", version=f"tierkv {__version__}")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="the version of the library")
    commands.add_parser("presets", help="the presets and what they set")
    commands.add_parser("codecs", help="the codecs of the tiers")
    commands.add_parser("policies", help="the eviction policies")
    plan = commands.add_parser("plan", help="the bytes that a cache will take")
    plan.add_argument("--kv", default="balanced", help="a preset, a .toml or .json file, or one line: balanced,hot=128")
    for name, text in (
        ("layers", "layers"),
        ("heads", "query heads"),
        ("kv-heads", "KV heads"),
        ("head-dim", "channels of a head"),
    ):
        plan.add_argument(f"--{name}", type=int, required=True, help=text)
    plan.add_argument("--tokens", type=int, default=8192, help="tokens of a sequence (8192)")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and not words[0].startswith("-") and words[0] not in OURS:
        return _forward(words)
    options = parser().parse_args(arguments)
    try:
        if options.command == "version":
            print(__version__)
        elif options.command == "presets":
            for name in presets():
                tiers = configure(name).tiers
                warm = "all" if tiers.warm == 0xFFFFFFFF else tiers.warm
                codecs_of = f"warm_codec={tiers.warm_codec},archive={tiers.archive_codec}"
                print(f"{name:9} hot={tiers.hot},warm={warm},{codecs_of},sinks={tiers.sinks}")
        elif options.command == "codecs":
            _names("Codecs; most take a width, as in kivi2:", codecs())
        elif options.command == "policies":
            _names("Eviction policies:", policies())
        else:
            _plan(options)
    except Error as error:
        print(f"tierkv: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
