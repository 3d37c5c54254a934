"""Chunks for stores: what comes back, how large, and what is refused. Then the same through LMCache, where it is installed."""

from __future__ import annotations

import os
import select

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")

import tierkv
from tierkv.chunks import HEADER, ChunkCodec, layout_of

LAYERS, TOKENS, HEADS, DIM = 3, 256, 2, 64
SHAPE = (2, LAYERS, TOKENS, HEADS * DIM)


def chunk(seed: int = 0, dtype: torch.dtype = torch.bfloat16, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("kv", "ratio", "loss"), [(None, 3.6, 0.12), ("fp16", 0.9, 4e-3), ("hot=0,warm=0,sinks=0,archive=int8", 1.9, 0.01)]
)
def test_a_chunk_comes_back(dtype, kv, ratio, loss):
    codec = ChunkCodec(DIM, kv) if kv else ChunkCodec(DIM)
    given, got = chunk(dtype=dtype), torch.empty(SHAPE, dtype=dtype)
    data = codec.pack(given)
    codec.unpack(data, got)
    assert error(got, given) < loss
    assert given.numel() * 2 / len(data) > ratio
    assert len(data) <= codec.bound(layout_of(SHAPE, dtype))


@pytest.mark.parametrize("kind", ["zero", "constant", "outliers", "large", "tiny"])
def test_no_chunk_is_larger_than_the_bound(kind):
    rows = chunk(1, torch.float32)
    made = {
        "zero": rows * 0,
        "constant": rows * 0 + 3,
        "outliers": torch.where(rows > 3, rows * 1000, rows),
        "large": rows * 1e4,
        "tiny": rows * 1e-6,
    }[kind].half()
    codec, got = ChunkCodec(DIM), torch.empty(SHAPE, dtype=torch.float16)
    data = codec.pack(made)
    assert len(data) <= codec.bound(layout_of(SHAPE, torch.float16))
    codec.unpack(data, got)
    assert bool(torch.isfinite(got).all())


def test_any_number_of_tokens_comes_back():
    for tokens in (1, 31, 130, 250):
        shape = (2, LAYERS, tokens, HEADS * DIM)
        codec, given, got = ChunkCodec(DIM), chunk(2, shape=shape), torch.empty(shape, dtype=torch.bfloat16)
        codec.unpack(codec.pack(given), got)
        assert error(got, given) < 0.12


def test_bytes_behind_the_chunk_do_not_matter():
    codec, given, got, again = ChunkCodec(DIM), chunk(), torch.empty(SHAPE), torch.empty(SHAPE)
    codec.unpack(codec.pack(given.float()), got)
    codec.unpack(codec.pack(given.float()) + b"x" * 999, again)
    assert torch.equal(got, again)


