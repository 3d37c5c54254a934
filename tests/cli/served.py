"""What the tests of `tierkv serve` over HTTP share: one server on a tiny model for all tests of a class."""

import tempfile
import time
import unittest

from command import TINY, WORDS
from server import Server, quiet_environment

MODEL = TINY / "llama.gguf"


def text_of(seed, tokens):
    """A text of nearly so many tokens: a word has about four in the tiny vocabulary."""
    return " ".join(WORDS[(seed * 7 + i * i + 3 * i * (seed + 1)) % len(WORDS)] for i in range(tokens // 4))


class Served(unittest.TestCase):
    """One server for all tests of a class."""

    ARGUMENTS = ("-np", 4)
    PATH = MODEL

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        arguments = [a.replace("FOLDER", cls.folder.name) if isinstance(a, str) else a for a in cls.ARGUMENTS]
        cls.server = Server(cls.PATH, *arguments, environment=quiet_environment(cls.folder.name))
        cls.addClassCleanup(cls.server.stop)

    def wait_until(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not happen")
            time.sleep(0.05)

    def assert_refused(self, reply, status, saying=""):
        """An error in OpenAI's shape."""
        self.assertEqual(reply.status, status, reply.body)
        error = reply.json()["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertIn(saying, error["message"])
        return error
