"""The configuration of a cache: presets, files, one line of text, or fields by name (docs/use/configuration.md)."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _core
from ._core import ALL, CacheConfig, ColdConfig, DeepConfig, EvictionConfig, LayerConfig, LayerOverride
from .errors import InvalidArgument

__all__ = [
    "ALL",
    "CacheConfig",
    "ColdConfig",
    "DeepConfig",
    "EvictionConfig",
    "LayerConfig",
    "LayerOverride",
    "codecs",
    "configure",
    "policies",
    "presets",
    "to_dict",
]


def presets() -> list[str]:
    """The names of the presets: "fp16", "balanced", …"""
    return list(_core.preset_names())


def codecs() -> dict[str, str]:
    """The codecs of the tiers, each with a sentence. Most take a width: "kivi2"."""
    return dict(_core.codecs())


def policies() -> dict[str, str]:
    """The eviction policies, each with a sentence."""
    return dict(_core.policies())


def configure(spec: str | os.PathLike[str] | CacheConfig | None = None, **fields: Any) -> CacheConfig:
    """A configuration from a spec and fields.

    `spec` is a preset ("balanced"), the path of a .toml or .json file, one line ("balanced,hot=128,evict=h2o") or a configuration
    to start from, which is copied. `fields` are keys of docs/use/configuration.md, set on top: `num_layers=30`,
    `byte_budget="2GiB"`, `eviction={"policy": "h2o"}`. None is no value: the key is left alone.

    Raises :class:`tierkv.InvalidArgument` with the key's name and what is allowed.
    """
    config = CacheConfig(spec) if isinstance(spec, CacheConfig) else CacheConfig()
    given = {key: value for key, value in fields.items() if value is not None}
    try:
        text = json.dumps(given)
    except TypeError as error:
        raise InvalidArgument(
            f"a field of the configuration is neither a number, a text, a list nor a dictionary: {error}"
        ) from None
    if spec is not None and not isinstance(spec, CacheConfig):
        config.apply_spec(os.fspath(spec))
    if given:
        config.apply_json(text, "fields")
    return config


def to_dict(config: CacheConfig) -> dict[str, Any]:
    """The whole configuration as plain values; `configure(**to_dict(config))` gives it back."""
    fields: dict[str, Any] = json.loads(config.to_json())
    return fields
