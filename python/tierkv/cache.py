"""The cache: keys and values of many sequences in tiers, and exact attention over all of them.

The methods are those of AdaptiveKVCache in include/tierkv/cache.h, which is the reference; what is said there holds here. Every
call that works releases the GIL. Calls on different sequences may run at the same time from any number of threads, and calls on one
sequence are serialised inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from . import _core
from ._core import (
    ALL,
    Calibration,
    ColdStats,
    DeepOptions,
    DeepReport,
    LayerThresholds,
    LearningReport,
    MassReport,
    MemoryPressure,
    MemoryStats,
    PromotionReport,
    QualityMetrics,
)
from .arrays import Array, empty_like_rows, floats_or_none, shape_of, stream_of
from .config import CacheConfig, configure
from .errors import Error, InvalidArgument
from .tables import TierTable

RopePairs = Sequence[tuple[int, int, float]]
"""RoPE of one layer: (a, b, angle) says that channels a and b turn by `angle` radians per position. Empty: the layer has none."""


@dataclass
class AttentionItem:
    """One sequence's part in :meth:`Cache.attention_many`."""

    seq: int
    queries: Array
    out: Array | None = None
    """[tokens, query heads, head_dim], float32; made by the call when it is None."""
    first_position: int = -1
    mass: MassReport | None = None
    error: Error | None = None
    """Written by the call: why this item failed, or None."""


@dataclass
class AppendItem:
    """One sequence's part in :meth:`Cache.append_many`."""

    seq: int
    keys: Array
    values: Array
    error: Error | None = None
    """Written by the call: why this item was refused, or None."""


class HotRows(NamedTuple):
    """A copy of the hot rows of one KV head, oldest first: float16, or float32 where `hot_type` is bf16."""

    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    first_position: int


