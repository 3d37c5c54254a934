"""tierkv as a serde of LMCache: what goes to its second level is packed, and unpacked when it comes back.

    import tierkv.lmcache          # before LMCache reads its settings: it has no way to find serdes by itself
    --l2-adapter '{"type": "fs", "base_path": "/cache", "serde": {"type": "tierkv", "head_dim": 128}}'

Beside `head_dim`, which LMCache does not say: `kv` (a spec; four bits without tables when none is given), `calibration` (a file),
`num_heads` (query heads, where the tables know them), `deep_quality` (0.97, say, with tables for the deep archive) and
`max_workers`. Chunks are [2, layers, tokens, channels] in one group; MLA and others are refused.

Needs LMCache 0.5 or later, for `lmcache.v1.distributed.serde`.
"""

from __future__ import annotations

from typing import Any

import torch
from lmcache.v1.distributed.serde import (
    AsyncSerdeProcessor,
    Deserializer,
    Serializer,
    get_registered_serde_types,
    register_serde_factory,
)

from .chunks import DEFAULT, ChunkCodec, layout_of, pack_into
from .errors import InvalidArgument

NAME = "tierkv"


def _bytes_of(buffer: Any) -> torch.Tensor:
    """The bytes of a buffer of LMCache, as far as it may be used."""
    flat = buffer.tensor
    if flat is None:
        raise InvalidArgument("the buffer for the bytes has no tensor")
    if flat.device.type != "cpu" or not flat.is_contiguous():
        raise InvalidArgument(f"the buffer for the bytes must be contiguous in host memory, and is on {flat.device}")
    return flat.view(-1).view(torch.uint8)  # type: ignore[no-any-return]


def _chunk_of(source: Any) -> torch.Tensor:
    chunk = source.tensor
    if chunk is None:
        raise InvalidArgument("the chunk has no tensor: several groups of layers in one object are not supported")
    return chunk  # type: ignore[no-any-return]


class TieredSerializer(Serializer):  # type: ignore[misc, unused-ignore]
    """Keys and values to bytes."""

    def __init__(self, codec: ChunkCodec) -> None:
        self.codec = codec

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        """Packs a chunk; how many bytes it took."""
        room: Any = _bytes_of(dst).numpy()
        return pack_into(self.codec, _chunk_of(src), memoryview(room))

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        """At least what a chunk of this layout takes."""
        if len(layout_desc.shapes) != 1:
            raise InvalidArgument(f"{len(layout_desc.shapes)} groups of layers in one object, and one is supported")
        return self.codec.bound(layout_of(layout_desc.shapes[0], layout_desc.dtypes[0]))


class TieredDeserializer(Deserializer):  # type: ignore[misc, unused-ignore]
    """Bytes to keys and values."""

    def __init__(self, codec: ChunkCodec) -> None:
        self.codec = codec

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        """Unpacks a chunk; damaged bytes are refused, and `dst` is as it was."""
        self.codec.unpack(_bytes_of(src).numpy(), _chunk_of(dst))


def make_processor(settings: dict[str, Any]) -> Any:
    """What LMCache calls with the settings of `"serde"`."""
    unknown = sorted(set(settings) - {"head_dim", "kv", "calibration", "num_heads", "deep_quality", "max_workers"})
    if unknown:
        raise InvalidArgument(f"the serde tierkv has no setting {', '.join(unknown)}")
    if "head_dim" not in settings:
        raise InvalidArgument('the serde tierkv must know the channels of a head: "head_dim": 128')
    codec = ChunkCodec(
        int(settings["head_dim"]),
        str(settings.get("kv", DEFAULT)),
        num_heads=int(settings["num_heads"]) if "num_heads" in settings else None,
        calibration=settings.get("calibration"),
        deep_quality=float(settings.get("deep_quality", 0.0)),
    )
    return AsyncSerdeProcessor(TieredSerializer(codec), TieredDeserializer(codec), max_workers=int(settings.get("max_workers", 1)))


if NAME not in get_registered_serde_types():
    register_serde_factory(NAME, make_processor)
