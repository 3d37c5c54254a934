#!/usr/bin/env python3
"""`tierkv serve` and OpenAI's official Python client, in a pinned virtual environment under the cache folder."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from command import CACHE, TINY
from server import Server, quiet_environment

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "openai_requirements.txt"


def client_python():
    """The Python that has the client. Made once; without a network there is none, and the test is skipped."""
    version = REQUIREMENTS.read_text().strip().rsplit("==", 1)[1]
    folder = CACHE / "venv" / f"openai-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True, timeout=120)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]
        subprocess.run(command, check=True, capture_output=True, timeout=400)
    except (subprocess.SubprocessError, OSError) as problem:
        raise unittest.SkipTest(f"OpenAI's client cannot be installed here: {problem}") from problem
    (folder / "complete").touch()
    return python


class OpenAiClientTest(unittest.TestCase):
    def test_the_official_client_is_served(self):
        python = client_python()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server(TINY / "llama.gguf", "--api-key", "sesame", environment=quiet_environment(folder.name))
        self.addCleanup(server.stop)
        command = [python, HERE / "openai_client.py", f"http://127.0.0.1:{server.port}", "sesame"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["model"], said["finish"], said["usage"], said["streamed_usage"]), ("llama", "length", 16, 16))
        self.assertNotEqual(said["whole"], "")
        self.assertEqual(said["streamed"], said["whole"])
        self.assertEqual(said["texts"], 2)
        self.assertEqual(said["bad_request"], ["BadRequestError", 400])
        self.assertEqual(said["bad_key"], ["AuthenticationError", 401])


if __name__ == "__main__":
    unittest.main()
