"""The example that people copy runs, on a tiny model, and says what it should."""

from __future__ import annotations

import importlib.util
import json

import pytest
from conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: make test-python sets it up")
pytest.importorskip("transformers", reason="transformers is not installed: make test-python sets it up")


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "python" / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_python_costs_little_beside_the_work():
    # 15 us is the aim on a quiet machine; here others may compute.
    assert 0 < min(own for own, _ in example("step_cost").measure()) < 100


def test_compare_runs(tmp_path, capsys):
    # Not quanto: it compiles a part of itself when it is first used, which takes minutes.
    results = example("compare").main(["--out", str(tmp_path), "--only", "^(?!.*quanto)"])
    plain, ours = results["DynamicCache"], results["tierkv fp16"]
    assert ours["perplexity"] == pytest.approx(plain["perplexity"], rel=2e-3)
    # float32 tensors against 16-bit rows.
    assert plain["bytes"][-1][1] == 640 * 2 * 2 * 32 * 2 * 4
    assert ours["bytes"][-1][1] < 0.7 * plain["bytes"][-1][1]
    assert results["tierkv balanced"]["bytes"][-1][1] < ours["bytes"][-1][1]
    assert {name for name in results if "1/4" in name} and json.loads(
        (tmp_path / "compare.json").read_text()
    ).keys() == results.keys()
    shown = capsys.readouterr().out
    assert "DynamicCache" in shown
    for module, peer in (("akv", "AKV balanced"), ("hqq", "QuantizedCache hqq 4")):
        if importlib.util.find_spec(module) is None:
            continue  # left out, and said so
        assert results[peer]["perplexity"] < 2 * plain["perplexity"]
