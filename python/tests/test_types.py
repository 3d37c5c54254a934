"""Types: mypy has nothing to say, and the stub of the C++ module names what the module has, with the same parameters."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

import tierkv


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=ROOT)


def test_the_package_is_typed():
    folder = pathlib.Path(tierkv.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()


def test_mypy_is_content():
    pytest.importorskip("mypy", reason="mypy is not installed")
    result = run("mypy", "--config-file", "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr


def members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Names that a stub declares, private ones and the module's imports apart."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def parameters(function: object) -> list[str]:
    """Names of a bound function's parameters, as nanobind tells them; those without a name are left out."""
    signature = function.__nb_signature__[0][0]
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    names = [
        re.match(r"\w+", part.strip()).group()
        for part in re.split(r",\s*(?![^\[]*\])", inside)
        if re.match(r"\w", part.strip())
    ]
    return [name for name in names if name != "self" and not re.fullmatch(r"arg\d*", name)]


def test_the_stub_is_the_module():
    tree = ast.parse((ROOT / "python" / "tierkv" / "_core.pyi").read_text())
    declared = members(tree.body)
    assert set(declared) == {name for name in vars(tierkv._core) if not name.startswith("_")}
    for name, node in declared.items():
        thing = getattr(tierkv._core, name)
        functions = {name: (node, thing)}
        if isinstance(node, ast.ClassDef):
            inside = members(node.body)
            assert set(inside) == {member for member in vars(thing) if not member.startswith("_")}, name
            functions = {member: (part, vars(thing)[member]) for member, part in inside.items()}
        for called, (part, function) in functions.items():
            if isinstance(part, ast.FunctionDef) and hasattr(function, "__nb_signature__"):
                assert [arg.arg for arg in part.args.args if arg.arg != "self"] == parameters(function), (name, called)
