"""What a model of transformers is to a cache: its shape, its windows, its RoPE; and which ones cannot be served, by name."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import cuda
from ..errors import Unsupported

# Models that turn channel i with channel i + n of the first 2n, at frequencies that do not change with the length of the text: what
# learning has to know. Others are served too, with the archive that needs no tables.
HALF_ROTATED = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "gemma", "gemma2", "gemma3_text", "granite", "olmo2", "starcoder2"}
)
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True)
class ModelShape:
    """What the cache is configured with."""

    name: str
    kind: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int, ...] = field(repr=False)
    """Of each layer; 0: full attention."""
    layer_types: tuple[str, ...] = field(repr=False)
    device: int = -1
    """The CUDA device that its weights are on; -1: they are in host memory."""


def _refuse(model: Any, why: str) -> Unsupported:
    config = model.config
    return Unsupported(f"{type(model).__name__} (model_type {config.model_type!r}) cannot be served: {why}")


def _whole(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else None


def _layer_types(model: Any, config: Any, layers: int) -> tuple[str, ...]:
    types = getattr(config, "layer_types", None)
    if types is None:
        # Before transformers had layer types, a window was one for all layers.
        types = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"] * layers
    strange = sorted(set(types) - SERVED_LAYERS)
    if strange:
        raise _refuse(
            model, f"it has layers of the kind {', '.join(strange)}, and a KV cache has only full and sliding attention"
        )
    if len(types) != layers:
        raise _refuse(model, f"its configuration names {len(types)} kinds of layers for {layers} layers")
    return tuple(types)


def _check_kind(model: Any, config: Any) -> None:
    if getattr(model.config, "is_encoder_decoder", False):
        raise _refuse(model, "it is an encoder and a decoder, whose cross-attention has no tiers")
    if getattr(config, "kv_lora_rank", None):
        raise _refuse(model, "its attention is MLA: keys are compressed by the model itself")
    if getattr(config, "num_kv_shared_layers", 0):
        raise _refuse(model, "some of its layers read the keys of others")
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", None):
        raise _refuse(model, "its attention is bidirectional")
    if not getattr(model, "_supports_attention_backend", False):
        raise _refuse(model, "its attention does not go through transformers' AttentionInterface")


def _check_projections(model: Any, shape: ModelShape) -> None:
    for module in attention_modules(model).values():
        project = getattr(module, "k_proj", None)
        width = getattr(project, "out_features", None)
        if width is not None and width != shape.num_kv_heads * shape.head_dim:
            raise _refuse(
                model,
                f"layer {module.layer_idx} has keys of {width} channels, and the configuration says {shape.num_kv_heads} heads of "
                f"{shape.head_dim}: all layers must be of one shape",
            )


def _device_of(model: Any) -> int:
    """The CUDA device of a model, -1 for host memory; refused where the cache cannot follow."""
    places = {parameter.device for parameter in model.parameters()}
    if all(place.type == "cpu" for place in places):
        return -1
    names = ", ".join(sorted(str(place) for place in places))
    if len(places) > 1:
        raise _refuse(model, f"its weights are on {names}, and a cache serves one device; load it without device_map")
    (place,) = places
    if place.type != "cuda":
        raise _refuse(model, f"its weights are on {names}, and tierkv computes in host memory and on CUDA devices; model.cpu()")
    number = place.index or 0
    why = cuda.why_not(number)
    if why is not None:
        raise _refuse(model, f"its weights are on {names}. {why}. model.cpu() does without")
    return int(number)


def shape_of_model(model: Any) -> ModelShape:
    """The shape, or :class:`tierkv.Unsupported` with the model's name and what is in the way."""
    config = model.config.get_text_config(decoder=True)
    _check_kind(model, config)
    layers, heads = _whole(config, "num_hidden_layers"), _whole(config, "num_attention_heads")
    hidden = _whole(config, "hidden_size")
    if layers is None or heads is None or hidden is None:
        raise _refuse(model, "its configuration has no num_hidden_layers, num_attention_heads and hidden_size for all layers")
    kv_heads = heads if getattr(config, "num_key_value_heads", None) is None else _whole(config, "num_key_value_heads")
    if kv_heads is None:
        raise _refuse(model, "its layers have different numbers of KV heads")
    head_dim = _whole(config, "head_dim") or hidden // heads
    if head_dim % 16 or not 32 <= head_dim <= 256:
        raise _refuse(model, f"its heads have {head_dim} channels; 32 to 256 in steps of 16 are supported")
    types = _layer_types(model, config, layers)
    window = getattr(config, "sliding_window", None) or 0
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in types)
    name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    device = _device_of(model)
    shape = ModelShape(name[-200:], config.model_type, layers, heads, kv_heads, head_dim, windows, types, device)
    _check_projections(model, shape)
    return shape


