"""Bad input: an exception that says what to do, and the cache as it was."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DIM, HEADS, KV_HEADS, SHAPE, fill, rows

import tierkv

GOOD = rows(3, KV_HEADS)

BAD_ROWS = {
    "float64": (GOOD.astype(np.float64), tierkv.InvalidArgument, "float32, float16 or bfloat16"),
    "integers": (GOOD.astype(np.int32), tierkv.InvalidArgument, "float32, float16 or bfloat16"),
    "a list": ([[1.0, 2.0]], tierkv.InvalidArgument, "__dlpack__"),
    "None": (None, tierkv.InvalidArgument, "is no array"),
    "two dimensions": (GOOD[0], tierkv.InvalidArgument, r"\[tokens, heads, head_dim\]"),
    "channels apart": (rows(3, KV_HEADS * 2).reshape(3, KV_HEADS, DIM, 2)[..., 0], tierkv.InvalidArgument, "side by side"),
    "heads of another model": (rows(3, KV_HEADS + 1), tierkv.InvalidArgument, "heads"),
    "channels of another model": (np.ascontiguousarray(GOOD[..., :32]), tierkv.InvalidArgument, "32 channels"),
    "not a number": (np.full_like(GOOD, np.nan), tierkv.InvalidArgument, "NaN"),
    "too large for FP16": (np.full_like(GOOD, 1e6), tierkv.InvalidArgument, "65504|16-bit|fp16|range"),
    "another length": (GOOD[:2], tierkv.InvalidArgument, "tokens"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused_and_change_nothing(cache, name):
    bad, kind, sentence = BAD_ROWS[name]
    seq = fill(cache, 30)
    expected = cache.attention(seq, 0, rows(1, HEADS))
    for keys, values in ((bad, GOOD), (GOOD, bad)):
        with pytest.raises(kind, match=sentence) as refused:
            cache.append(seq, 0, keys, values)
        assert refused.value.code == kind.code and refused.value.message
    assert cache.length(seq, 0) == 30
    np.testing.assert_array_equal(cache.attention(seq, 0, rows(1, HEADS)), expected)


def test_bad_outputs_are_refused(cache):
    seq, queries = fill(cache, 5), rows(2, HEADS)
    frozen = np.empty_like(queries)
    frozen.flags.writeable = False
    for out in (
        np.empty((2, HEADS, DIM)),
        np.empty((1, HEADS, DIM), np.float32),
        frozen,
        np.empty((2, HEADS, DIM * 2), np.float32)[..., ::2],
    ):
        with pytest.raises(tierkv.InvalidArgument, match="out"):
            cache.attention(seq, 0, queries, out)
    with pytest.raises(tierkv.InvalidArgument, match="sink_logits"):
        cache.attention(seq, 0, queries, sink_logits=np.zeros(HEADS + 1, np.float32))


def test_what_is_not_there_is_named(cache, tmp_path):
    seq = fill(cache, 5)
    with pytest.raises(tierkv.NotFound) as missing:
        cache.truncate(seq + 1000, 1)
    assert isinstance(missing.value, LookupError) and str(seq + 1000) in str(missing.value)
    with pytest.raises(tierkv.Error):
        cache.append(seq, 99, GOOD, GOOD)
    with pytest.raises(tierkv.Error):
        cache.get(seq, 0, [17])
    with pytest.raises(tierkv.Error) as missing:
        cache.load("/nowhere/at/all")
    assert missing.value.code in (tierkv.Code.NOT_FOUND, tierkv.Code.IO_ERROR)
    with pytest.raises(tierkv.NotFound, match="/nowhere/at/all"):
        cache.save(seq, "/nowhere/at/all")
    with pytest.raises(tierkv.IoError) as unwritable:
        cache.save(seq, tmp_path)
    assert isinstance(unwritable.value, OSError) and str(tmp_path) in str(unwritable.value)
    with pytest.raises(TypeError):
        cache.truncate(seq, -1)


def test_bad_configurations_say_what_is_allowed():
    with pytest.raises(tierkv.InvalidArgument, match="balanced"):
        tierkv.Cache("balancd", **SHAPE)
    with pytest.raises(tierkv.InvalidArgument, match="archive_codec"):
        tierkv.Cache("balanced", archve="rot2", **SHAPE)
    with pytest.raises(ValueError, match="head_dim"):
        tierkv.Cache("balanced", **{**SHAPE, "head_dim": 33})
    with pytest.raises(tierkv.InvalidArgument, match="neither"):
        tierkv.configure("balanced", hot=object())
    with pytest.raises(tierkv.InvalidArgument):
        tierkv.configure(hot=-1)


def test_every_code_has_its_exception():
    assert set(tierkv.errors.CLASSES) == {int(code) for code in tierkv.Code} - {0}
    for number, kind in tierkv.errors.CLASSES.items():
        assert kind.code == number and issubclass(kind, tierkv.Error) and str(kind("a sentence")) == "a sentence"
