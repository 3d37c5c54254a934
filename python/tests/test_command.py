"""`python -m tierkv`."""

from __future__ import annotations

import subprocess
import sys

import tierkv
from tierkv.__main__ import main


def test_help_names_every_command():
    result = subprocess.run([sys.executable, "-m", "tierkv", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert all(word in result.stdout for word in ("version", "presets", "codecs", "policies", "plan"))


def test_lists(capsys):
    assert main(["version"]) == 0 and capsys.readouterr().out.strip() == tierkv.__version__
    for command, names in (("presets", tierkv.presets()), ("codecs", tierkv.codecs()), ("policies", tierkv.policies())):
        assert main([command]) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in names)


def test_a_plan_counts_bytes(capsys):
    plan = ["plan", "--layers", "4", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--tokens", "4096"]
    assert main([*plan, "--kv", "balanced"]) == 0
    assert "as FP16 8.0 MiB" in capsys.readouterr().out
    assert main([*plan, "--kv", "nonsense"]) == 1
    assert "nonsense" in capsys.readouterr().err
