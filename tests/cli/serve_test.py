#!/usr/bin/env python3
"""`tierkv serve` and its conversations: many at once, none read twice, all of them in a budget."""

import json
import random
import time
import unittest

from command import SMOLLM2
from server import CHAT, TEXT_COMPLETION, Server, quiet_environment, together
from served import Served, text_of


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
