"""The cache with NumPy arrays: what goes in comes out, and every method does what the C++ one does."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import DIM, HEADS, KV_HEADS, LAYERS, ROOT, SHAPE, fill, reference, rows

import tierkv

# The kernels round queries to 16 bits, and rows are FP16.
CLOSE = {"atol": 2e-3, "rtol": 0}


def test_attention_is_that_of_double_precision(cache):
    keys, values, queries = rows(300, KV_HEADS, 1), rows(300, KV_HEADS, 2), rows(7, HEADS, 3)
    seq = cache.add_sequence()
    cache.append(seq, 0, keys, values)
    out = cache.attention(seq, 0, queries)
    assert out.shape == queries.shape and out.dtype == np.float32
    np.testing.assert_allclose(out, reference(keys, values, queries), **CLOSE)
    capped = cache.attention(seq, 0, queries, softcap=5.0)
    np.testing.assert_allclose(capped, reference(keys, values, queries, 5.0), **CLOSE)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_strided_rows_are_read_where_they_lie(cache, dtype):
    wide = np.random.default_rng(0).standard_normal((KV_HEADS, 50, 3, DIM)).astype(dtype)
    strided = wide.transpose(1, 2, 0, 3)[:, 1]  # [tokens, heads, channels], no two of them side by side
    assert not strided.flags.c_contiguous
    plain, other = cache.add_sequence(), cache.add_sequence()
    cache.append(plain, 0, np.ascontiguousarray(strided), np.ascontiguousarray(strided))
    cache.append(other, 0, strided, strided)
    queries = rows(2, HEADS)
    np.testing.assert_array_equal(cache.attention(plain, 0, queries), cache.attention(other, 0, queries))


def test_read_only_arrays_are_fine(cache):
    keys = rows(5, KV_HEADS)
    keys.flags.writeable = False
    seq = cache.add_sequence()
    cache.append(seq, 0, keys, keys)
    np.testing.assert_allclose(cache.get(seq, 0, range(5))[0], keys, atol=1e-3, rtol=1e-3)


def test_many_sequences_give_the_bits_of_single_calls(cache):
    seqs = [fill(cache, 20 + 30 * i, seed=i) for i in range(3)]
    items = [tierkv.AttentionItem(seq, rows(1 + i, HEADS, 50 + i)) for i, seq in enumerate(seqs)]
    outs = cache.attention_many(1, items)
    for seq, item, out in zip(seqs, items, outs):
        np.testing.assert_array_equal(out, cache.attention(seq, 1, item.queries))


def test_one_bad_item_does_not_disturb_the_others(cache):
    seq = fill(cache, 20)
    items = [tierkv.AttentionItem(seq + 100, rows(1, HEADS)), tierkv.AttentionItem(seq, rows(1, HEADS))]
    with pytest.raises(tierkv.NotFound):
        cache.attention_many(0, items)
    assert items[0].error.code == tierkv.Code.NOT_FOUND and items[1].error is None
    np.testing.assert_array_equal(items[1].out, cache.attention(seq, 0, items[1].queries))


def test_mass_is_reported_and_sums_to_the_queries(cache):
    seq, report = fill(cache, 100), tierkv.MassReport(want_tokens=True)
    cache.attention(seq, 0, rows(3, HEADS), mass=report)
    assert sum(report.tokens) == pytest.approx(3 * HEADS, rel=1e-3)
    assert {block.tier for block in report.blocks} <= {"sink", "hot", "warm", "archive"}
    assert sum(block.mass for block in report.blocks) == pytest.approx(3 * HEADS, rel=1e-3)


def test_fork_truncate_remove(cache):
    seq = fill(cache, 40)
    twin = cache.fork(seq)
    cache.truncate(twin, 10)
    assert (cache.length(seq), cache.length(twin), cache.length(twin, 1)) == (40, 10, 10)
    assert cache.positions(twin, 0, 0) == list(range(10))
    assert sorted(cache.sequences()) == sorted([seq, twin])
    cache.remove(twin)
    assert cache.sequences() == [seq]


def test_hot_rows_are_a_copy(cache):
    seq = fill(cache, 12)
    hot = cache.hot_view(seq, 0, 1)
    assert hot.keys.dtype == np.float16 and hot.keys.shape == (12, DIM) and hot.first_position == 0
    np.testing.assert_array_equal(hot.keys, rows(12, KV_HEADS, 0)[:, 1].astype(np.float16))
    cache.remove(seq)
    assert np.isfinite(hot.values).all()


def test_bf16_hot_rows_come_as_float32():
    with tierkv.Cache("fp16,hot_type=bf16", **SHAPE) as cache:
        hot = cache.hot_view(fill(cache, 4), 0, 0)
        assert hot.keys.dtype == np.float32
        np.testing.assert_allclose(hot.keys, rows(4, KV_HEADS, 0)[:, 0], rtol=2**-8)


@pytest.mark.parametrize("policy", [name for name in tierkv.policies() if name != "none"])
def test_every_eviction_policy_keeps_to_its_budget(policy):
    with tierkv.Cache(f"fp16,evict={policy}", max_seq_len=128, **SHAPE) as cache:
        seq = cache.add_sequence()
        for step in range(6):
            for layer in range(LAYERS):
                cache.append(seq, layer, rows(50, KV_HEADS, step), rows(50, KV_HEADS, step + 9))
                cache.attention(seq, layer, rows(50, HEADS, step))
        kept = [len(cache.positions(seq, layer, 0)) for layer in range(LAYERS)]
        assert sum(kept) <= 128 * LAYERS and cache.length(seq) == 300
        cache.evict(seq, 32)
        assert sum(len(cache.positions(seq, layer, 0)) for layer in range(LAYERS)) <= 32 * LAYERS


def test_snapshots_resume_bit_for_bit(cache, tmp_path):
    seq, queries = fill(cache, 200), rows(1, HEADS)
    path = tmp_path / "one.tierkv"
    cache.save(seq, path)
    data = cache.freeze(seq)
    expected = cache.attention(seq, 1, queries)
    for other in (cache.load(path), cache.unfreeze(data), cache.unfreeze(memoryview(data))):
        np.testing.assert_array_equal(cache.attention(other, 1, queries), expected)
        cache.verify(other)
    for source in (path, data):
        info = tierkv.inspect_snapshot(source)
        assert (info.length, info.num_layers, info.head_dim, info.hot_type) == (200, LAYERS, DIM, "fp16")
        assert sum(tokens for tokens, _ in info.tier) == 200 * LAYERS * KV_HEADS
    with pytest.raises(tierkv.DataLoss):
        cache.unfreeze(data[:-5])


def test_memory_is_by_tier_and_adds_up():
    with tierkv.Cache("balanced", **SHAPE) as cache:
        seq = fill(cache, 2000)
        cache.flush()
        memory = cache.memory_usage()
        tiers = sum(tier.bytes() for tier in memory.tier)
        assert memory.total_bytes == tiers + memory.bookkeeping_bytes + memory.parked_bytes + memory.free_bytes
        assert memory.fp16_bytes == 2000 * LAYERS * KV_HEADS * DIM * 4
        assert memory.compression() > 3 and cache.memory_usage(seq).tier[3].tokens > 0
        table = cache.tiers()
        assert "archive" in str(table) and "smaller than FP16" in str(table)
        assert table._repr_html_().count("<tr>") == 5
        assert "not calibrated" in cache.describe()


def test_adaptation_and_its_file(tmp_path):
    with tierkv.Cache("balanced", **SHAPE) as cache:
        before = cache.thresholds()
        for _ in range(200):
            cache.adapt_thresholds(0.5)
        assert cache.quality_metrics().samples == 200 and cache.quality_metrics().adaptations > 0
        after = cache.thresholds()
        assert after != before and after[0].hot > before[0].hot
        cache.save_thresholds(tmp_path / "t.json")
        with tierkv.Cache("balanced", **SHAPE) as other:
            other.load_thresholds(tmp_path / "t.json")
            assert other.thresholds() == after
            wanted = [tierkv.LayerThresholds(96, 512, layer.archive_bits) for layer in after]
            other.set_thresholds(wanted)
            assert [(layer.hot, layer.warm) for layer in other.thresholds()] == [(96, 512)] * len(wanted)
            with pytest.raises(tierkv.InvalidArgument, match="layers"):
                other.set_thresholds(wanted[:1])


def learned(tmp_path, tokens: int = 4096) -> tierkv.Cache:
    """A cache whose model was learned from made-up rows in which a few channels matter most."""
    cache = tierkv.Cache("balanced", **SHAPE)
    half = DIM // 2
    ropes = [[(i, i + half, 10000.0 ** (-i / half)) for i in range(half)]] * LAYERS
    grams = [np.stack([np.eye(DIM, dtype=np.float32)] * HEADS)] * LAYERS
    cache.learn(ropes, name="made-up", fingerprint=7, grams=grams, tokens=tokens, path=tmp_path / "made-up.tkc")
    scale = np.exp(-np.arange(DIM) / 8).astype(np.float32)
    seq = cache.add_sequence()
    for step in range(tokens // 256 + 2):
        for layer in range(LAYERS):
            cache.append(seq, layer, rows(256, KV_HEADS, step) * scale, rows(256, KV_HEADS, step + 500) * scale)
            cache.attention(seq, layer, rows(256, HEADS, step + 900) * scale)
    return cache


def test_learning_says_how_far_it_is(tmp_path):
    with learned(tmp_path) as cache:
        report = cache.learning()
        assert report.phase in ("gathering", "solving", "done", "refused") and report.tokens >= 4096 and report.sentence
        assert cache.describe() == report.sentence
        with pytest.raises(tierkv.FailedPrecondition):
            cache.learn([[]] * LAYERS)


def test_a_learned_calibration_is_an_object(tmp_path):
    with learned(tmp_path) as cache:
        for _ in range(4000):  # the thread that solves has the lowest priority
            if cache.learning().phase in ("done", "refused"):
                break
            threading.Event().wait(0.05)
        assert cache.learning().phase == "done", cache.learning().sentence
        path = tmp_path / "made-up.tkc"
        tables = tierkv.load_calibration(path)
        info = tables.describe()
        assert (info.model, info.fingerprint, info.head_dim) == ("made-up", 7, DIM)
        assert cache.calibration().describe().id == info.id
        assert tierkv.parse_calibration(path.read_bytes(), "bytes").describe().id == info.id
        tables.check_fit(info)
        info.fingerprint = 8
        with pytest.raises(tierkv.Error, match="made-up"):
            tables.check_fit(info)
        info.fingerprint = 7
        slower = [[(a, b, angle / 4) for a, b, angle in layer] for layer in info.ropes]
        info.ropes = slower
        with pytest.raises(tierkv.InvalidArgument, match="channels .* turn by .* 64 of 64 pairs differ"):
            tables.check_fit(info)
        copy = tables.with_ropes(slower)
        copy.check_fit(info)
        assert copy.describe().id != tables.describe().id and copy.describe().ropes == slower
        with pytest.raises(tierkv.InvalidArgument, match="pairs 0 with 32"):
            tables.with_ropes([[(2 * i, 2 * i + 1, 1.0) for i in range(DIM // 2)]] * LAYERS)
        with tierkv.Cache("balanced", calibration=path, **SHAPE) as other:
            assert other.archive_codec(0).startswith("klt")
            assert "calibrated" in other.describe()
        with tierkv.Cache("balanced", **SHAPE) as third:
            third.set_calibration(tables)
            assert third.archive_codec(0).startswith("klt")


def test_a_pressure_handler_makes_room():
    config = tierkv.configure("fp16", byte_budget="2MiB", **SHAPE)
    with tierkv.Cache(config) as cache:
        old, asked = fill(cache, 500), []

        def make_room(pressure: tierkv.MemoryPressure) -> bool:
            asked.append(pressure)
            if old not in cache.sequences():
                return False
            cache.remove(old)
            return True

        cache.set_pressure_handler(make_room)
        kept = fill(cache, 1500)
        assert asked and asked[0].budget_bytes == 2 << 20 and cache.sequences() == [kept]
        with pytest.raises(tierkv.ResourceExhausted) as refused:
            fill(cache, 3000)
        assert isinstance(refused.value, MemoryError) and cache.length(kept) == 1500
        cache.set_pressure_handler(None)


def test_a_pressure_handler_that_raises_is_a_no(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: shown.append(what.exc_type))
    with tierkv.Cache("fp16", byte_budget="1MiB", **SHAPE) as cache:
        cache.set_pressure_handler(lambda pressure: 1 // 0)
        with pytest.raises(tierkv.ResourceExhausted):
            fill(cache, 20000)
    assert shown == [ZeroDivisionError]


def test_a_cache_with_a_handler_that_knows_it_is_collected():
    cache = tierkv.Cache("fp16", **SHAPE)
    cache.set_pressure_handler(lambda pressure, cache=cache: bool(cache))
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None


def test_a_sequence_is_parked_and_wakes():
    """With tables for the deep archive: it shrinks, attends as well as such a snapshot does, and is whole again."""
    tables = tierkv.load_calibration(ROOT / "tests" / "golden" / "calibration_v1_deep.tkc")
    info = tables.describe()
    shape = {"num_layers": info.num_layers, "num_heads": info.num_heads, "num_kv_heads": info.num_kv_heads}
    settings = "hot=16,warm=0,sinks=0,archive=even4,warm_block=32,archive_block=32"
    with tierkv.Cache(settings, calibration=tables, head_dim=info.head_dim, **shape) as cache:
        seq, tokens = cache.add_sequence(), 400
        made = np.random.default_rng(5).standard_normal((2, info.num_layers, tokens, info.num_kv_heads, info.head_dim))
        for layer in range(info.num_layers):
            cache.append(seq, layer, made[0, layer].astype(np.float32), made[1, layer].astype(np.float32))
        cache.flush()
        before = cache.memory_usage(seq).resident_bytes()
        report = cache.park(seq, tierkv.DeepOptions(ratio=10))
        assert cache.is_parked(seq)
        assert report.tokens >= 256 and report.ratio > 5 and report.bytes > 0
        assert 0 < cache.memory_usage(seq).parked_bytes and cache.memory_usage(seq).resident_bytes() < before
        cache.wake(seq)
        assert not cache.is_parked(seq) and cache.memory_usage(seq).parked_bytes == 0
        assert cache.length(seq) == tokens
        cache.verify(seq)
        # What was not packed is what it was, bit for bit in half precision; the rest is there and bounded.
        keys, values = cache.get(seq, 0, range(tokens))
        assert np.array_equal(keys[-8:], made[0, 0, -8:].astype(np.float16).astype(np.float32))
        assert np.isfinite(keys).all() and np.isfinite(values).all() and 0 < np.abs(keys[:256]).max() < 20
        query = np.ones((1, info.num_heads, info.head_dim), np.float32)
        assert np.isfinite(cache.attention(seq, 0, query)).all()


def test_parking_takes_a_calibration_and_says_so(cache):
    seq = fill(cache, 2000)
    assert not cache.is_parked(seq)
    with pytest.raises(tierkv.FailedPrecondition, match="calibration"):
        cache.park(seq, tierkv.DeepOptions(ratio=20))
    with pytest.raises(tierkv.FailedPrecondition):
        cache.freeze(seq, tierkv.DeepOptions(), tierkv.DeepReport())
    with pytest.raises(tierkv.FailedPrecondition, match="not parked"):
        cache.wake(seq)


def test_after_close_every_call_is_refused():
    with tierkv.Cache("fp16", **SHAPE) as cache:
        seq = fill(cache, 3)
    assert cache.closed and "closed" in repr(cache)
    cache.close()
    for call in (cache.add_sequence, cache.memory_usage, lambda: cache.length(seq), lambda: cache.append(seq, 0, None, None)):
        with pytest.raises(tierkv.Error):
            call()
    with pytest.raises(tierkv.FailedPrecondition, match="closed"):
        cache.add_sequence()


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy, copy.copy])
def test_pickling_is_refused_with_a_sentence(cache, take):
    with pytest.raises(TypeError, match="save"):
        take(cache)


def test_threads_work_side_by_side_on_sequences_of_their_own(cache):
    failures = []

    def work(seed: int) -> None:
        try:
            seq, keys, values = cache.add_sequence(), rows(64, KV_HEADS, seed), rows(64, KV_HEADS, seed + 50)
            for token in range(64):
                cache.append(seq, 0, keys[token : token + 1], values[token : token + 1])
            queries = rows(1, HEADS, seed)
            np.testing.assert_allclose(cache.attention(seq, 0, queries), reference(keys, values, queries), **CLOSE)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall say it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_threads_on_one_sequence_lose_no_token(cache):
    seq = cache.add_sequence()

    def work() -> None:
        for _ in range(100):
            cache.append(seq, 0, rows(1, KV_HEADS), rows(1, KV_HEADS))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.length(seq, 0) == 200


def test_a_long_call_lets_other_threads_run():
    with tierkv.Cache("fp16", **SHAPE) as cache:
        seq = fill(cache, 4000)
        ticks, stop = [], threading.Event()

        def tick() -> None:
            while not stop.is_set():
                ticks.append(1)
                stop.wait(0.0005)

        thread = threading.Thread(target=tick)
        thread.start()
        before = len(ticks)
        cache.attention(seq, 0, rows(2000, HEADS))
        during = len(ticks) - before
        stop.set()
        thread.join()
        assert during > 5


def test_runs_make_the_sequence_again():
    with tierkv.Cache("hot=16,warm=32,warm_codec=rot4,archive=rot2,sinks=4", **SHAPE) as cache:
        seq = fill(cache, 700)
        ends = cache.run_ends(seq)
        assert len(ends) >= 2 and ends == sorted(ends) and ends[-1] < 700
        pieces = [cache.freeze_run(seq, first, end) for first, end in zip([0, *ends[:2]], [*ends[:2], 700])]
        twin = cache.unfreeze_runs(pieces)
        assert cache.length(twin) == 700 and cache.freeze(twin) == cache.freeze(seq)
        damaged = bytearray(pieces[1])
        damaged[len(damaged) // 2] ^= 1
        with pytest.raises(tierkv.Error):
            cache.unfreeze_runs([pieces[0], damaged, pieces[2]])
        with pytest.raises(tierkv.InvalidArgument):
            cache.freeze_run(seq, 1, 2)


def test_a_cold_file_brings_archived_tokens_back(tmp_path):
    spec = f"hot=16,warm=32,warm_codec=fp16,archive=rot2,sinks=4,cold_codec=fp16,cold={tmp_path}"
    with tierkv.Cache(spec, **SHAPE) as cache:
        seq = fill(cache, 500)
        before = cache.freeze(seq)
        keys, _ = cache.get(seq, 0, [200])
        report = cache.promote(seq)
        better, _ = cache.get(seq, 0, [200])
        exact = rows(500, KV_HEADS, 0)[200].astype(np.float16)
        assert report.blocks > 0 and report.without_copy == 0
        np.testing.assert_array_equal(better[0], exact.astype(np.float32))
        assert np.abs(keys[0] - exact).max() > 0
        assert cache.memory_usage().promoted_bytes > 0 and cache.cold_usage().copies > 0
        cache.demote(seq)
        assert cache.freeze(seq) == before
    with tierkv.Cache("balanced", **SHAPE) as cache:
        assert cache.cold_usage().copies == 0
        with pytest.raises(tierkv.FailedPrecondition):
            cache.promote(fill(cache, 10))
