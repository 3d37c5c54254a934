"""Pythons with packages of other people's, for the clients that `tierkv serve` is tested with."""

import hashlib
import subprocess
import sys
import unittest
from pathlib import Path

from command import CACHE

HERE = Path(__file__).parent


def client_python(name):
    """The Python that has the packages of `name`_requirements.txt: a virtual environment in the cache folder, made once. Where it
    cannot be made (there is no network) the test is skipped."""
    requirements = HERE / f"{name}_requirements.txt"
    pinned = "\n".join(line for line in requirements.read_text().splitlines() if not line.startswith("#"))
    version = hashlib.sha256(pinned.encode()).hexdigest()[:12]
    folder = CACHE / "venv" / f"{name}-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True, timeout=120)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        subprocess.run(command, check=True, capture_output=True, timeout=400)
    except (subprocess.SubprocessError, OSError) as problem:
        raise unittest.SkipTest(f"the packages of {requirements.name} cannot be installed here: {problem}") from problem
    (folder / "complete").touch()
    return python
