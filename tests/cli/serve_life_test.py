#!/usr/bin/env python3
"""`tierkv serve` from its start to its end: settings, keys, clients that leave, a server that is stopped."""

import json
import signal
import socket
import tempfile
import time
import unittest
from pathlib import Path

from command import Command, little_disk
from server import TEXT_COMPLETION, Server, quiet_environment
from served import MODEL, Served, text_of


class ServeStartTest(Command):
    def test_other_addresses_need_a_key(self):
        self.bad("serve", "-m", self.model(), "--host", "0.0.0.0", "--port", 0, saying="--api-key")

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            self.bad("serve", "-m", self.model(), "--port", other.getsockname()[1], saying="cannot listen")

    def test_settings_that_cannot_be(self):
        self.bad("serve", "-m", self.model(), "--kv-budget", "much", saying="512MiB")
        self.bad("serve", "-m", self.model(), "--slot-save-path", "nowhere", saying="no such folder")
        self.bad("serve", "-m", self.model("mamba"), "--port", 0)
        self.bad("serve", "-m", self.model(), "--port", 0, "-c", 100000, saying="longer than the model's")

    def test_a_name_that_points_here_is_not_ours(self):
        server = Server(MODEL, environment=self.environment)
        self.addCleanup(server.stop)
        self.assertEqual(server.get("/v1/models", headers={"Host": "evil.example"}).status, 403)
        self.assertEqual(server.get("/v1/models", headers={"Host": "localhost:8080"}).status, 200)
        self.assertEqual(server.ask("PUT", "/v1/kv/quality", {"score": 0.5}).status, 403)


class ServeFullDiskTest(unittest.TestCase):
    def test_a_slot_that_cannot_be_written_is_the_server_s_fault(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server(MODEL, "-np", 1, "--slot-save-path", folder.name, environment=quiet_environment(folder.name),
                        preexec_fn=little_disk(100))
        self.addCleanup(server.stop)
        server.complete("that river", 4)
        reply = server.post("/slots/0?action=save", {"filename": "one.tkv"})
        error = reply.json()["error"]
        self.assertEqual((reply.status, error["type"]), (500, "server_error"))
        self.assertIn("one.tkv", error["message"])
        self.assertNotIn(folder.name, error["message"])
        self.assertFalse((Path(folder.name) / "one.tkv").exists())
        self.assertEqual(server.complete("that river", 4)["usage"]["completion_tokens"], 4)


class ServeAccessTest(Served):
    ARGUMENTS = ("--api-key", "sesame", "--api-key", "second key")

    def test_a_key_is_needed(self):
        for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "sesame"},
                        {"Authorization": "Bearer "}):
            self.assert_refused(self.server.get("/v1/models", headers=headers), 401, "key")
        for headers in ({"Authorization": "Bearer sesame"}, {"Authorization": "Bearer second key"}, {"X-Api-Key": "sesame"}):
            self.assertEqual(self.server.get("/v1/models", headers=headers).status, 200)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_pages_of_other_origins_are_refused(self):
        key = {"Authorization": "Bearer sesame"}
        self.assert_refused(self.server.get("/v1/models", headers={**key, "Origin": "https://example.com"}), 403)
        own = f"http://127.0.0.1:{self.server.port}"
        self.assertEqual(self.server.get("/v1/models", headers={**key, "Origin": own}).status, 200)

    def test_a_measure_of_quality_changes_thresholds(self):
        key = {"Authorization": "Bearer sesame"}
        before = self.server.get("/v1/kv/thresholds", headers=key).json()
        for _ in range(200):
            self.assertEqual(self.server.ask("PUT", "/v1/kv/quality", {"score": 0.5}, headers=key).status, 200)
        self.assertNotEqual(self.server.get("/v1/kv/thresholds", headers=key).json(), before)
        self.assertEqual(self.server.get("/v1/kv/quality", headers=key).json()["samples"], 200)


class ServeLeavingTest(Served):
    ARGUMENTS = ("-np", 1, "--queue", 1)
    LONG = {"prompt": "that", "max_tokens": 4000, "ignore_eos": True, "temperature": 1}

    def idle(self):
        return not any(slot["is_processing"] for slot in self.server.get("/slots").json())

    def test_an_answer_ends_when_its_client_leaves(self):
        left = self.server.metric("tierkv_requests_abandoned_total")
        connection, _, events = self.server.open_stream(TEXT_COMPLETION, self.LONG)
        next(events)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        self.wait_until(self.idle)
        waiting = self.server.connect()
        waiting.request("POST", TEXT_COMPLETION, json.dumps(self.LONG))
        self.wait_until(lambda: not self.idle())
        waiting.close()
        self.wait_until(self.idle)
        self.assertEqual(self.server.metric("tierkv_requests_abandoned_total"), left + 2)

    def test_a_full_queue_says_when_to_come_back(self):
        connections = []
        for _ in range(2):  # one runs, one waits
            connection = self.server.connect()
            connection.request("POST", TEXT_COMPLETION, json.dumps(self.LONG))
            connections.append(connection)
        names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
        self.wait_until(lambda: [self.server.metric(name) for name in names] == [1, 1])
        reply = self.server.post(TEXT_COMPLETION, self.LONG)
        self.assert_refused(reply, 429, "queue")
        self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
        for connection in connections:
            connection.close()
        self.wait_until(self.idle)
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)


class ServeStoppingTest(unittest.TestCase):
    def start(self, *arguments):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server(MODEL, *arguments, environment=quiet_environment(folder.name))
        self.addCleanup(server.stop)
        return server

    def test_sigterm_lets_answers_end(self):
        server = self.start("-np", 2)
        body = {"prompt": "that", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        _, _, events = server.open_stream(TEXT_COMPLETION, body)
        next(events)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        try:
            self.assertEqual(server.post(TEXT_COMPLETION, body).status, 503)
            self.assertEqual(server.get("/health").status, 503)
        except OSError:
            pass  # it has ended already
        events = list(events)
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["choices"][0]["finish_reason"], "length")
        self.assertEqual(server.process.wait(timeout=60), 0)

    def test_who_takes_too_long_is_cut_off(self):
        server = self.start("--drain", 0.2)
        connection, _, events = server.open_stream(TEXT_COMPLETION, {"prompt": "that", "max_tokens": 4000, "ignore_eos": True})
        self.addCleanup(connection.close)
        next(events)
        start = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - start, 20)

    def test_a_request_has_its_time(self):
        server = self.start("--timeout", 0.2)
        reply = server.post(TEXT_COMPLETION, {"prompt": text_of(1, 3000), "max_tokens": 4000, "ignore_eos": True})
        self.assertEqual((reply.status, reply.json()["error"]["type"]), (504, "timeout_error"))
        self.assertEqual(server.get("/health").status, 200)


if __name__ == "__main__":
    unittest.main()
