#!/usr/bin/env python3
"""`tierkv serve` and its prefix store: restarts, crashes, damage, disks that do not work, and a budget that packs and stores."""

import os
import random
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from command import BIN, TINY, WORDS
from server import Server, quiet_environment, together

MODEL = TINY / "llama.gguf"
SLOW_DISK = os.environ.get("TIERKV_SLOW_DISK_LIBRARY")  # slow_disk.cc, built


def text_of(seed, tokens):
    """A text of nearly so many tokens: a word has about four in the tiny vocabulary."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(tokens // 4))


def details(value):
    return value["choices"][0]["text"], value["usage"]["prompt_tokens_details"]["cached_tokens"], value["usage"]["prompt_tokens"]


class Stored(unittest.TestCase):
    """A folder for one test, and servers on it."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.store = Path(self.folder.name) / "store"

    def serve(self, *arguments, model=MODEL, store=None, more=None, **options):
        environment = {**quiet_environment(self.folder.name), **(more or {})}
        server = Server(model, "--store", store or self.store, *arguments, environment=environment, **options)
        self.addCleanup(server.stop)
        return server

    def wait_until(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not happen")
            time.sleep(0.02)

    def written(self, server):
        """What was asked for has been stored."""
        def done():
            store = server.get("/v1/kv/store").json()
            return store["written_bytes"] > 0 and store["waiting_bytes"] == 0
        self.wait_until(done)
        time.sleep(0.2)

    def files(self, ending=""):
        return sorted(p for p in self.store.iterdir() if p.name.endswith(ending)) if self.store.exists() else []


class ServeStoreTest(Stored):
    def test_a_prompt_is_known_after_a_restart_and_the_answer_is_the_same(self):
        prompt = text_of(1, 1400)
        first = self.serve("-np", 2)
        text, cached, length = details(first.complete(prompt, 40))
        self.assertEqual(cached, 0)
        again, in_memory, _ = details(first.complete(prompt, 40))
        self.assertEqual((again, in_memory), (text, length))
        self.written(first)
        self.assertEqual(first.stop(), 0)
        self.assertTrue(self.files(".run") and self.files(".rest"))

        second = self.serve("-np", 2)
        text_of_second, cached, _ = details(second.complete(prompt, 40))
        self.assertEqual((text_of_second, cached), (text, length - 1), "all but the last token, whose logits are not stored")
        self.assertEqual(second.metric('tierkv_prefix_hits_total{source="disk"}'), 1)
        self.assertEqual(second.metric('tierkv_prefix_tokens_total{source="disk"}'), length - 1)
        self.assertGreater(second.metric("tierkv_store_loaded_bytes_total"), 0)
        # The conversation goes on where it was, and its own end was stored too.
        self.assertEqual(details(second.complete(prompt, 40, cache_prompt=False))[:2], (text, 0))

    def test_a_conversation_goes_on_after_a_crash(self):
        prompt = text_of(2, 900)
        first = self.serve()
        text, _, _ = details(first.complete(prompt, 120))
        self.written(first)
        more = details(first.complete(prompt + text + text_of(3, 60), 30))
        first.stop(signal.SIGKILL)
        second = self.serve()
        self.assertEqual(details(second.complete(prompt, 120))[0], text)
        value = details(second.complete(prompt + text + text_of(3, 60), 30))
        self.assertGreater(value[1], 800)
        self.assertEqual(value[0], more[0])

    def test_another_text_that_begins_alike_is_served_by_the_runs(self):
        """Archive from disk, recent tiers read again: what the answer loses is what any cut in the archive loses."""
        shared = text_of(4, 1800)
        first = self.serve()
        first.complete(shared + text_of(5, 100), 8)
        self.written(first)
        first.stop()
        second = self.serve()
        value = second.complete(shared + text_of(6, 120), 24)
        cached = value["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 500)
        self.assertGreaterEqual(value["usage"]["prompt_tokens"] - cached, 512, "hot and warm tier are read")

    def test_nothing_is_stored_when_nobody_wants_it(self):
        server = self.serve("--no-store")
        server.complete(text_of(7, 900), 4)
        self.assertIsNone(server.get("/v1/kv/store").json())
        self.assertEqual(server.metric("tierkv_store_bytes"), 0)
        server.stop()
        self.assertEqual(self.files(), [])

    def test_another_configuration_finds_nothing(self):
        prompt = text_of(8, 900)
        first = self.serve()
        text = details(first.complete(prompt, 16))
        self.written(first)
        first.stop()
        second = self.serve(kv="compact,calibrate=off")
        self.assertEqual(details(second.complete(prompt, 16))[1], 0)
        second.stop()
        third = self.serve("--kv-budget", "256MiB", "--conversations", 5)  # what decides no bytes does not matter
        self.assertEqual(details(third.complete(prompt, 16))[0], text[0])
        self.assertEqual(third.metric('tierkv_prefix_hits_total{source="disk"}'), 1)

    def test_a_store_keeps_to_its_size(self):
        first = self.serve()
        first.complete(text_of(9, 900), 4)
        self.written(first)
        first.stop()
        limit = 2 * sum(p.stat().st_size for p in self.files())
        server = self.serve("--store-size", limit)
        for seed in range(10, 15):
            server.complete(text_of(seed, 900), 4)
        self.wait_until(lambda: server.metric("tierkv_store_evicted_total") > 3)
        self.assertLessEqual(server.metric("tierkv_store_bytes"), limit)
        server.stop()
        self.assertLessEqual(sum(p.stat().st_size for p in self.files()), limit)


class ServeStoreFaultTest(Stored):
    def test_damaged_cut_and_foreign_chunks_are_read_again_instead(self):
        prompts = [text_of(seed, 900) for seed in (20, 21, 22)]
        first = self.serve()
        expected = [details(first.complete(prompt, 24))[0] for prompt in prompts]
        self.written(first)
        first.stop()
        runs = self.files(".run") + self.files(".rest")
        random.Random(1).shuffle(runs)
        for i, path in enumerate(runs):
            data = bytearray(path.read_bytes())
            if i % 3 == 0:
                data[len(data) // 2] ^= 4
            elif i % 3 == 1:
                data = data[: len(data) // 2]
            else:
                data = bytearray(runs[i - 1].read_bytes())
            path.write_bytes(data)
        second = self.serve()
        self.assertEqual([details(second.complete(prompt, 24))[0] for prompt in prompts], expected)
        rejected = second.get("/v1/kv/store").json()["rejected"]
        self.assertGreaterEqual(sum(rejected.values()), 3, rejected)

    def test_a_full_disk_stops_no_answer(self):
        """Files may have 4 KiB: every chunk is refused, as on a disk without space."""
        script = f"trap '' XFSZ; ulimit -f 4; exec {BIN} \"$@\""
        process = subprocess.Popen(
            ["bash", "-c", script, "tierkv", "serve", "-m", str(MODEL), "--port", "0", "--kv", "balanced,calibrate=off", "-q",
             "--store", str(self.store)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet_environment(self.folder.name))
        server = Server.__new__(Server)
        server.process = process
        server.port = int(process.stdout.readline().rsplit(":", 1)[1])
        self.addCleanup(server.stop)
        texts = [details(server.complete(text_of(30, 900), 12)) for _ in range(2)]
        self.assertEqual(texts[0][0], texts[1][0])
        self.wait_until(lambda: server.metric("tierkv_store_write_errors_total") > 0)
        self.assertIsNotNone(server.get("/v1/kv/store").json()["last_error"])
        self.assertEqual(self.files(".run") + self.files(".rest"), [])

    @unittest.skipUnless(SLOW_DISK, "a sanitizer wants to be loaded before all else")
    def test_a_slow_disk_keeps_nobody_waiting_long(self):
        """A chunk takes eight seconds. After two the prompt is read instead, and others are served all the while."""
        prompt = text_of(32, 900)
        first = self.serve()
        expected = details(first.complete(prompt, 24))[0]
        self.written(first)
        first.stop()
        seconds = Path(self.folder.name) / "seconds"
        second = self.serve("-np", 2, more={"LD_PRELOAD": SLOW_DISK, "TIERKV_SLOW_DISK": str(seconds)})
        seconds.write_text("8")
        times = {}

        def ask(name, prompt, tokens):
            began = time.monotonic()
            answer = details(second.complete(prompt, tokens))
            times[name] = time.monotonic() - began
            return answer

        long, short = together([lambda: ask("long", prompt, 24), lambda: ask("short", "north", 4)])
        self.assertEqual(long[:2], (expected, 0))
        self.assertGreater(times["long"], 2)
        self.assertLess(times["short"], times["long"])
        self.assertEqual(second.get("/v1/kv/store").json()["late"], 1)
        seconds.unlink()
        self.assertEqual(details(second.complete(prompt, 24))[0], expected)
        self.assertEqual(second.stop(), 0)

    def test_a_folder_that_cannot_be_written_stops_no_answer(self):
        for folder in ("/proc/tierkv/store", MODEL / "store"):
            with self.subTest(folder):
                server = self.serve(store=folder)
                details(server.complete(text_of(31, 900), 12))
                self.assertIsNotNone(server.get("/v1/kv/store").json()["last_error"])
                server.stop()

    def test_killed_at_any_moment_of_writing(self):
        """Nothing is rejected afterwards: there are whole chunks or none. What has lost its end serves as any archive does, and its
        answers are not compared."""
        prompt = text_of(40, 1800)
        lone = self.serve("--no-store")
        expected = details(lone.complete(prompt, 16))[0]
        lone.stop()
        chosen = random.Random(3)
        for _ in range(3):
            server = self.serve()
            text, cached, _ = details(server.complete(prompt, 16))
            if cached == 0:
                self.assertEqual(text, expected)
            time.sleep(chosen.uniform(0.0, 0.05))
            server.stop(signal.SIGKILL)
        server = self.serve()
        details(server.complete(prompt, 16))
        self.assertEqual(sum(server.get("/v1/kv/store").json()["rejected"].values()), 0)

    def test_two_servers_on_one_folder(self):
        prompt = text_of(41, 1200)
        one, two = self.serve(), self.serve()
        texts = together([lambda s=s: details(s.complete(prompt, 24))[0] for s in (one, two)])
        self.assertEqual(texts[0], texts[1])
        other = text_of(42, 1200)
        text = details(one.complete(other, 24))[0]
        self.written(one)
        self.wait_until(lambda: two.get("/v1/kv/store").json()["chunks"] == one.get("/v1/kv/store").json()["chunks"], 30)
        self.assertEqual(details(two.complete(other, 24))[0], text)
        self.assertEqual(two.metric('tierkv_prefix_hits_total{source="disk"}'), 1)


class ServeStoreBudgetTest(Stored):
    def test_what_has_no_room_goes_to_disk_and_comes_back(self):
        prompts = [text_of(seed, 1000) for seed in range(50, 62)]
        lone = self.serve("--no-store")
        expected = [details(lone.complete(prompt, 16))[0] for prompt in prompts]
        per_conversation = lone.get("/v1/kv/memory").json()["total_bytes"] / (2 * len(prompts))
        lone.stop()
        budget = int(per_conversation * 8)
        server = self.serve("--kv-budget", budget, "-np", 2)
        for rounds in range(2):
            for prompt, text in zip(prompts, expected):
                self.assertEqual(details(server.complete(prompt, 16))[0], text)
            self.written(server)
        self.assertGreater(server.metric("tierkv_conversations_dropped_total"), 0)
        self.assertGreater(server.metric('tierkv_prefix_hits_total{source="disk"}'), 3)
        memory = server.get("/v1/kv/memory").json()
        self.assertLessEqual(memory["peak_bytes"], budget)
        self.assertEqual(server.metric("tierkv_requests_failed_total"), 0)


class ServePackingTest(Stored):
    """A calibration with tables for the deep archive: idle conversations are packed before any is forgotten."""

    def setUp(self):
        super().setUp()
        folder = Path(self.folder.name)
        (folder / "text.txt").write_text(self.bytes_of(0, 12000))
        self.tables = folder / "deep.tkc"
        command = [BIN, "calibrate", "-m", MODEL, "-f", folder / "text.txt", "--tokens", 4800, "--window", 1200, "--sample", 1024,
                   "--every", 32, "--deep", "-q", "-o", self.tables]
        subprocess.run([str(c) for c in command], check=True, capture_output=True, env=quiet_environment(self.folder.name))

    @staticmethod
    def bytes_of(seed, count):
        """Bytes of every kind, each a token of the tiny vocabulary: tables want many different ones."""
        return "".join(random.Random(seed).choices([chr(c) for c in range(33, 127)], k=count))

    def test_packed_conversations_wake_when_their_client_comes_back(self):
        kv = f"balanced,calibration={self.tables}"
        prompts = [self.bytes_of(seed, 2400) for seed in range(70, 76)]
        free = self.serve("--no-store", kv=kv)
        sizes = []
        for prompt in prompts[:2]:
            free.complete(prompt, 4)
            sizes.append(free.get("/v1/kv/memory").json()["total_bytes"])
        free.stop()
        one = sizes[1] - sizes[0]
        budget = sizes[0] + 3 * one
        server = self.serve("--no-store", "--kv-budget", budget, "-np", 1, kv=kv)
        for prompt in prompts:
            server.complete(prompt, 4)
        self.assertGreater(server.metric("tierkv_conversations_parked_total"), 0)
        conversations = server.get("/v1/kv/conversations").json()
        self.assertIn("parked", [c["state"] for c in conversations])
        self.assertGreater(len([c for c in conversations if c["state"] in ("idle", "parked")]), 4, "more than fit unpacked")
        woken = 0
        for prompt in reversed(prompts):  # the one that was used longest ago may have been forgotten
            _, cached, length = details(server.complete(prompt + self.bytes_of(80, 40), 4))
            woken += cached > length // 2
        self.assertGreater(server.metric("tierkv_conversations_woken_total"), 0)
        self.assertGreater(woken, 0)
        self.assertLessEqual(server.get("/v1/kv/memory").json()["peak_bytes"], budget)
        self.assertEqual(server.metric("tierkv_requests_failed_total") + server.metric("tierkv_requests_refused_total"), 0)


if __name__ == "__main__":
    unittest.main()
