#!/usr/bin/env python3
"""`tierkv serve` and what is no request: the server refuses it, and goes on serving the others."""

import json
import random
import resource
import socket
import time
import unittest

from server import CHAT, TEXT_COMPLETION
from served import Served


class ServeBadInputTest(Served):
    ARGUMENTS = ("-np", 2, "--max-body", 200000)

    def test_what_is_no_request_is_refused_and_the_server_goes_on(self):
        good = {"prompt": "that"}
        cases = {
            "empty": b"",
            "no JSON": b"{\"prompt\": ",
            "not an object": b"[1, 2]",
            "deep": b"[" * 100000 + b"]" * 1000,
            "deep in a field": b'{"prompt": "x", "x": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
            "a huge number": b'{"prompt": "x", "max_tokens": 1e999}',
            "a large number": b'{"prompt": "x", "max_tokens": 123456789012345678901234567890}',
            "not UTF-8": b'{"prompt": "\xff\xfe\x80"}',
            "half a surrogate": b'{"prompt": "\\ud800"}',
            "no prompt": {},
            "a prompt of nothing": {"prompt": []},
            "a prompt of objects": {"prompt": [{}]},
            "no such token": {"prompt": [1, 99999999]},
            "half a token": {"prompt": [1.5]},
            "a negative token": {"prompt": [-1]},
            "temperature": {**good, "temperature": "hot"},
            "negative temperature": {**good, "temperature": -1},
            "top_p": {**good, "top_p": 1.5},
            "n": {**good, "n": 0},
            "many": {**good, "n": 1000},
            "stop": {**good, "stop": [1]},
            "tools": {**good, "tools": [{"type": "function"}]},
            "format": {**good, "response_format": {"type": "json_schema"}},
            "bias": {**good, "logit_bias": {"x": 1}},
            "suffix": {**good, "suffix": "x"},
            "stream": {**good, "stream": "yes"},
        }
        for name, body in cases.items():
            with self.subTest(name):
                self.assert_refused(self.server.post(TEXT_COMPLETION, body), 400)
        for messages in (None, [], "x", [1], [{}], [{"role": "user", "content": 3}],
                         [{"role": "user", "content": [{"type": "image_url"}]}]):
            with self.subTest(messages=messages):
                self.assert_refused(self.server.post(CHAT, {"messages": messages}), 400)
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)

    def test_unknown_fields_and_words_are_ignored(self):
        value = self.server.complete("that", 2, user="somebody", metadata={"a": 1}, tools=[], logprobs=None, grammar=None,
                                     model="any name")
        self.assertEqual(value["usage"]["completion_tokens"], 2)

    def test_text_of_every_kind(self):
        for text in ("\u0000", "naïve 雪 🌊", "<|im_end|>", "a" * 3000, "\\\"\n\t"):
            self.assertEqual(self.server.complete(text, 1)["usage"]["completion_tokens"], 1)

    def test_http_itself(self):
        self.assert_refused(self.server.get("/nothing"), 404)
        self.assert_refused(self.server.post(TEXT_COMPLETION, b"x" * 300000), 413)
        self.assert_refused(self.server.post(TEXT_COMPLETION, b"{}", headers={"Content-Encoding": "gzip"}), 415)
        self.assert_refused(self.server.get("/" + "a" * 2000), 414)
        for junk in (b"GET\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                     b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20000 + b"\r\n", b"G" * 100000):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as client:
                try:
                    client.sendall(junk)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(4096):
                        pass
                except OSError:
                    pass  # it may hang up
        self.assertEqual(self.server.get("/health").status, 200)

    def test_silent_connections_do_not_keep_others_out(self):
        silent = [socket.create_connection(("127.0.0.1", self.server.port), timeout=60) for _ in range(200)]
        for client in silent[::2]:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        start = time.monotonic()
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)
        self.assertLess(time.monotonic() - start, 20)
        for client in silent:
            client.close()

    def test_a_thousand_connections_and_one_client_that_is_served(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit[1] < 2500:
            self.skipTest(f"only {limit[1]} open files are allowed here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 8192), limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        body = {"prompt": "that", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        alone = self.server.complete("that", 200)["choices"][0]["text"]
        _, _, events = self.server.open_stream(TEXT_COMPLETION, body)
        next(events)
        crowd = []
        for i in range(1000):
            client = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
            client.setblocking(False)
            crowd.append(client)
            client.send((b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
                         b"X" * 500)[i % 4])
        text = "".join(json.loads(event)["choices"][0]["text"] for event in list(events)[:-1])
        self.assertEqual(alone[-len(text):], text)
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)
        for client in crowd:
            client.close()
        self.assertEqual(self.server.get("/health").status, 200)

    def test_slow_clients_wait_alone(self):
        """Headers and bodies that come a byte at a time; others are served meanwhile."""
        request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 34\r\n\r\n"
        request += b'{"prompt": "that", "max_tokens":2}'
        slow = [socket.create_connection(("127.0.0.1", self.server.port), timeout=60) for _ in range(8)]
        for at in range(len(request)):
            for client in slow:
                client.sendall(request[at: at + 1])
            if at % 40 == 0:
                self.assertEqual(self.server.get("/health").status, 200)
        for client in slow:
            self.assertIn(b"200 OK", client.recv(4096))
            client.close()

    def test_mangled_requests_never_make_it_fail(self):
        """Requests with bytes changed, left out and put in: answered, refused or hung up on, and never with a 500."""
        chosen, seen = random.Random(7), {}
        body = b'{"prompt": "that", "max_tokens": 1, "stop": ["a"], "temperature": 0}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        good = [head % len(body) + body, b"GET /v1/kv/memory?x=%20&y HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
                b"POST /slots/0?action=erase HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
                b"PUT /v1/kv/thresholds HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"]
        words = [b"\r\n", b"\x00", b"%", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"\xff\xfe",
                 b"9" * 40, b"{" * 90, b"HTTP/9.9"]
        for _ in range(400):
            request = bytearray(chosen.choice(good))
            for _ in range(chosen.randrange(1, 5)):
                at = chosen.randrange(len(request))
                what = chosen.randrange(4)
                if what == 0:
                    request[at] = chosen.randrange(256)
                elif what == 1:
                    del request[at: at + chosen.randrange(1, 12)]
                else:
                    request[at:at] = chosen.choice(words) if what == 2 else request[:chosen.randrange(40)]
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as client:
                try:
                    client.sendall(bytes(request))
                    client.shutdown(socket.SHUT_WR)
                    status = client.recv(4096).split(b" ")[1:2] or [b""]
                except OSError:
                    status = [b""]
            seen[status[0]] = seen.get(status[0], 0) + 1
            self.assertNotEqual(status[0], b"500", bytes(request))
        self.assertGreater(len(seen), 2, seen)
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)

    def test_a_flood_of_headers_ends_its_own_connection(self):
        line = b"X-Flood: " + b"y" * 1000 + b"\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n")
            with self.assertRaises(OSError):
                for _ in range(2000):
                    client.sendall(line)
                    time.sleep(0.001)
                raise AssertionError("two megabytes of headers were taken")
        self.assertEqual(self.server.get("/health").status, 200)


if __name__ == "__main__":
    unittest.main()
