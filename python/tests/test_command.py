"""`python -m tierkv`."""

from __future__ import annotations

import os
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


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tierkv", *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_other_words_go_to_the_program(tmp_path):
    program = tmp_path / "tierkv"
    program.write_text('#!/bin/sh\necho "got $*"\nexit 7\n')
    program.chmod(0o755)
    for result in (
        run("ppl", "--kv", "balanced", TIERKV_PROGRAM=str(program)),
        run("ppl", "--kv", "balanced", TIERKV_PROGRAM="", PATH=f"{tmp_path}:{os.environ['PATH']}"),
    ):
        assert (result.returncode, result.stdout) == (7, "got ppl --kv balanced\n")


def test_without_the_program_it_says_where_it_would_be(tmp_path):
    result = run("ppl", TIERKV_PROGRAM="", PATH=str(tmp_path))
    assert result.returncode == 2 and "make install" in result.stderr and "TIERKV_PROGRAM" in result.stderr
    result = run("ppl", TIERKV_PROGRAM=str(tmp_path / "none"))
    assert result.returncode == 2 and "cannot be run" in result.stderr
