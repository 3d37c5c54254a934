"""TieredCache: a tierkv.Cache as the `past_key_values` of a transformers model."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import transformers
from transformers.cache_utils import Cache as HostCache

from .. import cuda
from ..cache import Cache, load_calibration
from .._core import Calibration, CalibrationInfo, LearningReport, MemoryStats
from ..config import CacheConfig, LayerOverride, configure
from ..errors import Error, FailedPrecondition, InvalidArgument, Unsupported
from ..tables import TierTable
from .attention import NAME
from .layer import TYPES, TieredLayer
from .models import ModelShape, fingerprint_of, grams_of, ropes_of, shape_of_model

CROPS_TO_A_LENGTH = int(transformers.__version__.split(".")[0]) < 5
"""Before transformers 5, crop() took the length to keep."""

MASKS_ON_TRUST = 64
"""Single tokens behind a prompt on a device whose masks are not fetched: fetching waits for the device. The next one checks all."""

OBSERVED = 8
"""On a device every how many tokens an archive that keeps rows better sees what they receive: seeing waits for the device."""

DEVICE_ARCHIVES = {"auto": "auto-cuda", "auto1": "auto1-cuda", "auto3": "auto3-cuda"}
"""What `auto` is on a device: the same with tables, and without them archives of the same size that its fast kernels read."""

WINDOW_SLACK = 128
"""Tokens that a windowed layer keeps past its window, so that assisted decoding can take back what it guessed."""


@dataclass(slots=True)
class Plan:
    """What the layers of one forward pass do: made by the first, used by all."""

    past: int
    tokens: int
    mask: torch.Tensor | None
    """The mask that was looked at last. Layers with a window have another one than those without."""
    before: torch.Tensor | None
    """Which tokens were no padding before this pass; None: all."""
    starts: list[int]
    """Of each row, where its tokens start; what is before is padding. Empty: at 0, all of them."""
    picks: list[torch.Tensor] | None
    """Of each row, the tokens that are no padding, where they are not the last ones."""
    observes: bool = True
    """Whether somebody looks at what single tokens do."""
    rooms: tuple[torch.Tensor, ...] | None = None
    """Of a pass with one token for each row: where the results of each layer go, made for all of them at once."""


def cache_folder() -> pathlib.Path:
    """$TIERKV_CACHE, or tierkv/ in the XDG cache, by default ~/.cache/tierkv."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(os.environ.get("TIERKV_CACHE") or os.path.join(base, "tierkv"))


def calibration_path(fingerprint: int) -> pathlib.Path:
    """Where the tables of a model are, or will be when they have been learned."""
    return cache_folder() / "calibration" / f"hf-{fingerprint:016x}.tkc"


def configure_for(
    spec: str | os.PathLike[str] | CacheConfig, shape: ModelShape, dtype: torch.dtype, fields: dict[str, Any]
) -> CacheConfig:
    """The configuration of a cache for a model: what the caller says, on top of what the model is."""
    if isinstance(spec, CacheConfig):
        start = CacheConfig(spec)
    else:
        start = CacheConfig()
        start.hot_type = "bf16" if dtype == torch.bfloat16 else "fp16"
        start.threads = max(1, torch.get_num_threads())
        start.window_slack = WINDOW_SLACK
        start.apply_spec(os.fspath(spec))
    start.model = start.model or shape.name
    start.num_layers, start.num_heads = shape.num_layers, shape.num_heads
    start.num_kv_heads, start.head_dim = shape.num_kv_heads, shape.head_dim
    config = configure(start, **fields)
    for layer, window in enumerate(shape.windows):
        if config.layer(layer).window != window:
            other = LayerOverride()
            other.first = other.last = layer
            other.window = window
            config.overrides = [*config.overrides, other]
    return config


