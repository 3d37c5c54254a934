#!/usr/bin/env python3
"""Sixteen clients on one server for some seconds (serve_load.py); `make soak` is the long form."""

import os
import tempfile
import unittest

from command import TINY
from serve_load import Load, answers_alone, make_stock
from server import Server, quiet_environment

MODEL = TINY / "llama.gguf"
SECONDS = 6 if os.environ.get("TIERKV_TEST_BRIEF") else 15


class ServeManyClientsTest(unittest.TestCase):
    def test_many_clients_get_their_own_answers_and_memory_stays(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        environment = quiet_environment(folder.name)
        stock = make_stock(24, 120)
        expected = answers_alone(lambda *arguments: Server(MODEL, "--no-store", *arguments, environment=environment), stock)
        server = Server(MODEL, "-np", 4, "--queue", 8, "--kv-budget", "16MiB", environment=environment)
        self.addCleanup(server.stop)
        load = Load(server.port, server.process.pid, stock, expected, 16, SECONDS)
        report = load.run()
        self.assertEqual(report["problems"], [])
        self.assertGreater(report["answers"], 20)
        self.assertGreater(report["left"], 0)
        self.assertLess(load.growth(SECONDS / 2), 1.25, report["resident_mib"])
        self.assertEqual(server.metric("tierkv_requests_failed_total"), 0)
        self.assertLessEqual(server.get("/v1/kv/memory").json()["peak_bytes"], 16 << 20)
        self.assertEqual(server.get("/health").status, 200)


if __name__ == "__main__":
    unittest.main()
