#!/usr/bin/env python3
"""`tierkv serve --grpc-port`: tierkv.v1.KvMetrics, asked by a client that learns it by reflection."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from client_python import client_python
from command import BIN
from server import Server, quiet_environment
from served import MODEL, text_of

HERE = Path(__file__).parent
KEY = {"Authorization": "Bearer sesame"}


def has_grpc():
    done = subprocess.run([BIN, "serve", "--grpc-port", "0", "--check", "-m", str(MODEL), "--port", "0", "-q"],
                          capture_output=True, text=True, timeout=60)
    return "built without gRPC" not in done.stdout + done.stderr


class ServeGrpcTest(unittest.TestCase):
    def setUp(self):
        if not has_grpc():
            self.skipTest("the program was built without gRPC")
        self.python = client_python("grpc")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.environment = quiet_environment(folder.name)

    def start(self, *arguments):
        server = Server(MODEL, "--grpc-port", 0, *arguments, environment=self.environment)
        self.addCleanup(server.stop)
        self.grpc_port = int(server.process.stdout.readline().rsplit(":", 1)[1])
        return server

    def ask(self, key):
        done = subprocess.run([self.python, HERE / "grpc_client.py", str(self.grpc_port), key], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_get_watch_and_reflection_with_a_key(self):
        server = self.start("--api-key", "sesame")
        reply = server.post("/v1/completions", {"prompt": text_of(1, 400), "max_tokens": 8, "ignore_eos": True}, headers=KEY)
        self.assertEqual(reply.status, 200, reply.body)
        said = self.ask("sesame")
        self.assertIn("tierkv.v1.KvMetrics", said["services"])
        self.assertEqual(said["watched"], 3)
        self.assertEqual((said["no_key"], said["wrong_key"], said["other_header"], said["hasty"]),
                         ("UNAUTHENTICATED", "UNAUTHENTICATED", None, "INVALID_ARGUMENT"))
        report = said["report"]
        self.assertEqual(report["activity"]["written_tokens"], "8")
        # The same figures as over HTTP, and the same names.
        for part in ("memory", "quality", "thresholds"):
            over_http = server.get(f"/v1/kv/{part}", headers=KEY).json()
            self.assertEqual(set(report[part]), set(over_http), part)
        memory = server.get("/v1/kv/memory", headers=KEY).json()
        self.assertEqual(int(report["memory"]["total_bytes"]), memory["total_bytes"])
        self.assertEqual({name: int(tier["tokens"]) for name, tier in report["memory"]["tiers"].items()},
                         {name: tier["tokens"] for name, tier in memory["tiers"].items()})
        layers = server.get("/v1/kv/thresholds", headers=KEY).json()["layers"]
        self.assertEqual(report["thresholds"]["layers"], layers)
        self.assertEqual(server.stop(), 0)

    def test_without_a_key_and_off_unless_asked(self):
        self.start()
        said = self.ask("")
        self.assertEqual((said["no_key"], said["watched"]), (None, 3))


if __name__ == "__main__":
    unittest.main()
