"""Chunks of keys and values as bytes, for stores that keep them apart: a tensor [2, layers, tokens, channels] in, a snapshot out.

Each chunk becomes a sequence of a cache of that shape, which is frozen: the bytes are a snapshot behind sixteen of its own, which
say how many follow. So damage is noticed, and a chunk of another shape is refused.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import Any

import torch

from ._core import Calibration, DeepOptions, DeepReport
from .cache import Cache, load_calibration
from .errors import DataLoss, InvalidArgument, ResourceExhausted

MAGIC = b"tierkvC1"
HEADER = struct.Struct("<8sQ")
DEFAULT = "hot=0,warm=0,sinks=0,archive=even4"
"""No tables, no tier but the archive: 4.2 bits a number where 128 tokens or a multiple are in a chunk."""

Layout = tuple[int, int, int, torch.dtype]
"""Layers, tokens, channels and type of a chunk."""


def layout_of(shape: Any, dtype: torch.dtype) -> Layout:
    """The layout of a chunk, or a sentence that says what it must be."""
    sizes = [int(size) for size in shape]
    if len(sizes) != 4 or sizes[0] != 2 or min(sizes) < 1:
        raise InvalidArgument(f"a chunk is [2, layers, tokens, channels], keys before values; this one is {sizes}")
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidArgument(f"a chunk is float32, float16 or bfloat16, and this one is {dtype}")
    return sizes[1], sizes[2], sizes[3], dtype


class ChunkCodec:
    """Packs and unpacks chunks. Any number of threads may use one.

    `kv` is a spec as :func:`tierkv.configure` takes it; what it leaves in its hot tier is kept as 16 bits. `calibration` are tables
    for codecs that have some, and with `deep_quality` for the deep archive: the share of energy that must survive, 0.97 say. Keys
    are packed as if their chunk began a text, because stores do not say where it stood. Tables that undo RoPE fit a chunk that did
    best; to others `deep_quality` gives more bytes, and a codec of a fixed width more error.
    """

    def __init__(
        self,
        head_dim: int,
        kv: str = DEFAULT,
        *,
        num_heads: int | None = None,
        calibration: Calibration | str | os.PathLike[str] | None = None,
        deep_quality: float = 0.0,
    ) -> None:
        if head_dim < 1:
            raise InvalidArgument(f"head_dim is {head_dim}, and a head has channels")
        self.head_dim, self.kv, self.num_heads, self.deep_quality = head_dim, kv, num_heads, deep_quality
        known = calibration is None or isinstance(calibration, Calibration)
        self.calibration: Any = calibration if known else load_calibration(calibration)  # type: ignore[arg-type]
        self._caches: dict[Layout, Cache] = {}
        self._bounds: dict[Layout, int] = {}
        self._lock = threading.Lock()

    def cache_for(self, layout: Layout) -> Cache:
        """The cache that chunks of a layout go through; made once."""
        layers, _, channels, dtype = layout
        if channels % self.head_dim:
            raise InvalidArgument(f"{channels} channels are no whole number of heads of {self.head_dim}; head_dim is another")
        with self._lock:
            if layout not in self._caches:
                heads = channels // self.head_dim
                self._caches[layout] = Cache(
                    self.kv, calibration=self.calibration, num_layers=layers, num_kv_heads=heads, head_dim=self.head_dim,
                    num_heads=self.num_heads or heads, hot_type="bf16" if dtype == torch.bfloat16 else "fp16", threads=1,
                )  # fmt: skip
            return self._caches[layout]

    def pack(self, chunk: torch.Tensor) -> bytes:
        """The bytes of a chunk."""
        layout = layout_of(chunk.shape, chunk.dtype)
        cache, (_, tokens, channels, _) = self.cache_for(layout), layout
        rows = chunk.detach().cpu().reshape(2, layout[0], tokens, channels // self.head_dim, self.head_dim)
        seq = cache.add_sequence()
        try:
            for layer in range(layout[0]):
                cache.append(seq, layer, rows[0, layer], rows[1, layer])
            cache.flush()
            data = cache.freeze(seq)
            if self.deep_quality > 0:
                data = min(data, self._deep(cache, seq, data), key=len)
        finally:
            cache.remove(seq)
        return HEADER.pack(MAGIC, len(data)) + data

    def _deep(self, cache: Cache, seq: int, plain: bytes) -> bytes:
        options, report = DeepOptions(), DeepReport()
        options.quality, options.keep_recent = self.deep_quality, 0
        data = cache.freeze(seq, options, report)
        return data if report.tokens else plain

    def unpack(self, data: Any, out: torch.Tensor) -> None:
        """Writes the chunk of such bytes to a tensor of its shape; bytes behind the chunk's own are left alone.

        Nothing is written when the bytes are damaged or of another shape.
        """
        layout = layout_of(out.shape, out.dtype)
        cache, view = self.cache_for(layout), memoryview(data).cast("B")
        if len(view) < HEADER.size:
            raise DataLoss(f"{len(view)} bytes are no chunk of tierkv: its first {HEADER.size} are missing")
        magic, length = HEADER.unpack_from(view)
        if magic != MAGIC:
            raise DataLoss("these bytes are no chunk of tierkv, or one of another version")
        if length > len(view) - HEADER.size:
            raise DataLoss(f"a chunk of {length} bytes, and only {len(view) - HEADER.size} are there")
        seq = cache.unfreeze(view[HEADER.size : HEADER.size + length])
        try:
            layers, tokens, channels, _ = layout
            if cache.length(seq) != tokens:
                raise InvalidArgument(f"the chunk has {cache.length(seq)} tokens, and the tensor {tokens}")
            parts = [cache.get(seq, layer, range(tokens)) for layer in range(layers)]
            for layer, (keys, values) in enumerate(parts):
                out[0, layer].copy_(torch.from_numpy(keys).reshape(tokens, channels))
                out[1, layer].copy_(torch.from_numpy(values).reshape(tokens, channels))
        finally:
            cache.remove(seq)

    def bound(self, layout: Layout) -> int:
        """At least the bytes that any chunk of a layout takes: those of a made-up one, and some."""
        with self._lock:
            known = self._bounds.get(layout)
        if known is None:
            layers, tokens, channels, dtype = layout
            noise = torch.randn((2, layers, tokens, channels), generator=torch.Generator().manual_seed(0)).to(dtype)
            known = len(self.pack(noise)) * 17 // 16 + 4096
            with self._lock:
                self._bounds[layout] = known
        return known

    def close(self) -> None:
        """Gives the caches' memory back. The codec may be used again."""
        with self._lock:
            for cache in self._caches.values():
                cache.close()
            self._caches.clear()


def pack_into(codec: ChunkCodec, chunk: torch.Tensor, room: memoryview) -> int:
    """Packs a chunk into a writable buffer; how many bytes it took."""
    data = codec.pack(chunk)
    if len(data) > len(room):
        raise ResourceExhausted(f"the chunk takes {len(data)} bytes, and there is room for {len(room)}")
    room[: len(data)] = data
    return len(data)


__all__ = ["DEFAULT", "ChunkCodec", "layout_of", "pack_into"]
