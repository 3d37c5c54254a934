"""Configurations: presets, lines, files and fields are one and the same."""

from __future__ import annotations

import pytest
from conftest import SHAPE

import tierkv


@pytest.mark.parametrize("name", tierkv.presets())
def test_every_preset_makes_a_cache(name):
    with tierkv.Cache(name, **SHAPE) as cache:
        assert cache.config().num_layers == SHAPE["num_layers"]


def test_a_line_a_file_and_fields_agree(tmp_path):
    line = tierkv.configure("balanced,hot=128,evict=h2o", max_seq_len=512, **SHAPE)
    fields = tierkv.configure("balanced", hot=128, eviction={"policy": "h2o"}, max_seq_len=512, **SHAPE)
    path = tmp_path / "kv.toml"
    path.write_text('preset = "balanced"\nhot = 128\nmax_seq_len = 512\n[eviction]\npolicy = "h2o"\n')
    assert line == fields == tierkv.configure(path, **SHAPE)
    assert tierkv.configure(**tierkv.to_dict(line)) == line


def test_a_configuration_is_copied_not_changed():
    one = tierkv.configure("balanced")
    two = tierkv.configure(one, hot=256)
    assert one.tiers.hot == 64 and two.tiers.hot == 256 and one != two


def test_layers_may_differ():
    config = tierkv.configure("balanced", layer=[{"layers": "0-1", "archive_codec": "rot4"}], num_layers=4)
    assert config.layer(1).archive_codec == "rot4" and config.layer(2).archive_codec == "auto"
    assert config.overrides[0].last == 1 and config.overrides[0].hot is None
    other = tierkv.LayerOverride()
    other.first = other.last = 3
    other.window = 64
    config.overrides = [*config.overrides, other]
    assert config.layer(3).window == 64


def test_tables_of_names():
    assert {"kivi", "rot", "klt"} <= set(tierkv.codecs()) and all(tierkv.codecs().values())
    assert {"h2o", "snapkv", "tova", "streaming_llm", "pyramidkv", "scissorhands"} <= set(tierkv.policies())
    assert tierkv.__version__.count(".") == 2
    assert tierkv.ALL == tierkv.configure("fp16").tiers.warm
