"""One layer of one step in a single call, as tierkv.hf makes it: torch tensors, [batch, heads, tokens, head_dim]."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DIM, HEADS, KV_HEADS, fill, rows

import tierkv

torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")


class Asked(torch.Tensor):
    """A tensor without the table of functions that torch 2.10 and later have: it is asked for everything, one after the other."""

    __dlpack_c_exchange_api__ = None


def batch_of(heads: int, tokens: int, seed: int, dtype=torch.float32, batch: int = 2) -> torch.Tensor:
    made = [torch.from_numpy(rows(tokens, heads, seed + row)).to(dtype).transpose(0, 1) for row in range(batch)]
    return torch.stack(made)


def step(cache, ids, query, key, value, out=None, layer=0, starts=()):
    if out is None:
        out = torch.full((query.shape[0], query.shape[2], HEADS, DIM), float("nan"))
    cache._core.step(layer, ids, list(starts), query, key, value, out, 0.0, 0.0, 0, -1, True)
    return out


@pytest.mark.parametrize("kind", [torch.Tensor, Asked])
@pytest.mark.parametrize("types", [("float32",) * 3, ("float16",) * 3, ("bfloat16",) * 3, ("float32", "bfloat16", "float16")])
@pytest.mark.parametrize("tokens", [1, 70])
def test_a_step_is_append_and_attention(cache, kind, types, tokens):
    query, key, value = (
        batch_of(heads, tokens, 10 * i, getattr(torch, name)).as_subclass(kind)
        for i, (heads, name) in enumerate(zip((HEADS, KV_HEADS, KV_HEADS), types))
    )
    ids, others = [fill(cache, 5), fill(cache, 5)], [fill(cache, 5), fill(cache, 5)]
    out = step(cache, ids, query, key, value)
    for row, seq in enumerate(others):
        plain = [tensor.as_subclass(torch.Tensor)[row].transpose(0, 1) for tensor in (query, key, value)]
        for token in range(tokens):
            one = [tensor[token : token + 1] for tensor in plain]
            cache.append(seq, 0, one[1], one[2])
            np.testing.assert_allclose(out[row, token].numpy(), cache.attention(seq, 0, one[0])[0].numpy(), atol=1e-3)
    assert [cache.length(seq, 0) for seq in ids] == [5 + tokens] * 2


@pytest.mark.parametrize("kind", [torch.Tensor, Asked])
def test_channels_that_do_not_lie_side_by_side_are_copied(cache, kind):
    query, key = batch_of(HEADS, 3, 0), batch_of(KV_HEADS, 3, 9)
    apart = [tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (query, key)]
    assert apart[0].stride()[3] != 1
    query_apart, key_apart = (tensor.as_subclass(kind) for tensor in apart)
    expected = step(cache, [fill(cache, 5), fill(cache, 5)], query, key, key)
    got = step(cache, [fill(cache, 5), fill(cache, 5)], query_apart, key_apart, key_apart)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 70])
def test_results_are_of_the_type_that_they_have_room_in(cache, name, tokens):
    query, key = batch_of(HEADS, tokens, 0), batch_of(KV_HEADS, tokens, 9)
    exact = step(cache, [fill(cache, 5), fill(cache, 5)], query, key, key)
    room = torch.empty(exact.shape, dtype=getattr(torch, name))
    got = step(cache, [fill(cache, 5), fill(cache, 5)], query, key, key, room)
    torch.testing.assert_close(got, exact.to(room.dtype), rtol=0, atol=0)


def test_padding_is_left_alone(cache):
    query, key = batch_of(HEADS, 4, 0), batch_of(KV_HEADS, 4, 9)
    ids = [cache.add_sequence(), cache.add_sequence()]
    out = step(cache, ids, query, key, key, starts=[3, 0])
    assert [cache.length(seq, 0) for seq in ids] == [1, 4]
    assert out[0, :3].isnan().all() and not out[0, 3].isnan().any() and not out[1].isnan().any()


def test_without_room_for_results_rows_are_only_appended(cache):
    key, ids = batch_of(KV_HEADS, 4, 9), [cache.add_sequence(), cache.add_sequence()]
    cache._core.step(1, ids, [], None, key, key, None, 0.0, 0.0, 0, -1, False)
    assert [cache.length(seq, 1) for seq in ids] == [4, 4]


def test_a_step_that_is_refused_changes_nothing(cache):
    query, key = batch_of(HEADS, 3, 0), batch_of(KV_HEADS, 3, 9)
    ids = [fill(cache, 5), fill(cache, 5)]
    wide = torch.empty(2, 3, HEADS, 2 * DIM)
    for sentence, arguments in {
        r"values: float32 \[2, 2, 2, 64\] must be \[2, 2, 3, 64\]": (query, key, key[:, :, :2]),
        r"keys: float32 \[2, 4, 3, 64\] must be \[2, 2, 3, 64\]": (query, query, key),
        r"queries: float32 \[2, 2, 3, 64\] must be \[2, 4, 3, 64\]": (key, key, key),
        "keys: .*3 dimensions": (query, key[0], key[0]),
        "values: the tensor is not float32, float16 or bfloat16": (query, key, key.double()),
        "out: the tensor is not float32, float16 or bfloat16": (query, key, key, torch.empty(2, 3, HEADS, DIM).double()),
        "out.* must be contiguous": (query, key, key, wide[..., ::2]),
        "out.* must be contig": (query, key, key, wide[..., :DIM]),
        "one|start for each": (query, key, key, None, 0, [1]),
    }.items():
        with pytest.raises(tierkv.InvalidArgument, match=sentence):
            step(cache, ids, *arguments)
    with pytest.raises(tierkv.OutOfRange):
        step(cache, ids, query, key, key, layer=9)
    with pytest.raises(Exception):  # torch's own
        step(cache, ids, query, key.to("meta"), key)
    assert [cache.length(seq, 0) for seq in ids] == [5, 5]
    cache.close()
    with pytest.raises(tierkv.FailedPrecondition, match="closed"):
        step(cache, ids, query, key, key)