class Cache:
    """A tiered KV cache.

    >>> with tierkv.Cache("balanced", num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64) as cache:
    ...     seq = cache.add_sequence()
    ...     cache.append(seq, layer, keys, values)      # [tokens, kv heads, head_dim], after RoPE
    ...     out = cache.attention(seq, layer, queries)  # [tokens, query heads, head_dim]

    `spec` and `fields` are as :func:`tierkv.configure` takes them. Rows are float32, float16 or bfloat16 arrays of NumPy, torch or
    anything with DLPack, in host memory, or on the device that :func:`tierkv.cuda.attach` attached. They are read where they lie,
    with any strides of tokens and heads; channels must lie side by side. `calibration` is a
    :class:`Calibration` or the path of one.
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | CacheConfig = "balanced",
        *,
        calibration: Calibration | str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> None:
        tables = calibration if calibration is None or isinstance(calibration, Calibration) else load_calibration(calibration)
        self._core = _core.Cache(configure(spec, **fields), tables)

    # --- its life

    def close(self) -> None:
        """Gives the memory back. Any other call is refused afterwards; closing twice is fine."""
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether it is."""
        return self._core.closed()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tierkv.Cache is not pickled: it may be gigabytes, and its sequences are shared. Save sequences with cache.save(seq, "
            "path) or cache.freeze(seq), and its configuration with cache.config().to_json()"
        )

    def __repr__(self) -> str:
        if self.closed:
            return "<tierkv.Cache, closed>"
        config, memory = self.config(), self.memory_usage()
        return (
            f"<tierkv.Cache {config.num_layers} layers, {config.query_heads()} on {config.num_kv_heads} heads of "
            f"{config.head_dim}, "
            f"{len(self.sequences())} sequences in {memory.resident_bytes():,} bytes>"
        )

    def config(self) -> CacheConfig:
        """A copy of the configuration."""
        return self._core.config()

    def set_pressure_handler(self, handler: Callable[[MemoryPressure], bool] | None) -> None:
        """Who makes room when a call lacks memory under `byte_budget`.

        The handler may park, evict, truncate or remove sequences and returns whether to try again. What it raises is shown as
        Python shows exceptions that nobody can catch, and counts as False. None: such calls are refused at once.
        """
        self._core.set_pressure_handler(handler)

    # --- sequences

    def add_sequence(self) -> int:
        """A new, empty sequence."""
        return self._core.add_sequence()

    def fork(self, seq: int) -> int:
        """A copy that shares every block until one of the two changes it."""
        return self._core.fork(seq)

    def remove(self, seq: int) -> None:
        """Forgets a sequence."""
        self._core.remove(seq)

    def sequences(self) -> list[int]:
        """All of them."""
        return self._core.sequences()

    # --- tokens

    def append(self, seq: int, layer: int, keys: Array, values: Array) -> None:
        """Appends the next tokens of one layer, [tokens, kv heads, head_dim]; keys after RoPE."""
        self._core.append(seq, layer, keys, values, stream_of(keys))

    def append_many(self, layer: int, items: Sequence[AppendItem]) -> None:
        """Appends to many sequences: a step of a batch. All rows are in the same memory; those of a device are fetched together.

        An item that is refused does not disturb the others. Every item's `error` is written; when one was refused, the first is
        raised.
        """
        errors = self._core.append_many(
            layer,
            [item.seq for item in items],
            [item.keys for item in items],
            [item.values for item in items],
            stream_of(items[0].keys) if items else 0,
        )
        for item, error in zip(items, errors):
            item.error = error
        for error in errors:
            if error is not None:
                raise error

    def attention(
        self,
        seq: int,
        layer: int,
        queries: Array,
        out: Array | None = None,
        *,
        causal: bool = True,
        scale: float = 0.0,
        softcap: float = 0.0,
        first_position: int = -1,
        sink_logits: Array | None = None,
        observe: bool = True,
        mass: MassReport | None = None,
    ) -> Array:
        """Attention of queries [tokens, query heads, head_dim] over all tiers; float32 of the same shape.

        The queries are the newest tokens unless `first_position` says where they are. `scale` 0 is 1/sqrt(head_dim). `observe`: the
        eviction policy learns from this call. `mass` is filled when it is given. Torch queries give a torch tensor.
        """
        if out is None:
            out = empty_like_rows(queries, shape_of(queries))
        self._core.attention(
            seq, layer, queries, out, causal, scale, softcap, first_position, floats_or_none(sink_logits), observe, mass,
            stream_of(queries),
        )  # fmt: skip
        return out

    def attention_many(
        self,
        layer: int,
        items: Sequence[AttentionItem],
        *,
        causal: bool = True,
        scale: float = 0.0,
        softcap: float = 0.0,
        sink_logits: Array | None = None,
        observe: bool = True,
    ) -> list[Array]:
        """Attention for many sequences at once, their work shared out together; the outputs in the order of the items.

        An item that fails does not disturb the others. Every item's `error` is written; when one failed, the first is raised.
        """
        for item in items:
            if item.out is None:
                item.out = empty_like_rows(item.queries, shape_of(item.queries))
        errors = self._core.attention_many(
            layer,
            [item.seq for item in items],
            [item.queries for item in items],
            [item.out for item in items],
            [item.first_position for item in items],
            [item.mass for item in items],
            causal,
            scale,
            softcap,
            floats_or_none(sink_logits),
            observe,
            stream_of(items[0].queries) if items else 0,
        )
        for item, error in zip(items, errors):
            item.error = error
        for error in errors:
            if error is not None:
                raise error
        return [item.out for item in items]

    def get(
        self, seq: int, layer: int, positions: Iterable[int]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
        """Keys and values at positions, as the cache would use them: float32 [positions, kv heads, head_dim]."""
        places, config = [int(position) for position in positions], self.config()
        shape = (len(places), config.num_kv_heads, config.head_dim)
        keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self._core.get(seq, layer, places, keys, values)
        return keys, values

    def truncate(self, seq: int, length: int) -> None:
        """Forgets every position >= length in every layer."""
        self._core.truncate(seq, length)

    def evict(self, seq: int, tokens: int) -> None:
        """Keeps at most `tokens` tokens in every layer by the configured policy."""
        self._core.evict(seq, tokens)

    def flush(self) -> None:
        """Graduates every full block that is due and gives free memory back to the system."""
        self._core.flush()

    def length(self, seq: int, layer: int | None = None) -> int:
        """Positions appended so far, evicted ones included. Without a layer: the smallest over layers."""
        return self._core.length(seq) if layer is None else self._core.layer_length(seq, layer)

    def positions(self, seq: int, layer: int, kv_head: int) -> list[int]:
        """Live tokens of one KV head in ascending order of position."""
        return self._core.positions(seq, layer, kv_head)

    def hot_view(self, seq: int, layer: int, kv_head: int) -> HotRows:
        """The hot rows of one KV head. A copy: a view would dangle as soon as the sequence changes.

        No other thread may change the sequence meanwhile.
        """
        keys, values, rows, head_dim, first = self._core.hot_view(seq, layer, kv_head)

        def rows_of(data: bytes) -> np.ndarray[Any, Any]:
            if self.config().hot_type == "fp16":
                return np.frombuffer(data, np.float16).reshape(rows, head_dim)
            wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(rows, head_dim)

        return HotRows(rows_of(keys), rows_of(values), first)

    # --- statistics

    def memory_usage(self, seq: int | None = None) -> MemoryStats:
        """Resident bytes by tier, of one sequence or of the whole cache."""
        return self._core.memory_usage() if seq is None else self._core.sequence_memory_usage(seq)

    def tiers(self, seq: int | None = None) -> TierTable:
        """The same as a small table: text in a terminal, HTML in a notebook."""
        config = self.config()
        return TierTable(self.memory_usage(seq), config.num_layers * config.num_kv_heads, config.head_dim)

    def quality_metrics(self) -> QualityMetrics:
        """Quality as fed back by :meth:`adapt_thresholds`."""
        return self._core.quality_metrics()

    def verify(self, seq: int) -> None:
        """Recomputes every block's checksum; :class:`tierkv.DataLoss` names the first that does not match."""
        self._core.verify(seq)

    # --- adaptation

    def adapt_thresholds(self, score: float) -> None:
        """One measurement of quality, 1 is as good as FP16: lengths and bits follow it."""
        self._core.adapt_thresholds(score)

    def thresholds(self) -> list[LayerThresholds]:
        """What adaptation moves, of each layer."""
        return self._core.thresholds()

    def set_thresholds(self, thresholds: Sequence[LayerThresholds]) -> None:
        """Sets them, one for each layer. Blocks that exist stay as they are; nothing changes when one is refused."""
        self._core.set_thresholds(thresholds)

    def save_thresholds(self, path: str | os.PathLike[str]) -> None:
        """Writes them to a file."""
        self._core.save_thresholds(os.fspath(path))

    def load_thresholds(self, path: str | os.PathLike[str]) -> None:
        """Reads them from one."""
        self._core.load_thresholds(os.fspath(path))

    # --- calibration and learning

    def set_calibration(self, calibration: Calibration) -> None:
        """Archive blocks made from here on use its tables."""
        self._core.set_calibration(calibration)

    def calibration(self) -> Calibration | None:
        """The tables in use, if there are any."""
        return self._core.calibration()

    def learn(
        self,
        ropes: Sequence[RopePairs],
        *,
        name: str = "",
        fingerprint: int = 0,
        grams: Sequence[Array | None] | None = None,
        tokens: int = 8192,
        path: str | os.PathLike[str] = "",
    ) -> None:
        """Learns the model's tables from what goes by, from here on and at most once (docs/use/calibration.md).

        `ropes` has one entry for each layer. `grams`, where they are known, are W_O'W_O of each query head, float32
        [query heads, head_dim, head_dim] for each layer. `path`: where the tables go; empty: nothing is read or written.
        """
        weights = [floats_or_none(gram) for gram in grams] if grams is not None else []
        pairs = [[(int(a), int(b), float(angle)) for a, b, angle in layer] for layer in ropes]
        self._core.learn(name, fingerprint, pairs, weights, tokens, os.fspath(path))

    def learning(self) -> LearningReport:
        """How far learning is; `sentence` says it in words."""
        return self._core.learning()

    def set_residual(self, layer: int, mean_square: float) -> None:
        """The mean of |h|² before a layer, where a host knows it: what an error weighs against."""
        self._core.set_residual(layer, mean_square)

    def archive_codec(self, layer: int) -> str:
        """The codec that new archive blocks of a layer get, `auto` resolved."""
        return self._core.archive_codec(layer)

    def describe(self) -> str:
        """What the archive is and why, in a sentence."""
        return self.learning().sentence

    # --- snapshots and idle sequences

    def save(
        self, seq: int, path: str | os.PathLike[str], deep: DeepOptions | None = None, report: DeepReport | None = None
    ) -> None:
        """Writes one sequence to a file, whole or not at all. With `deep`, its older tokens are packed; `report` is filled."""
        self._core.save(seq, os.fspath(path), deep, report)

    def load(self, path: str | os.PathLike[str]) -> int:
        """A sequence from a file, bit for bit what was saved."""
        return self._core.load(os.fspath(path))

    def freeze(self, seq: int, deep: DeepOptions | None = None, report: DeepReport | None = None) -> bytes:
        """The bytes that :meth:`save` would write."""
        return self._core.freeze(seq, deep, report)

    def unfreeze(self, data: bytes | bytearray | memoryview) -> int:
        """A sequence from such bytes."""
        return self._core.unfreeze(data)

    def run_ends(self, seq: int) -> list[int]:
        """Where a run of the sequence may end: no block before that will be coded again."""
        return self._core.run_ends(seq)

    def freeze_run(self, seq: int, first: int, end: int) -> bytes:
        """The tokens ``first`` to ``end`` alone; up to the end of the sequence the recent tiers are in it."""
        return self._core.freeze_run(seq, first, end)

    def unfreeze_runs(self, runs: Sequence[bytes | bytearray | memoryview]) -> int:
        """A sequence of consecutive runs, the first from position 0 on."""
        return self._core.unfreeze_runs(runs)

    def promote(self, seq: int, first: int = 0, count: int = ALL) -> PromotionReport:
        """Lays the copies of the cold file over the archive blocks of a range, bit for bit."""
        return self._core.promote(seq, first, count)

    def demote(self, seq: int, first: int = 0, count: int = ALL) -> None:
        """Drops what :meth:`promote` laid over a range."""
        self._core.demote(seq, first, count)

    def cold_usage(self) -> ColdStats:
        """The cold file and its queue; all zero without one."""
        return self._core.cold_usage()

    def park(self, seq: int, options: DeepOptions | None = None) -> DeepReport:
        """Packs the older tokens of an idle sequence until :meth:`wake`. Takes a calibration with tables for it."""
        return self._core.park(seq, options or DeepOptions())

    def wake(self, seq: int) -> None:
        """All packed tokens back into blocks."""
        self._core.wake(seq)

    def is_parked(self, seq: int) -> bool:
        """Whether it is."""
        return self._core.is_parked(seq)


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """A file of `tierkv calibrate`, or one that was learned in passing. The file must stay as it is while it is used."""
    return _core.load_calibration(os.fspath(path))


def parse_calibration(data: bytes | bytearray | memoryview, name: str) -> Calibration:
    """A calibration from bytes; `name` is what messages call them."""
    return _core.parse_calibration(data, name)


def inspect_snapshot(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, calibration: Calibration | None = None
) -> _core.SnapshotInfo:
    """What a snapshot holds, a file's path or bytes, without a cache. Whatever passes is whole."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _core.inspect_snapshot_bytes(source, calibration)
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidArgument(f"a snapshot is a path or bytes, not {type(source).__name__}")
    return _core.inspect_snapshot_file(os.fspath(source), calibration)
