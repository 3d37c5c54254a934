"""The attention function and the mask function, both registered with transformers under the name "tierkv".

transformers never hands the cache to an attention function. So `TieredCache.update` leaves a note on the keys that it returns,
and the function below finds its layer there. Without a note (no cache, or another one) it does what "sdpa" does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "tierkv"


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as transformers calls it: [batch, heads, tokens, head_dim] in, [batch, tokens, heads, head_dim] out."""
    layer = getattr(key, "_tierkv_layer", None)
    if layer is None:
        return _without_tiers(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    return layer.attend(query, key, value, attention_mask, dropout, scaling, kwargs), None


def _without_tiers(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    make = getattr(attention_mask, "_tierkv_plain", None)
    function = AttentionInterface()["sdpa"]
    result: tuple[torch.Tensor, torch.Tensor | None] = function(
        module, query, key, value, make() if make is not None else attention_mask, **kwargs
    )
    return result


def mask(
    batch_size: int, kv_length: int, kv_offset: int = 0, attention_mask: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor:
    """Which tokens are padding: bool [batch, kv_length]. Causality and windows are the cache's own business.

    What the usual mask would be is made when somebody without tiers asks for it. What this one cannot say is noted, and refused by
    the layer that gets it.
    """
    end = kv_offset + kv_length
    if attention_mask is None:
        padding = torch.ones((batch_size, kv_length), dtype=torch.bool, device="cpu")
    else:
        known = attention_mask
        if known.shape[-1] < end:
            known = torch.nn.functional.pad(known, (0, end - known.shape[-1]), value=True)
        padding = known[:, kv_offset:end]
    plain = AttentionMaskInterface()["sdpa"]
    note: Any = padding
    note._tierkv_plain = partial(
        plain, batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask, **kwargs
    )
    note._tierkv_custom = (
        kwargs.get("use_vmap", False) or not kwargs.get("allow_is_causal_skip", True) or "allow_is_bidirectional_skip" in kwargs
    )
    return padding


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