def test_damage_is_refused_and_nothing_written():
    codec, got = ChunkCodec(DIM), torch.full(SHAPE, 7.0)
    data = codec.pack(chunk(dtype=torch.float32))
    for place in (0, 9, HEADER.size + 3, len(data) // 2, len(data) - 1):
        bad = bytearray(data)
        bad[place] ^= 0x20
        with pytest.raises(tierkv.Error):
            codec.unpack(bad, got)
    for short in (0, 5, HEADER.size, len(data) - 1):
        with pytest.raises(tierkv.DataLoss):
            codec.unpack(data[:short], got)
    assert bool((got == 7.0).all())
    assert codec.cache_for(layout_of(SHAPE, torch.float32)).sequences() == []


def test_other_shapes_are_refused():
    codec = ChunkCodec(DIM)
    data = codec.pack(chunk(dtype=torch.float32))
    for shape in ((2, LAYERS, TOKENS - 1, HEADS * DIM), (2, LAYERS + 1, TOKENS, HEADS * DIM), (2, LAYERS, TOKENS, DIM)):
        with pytest.raises(tierkv.Error):
            codec.unpack(data, torch.empty(shape))
    with pytest.raises(tierkv.InvalidArgument, match=r"\[2, layers, tokens, channels\]"):
        codec.pack(torch.zeros(1, LAYERS, TOKENS, HEADS * DIM))
    with pytest.raises(tierkv.InvalidArgument, match="whole number of heads"):
        codec.pack(torch.zeros(2, 1, 4, DIM + 1))
    with pytest.raises(tierkv.InvalidArgument, match="float32"):
        codec.pack(torch.zeros(SHAPE, dtype=torch.int8))


def test_the_deep_archive_packs_chunks_where_there_are_tables():
    tables = tierkv.load_calibration(ROOT / "tests" / "golden" / "calibration_v1_deep.tkc")
    info = tables.describe()
    shape = (2, info.num_layers, 256, info.num_kv_heads * info.head_dim)
    kv = "hot=0,warm=0,sinks=0,archive=even4,warm_block=32,archive_block=32"
    plain = ChunkCodec(info.head_dim, kv, num_heads=info.num_heads, calibration=tables)
    deep = ChunkCodec(info.head_dim, kv, num_heads=info.num_heads, calibration=tables, deep_quality=0.8)
    given, got = chunk(3, torch.float32, shape), torch.empty(shape)
    data = deep.pack(given)
    assert len(data) < 0.8 * len(plain.pack(given))
    assert len(data) <= deep.bound(layout_of(shape, torch.float32))
    deep.unpack(data, got)
    # Noise is the hardest there is: what must survive is 0.8 of the energy that attention sees.
    assert error(got, given) < 0.75


# --- through LMCache itself


@pytest.fixture
def serde():
    pytest.importorskip("lmcache", reason="LMCache is not installed: tools/python_env.sh peers sets it up")
    from lmcache.v1.distributed import serde

    import tierkv.lmcache  # noqa: F401  registers itself

    return serde


def memory_object(shape, dtype):
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    size = torch.Size(shape)
    raw = torch.zeros(size.numel() * dtype.itemsize, dtype=torch.uint8)
    kind = MemoryFormat.BINARY if dtype == torch.uint8 else MemoryFormat.KV_2LTD
    return TensorMemoryObj(raw, MemoryObjMetadata(size, dtype, 0, raw.numel(), 1, fmt=kind, shapes=[size], dtypes=[dtype]), None)


def wait(processor, kind: str, task: int) -> bool:
    poll, event = select.poll(), getattr(processor, f"get_{kind}_event_fd")()
    poll.register(event, select.POLLIN)
    assert poll.poll(30_000)
    os.read(event, 8)
    done = getattr(processor, f"query_{kind}_result")(task)
    assert done is not None
    return done


def test_lmcache_stores_and_loads_through_it(serde):
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

    processor = serde.create_serde_processor(serde.SerdeConfig("tierkv", {"head_dim": DIM}))
    layout = serde.serialized_layout_desc(MemoryLayoutDesc([torch.Size(SHAPE)], [torch.bfloat16]), processor)
    source, target = memory_object(SHAPE, torch.bfloat16), memory_object(SHAPE, torch.bfloat16)
    source.tensor.copy_(chunk())
    stored, key = memory_object(layout.shapes[0], torch.uint8), ObjectKey(b"chunk", "model", 0)
    assert wait(processor, "serialize", processor.submit_serialize([source], [stored], [key]))
    assert stored.get_size() < layout.shapes[0].numel() and source.get_size() / stored.get_size() > 3.6
    # What an adapter would read back: the bytes that were used, no more.
    loaded = memory_object([stored.get_size()], torch.uint8)
    loaded.tensor.copy_(stored.tensor)
    assert wait(processor, "deserialize", processor.submit_deserialize([loaded], [target], [key]))
    assert error(target.tensor, source.tensor) < 0.12
    loaded.tensor[100] ^= 1
    assert not wait(processor, "deserialize", processor.submit_deserialize([loaded], [target], [key]))
    processor.close()


def test_lmcache_hears_what_is_wrong_with_its_settings(serde):
    wrong = (({}, "head_dim"), ({"head_dim": 64, "codec": "x"}, "no setting codec"), ({"head_dim": 0}, "has channels"))
    for settings, words in wrong:
        with pytest.raises(tierkv.InvalidArgument, match=words):
            serde.create_serde_processor(serde.SerdeConfig("tierkv", settings))
