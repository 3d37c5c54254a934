"""Torch tensors in a plain tierkv.Cache, by DLPack."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DIM, HEADS, KV_HEADS, fill, rows

import tierkv

torch = pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_every_type_are_read_where_they_lie(cache, dtype):
    keys = torch.from_numpy(rows(30, KV_HEADS)).to(dtype)
    turned = keys.permute(1, 0, 2).contiguous().permute(1, 0, 2)  # [tokens, heads, channels], heads first in memory
    assert not turned.is_contiguous()
    seq, other = cache.add_sequence(), cache.add_sequence()
    cache.append(seq, 0, turned, turned)
    cache.append(other, 0, keys.float().numpy(), keys.float().numpy())
    out = cache.attention(seq, 0, torch.from_numpy(rows(2, HEADS)))
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    np.testing.assert_array_equal(out.numpy(), cache.attention(other, 0, rows(2, HEADS)))


def test_results_go_into_a_tensor_that_is_given(cache):
    seq, out = fill(cache, 10), torch.zeros(2, HEADS, DIM)
    assert cache.attention(seq, 0, torch.from_numpy(rows(2, HEADS)), out) is out
    assert out.abs().sum() > 0


def test_sink_logits_may_be_tensors(cache):
    seq, queries = fill(cache, 10), torch.from_numpy(rows(1, HEADS))
    plain = cache.attention(seq, 0, queries)
    with_sinks = cache.attention(seq, 0, queries, sink_logits=torch.full((HEADS,), 50.0, dtype=torch.float64))
    assert with_sinks.abs().max() < 1e-3 < plain.abs().max()


def test_gradients_and_devices_are_refused(cache):
    seq, keys = fill(cache, 3), torch.from_numpy(rows(2, KV_HEADS))
    with pytest.raises(tierkv.InvalidArgument, match="detach"):
        cache.append(seq, 0, keys.clone().requires_grad_(), keys)
    with pytest.raises(tierkv.Error):
        cache.append(seq, 0, keys.to("meta"), keys)
    with pytest.raises(tierkv.InvalidArgument, match="float32, float16 or bfloat16"):
        cache.append(seq, 0, keys.double(), keys)
    assert cache.length(seq, 0) == 3
