"""`python -m tierkv`, and the program `tierkv` that is in the wheel."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

import tierkv
from tierkv import program
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
    other = tmp_path / "tierkv"
    other.write_text('#!/bin/sh\necho "got $*"\nexit 7\n')
    other.chmod(0o755)
    result = run("ppl", "--kv", "balanced", TIERKV_PROGRAM=str(other))
    assert (result.returncode, result.stdout) == (7, "got ppl --kv balanced\n")
    result = run("ppl", TIERKV_PROGRAM=str(tmp_path / "none"))
    assert result.returncode == 2 and "cannot be run" in result.stderr


def test_without_the_program_it_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "BUNDLED", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["tierkv", "chat"])
    assert program.main() == 2
    said = capsys.readouterr().err
    assert "not in this wheel" in said and "TIERKV_PYTHON_PROGRAM=ON" in said and "make install" in said
    monkeypatch.delenv("TIERKV_PROGRAM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["ppl"]) == 2
    said = capsys.readouterr().err
    assert "'ppl'" in said and "TIERKV_PROGRAM" in said and "presets" in said


# --- the program itself


@pytest.fixture(scope="module")
def script() -> pathlib.Path:
    """The script `tierkv` as pip made it, or the program where the package was not installed by pip."""
    if program.bundled() is None:
        if os.environ.get("TIERKV_WHEEL_HAS_PROGRAM"):
            pytest.fail("the wheel was built to have the program, and it has none")
        pytest.skip("the wheel was built without the program")
    made = pathlib.Path(tierkv.__file__).parents[1] / "bin" / "tierkv"  # of pip install --target
    beside = pathlib.Path(sys.executable).parent / "tierkv"
    return next((path for path in (made, beside) if path.exists()), program.BUNDLED)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(ROOT / "tools" / "tiny_gguf.py"), str(folder), "llama"], check=True)
    return str(folder / "llama.gguf")


def call(path: pathlib.Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    # Scripts of pip --target find their package by PYTHONPATH alone, and any interpreter may be in their first line.
    line = [str(path)] if path == program.BUNDLED else [sys.executable, str(path)]
    return subprocess.run([*line, *words], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)


def test_the_script_runs_the_program(script):
    shown = call(script, "--version")
    assert shown.returncode == 0 and tierkv.__version__ in shown.stdout, shown.stderr
    shown = call(script, "ppl", "--help")
    assert shown.returncode == 0 and "--kv" in shown.stdout
    # Its exit status and its own words, not Python's.
    shown = call(script, "nonsense")
    assert shown.returncode not in (0, None) and "Traceback" not in shown.stderr and "nonsense" in shown.stderr


def test_the_program_plans(script):
    shape = ("--layers", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64", "--ctx", "1000", "--kv", "balanced", "--json")
    shown = call(script, "plan", *shape)
    assert shown.returncode == 0, shown.stderr
    plan = json.loads(shown.stdout)
    assert plan["fp16_bytes"] == 2 * 2 * 4 * 2 * 64 * 1000 and 0 < plan["plans"][0]["total_bytes"]


def test_the_program_generates_with_its_own_libllama(script, model):
    words = ("generate", "that river", "-m", model, "-n", "6", "--ignore-end", "--json")
    shown = call(script, *words)
    assert shown.returncode == 0, shown.stderr
    first = json.loads(shown.stdout)["results"][0]["tokens"]
    assert len(first) == 6
    again = run(*words, TIERKV_PROGRAM="")  # python -m tierkv finds the same one
    assert again.returncode == 0 and json.loads(again.stdout)["results"][0]["tokens"] == first


def test_the_libraries_of_the_program_are_the_wheels_own(script):
    if shutil.which("ldd") is None:
        pytest.skip("ldd is not installed")
    shown = subprocess.run(["ldd", str(program.BUNDLED)], capture_output=True, text=True).stdout
    assert "not found" not in shown, shown
    for name in ("libllama", "libggml"):
        (line,) = [line for line in shown.splitlines() if line.strip().startswith(f"{name}.so")]
        assert str(program.BUNDLED.parents[1].resolve()) in str(pathlib.Path(line.split("=>")[1].split()[0]).resolve()), line
