"""What people install: the wheel and the sdist."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from conftest import ROOT

import tierkv

WHEELS = os.environ.get("TIERKV_WHEEL_DIR", "")


def wheel() -> pathlib.Path:
    if not WHEELS:
        pytest.skip("TIERKV_WHEEL_DIR is not set: tools/test_python.sh builds a wheel and sets it")
    return next(pathlib.Path(WHEELS).glob("tierkv-*.whl"))


def test_the_wheel_has_the_package_and_nothing_else():
    names = zipfile.ZipFile(wheel()).namelist()
    assert {"tierkv/__init__.py", "tierkv/_core.pyi", "tierkv/py.typed", "tierkv/hf/cache.py", "tierkv/lmcache.py"} <= set(names)
    assert any(re.match(r"tierkv/_core\..*\.?so$", name) for name in names)
    assert any(name.endswith("LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} <= {"tierkv", f"tierkv-{tierkv.__version__}.dist-info"}


def test_the_wheel_says_for_whom_it_is():
    tag = "cp312-abi3" if sys.version_info >= (3, 12) else f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}"
    assert tag in wheel().name


def test_the_versions_agree():
    project = re.search(r"project\(tierkv VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    package = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)
    assert project == package == tierkv.__version__


def test_the_module_needs_only_the_system():
    module = next(pathlib.Path(tierkv.__file__).parent.glob("_core*.so"))
    needed = re.findall(
        r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    )
    assert needed and all(re.match(r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|ld-linux.*)\.so", name) for name in needed), (
        needed
    )


def test_auditwheel_makes_a_manylinux_wheel_whose_program_runs(tmp_path):
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    if shutil.which("patchelf") is None:
        pytest.skip("patchelf is not on the PATH; tools/test_python.sh puts it there")
    made = subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(tmp_path), str(wheel())],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (repaired,) = tmp_path.glob("tierkv-*manylinux_2_*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(repaired) as archive:
        archive.extractall(site)
    program = site / "tierkv" / "_program" / "bin" / "tierkv"
    if not program.exists():
        return  # built without it
    for file in program.parent.iterdir():
        file.chmod(0o755)
    shown = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    # What a system need not have travels along.
    for name in ("libllama", "libggml-base", "libcpp-httplib", "libcrypto"):
        (line,) = [line for line in shown.splitlines() if line.strip().startswith(name)]
        assert str(site) in line, line
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    assert said.returncode == 0 and tierkv.__version__ in said.stdout, said.stderr


def test_the_sdist_has_every_source(tmp_path):
    pytest.importorskip("build", reason="build is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what the sdist must hold is not known")
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    wanted = {
        name for name in tracked if name.startswith(("src/", "include/", "cmake/", "python/")) and not name.endswith("_test.cc")
    }
    wanted |= {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"}
    assert not wanted - held, sorted(wanted - held)[:10]
    # And what the program in the wheel is made of.
    wanted |= {name for name in tracked if name.startswith("apps/")}
    wanted |= {"tools/fetch.py", "tools/parquet_text.py", "data/calibration/smollm2-135m.tkc", "data/demo/story.txt"}
    assert not wanted - held, sorted(wanted - held)[:10]
    assert not [name for name in held if name.startswith(("docs/", "data/grafana", "build", "tests/", "bench/"))]
