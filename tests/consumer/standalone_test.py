#!/usr/bin/env python3
"""What is installed stands alone: no run path leaves it, no package file names another folder, and without the folder where
libllama was built the command runs and programs are built on it.

usage: standalone_test.py PREFIX LIBDIR EXAMPLES MODEL CC LLAMA_BUILD [FORBIDDEN...]
LLAMA_BUILD is the folder to be hidden; nothing may name it or one of FORBIDDEN.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PREFIX, LIBDIR, EXAMPLES, MODEL, CC, LLAMA_BUILD, *FORBIDDEN = sys.argv[1:]
FORBIDDEN.append(LLAMA_BUILD)
LIBRARIES = Path(PREFIX) / LIBDIR
COMMAND = Path(PREFIX) / "bin" / "tierkv"
# A name space of its own, in which the folder is empty.
HIDE = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh", LLAMA_BUILD]


def output_of(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", timeout=200, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def can_hide():
    return subprocess.run([*HIDE, "true"], capture_output=True).returncode == 0


def elf_files():
    files = [path for path in Path(PREFIX).rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


class StandaloneTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        kept = {name: os.environ[name] for name in ("PATH", "TIERKV_FORCE_ISA") if name in os.environ}
        self.environment = {**kept, "HOME": str(self.folder), "TIERKV_CACHE": str(self.folder / "cache")}

    def hidden(self, *command, **options):
        """With the folder out of reach where the system allows it; the other tests look at the run paths."""
        return output_of(*(HIDE if can_hide() else []), *command, cwd=self.folder, env={**self.environment, **options})

    def test_no_run_path_leaves_the_prefix(self):
        self.assertGreater(len(elf_files()), 4)
        for path in elf_files():
            for line in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", output_of("readelf", "-d", path)):
                for entry in line.split(":"):
                    self.assertTrue(entry.startswith("$ORIGIN"), f"{path}: {line}")

    def test_libraries_are_found_inside_it_or_are_the_systems(self):
        for path in [COMMAND, *LIBRARIES.rglob("*.so")]:
            listed = output_of("ldd", path, env=self.environment)
            self.assertNotIn("not found", listed, path)
            for name, found in re.findall(r"(\S+) => (\S+)", listed):
                inside = os.path.realpath(found).startswith(os.path.realpath(PREFIX) + "/")
                self.assertEqual(inside, bool(re.match(r"lib(llama|ggml|tierkv)", name)), f"{path}: {name} is {found}")
                self.assertFalse([folder for folder in FORBIDDEN if found.startswith(folder + "/")], found)

    def test_no_package_file_names_another_folder(self):
        files = [path for path in LIBRARIES.rglob("*") if path.suffix in (".cmake", ".pc")]
        self.assertGreater(len(files), 6)
        for path in files:
            for folder in FORBIDDEN:
                self.assertNotIn(folder, path.read_text(), path)

    def test_the_command_runs(self):
        self.assertIn('"resident_bytes"', self.hidden(COMMAND, "generate", "that", "-m", MODEL, "-n", "2", "-t", "1", "--json"))

    def test_a_program_is_built_and_runs(self):
        self.hidden("cmake", "-S", EXAMPLES, "-B", "built", f"-DCMAKE_PREFIX_PATH={PREFIX}", f"-DCMAKE_C_COMPILER={CC}",
                    "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
        self.hidden("cmake", "--build", "built", "--target", "embed_llama_c")
        self.hidden(self.folder / "built" / "embed_llama_c", MODEL)

    def test_pkg_config_is_enough(self):
        if subprocess.run(["sh", "-c", "command -v pkg-config"], capture_output=True).returncode != 0:
            self.skipTest("there is no pkg-config")
        flags = self.hidden("pkg-config", "--cflags", "--libs", "--static", "tierkv-llama",
                            PKG_CONFIG_PATH=str(LIBRARIES / "pkgconfig"))  # fmt: skip
        self.hidden(CC, Path(EXAMPLES) / "embed_llama.c", "-o", "program", *flags.split())
        self.hidden("./program", MODEL, LD_LIBRARY_PATH=str(LIBRARIES))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