def attention_modules(model: Any) -> dict[int, Any]:
    """The attention of each layer, by its index, where it looks like one."""
    found: dict[int, Any] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and any(hasattr(module, name) for name in ("k_proj", "qkv_proj")):
            found[index] = module
    return found


def _frequencies(rotary: Any, local: Any, layer_type: str) -> torch.Tensor | None:
    """inv_freq of a kind of layers, wherever this generation of transformers keeps it."""
    named = getattr(rotary, f"{layer_type}_inv_freq", None)
    if named is not None:
        return named if isinstance(named, torch.Tensor) else None
    if local is not None and layer_type == "sliding_attention":
        rotary = local
    plain = getattr(rotary, "inv_freq", None)
    return plain if isinstance(plain, torch.Tensor) else None


def _rope_is_static(rotary: Any) -> bool:
    kind = getattr(rotary, "rope_type", "default")
    kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
    return kinds <= STATIC_ROPE


def ropes_of(model: Any, shape: ModelShape) -> list[list[tuple[int, int, float]]] | None:
    """RoPE of each layer as pairs of channels and angles, or None where it is not known."""
    if shape.kind not in HALF_ROTATED:
        return None
    rotary = local = None
    for name, module in model.named_modules():
        if name.endswith("rotary_emb") and rotary is None:
            rotary = module
        elif name.endswith("rotary_emb_local"):
            local = module
    if rotary is None or not _rope_is_static(rotary):
        return None
    ropes = []
    for kind in shape.layer_types:
        turns = _frequencies(rotary, local, kind)
        if turns is None or 2 * len(turns) > shape.head_dim:
            return None
        half = len(turns)
        ropes.append([(i, i + half, float(angle)) for i, angle in enumerate(turns.tolist())])
    return ropes


def grams_of(model: Any, shape: ModelShape) -> list[torch.Tensor | None]:
    """W_O'W_O of each query head of each layer: what an error in a value does to the residual stream. None: not found."""
    modules = attention_modules(model)
    grams: list[torch.Tensor | None] = []
    for layer in range(shape.num_layers):
        project = getattr(modules.get(layer), "o_proj", None) or getattr(modules.get(layer), "dense", None)
        weight = getattr(project, "weight", None)
        if weight is None or weight.ndim != 2 or weight.shape[1] != shape.num_heads * shape.head_dim:
            grams.append(None)
            continue
        heads = weight.detach().cpu().float().view(weight.shape[0], shape.num_heads, shape.head_dim)
        grams.append(torch.einsum("ohd,ohe->hde", heads, heads).contiguous())
    return grams


def fingerprint_of(model: Any, shape: ModelShape) -> int:
    """A number of the shape and of the vectors among the weights (norms and biases), which tell one model from another."""
    digest = hashlib.sha256(repr((shape.kind, shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim)).encode())
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim == 1:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().float().contiguous().numpy().tobytes())
        elif name.endswith(("k_proj.weight", "qkv_proj.weight")):
            digest.update(parameter.detach()[:1].cpu().float().contiguous().numpy().tobytes())
    return int(struct.unpack("<Q", digest.digest()[:8])[0])
