#!/usr/bin/env python3
"""`tierkv serve` and LangChain's ChatOpenAI, in a pinned virtual environment under the cache folder."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from client_python import client_python
from command import TINY
from server import Server, quiet_environment

HERE = Path(__file__).parent


class LangChainClientTest(unittest.TestCase):
    def test_langchain_is_served(self):
        python = client_python("langchain")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server(TINY / "llama.gguf", "--api-key", "sesame", environment=quiet_environment(folder.name))
        self.addCleanup(server.stop)
        command = [python, HERE / "langchain_client.py", f"http://127.0.0.1:{server.port}", "sesame"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["finish"], said["usage"], said["streamed_usage"]), ("length", 16, 16))
        self.assertNotEqual(said["whole"], "")
        self.assertEqual(said["streamed"], said["whole"])
        self.assertEqual(said["batch"], [said["whole"]] * 2)
        self.assertGreater(said["cached"], 0)
        self.assertEqual(said["logprobs"], 16)


if __name__ == "__main__":
    unittest.main()
