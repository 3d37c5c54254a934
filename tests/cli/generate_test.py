#!/usr/bin/env python3
"""`tierkv generate`."""

import json
import re
import unittest

from command import TEXT, Command


class GenerateTest(Command):
    def test_json_has_text_speed_and_memory(self):
        value = self.good_json("generate", "that river", "-m", self.model(), "-n", 24, "--ignore-end")
        (result,) = value["results"]
        self.assertEqual((result["kv"], len(result["tokens"]), result["stop"]), ("balanced", 24, "length"))
        self.assertEqual(result["length"], result["prompt_tokens"] + 24)
        self.assertGreater(result["decode_tokens_per_second"], 0)
        self.assertGreaterEqual(result["resident_bytes"], result["memory"]["tiers"]["hot"]["payload_bytes"])

    def test_every_served_architecture(self):
        for kind in ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gpt-oss"):
            with self.subTest(kind):
                value = self.good_json("generate", "-f", self.text, "-m", self.model(kind), "-n", 4, "--ignore-end")
                self.assertEqual(len(value["results"][0]["tokens"]), 4)

    def test_settings_are_compared_in_one_run(self):
        kv = ("--kv", "fp16", "--kv", "hot=32,warm=0,archive=kivi2")
        value = self.good_json("generate", "-f", self.text, "-m", self.model(), "-n", 8, *kv)
        first, second = value["results"]
        self.assertEqual([first["kv"], second["kv"]], ["fp16", "hot=32,warm=0,archive=kivi2"])
        self.assertGreater(second["memory"]["tiers"]["archive"]["rows"], 0)
        self.assertLess(second["resident_bytes"], first["resident_bytes"])

    def test_seed_decides(self):
        def text(*more):
            return self.good("generate", "here", "-m", self.model(), "-n", 20, "--temp", 1, "--ignore-end", "-q", *more).stdout

        self.assertEqual(text("--seed", 5), text("--seed", 5))
        self.assertNotEqual(text("--seed", 5), text("--seed", 6))

    def test_repeat_penalty_changes_greedy_text(self):
        def tokens(penalty):
            arguments = ("generate", "here", "-m", self.model(), "-n", 40, "--ignore-end", "--repeat-penalty", penalty)
            return self.good_json(*arguments)["results"][0]["tokens"]

        self.assertLess(len(set(tokens(1))), len(set(tokens(5))))

    def test_stdin_file_and_prompt(self):
        one = self.good_json("generate", "-f", "-", "-m", self.model(), "-n", 4, stdin=TEXT)
        two = self.good_json("generate", "-f", self.text, "-m", self.model(), "-n", 4)
        self.assertEqual(one["results"][0]["tokens"], two["results"][0]["tokens"])

    def test_a_pipe_and_p_are_prompts(self):
        tokens = [
            self.good_json("generate", "-m", self.model(), "-n", 4, *arguments, stdin=text)["results"][0]["tokens"]
            for arguments, text in (((), TEXT), (("-f", self.text), ""), (("-p", TEXT), "not read"), (("--prompt", TEXT), ""))
        ]
        self.assertEqual(tokens, tokens[:1] * 4)
        self.good("generate", "-m", self.model(), "-n", 4, "--json", "out.json", stdin=TEXT)
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["results"][0]["tokens"], tokens[0])

    def test_stop_ends_the_text_before_it(self):
        arguments = ("generate", "that river", "-m", self.model(), "-n", 60, "--ignore-end")
        (whole,) = self.good_json(*arguments)["results"]
        stop = re.findall(r"[!-~]{3}", whole["text"])[-1]  # bytes that are no character are shown as something else
        (cut,) = self.good_json(*arguments, "--stop", "never said", "-r", stop)["results"]
        self.assertEqual((cut["stop"], cut["text"]), ("stop", whole["text"][: whole["text"].index(stop)]))
        self.assertLess(len(cut["tokens"]), 60)
        self.assertEqual(self.good(*arguments, "-r", stop, "-q").stdout, cut["text"] + "\n")

    def test_json_file_comes_with_text(self):
        done = self.good("generate", "that", "-m", self.model(), "-n", 4, "--json", "out.json", "-q")
        self.assertNotEqual(done.stdout, "")
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["command"], "generate")
        self.assertEqual(self.files(), ["out.json", "text.txt"])

    def test_tiers_are_shown_on_stderr(self):
        done = self.good("generate", "-f", self.text, "-m", self.model(), "-n", 32, "--tiers", "--tiers-every", 16, "--ignore-end",
                         "--kv", "balanced,calibrate=off")
        self.assertGreaterEqual(done.stderr.count("archive"), 3)
        self.assertNotIn("archive", done.stdout)

    def test_a_full_context_ends_it(self):
        value = self.good_json("generate", "that", "-m", self.model(), "-n", 500, "--ctx", 64, "--ignore-end")
        self.assertEqual((value["results"][0]["stop"], value["results"][0]["length"]), ("context", 64))


if __name__ == "__main__":
    unittest.main()