def fitting(tables: Calibration, model: Any, shape: ModelShape, fingerprint: int = 0) -> Calibration:
    """The tables as they serve the model: where its RoPE turns the same channels at another pace, a copy that does so too.

    Tables of another shape are refused, and so are those of keys in another order: torch has the two channels of a pair half a
    head apart, and most GGUF files side by side. A fingerprint of 0 is not looked at."""
    info = CalibrationInfo()
    info.model, info.fingerprint = shape.name, fingerprint
    info.num_layers, info.num_heads = shape.num_layers, shape.num_heads
    info.num_kv_heads, info.head_dim = shape.num_kv_heads, shape.head_dim
    tables.check_fit(info)
    ropes = ropes_of(model, shape)
    if ropes is None:
        return tables
    info.ropes = ropes
    try:
        tables.check_fit(info)
    except InvalidArgument:
        return tables.with_ropes(ropes)
    return tables


class TieredCache(HostCache):  # type: ignore[misc, unused-ignore]
    """A tiered cache for one model, to pass as `past_key_values`.

    >>> cache = TieredCache("balanced", model)
    >>> model.generate(**inputs, past_key_values=cache)

    `spec` and `fields` are as :func:`tierkv.configure` takes them; the model's shape, its windows and the threads are filled in.
    The model's attention implementation is set to "tierkv", which does what "sdpa" does wherever there is no TieredCache. A model
    that cannot be served is refused by name with :class:`tierkv.Unsupported`.

    `learn`: where `auto` archives would be better with tables and there are none, the model is learned in passing
    (docs/use/calibration.md), and the tables are left in the cache folder for the next time. A path: there instead. False, or
    `calibrate=off` in the spec: nothing is looked for and nothing learned. `calibration` is a :class:`tierkv.Calibration` or a
    path; one that was made for keys in another order (of a GGUF file, say) is refused.

    A model on a CUDA device gets a cache that attends there (:mod:`tierkv.cuda`), in a build with CUDA. While it learns there, rows
    and some queries come to host memory, so that steps wait for the device; afterwards nothing does.

    Rows of a batch are sequences of their own, and padding is not stored. `copy.deepcopy` gives a cache that shares the tokens
    until one of the two changes them: read a prompt once, go on from it many times.
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | CacheConfig,
        model: Any,
        *,
        calibration: Calibration | str | os.PathLike[str] | None = None,
        learn: bool | str | os.PathLike[str] = True,
        **fields: Any,
    ) -> None:
        self.shape = shape_of_model(model)
        config = configure_for(spec, self.shape, model.dtype, fields)
        if calibration is None and config.calibrate != "off" and config.calibration_file():
            calibration = config.calibration_file()
        if calibration is not None:
            tables = calibration if isinstance(calibration, Calibration) else load_calibration(calibration)
            calibration = fitting(tables, model, self.shape)
        looks = learn is not False and calibration is None and config.calibrate != "off" and config.wants_calibration()
        path = None if learn is True or learn is False else pathlib.Path(learn)
        self.device: cuda.Device | None = None
        if self.shape.device >= 0:
            config.tiers.archive_codec = DEVICE_ARCHIVES.get(config.tiers.archive_codec, config.tiers.archive_codec)
        calibration = self._tables_there(model, path) if looks else calibration
        self.tiered = Cache(config, calibration=calibration)
        if self.shape.device >= 0:
            self.device = cuda.attach(self.tiered, self.shape.device)
        if looks and calibration is None:
            self._learn(model, path)
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(NAME)
        self._set_up()

    def _set_up(self) -> None:
        super().__init__(layers=[TieredLayer(self, index) for index in range(self.shape.num_layers)])
        self.step = self.tiered._core.step
        self.number = -1 if self.device is None else self.device.number  # of the device
        self.sequence_ids: list[int] = []
        self._kept: torch.Tensor | None = None  # bool [batch, seen]: which tokens are no padding; None: all
        self._plan: Plan | None = None
        self._fine: torch.Size | None = None  # of the last rows that were looked at: a row for each sequence
        self._trusted = 0  # passes whose masks were not looked at
        self.exact_prompts = self.device is not None  # torch attends to prompts that nothing came before
        self.observe_every = self._observe_every() if self.exact_prompts else 1
        self.gathers = 0  # tokens whose queries learning is still to be shown; where every call observes: 0
        self._learns = self.exact_prompts
        self._follow_learning()

    def _observe_every(self) -> int:
        """Every how many tokens somebody has to know what rows receive, where that waits for a device. 0: nobody."""
        config = self.tiered.config()
        if config.eviction.policy not in ("", "none"):
            return 1
        codecs = [self.tiered.archive_codec(layer) for layer in range(self.shape.num_layers)]
        return OBSERVED if any("+top" in codec for codec in codecs) else 0

    def _follow_learning(self) -> None:
        """How far learning is, asked at the start of a pass until it is over: then nobody asks again."""
        if not self._learns:
            return
        report = self.tiered.learning()
        self.gathers = max(report.wanted - report.tokens, 1) if report.phase == "gathering" else 0
        if report.phase not in ("gathering", "solving"):
            self._learns = False
            self.observe_every = self._observe_every()  # tables may have changed the archive

    def _learn(self, model: Any, path: pathlib.Path | None) -> None:
        ropes = ropes_of(model, self.shape)
        if ropes is not None:
            number = fingerprint_of(model, self.shape)
            grams, path = grams_of(model, self.shape), path or calibration_path(number)
            self.tiered.learn(ropes, name=self.shape.name, fingerprint=number, grams=grams, path=path)

    def _tables_there(self, model: Any, path: pathlib.Path | None) -> Calibration | None:
        """The tables of an earlier time; one that is damaged or another model's is passed over."""
        number = fingerprint_of(model, self.shape)
        path = path or calibration_path(number)
        try:
            return fitting(load_calibration(path), model, self.shape, number) if path.exists() else None
        except Error:
            return None

    # --- a forward pass, as the layers see it

    def _begin(self, layer: TieredLayer, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Rows that are not as the last ones, or the first layer of a pass: they are looked at, and rows of the batch become
        sequences."""
        layer.check_rows(keys, values, self)
        if layer.index == 0 and self.layers[-1].seen != layer.seen:
            raise FailedPrecondition(
                "the last forward pass did not come to its end; call cache.roll_back(), then go on. If another thread is at it, "
                "give this one a cache of its own: copy.deepcopy(cache)"
            )
        if layer.index == 0 and self._learns:
            self._follow_learning()
        batch = keys.shape[0]
        if not self.sequence_ids:
            self.sequence_ids = [self.tiered.add_sequence() for _ in range(batch)]
        if len(self.sequence_ids) != batch:
            raise InvalidArgument(
                f"a batch of {batch} for a cache that holds {len(self.sequence_ids)} sequences; batch_repeat_interleave() and "
                "batch_select_indices() change that, and reset() starts anew"
            )
        if not layer.is_initialized:
            for other in self.layers:
                other.is_initialized = True
        self._fine = keys.shape

    def observes(self, seen: int, tokens: int) -> bool:
        """Whether somebody looks at what a call does that ends at token `seen`: on a device that waits for it."""
        every = self.observe_every
        return self.device is None or self.gathers > 0 or (every > 0 and (tokens > 1 or seen % every == 0))

    def plan(self, layer: TieredLayer, mask: torch.Tensor | None, query: torch.Tensor) -> Plan:
        """What all layers of this pass do with the mask."""
        batch, heads, tokens, dim = query.shape
        past, plan = layer.seen - tokens, self._plan
        if plan is not None and plan.past == past and plan.tokens == tokens:
            if mask is not plan.mask:
                self._check_mask(mask)
                plan.mask = mask
            return plan
        self._check_mask(mask)
        fresh = self._make_plan(mask, past, tokens, batch)
        if tokens == 1 and not fresh.starts:
            fresh.observes = self.observes(layer.seen, 1)
            if query.dtype in TYPES:
                fresh.rooms = query.new_empty((len(self.layers), batch, 1, heads, dim)).unbind()
        self._plan = fresh
        return fresh

    def _check_mask(self, mask: torch.Tensor | None) -> None:
        if getattr(mask, "_tierkv_custom", False) or (mask is not None and mask.ndim != 2):
            raise Unsupported(f"{self.shape.name}: a mask that is more than causal order and padding is not supported")

    def _make_plan(self, mask: torch.Tensor | None, past: int, tokens: int, batch: int) -> Plan:
        before = self._kept
        plan = Plan(past, tokens, mask, before, [], None)
        if mask is not None and mask.is_cuda:
            if tokens == 1 and past and self._trusted < MASKS_ON_TRUST and mask.shape == (batch, past + 1):
                self._trusted += 1
                if before is not None:
                    self._kept = torch.cat([before, torch.ones((batch, 1), dtype=torch.bool, device="cpu")], dim=1)
                return plan
            self._trusted, mask = 0, mask.cpu()
        if mask is None or bool(mask.all()):
            if before is not None:
                if mask is not None:
                    raise InvalidArgument("the attention mask shows tokens that were padding when they came")
                self._kept = torch.cat([before, torch.ones((batch, tokens), dtype=torch.bool, device="cpu")], dim=1)
            return plan
        if mask.shape != (batch, past + tokens):
            raise InvalidArgument(f"the attention mask is {list(mask.shape)} and must be [{batch}, {past + tokens}]")
        known = torch.ones((batch, past), dtype=torch.bool, device="cpu") if before is None else before
        if not torch.equal(mask[:, :past], known):
            raise InvalidArgument(
                "the attention mask hides or shows other tokens than when they came; padding cannot change later"
            )
        fresh = mask[:, past:]
        counts = fresh.sum(dim=1)
        starts = (tokens - counts).tolist()
        self._kept = mask.clone()
        last = torch.arange(tokens, device="cpu")[None, :] >= (tokens - counts)[:, None]
        if torch.equal(fresh, last):
            plan.starts = [int(start) for start in starts] if any(starts) else []
        else:
            plan.starts = [1]  # anything: rows that nobody writes must be zero
            plan.picks = [row.nonzero().flatten() for row in fresh]
        return plan

    def fail(self, length: int, error: BaseException) -> None:
        """A pass that was refused: as long as before it in every layer; or empty where a window has moved on, and it says so."""
        try:
            self.roll_back(length)
        except Error as stuck:
            self.reset()
            raise FailedPrecondition(f"{error}. And the cache is empty now, because it could not go back: {stuck}") from error

    def roll_back(self, length: int | None = None) -> None:
        """After a forward pass that failed half way: every layer as long as the shortest. Called by itself when tierkv refused."""
        for layer in self.layers:
            layer.staged = None
        self._shorten(min(layer.seen for layer in self.layers) if length is None else length)

    def _shorten(self, length: int) -> None:
        kept = self._kept
        for row, seq in enumerate(self.sequence_ids):
            tokens = length if kept is None else int(kept[row, :length].sum())
            # A layer may be longer than others in the middle of a pass: what matters is the longest.
            if any(self.tiered.length(seq, layer) > tokens for layer in range(self.shape.num_layers)):
                self.tiered.truncate(seq, tokens)
        for layer in self.layers:
            layer.seen = min(layer.seen, length)
        self._kept = None if kept is None else kept[:, :length]
        if self._kept is not None and bool(self._kept.all()):
            self._kept = None
        self._plan = None

    # --- what generate() and its friends ask of a cache

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Notes new rows of a layer, [batch, kv heads, tokens, head_dim], and hands them on to the attention function.

        All of them are checked when they are appended; here, where it is no more than a look, what concerns the whole pass.
        """
        layer, shape = self.layers[layer_idx], key_states.shape
        if layer_idx == 0 or shape != self._fine or layer.staged is not None or key_states.requires_grad:
            self._begin(layer, key_states, value_states)
        layer.staged = key_states
        note: Any = key_states
        note._tierkv_layer = layer
        layer.seen += shape[2]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0, *args: Any) -> int:
        """Tokens so far, padding and evicted ones included."""
        return int(self.layers[layer_idx].seen)

    def crop(self, tokens: int) -> None:
        """Forgets the newest tokens: as many as a negative number says, or all after a positive one.

        0 is nothing to do, and before transformers 5 everything.
        """
        seen, tokens = self.get_seq_length(), int(tokens)  # 5.17 hands over a tensor
        length = max(seen + tokens, 0) if tokens < 0 or not (tokens or CROPS_TO_A_LENGTH) else tokens
        if length < seen:
            self._shorten(length)

    def reset(self) -> None:
        """Forgets all sequences; settings and what was learned stay."""
        self._drop(self.sequence_ids)
        self.sequence_ids, self._kept, self._plan, self._fine = [], None, None, None
        for layer in self.layers:
            layer.seen, layer.staged = 0, None

    def _drop(self, ids: Sequence[int]) -> None:
        for seq in ids:
            self.tiered.remove(seq)

    def _select(self, rows: list[int]) -> None:
        """Row i is what row rows[i] was. All or nothing."""
        if not self.sequence_ids:
            return
        count = len(self.sequence_ids)
        if any(not -count <= row < count for row in rows):
            raise InvalidArgument(f"rows {rows} of a cache that has {count}")
        rows = [row % count for row in rows]
        used: set[int] = set()
        chosen: list[int] = []
        forks: list[int] = []
        try:
            for row in rows:
                if row in used:
                    forks.append(self.tiered.fork(self.sequence_ids[row]))
                    chosen.append(forks[-1])
                else:
                    used.add(row)
                    chosen.append(self.sequence_ids[row])
        except BaseException:
            self._drop(forks)
            raise
        self._drop([seq for row, seq in enumerate(self.sequence_ids) if row not in used])
        self.sequence_ids, self._fine = chosen, None
        if self._kept is not None:
            self._kept = self._kept[rows]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Beams take the places of others: blocks are shared, not copied."""
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times, side by side."""
        self._select([row for row in range(len(self.sequence_ids)) for _ in range(int(repeats))])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows only: indices, or a bool for each row."""
        places = torch.as_tensor(indices)
        if places.dtype == torch.bool:
            places = places.nonzero().flatten()
        self._select(places.tolist())

    # --- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> TieredCache:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.shape, twin.tiered, twin.device = self.shape, self.tiered, self.device
        twin._set_up()
        for seq in self.sequence_ids:
            twin.sequence_ids.append(self.tiered.fork(seq))
        twin._kept = None if self._kept is None else self._kept.clone()
        for mine, other in zip(self.layers, twin.layers):
            other.seen, other.is_initialized = mine.seen, mine.is_initialized
        return twin

    def __del__(self) -> None:
        tiered = getattr(self, "tiered", None)
        if tiered is None or tiered.closed:
            return
        for seq in getattr(self, "sequence_ids", []):
            try:
                tiered.remove(seq)
            except Error:
                pass  # somebody removed it by hand

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TieredCache is not pickled; save its sequences: cache.tiered.save(cache.sequence_ids[0], path)")

    # --- what it says about itself

    def memory_usage(self) -> MemoryStats:
        """Resident bytes by tier, of all sequences."""
        return self.tiered.memory_usage()

    def device_usage(self) -> cuda.Usage | None:
        """Bytes on the model's device, now and at most; None for a model in host memory. Blocks are in host memory too."""
        return None if self.device is None else self.device.usage()

    def tiers(self) -> TierTable:
        """The same as a small table; HTML in a notebook."""
        return self.tiered.tiers()

    def learning(self) -> LearningReport:
        """How far learning in passing is."""
        return self.tiered.learning()

    def describe(self) -> str:
        """What the archive is and why, in a sentence."""
        return self.tiered.describe()

    def __repr__(self) -> str:
        return (
            f"TieredCache({self.shape.name}, {len(self.sequence_ids)} x {self.get_seq_length()} tokens, {self.tiers().summary})"
        )

    def _repr_html_(self) -> str:
        return self.tiers()._repr_html_()
