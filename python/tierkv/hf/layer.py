"""One layer of a TieredCache, as transformers sees it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers.cache_utils import CacheLayerMixin

from ..arrays import stream_reader
from ..errors import FailedPrecondition, InvalidArgument, Unsupported
from .prompt import behind, is_plain, pieces_of, prompt_attention, shown_of

if TYPE_CHECKING:
    from .cache import Plan, TieredCache
    from .models import ModelShape

TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What rows may be."""

current_stream = stream_reader()

SPECIAL = frozenset(("head_mask", "output_attentions", "position_bias", "s_aux", "sliding_window", "softcap"))
"""What an attention function may be told besides that matters to a cache. Most models say none of it."""


class TieredLayer(CacheLayerMixin):  # type: ignore[misc, unused-ignore]
    """Takes the rows of a layer in `update`, and appends them and attends when the attention function comes for them."""

    is_compileable = False
    is_croppable = True
    # Of every layer, windowed ones too: masks are made for all tokens, and the cache itself knows who sees what.
    is_sliding = False

    def __init__(self, owner: TieredCache, index: int) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)  # no circle: a cache that nobody holds gives its memory back at once
        self.index = index
        self.heads, self.window = owner.shape.num_heads, owner.shape.windows[index]
        self.seen = 0
        self.staged: torch.Tensor | None = None

    def __repr__(self) -> str:
        return f"TieredLayer({self.index}, {self.seen} tokens)"

    @property
    def owner(self) -> TieredCache:
        """The cache that it is a layer of."""
        owner = self._owner()
        if owner is None:
            raise FailedPrecondition("the TieredCache of this layer is gone")
        return owner

    # --- what transformers asks, in both generations

    def lazy_initialization(self, *rows: torch.Tensor) -> None:
        """Nothing is allocated before there are tokens."""
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As :meth:`TieredCache.update`, which is what models call."""
        rows: tuple[Any, Any] = self.owner.update(key_states, value_states, self.index)
        return rows

    def get_seq_length(self, *args: Any) -> int:
        """Tokens so far, padding and evicted ones included."""
        return self.seen

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """(length, offset) of the keys after the next update. `query`: a length, or before transformers 5 the positions."""
        count = query if isinstance(query, int) else query.shape[0]
        return self.seen + count, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No limit."""
        return -1

    def _whole_cache(self) -> NoReturn:
        raise FailedPrecondition("the layers of a TieredCache share their sequences: call this on the cache, not on a layer")

    def reset(self) -> None:
        """Of the whole cache only."""
        self._whole_cache()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Of the whole cache only."""
        self._whole_cache()

    def crop(self, tokens: int) -> None:
        """Of the whole cache only."""
        self._whole_cache()

    def offload(self) -> None:
        """The rows are where the cache wants them."""

    def prefetch(self) -> None:
        """The rows are where the cache wants them."""

    # --- attention

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        scaling: float | None,
        more: dict[str, Any],
    ) -> torch.Tensor:
        """Appends the rows that `update` noted, and attends: [batch, tokens, query heads, head_dim]."""
        if self.staged is not key:
            raise FailedPrecondition(f"layer {self.index}: these keys are not the ones that the last update() got")
        self.staged = None
        owner, (batch, heads, tokens, _) = self.owner, query.shape
        try:
            special = self.window != 0 or not SPECIAL.isdisjoint(more)
            if special or dropout or heads != self.heads:
                self._check_call(owner.shape, heads, dropout, more)
            plan = owner.plan(self, mask, query)
            if special or plan.rooms is None or plan.rooms[self.index].dtype is not query.dtype:
                return self._attend(owner, plan, query, key, value, scaling, more)
            # A token for each row of the batch, and nothing special: what decoding does in most models, so it is short.
            out = plan.rooms[self.index]
            stream = -1 if owner.number < 0 else current_stream(owner.number)
            owner.step(self.index, owner.sequence_ids, [], query, key, value, out, scaling or 0.0, 0.0, 0, stream, plan.observes)
            return out
        except BaseException as error:
            owner.fail(self.seen - tokens, error)
            raise

    def _attend(
        self,
        owner: TieredCache,
        plan: Plan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        more: dict[str, Any],
    ) -> torch.Tensor:
        wanted, (batch, heads, tokens, dim) = query.dtype, query.shape
        kind = wanted if wanted in TYPES else torch.float32
        if plan.past == 0 and tokens > 1 and owner.exact_prompts and owner.observe_every == 0 and is_plain(more):
            self._store(owner, query, key, value, plan.starts, plan.picks, scaling or 0.0)
            return prompt_attention(query, key, value, plan.starts, plan.picks, scaling, self.window)
        if not (wanted == key.dtype == value.dtype):
            query, key, value = query.float(), key.float(), value.float()
        make = torch.empty if not plan.starts else torch.zeros
        out = make((batch, tokens, heads, dim), dtype=kind, device=query.device)
        sinks = more.get("s_aux")
        logits = sinks.detach().float().cpu().contiguous() if sinks is not None else None
        scale, softcap = scaling or 0.0, more.get("softcap") or 0.0
        if plan.picks is None:
            self._rows(owner, owner.sequence_ids, plan.starts, query, key, value, out, scale, softcap, logits)
        else:
            for row, places in enumerate(plan.picks):
                if len(places) == 0:
                    continue
                places = places.to(query.device)
                q, k, v = (rows[row : row + 1].index_select(2, places) for rows in (query, key, value))
                answer = torch.empty((1, len(places), heads, dim), dtype=kind, device=query.device)
                self._rows(owner, [owner.sequence_ids[row]], [], q, k, v, answer, scale, softcap, logits)
                out[row].index_copy_(0, places, answer[0])
        return out if wanted is kind else out.to(wanted)

    def _rows(
        self,
        owner: TieredCache,
        ids: list[int],
        starts: list[int],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        softcap: float,
        logits: torch.Tensor | None,
    ) -> None:
        stream = -1 if owner.number < 0 else current_stream(owner.number)
        sinks = 0 if logits is None else logits.data_ptr()
        observe = owner.observes(self.seen, query.shape[2])
        owner.step(self.index, ids, starts, query, key, value, out, scale, softcap, sinks, stream, observe)

    def _store(
        self,
        owner: TieredCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts: list[int],
        picks: list[torch.Tensor] | None,
        scale: float,
    ) -> None:
        """Appends rows that torch attends to. While a model is learned, their first queries go through the cache too, which shows
        them to learning; what comes of it is dropped."""
        if not (query.dtype == key.dtype == value.dtype):
            query, key, value = query.float(), key.float(), value.float()
        parts = [(owner.sequence_ids, starts, query, key, value)]
        if picks is not None:
            parts = []
            for row, (seq, places) in enumerate(zip(owner.sequence_ids, picks)):
                places = places.to(key.device)
                q, k, v = (rows[row : row + 1].index_select(2, places) for rows in (query, key, value))
                parts.append(([seq], [], q, k, v))
        for ids, first, queries, keys, values in parts:
            stream = -1 if owner.number < 0 else current_stream(owner.number)
            shown = shown_of(owner.gathers, len(owner.sequence_ids), keys.shape[2], first)
            for start, end in pieces_of(shown, len(ids)):
                q, k, v = (rows[:, :, start:end] for rows in (queries, keys, values))
                out = torch.empty((len(ids), end - start, *q.shape[1::2]), dtype=torch.float32, device=q.device)
                owner.step(self.index, ids, behind(first, start), q, k, v, out, scale, 0.0, 0, stream, True)
            if shown < keys.shape[2]:
                k, v = keys[:, :, shown:], values[:, :, shown:]
                owner.step(self.index, ids, behind(first, shown), None, k, v, None, 0.0, 0.0, 0, stream, False)

    # --- what is refused

    def check_rows(self, keys: torch.Tensor, values: torch.Tensor, owner: TieredCache) -> None:
        """Refuses what the layer cannot take."""
        shape = owner.shape
        batch, heads, tokens, dim = keys.shape
        if heads != shape.num_kv_heads or dim != shape.head_dim or values.shape != keys.shape:
            raise InvalidArgument(
                f"layer {self.index}: keys {list(keys.shape)} and values {list(values.shape)} are not [batch, "
                f"{shape.num_kv_heads}, tokens, {shape.head_dim}] of {shape.name}; a cache serves the model that it was made for"
            )
        if keys.dtype not in TYPES or values.dtype not in TYPES:
            raise InvalidArgument(f"layer {self.index}: {keys.dtype} is not float32, float16 or bfloat16")
        wanted = "cpu" if owner.device is None else f"cuda:{owner.device.number}"
        if str(keys.device) != wanted:
            raise Unsupported(
                f"layer {self.index}: the model computes on {keys.device}, and its cache was made for {wanted}; make another one"
            )
        if keys.requires_grad:
            raise InvalidArgument(
                f"layer {self.index}: the keys require a gradient, and a cache has none to give; run the model "
                "under torch.no_grad()"
            )
        if self.staged is not None:
            raise FailedPrecondition(
                f"layer {self.index}: nobody attended to the rows before; the model must run with "
                'model.set_attn_implementation("tierkv"), and after an exception call cache.roll_back()'
            )

    def _check_call(self, shape: ModelShape, heads: int, dropout: float, more: dict[str, Any]) -> None:
        if heads != shape.num_heads:
            raise InvalidArgument(f"layer {self.index}: {heads} query heads, and {shape.name} has {shape.num_heads}")
        if dropout:
            raise Unsupported("dropout is for training; call model.eval()")
        if more.get("output_attentions"):
            raise Unsupported("attention weights are not kept; leave output_attentions out")
        for name in ("head_mask", "position_bias"):
            if more.get(name) is not None:
                raise Unsupported(f"{shape.name}: attention with a {name} is not supported")
        window = more.get("sliding_window") or 0
        if window != self.window:
            raise Unsupported(
                f"{shape.name}: layer {self.index} attends over a window of {window or 'all'} tokens, and its configuration says "
                f"{self.window or 'all'}"
            )
