#!/usr/bin/env python3
"""`tierkv serve` over HTTP: one server on a tiny model, and every kind of client."""

import json
import random
import re
import signal
import socket
import tempfile
import time
import unittest

from command import SMOLLM2, TINY, WORDS, Command
from server import CHAT, TEXT_COMPLETION, Server, quiet_environment, together

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


class ServeOpenAiTest(Served):
    def test_health_models_and_properties(self):
        for path in ("/health", "/v1/health", "/ready"):
            self.assertEqual((self.server.get(path).status, self.server.get(path).json()), (200, {"status": "ok"}))
        (model,) = self.server.get("/v1/models").json()["data"]
        self.assertEqual((model["id"], model["object"], model["meta"]["n_ctx_train"]), ("llama", "model", 4096))
        self.assertEqual(self.server.get("/v1/models/llama").json()["id"], "llama")
        self.assert_refused(self.server.get("/v1/models/other"), 404)
        self.assertEqual(self.server.get("/props").json()["total_slots"], 4)

    def test_a_completion_has_text_usage_and_timings(self):
        value = self.server.complete("that river sees", 12)
        (choice,) = value["choices"]
        self.assertEqual((value["object"], choice["index"], choice["finish_reason"]), ("text_completion", 0, "length"))
        self.assertNotEqual(choice["text"], "")
        tokens = len(self.server.post("/tokenize", {"content": "that river sees", "add_special": True}).json()["tokens"])
        usage = value["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (tokens, 12, tokens + 12))
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])
        self.assertEqual(value["timings"]["predicted_n"], 12)
        self.assertEqual(value["timings"]["cache_n"] + value["timings"]["prompt_n"], tokens)
        self.assertGreater(value["timings"]["predicted_ms"], 0)

    def test_a_stream_says_what_the_whole_answer_says(self):
        for path, body in ((TEXT_COMPLETION, {"prompt": "the iron tide"}),
                           (CHAT, {"messages": [{"role": "system", "content": "that"},
                                                {"role": "user", "content": [{"type": "text", "text": "here"}]}]})):
            with self.subTest(path):
                body = {**body, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
                whole = self.server.post(path, body).json()
                _, response, events = self.server.open_stream(path, {**body, "stream_options": {"include_usage": True}})
                self.assertEqual((response.status, response.headers["Content-Type"]), (200, "text/event-stream"))
                *events, done = list(events)
                self.assertEqual(done, "[DONE]")
                chunks = [json.loads(event) for event in events]
                self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
                usage = chunks.pop()
                self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], 20))
                self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
                self.assertIn("timings", chunks[-1])
                if path == CHAT:
                    self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
                    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
                    self.assertEqual(text, whole["choices"][0]["message"]["content"])
                else:
                    self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), whole["choices"][0]["text"])

    def test_stop_ends_the_text_before_it(self):
        whole = self.server.complete("that river", 60)["choices"][0]["text"]
        stop = re.findall(r"[!-~]{3}", whole)[-1]
        (cut,) = self.server.complete("that river", 60, stop=["never said", stop])["choices"]
        self.assertEqual((cut["finish_reason"], cut["text"]), ("stop", whole[: whole.index(stop)]))

    def test_seed_choices_and_penalties(self):
        def texts(**fields):
            value = self.server.complete("here stone", 24, **{"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, **fields})
            return [choice["text"] for choice in value["choices"]]

        self.assertEqual(texts(seed=5), texts(seed=5))
        self.assertNotEqual(texts(seed=5), texts(seed=6))
        three = texts(seed=5, n=3)
        self.assertEqual(len(set(three)), 3)
        greedy = self.server.complete("here", 60)["choices"][0]["text"]
        self.assertNotEqual(self.server.complete("here", 60, frequency_penalty=2)["choices"][0]["text"], greedy)

    def test_several_prompts_and_tokens_as_prompts(self):
        prompts = ["that river", "the stone", "here"]
        alone = [self.server.complete(prompt)["choices"][0]["text"] for prompt in prompts]
        value = self.server.complete(prompts, n=2)
        self.assertEqual([choice["index"] for choice in value["choices"]], list(range(6)))
        self.assertEqual([choice["text"] for choice in value["choices"]], [text for text in alone for _ in range(2)])
        tokens = [self.server.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"] for prompt in prompts]
        self.assertEqual([c["text"] for c in self.server.complete(tokens)["choices"]], alone)
        self.assertEqual(self.server.complete(tokens[0])["choices"][0]["text"], alone[0])

    def test_tokens_and_templates(self):
        tokens = self.server.post("/tokenize", {"content": "that river", "with_pieces": True}).json()["tokens"]
        back = self.server.post("/detokenize", {"tokens": [token["id"] for token in tokens]}).json()["content"]
        self.assertEqual(back.strip(), "that river")
        prompt = self.server.post("/apply-template", {"messages": [{"role": "user", "content": "Hello"}]}).json()["prompt"]
        self.assertEqual(prompt, "User: Hello\nAssistant:")

    def test_a_full_context_ends_an_answer_and_refuses_a_prompt(self):
        value = self.server.complete(text_of(1, 3000), 5000)
        self.assertEqual(value["choices"][0]["finish_reason"], "length")
        self.assertLessEqual(value["usage"]["total_tokens"], 4096)
        error = self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that " * 5000}), 400, "4096")
        self.assertEqual(error["code"], "context_length_exceeded")


class ServeConcurrentTest(Served):
    ARGUMENTS = ("-np", 4, "--queue", 64)

    def test_greedy_answers_are_those_of_a_lone_client(self):
        """Long and short prompts at the same time: whoever reads, whoever writes, nobody's answer changes."""
        prompts = [text_of(seed, 20 + 90 * (seed % 7)) for seed in range(14)]
        ask = [lambda p=prompt, i=i: self.server.complete(p, 24 + 5 * (i % 4), cache_prompt=False)
               for i, prompt in enumerate(prompts)]
        alone = [call()["choices"][0]["text"] for call in ask]
        for result, expected in zip(together(ask), alone):
            self.assertEqual(result["choices"][0]["text"], expected)

    def test_a_stream_goes_on_while_a_long_prompt_is_read(self):
        body = {"prompt": "that", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        _, _, events = self.server.open_stream(TEXT_COMPLETION, body)
        next(events)
        times = []
        reading = together([lambda: [times.append(time.monotonic()) for _ in events],
                            lambda: (self.server.complete(text_of(3, 3000), 1, cache_prompt=False), time.monotonic())])
        ended = reading[1][1]
        # A stream that waited for the prompt would have one at most; how many steps reading takes is the machine's business.
        self.assertGreater(sum(moment < ended for moment in times), 3, "tokens came while the prompt was read")


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
            "grammar": {**good, "grammar": "root ::= x"},
            "format": {**good, "response_format": {"type": "json_object"}},
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
        value = self.server.complete("that", 2, user="somebody", metadata={"a": 1}, tools=[], logprobs=None, model="any name")
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


class ServeReuseTest(Served):
    ARGUMENTS = ("-np", 2, "--conversations", 12, "--slot-save-path", "FOLDER")

    def cached(self, value):
        return value["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_conversation_goes_on_where_it_was(self):
        prompt = text_of(21, 400)
        first = self.server.complete(prompt, 20)
        self.assertEqual(self.cached(first), 0)
        tokens = self.server.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
        # The answer's own tokens, as a client that keeps them would send them.
        answer = self.server.post("/tokenize", {"content": first["choices"][0]["text"]}).json()["tokens"]
        second = self.server.complete(tokens + answer + tokens[1:9], 4)
        self.assertGreaterEqual(self.cached(second), len(tokens))
        self.assertEqual(second["timings"]["cache_n"], self.cached(second))

    def test_an_answer_wanted_again_costs_no_reading_and_is_the_same(self):
        prompt = text_of(22, 300)
        first = self.server.complete(prompt, 150)
        again = self.server.complete(prompt, 150)
        self.assertEqual((self.cached(first), self.cached(again)), (0, again["usage"]["prompt_tokens"]))
        self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
        self.assertEqual(again["timings"]["prompt_n"], 0)

    def test_a_common_beginning_is_stored_once(self):
        begin, forked = text_of(23, 600), self.server.metric("tierkv_conversations_forked_total")
        self.server.complete(begin + " " + text_of(24, 50), 4)
        other = self.server.complete(begin + " " + text_of(25, 60), 4)
        self.assertGreater(self.cached(other), 400)
        self.assertLess(self.cached(other), other["usage"]["prompt_tokens"])
        self.assertGreater(self.server.metric("tierkv_conversations_forked_total"), forked)

    def test_cut_in_the_archive_the_recent_tiers_are_read_again(self):
        """`balanced` keeps 64 tokens hot and 448 warm: a cut far back leaves what is older than those."""
        prompt = text_of(26, 2500)
        self.server.complete(prompt, 2)
        words = prompt.split(" ")
        tokens = len(self.server.post("/tokenize", {"content": " ".join(words[:300]), "add_special": True}).json()["tokens"])
        shorter = self.server.complete(" ".join(words[:300]), 2)
        self.assertAlmostEqual(self.cached(shorter), tokens - 512, delta=8)

    def test_who_wants_no_reuse_gets_none(self):
        prompt = text_of(27, 200)
        self.server.complete(prompt, 2)
        self.assertEqual(self.cached(self.server.complete(prompt, 2, cache_prompt=False)), 0)

    def test_slots_are_saved_and_come_back_in_another_server(self):
        prompt = text_of(28, 700)
        first = self.server.complete(prompt, 8)
        (slot,) = [s["id"] for s in self.server.get("/slots").json() if s["n_tokens"] == first["usage"]["total_tokens"] - 1]
        saved = self.server.post(f"/slots/{slot}?action=save", {"filename": "one.tkv"})
        self.assertEqual(saved.status, 200, saved.body)
        self.assertEqual(saved.json()["n_saved"], first["usage"]["total_tokens"] - 1)
        erased = self.server.post(f"/slots/{slot}?action=erase", {}).json()
        self.assertEqual(erased["n_erased"], saved.json()["n_saved"])
        self.assert_refused(self.server.post(f"/slots/{slot}?action=save", {"filename": "two.tkv"}), 400, "empty")

        other = Server(self.PATH, "--slot-save-path", self.folder.name, environment=quiet_environment(self.folder.name))
        self.addCleanup(other.stop)
        restored = other.post("/slots/1?action=restore", {"filename": "one.tkv"})
        self.assertEqual((restored.status, restored.json()["n_restored"]), (200, saved.json()["n_saved"]), restored.body)
        self.assertEqual(other.get("/slots").json()[1]["n_tokens"], saved.json()["n_saved"])
        longer = other.complete(prompt + first["choices"][0]["text"] + " stone", 4)
        self.assertGreaterEqual(self.cached(longer), first["usage"]["prompt_tokens"])

    def test_no_name_leaves_the_folder(self):
        for name in ("", "../x", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "a\u0000b", "x" * 300, "%2e%2e"):
            for action in ("save", "restore"):
                with self.subTest(name=name, action=action):
                    self.assert_refused(self.server.post(f"/slots/0?action={action}", {"filename": name}), 400, "filename")
        self.assert_refused(self.server.post("/slots/0?action=restore", {"filename": "nowhere.tkv"}), 404)
        self.assert_refused(self.server.post("/slots/99?action=erase", {}), 400)
        self.assert_refused(self.server.post("/slots/0?action=burn", {}), 400)


class ServeMetricsTest(Served):
    def test_prometheus_reads_every_line(self):
        self.server.complete(text_of(31, 100), 8)
        reply = self.server.get("/metrics")
        self.assertTrue(reply.headers["Content-Type"].startswith("text/plain"))
        lines = reply.body.decode().splitlines()
        sample = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z]+="[^"]*"\})? (-?[0-9.e+-]+|\+Inf)$')
        for line in lines:
            self.assertRegex(line, r"^# (HELP|TYPE) \S+ .+$" if line.startswith("#") else sample)
        names = {line.split()[0] for line in lines if not line.startswith("#")}
        for name in ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total",
                     "llamacpp:requests_processing",
                     'tierkv_kv_bytes{tier="hot"}', "tierkv_kv_resident_bytes", 'tierkv_inter_token_seconds_bucket{le="+Inf"}'):
            self.assertIn(name, names)
        self.assertGreaterEqual(self.server.metric("llamacpp:tokens_predicted_total"), 8)
        self.assertGreaterEqual(self.server.metric("tierkv_time_to_first_token_seconds_count"), 1)

    def test_memory_is_told_by_tier(self):
        self.server.complete(text_of(32, 1500), 4)
        memory = self.server.get("/v1/kv/memory").json()
        self.assertGreater(memory["tiers"]["archive"]["tokens"], 0)
        parts = sum(tier["bytes"] for tier in memory["tiers"].values())
        parts += memory["parked"]["bytes"] + memory["bookkeeping_bytes"] + memory["free_bytes"]
        self.assertEqual(parts, memory["total_bytes"])
        states = {one["state"] for one in self.server.get("/v1/kv/conversations").json()}
        self.assertLessEqual(states, {"idle", "prompt", "busy", "parked"})


class ServeLoadTest(Served):
    """Many clients, mixed lengths, random departures, little memory: no error but 429, and nobody gets another's answer."""

    ARGUMENTS = ("-np", 6, "--queue", 12, "--kv-budget", "8MiB", "--conversations", 24)
    SECONDS = 8

    def client(self, seed, expected, until):
        chosen, done = random.Random(seed), {"whole": 0, "left": 0, "refused": 0, "wrong": []}
        while time.monotonic() < until:
            which = chosen.randrange(len(expected))
            body = {"prompt": text_of(which, 30 + 60 * which), "max_tokens": 20, "temperature": 0, "ignore_eos": True,
                    "cache_prompt": False, "stream": chosen.random() < 0.5}
            connection = self.server.connect()
            connection.request("POST", TEXT_COMPLETION, json.dumps(body))
            if chosen.random() < 0.25:
                time.sleep(chosen.random() * 0.05)
                done["left"] += 1
            else:
                response = connection.getresponse()
                data = response.read().decode()
                if response.status == 429:
                    done["refused"] += 1
                    time.sleep(0.1)
                elif body["stream"]:
                    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
                    text = "".join(event["choices"][0]["text"] for event in events)
                    done["whole"] += 1
                    done["wrong"] += [] if text == expected[which] else [(which, text)]
                else:
                    text = json.loads(data)["choices"][0]["text"] if response.status == 200 else data
                    done["whole"] += 1
                    done["wrong"] += [] if text == expected[which] else [(which, text)]
            connection.close()
        return done

    def test_everybody_gets_their_own_answer_or_is_told_to_come_back(self):
        prompts = [text_of(which, 30 + 60 * which) for which in range(10)]
        expected = [self.server.complete(prompt, 20, cache_prompt=False)["choices"][0]["text"] for prompt in prompts]
        until = time.monotonic() + self.SECONDS
        results = together([lambda seed=seed: self.client(seed, expected, until) for seed in range(32)])
        for result in results:
            self.assertIsInstance(result, dict, result)
            self.assertEqual(result["wrong"], [])
        self.assertGreater(sum(result["whole"] for result in results), 5)
        self.assertGreater(sum(result["left"] for result in results), 0)
        self.wait_until(lambda: not any(slot["is_processing"] for slot in self.server.get("/slots").json()))
        self.assertEqual(self.server.metric("tierkv_requests_failed_total"), 0)
        self.assertLessEqual(self.server.get("/v1/kv/memory").json()["total_bytes"], 8 << 20)


class ServePageTest(Served):
    def test_the_page_asks_nobody_else(self):
        reply = self.server.get("/")
        self.assertEqual((reply.status, reply.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", reply.headers["Content-Security-Policy"])
        page = reply.body.decode()
        self.assertTrue(page.rstrip().endswith("</html>"))
        self.assertEqual(re.findall(r"(?:https?:)?//[a-z]", page), [])
        # Every route that it asks is there.
        for path in set(re.findall(r'get\("(/[^"]*)"\)', page)):
            self.assertEqual(self.server.get(path).status, 200, path)


class ServeBudgetTest(Served):
    """Far more conversations than the budget holds: old ones make room, nobody is refused while there is something to forget."""

    ARGUMENTS = ("-np", 2, "--kv-budget", "2MiB", "--queue", 64, "--conversations", 64)

    def test_conversations_make_room_for_each_other(self):
        calls = [lambda seed=seed: self.server.complete(text_of(seed, 300), 8) for seed in range(40, 64)]
        for result in together(calls):
            self.assertIsInstance(result, dict, result)
        memory = self.server.get("/v1/kv/memory").json()
        self.assertLessEqual(memory["total_bytes"], 2 << 20)
        gone = [self.server.metric(f"tierkv_conversations_{what}_total") for what in ("parked", "dropped")]
        self.assertGreater(sum(gone), 0)


@unittest.skipUnless(SMOLLM2.exists(), "SmolLM2 is not downloaded")
class ServeRealModelTest(Served):
    PATH = SMOLLM2
    ARGUMENTS = ("-np", 4, "-c", 2048)

    def test_it_talks(self):
        message = {"role": "user", "content": "What is the capital of France? Answer in one word."}
        body = {"messages": [message], "temperature": 0, "max_tokens": 24}
        value = self.server.post(CHAT, body).json()
        self.assertIn("Paris", value["choices"][0]["message"]["content"])

    def test_greedy_answers_are_those_of_a_lone_client(self):
        subjects = ["the sea", "a clock", "bread", "snow"]
        bodies = [{"messages": [{"role": "user", "content": f"Write one sentence about {subject}."}], "temperature": 0,
                   "max_tokens": 24, "cache_prompt": False} for subject in subjects]
        calls = [lambda body=body: self.server.post(CHAT, body).json()["choices"][0]["message"]["content"] for body in bodies]
        self.assertEqual(together(calls), [call() for call in calls])


if __name__ == "__main__":
    unittest.main()
