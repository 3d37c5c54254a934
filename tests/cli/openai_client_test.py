#!/usr/bin/env python3
"""`tierkv serve` and OpenAI's official Python client, in a pinned virtual environment under the cache folder."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from client_python import client_python
from command import TINY
from server import Server, quiet_environment

HERE = Path(__file__).parent


class OpenAiClientTest(unittest.TestCase):
    def test_the_official_client_is_served(self):
        python = client_python("openai")
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
        self.assertEqual(said["logprobs"], 16)
        self.assertEqual(said["likely"], 2)
        self.assertEqual(said["bad_request"], ["BadRequestError", 400])
        self.assertEqual(said["bad_key"], ["AuthenticationError", 401])


if __name__ == "__main__":
    unittest.main()
