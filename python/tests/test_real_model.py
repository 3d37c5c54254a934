"""The default model in torch: with `fp16` it writes what it writes with DynamicCache, and its perplexity is the command's.

bench/python/real_model.py measures; the model and the text are those of `make fetch`.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

from tierkv import program
from tierkv.hf.cache import cache_folder

BENCH = ROOT / "bench" / "python"
MODEL = cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = cache_folder() / "text" / "wiki.test.raw"


def missing() -> str:
    """What a run needs and is not there; empty: nothing."""
    lacks = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    lacks += [str(path) for path in (BENCH / "real_model.py", MODEL, TEXT) if not path.exists()]
    return ", ".join(lacks)


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not here: {missing()}")


def measure(findings: pathlib.Path, *words: str) -> dict:
    line = [sys.executable, str(BENCH / "real_model.py"), *words, "--model", str(MODEL), "--text", str(TEXT)]
    subprocess.run([*line, "--threads", "2", "--json", str(findings)], check=True)
    return json.loads(findings.read_text())


def test_greedy_text_is_that_of_dynamic_cache(tmp_path):
    found = measure(tmp_path / "greedy.json", "greedy", "--tokens", "256")["greedy"]
    # Where two tokens are as likely as each other, rounding may choose.
    assert found["equal"] == 256 or abs(found["tie"]) <= 2 * found["logits_apart"], found
    assert found["logits_apart"] < 0.01 * found["logits_spread"], found


def test_perplexity_is_that_of_the_command(tmp_path):
    command = program.bundled()
    if command is None:
        pytest.skip("the program is not in this wheel")
    wide = tmp_path / "wide.gguf"  # both compute with the same weights
    subprocess.run([sys.executable, str(BENCH / "widen_gguf.py"), str(MODEL), str(wide)], check=True)
    # Codecs of channels: torch and GGUF order a head's differently, so what mixes channels rounds other numbers.
    specs = ("fp16", "int8", "kivi4")
    words = ["--kv", ",".join(specs), "--ctx", "1024", "--tokens", "1024", "--chunk", "128"]
    found = measure(tmp_path / "ppl.json", "ppl", *words, "--command", command, "--command-model", str(wide))["ppl"]
    plain = found["settings"]["DynamicCache"]["ppl"]
    assert found["settings"]["fp16"]["ppl"] == pytest.approx(plain, rel=2e-4)
    for spec in specs:
        assert found["settings"][spec]["ppl"] == pytest.approx(found["command"][spec], rel=2e-3), spec
    assert found["settings"]["kivi4"]["ppl"] > 1.001 * plain  # older tokens were read compressed
