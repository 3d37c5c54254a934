"""What the tests of the command `tierkv` share: tiny models, a folder of their own, and calls that must go well or must not.

TIERKV_BIN and TIERKV_TINY_MODELS say where the program and the models are.
"""

import json
import os
import resource
import subprocess
import tempfile
import unittest
from pathlib import Path

BIN = os.environ.get("TIERKV_BIN", "build/bin/tierkv")
TINY = Path(os.environ.get("TIERKV_TINY_MODELS", "build/tiny_models"))
WORDS = "that here stone river sees north then the tide or an iron sin".split()
TEXT = " ".join(WORDS[(i * i + 3 * i) % len(WORDS)] for i in range(320))


# The default model, for what only a real one shows; skip where it has not been downloaded.
CACHE = Path(os.environ.get("TIERKV_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierkv")
SMOLLM2 = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def little_disk(size):
    """For preexec_fn: no file of the process may grow past `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT)
        self.environment = {**os.environ, "TIERKV_CACHE": str(self.folder / "cache")}
        # What the user has set and typed stays out of it.
        self.environment |= {name: str(self.folder / name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}

    def write_text_of_many_tokens(self):
        """Bytes of every kind: each is a token of the tiny vocabulary."""
        self.text.write_text("".join(chr(33 + (i * i * 7 + i * 31 + (i >> 5)) % 94) for i in range(6000)))

    def run_cli(self, *arguments, stdin="", **options):
        options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 240, **options}
        return subprocess.run([BIN, *map(str, arguments)], input=stdin, cwd=self.folder, env=self.environment, **options)

    def good(self, *arguments, **options):
        done = self.run_cli(*arguments, **options)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done

    def good_json(self, *arguments, **options):
        return json.loads(self.good(*arguments, "--json", **options).stdout)

    def bad(self, *arguments, saying="", code=2, **options):
        """Refused: the exit code, one line on stderr that says why, nothing on stdout."""
        done = self.run_cli(*arguments, **options)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("tierkv: "), done.stderr)
        self.assertIn(saying, lines[0])
        self.assertEqual(done.stdout, "")
        return lines[0]

    def model(self, kind="llama"):
        return TINY / f"{kind}.gguf"

    def commands_with_a_model(self):
        """Every command that takes a model, as it is called but for -m."""
        text, session = self.text, self.folder / "s.tkv"
        if not session.exists():
            self.good("snapshot", "save", session, "-p", "that river", "-m", self.model(), "-q")
        return (
            ["chat"], ["generate", "hi"], ["plan"], ["ppl", "-f", text], ["recall", "--haystack", text],
            ["bench", "-f", text], ["demo"], ["snapshot", "save", "new.tkv", "-f", text], ["snapshot", "load", session],
        )  # fmt: skip

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())
