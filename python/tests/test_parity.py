"""Everything that the public headers can do, Python can: the headers are read, and each name must have its twin."""

from __future__ import annotations

import inspect
import re

import pytest
from conftest import ROOT

import tierkv

HEADERS = ROOT / "include" / "tierkv"

# C++ names whose twin has another name or form, and why.
CACHE_TWINS = {"create": "__init__"}  # a constructor makes it
# A device's own: tierkv.cuda.attach and detach call two of them, tierkv/cuda.h the third. And what tierkv.hf calls for every layer,
# on a batch of torch tensors: _core.Cache.step.
CPP_ALONE = {"attend_with", "attend_here", "record_step", "step"}
FUNCTION_TWINS = {
    "validate": "CacheConfig.validate",
    "wants_calibration": "CacheConfig.wants_calibration",
    "preset_names": "presets",
    "apply_preset": "CacheConfig.apply_preset",
    "apply_toml": "CacheConfig.apply_toml",
    "apply_json": "CacheConfig.apply_json",
    "apply_file": "CacheConfig.apply_file",
    "apply_inline": "CacheConfig.apply_inline",
    "apply_spec": "CacheConfig.apply_spec",
    "to_json": "CacheConfig.to_json",
    "load_calibration": "load_calibration",
    "parse_calibration": "parse_calibration",
    "describe": "Calibration.describe",
    "check_fit": "Calibration.check_fit",
    "with_ropes": "Calibration.with_ropes",
    "inspect_snapshot": "inspect_snapshot",
}
# Structs that are classes of the package with the same fields.
STRUCTS = {
    "config.h": ["LayerConfig", "LayerOverride", "EvictionConfig", "DeepConfig", "ColdConfig", "CacheConfig"],
    "stats.h": ["TierMemory", "MemoryStats", "QualityMetrics", "LayerThresholds", "BlockMass", "MassReport", "ColdStats"],
    "cache.h": ["DeepOptions", "DeepReport", "MemoryPressure", "PromotionReport"],
    "learning.h": ["LearningReport"],
    "calibration.h": ["CalibrationInfo"],
    "snapshot.h": ["SnapshotInfo"],
}


def text_of(name: str) -> str:
    return re.sub(r"//[^\n]*", "", (HEADERS / name).read_text())


def body_of(text: str, kind: str, name: str) -> str:
    start = re.search(rf"\b{kind} {name} {{", text).end()
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start : end - 1]


def public_methods() -> set[str]:
    public = body_of(text_of("cache.h"), "class", "AdaptiveKVCache").split("public:")[1].split("private:")[0]
    statements = [re.sub(r"\s+", " ", part).strip() for part in public.split(";")]
    names = set()
    for statement in statements:
        match = re.match(r"(?:static |explicit )?[\w:<>,*& ]+?[ &](\w+)\(", statement)
        if match and "operator" not in statement and "delete" not in statement and "AdaptiveKVCache(" not in statement:
            names.add(match.group(1))
    return names


def test_the_walk_finds_the_methods():
    found = public_methods()
    assert {"create", "append", "attention", "park", "thresholds", "config", "set_residual", "unfreeze"} <= found
    assert len(found) >= 35


@pytest.mark.parametrize("method", sorted(public_methods() - CPP_ALONE))
def test_every_method_of_the_cache_has_a_twin(method):
    twin = getattr(tierkv.Cache, CACHE_TWINS.get(method, method), None)
    assert callable(twin), f"AdaptiveKVCache::{method} has no twin in tierkv.Cache"
    assert twin.__doc__ or method == "create"


@pytest.mark.parametrize("header", ["config.h", "calibration.h", "snapshot.h"])
def test_every_free_function_has_a_twin(header):
    text = text_of(header)
    for struct in re.findall(r"\bstruct (\w+) {", text):
        text = text.replace(body_of(text, "struct", struct), "")
    names = set(re.findall(r"^(?:\[\[nodiscard\]\] )?[\w:<>]+ (\w+)\(", text, re.MULTILINE))
    assert names, "the walk found no functions"
    for name in names:
        twin: object = tierkv
        for part in FUNCTION_TWINS[name].split("."):
            twin = getattr(twin, part)
        assert callable(twin)


@pytest.mark.parametrize("header, struct", [(header, name) for header, names in STRUCTS.items() for name in names])
def test_every_field_has_a_twin(header, struct):
    body = body_of(text_of(header), "struct", struct)
    body = re.sub(r"\w[^;{}]*\) (?:const )?{[^}]*}", ";", body)  # methods with a body
    fields = []
    for statement in body.split(";"):
        statement = re.sub(r"\s+", " ", statement).strip()
        if not statement or "(" in statement.split("=")[0] or "static" in statement or "operator" in statement:
            continue
        names = re.sub(r"^(?:std::)?[\w:]+(?:<.*>)? ", "", statement)
        fields += [re.split(r"[ =\[]", name.strip())[0] for name in names.split(",")]
    assert fields, f"no fields found in {struct}"
    for field in fields:
        assert hasattr(getattr(tierkv, struct), field), f"{struct}::{field} has no twin"


def test_the_device_has_its_twin():
    text = text_of("cuda.h")
    fields = re.findall(r"uint64_t (\w+) = 0;", body_of(text, "struct", "Usage"))
    assert len(fields) >= 8 and all(hasattr(tierkv.cuda.Usage, field) for field in fields), fields
    options = re.findall(r"(\w+) = (?:\d+|true|false);", body_of(text, "struct", "Options"))
    assert {"device", "byte_limit", "keep_on_host"} <= set(options) <= set(inspect.signature(tierkv.cuda.attach).parameters)
    methods = re.findall(r"virtual [\w:]+ (\w+)\(", body_of(text, "class", "Device"))
    assert {"usage", "check"} <= set(methods) <= set(vars(tierkv.cuda.Device))
    functions = set(re.findall(r"^\w[\w:<> ]* (\w+)\(", text, re.MULTILINE))
    # A graph is captured around calls that C++ makes: a model's calls in Python are torch's to capture.
    for name in functions - {"record"}:
        assert callable(getattr(tierkv.cuda, name))


def test_options_of_attention_are_parameters():
    fields = re.findall(r"(\w+) = [^;]*;", body_of(text_of("cache.h"), "struct", "AttentionOptions"))
    # The executor shares the work with a caller's C++ threads; Python has none to offer.
    names = set(fields) - {"executor"}
    assert {"causal", "softcap", "mass"} <= names <= set(tierkv.Cache.attention.__kwdefaults__)


def test_enums_have_the_same_numbers():
    body = re.search(r"enum class StatusCode : int {(.*?)}", text_of("status.h"), re.DOTALL).group(1)
    codes = {name.upper(): int(number) for name, number in re.findall(r"(\w+) = (\d+)", body)}
    assert codes == {code.name: int(code) for code in tierkv.Code}
