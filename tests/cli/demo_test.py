#!/usr/bin/env python3
"""`tierkv demo`, and the story it reads."""

import os
import unittest
from pathlib import Path

from command import SMOLLM2, Command

STORY = Path(__file__).parents[2] / "data" / "demo" / "story.txt"


class DemoTest(Command):
    def check_answers(self, value):
        """Every question has an answer that is said to be right exactly when it is."""
        for result in value["results"]:
            for answer in result["answers"]:
                self.assertIs(answer["right"], answer["expected"] in answer["answer"])
            self.assertEqual(result["right"], sum(answer["right"] for answer in result["answers"]))

    def test_demo_compares_the_settings(self):
        value = self.good_json("demo", "-m", self.model("qwen2"), "--tokens", 3400)
        self.assertEqual([r["kv"] for r in value["results"]], ["fp16", "int8", "balanced"])
        fp16, int8, balanced = value["results"]
        self.assertEqual(fp16["delta_ppl_percent"], 0)
        self.assertLess(abs(int8["delta_ppl_percent"]), 2)
        self.assertLess(balanced["resident_bytes"], int8["resident_bytes"])
        self.assertLess(int8["resident_bytes"], fp16["resident_bytes"])
        for result in value["results"]:
            self.assertEqual(result["prefill_tokens"], value["tokens"])
            # The tiny model's tokens are short: it has come as far as the first fact, and is asked about nothing else.
            self.assertEqual([a["question"] for a in result["answers"]], ["What is the name of the ferry?"])
            self.assertGreater(result["decode_tokens"], 0)
        self.check_answers(value)
        self.assertIn("times less memory", value["summary"])

    def test_the_last_line_says_what_was_saved(self):
        done = self.good("demo", "-m", self.model(), "--tokens", 800, "--kv", "fp16", "--kv", "compact")
        self.assertIn("asked nothing about it", done.stdout)
        self.assertIn("A KV cache is what a model remembers", done.stdout)
        self.assertTrue(done.stdout.splitlines()[-1].startswith('In words: "compact" remembers all 800 tokens'))
        self.assertRegex(done.stderr, r"\Alearning this model: 800 of 8,192 tokens[^\n]*\n\Z")

    def test_answers_are_shown_as_right_or_wrong(self):
        done = self.good("demo", "-m", self.model("qwen2"), "--tokens", 3400, "--kv", "fp16")
        self.assertEqual(done.stdout.count("✓ right") + done.stdout.count("✗ wrong"), 1)

    def test_the_story_states_each_fact_once_at_its_depth(self):
        text = " ".join(STORY.read_text().split())
        facts = self.good_json("demo", "-m", self.model(), "--tokens", 64, "--kv", "fp16")["facts"]
        self.assertEqual(len(facts), 3)
        for fact, depth in zip(facts, (15, 50, 85)):
            self.assertEqual(text.count(fact["expected"]), 1, fact)
            self.assertAlmostEqual(100 * text.index(fact["expected"]) / len(text), depth, delta=3)
            self.assertAlmostEqual(fact["depth_percent"], depth, delta=5)
            self.assertNotIn(fact["expected"], fact["question"])

    def test_too_long_for_the_model(self):
        self.bad("demo", "-m", self.model(), "--tokens", 6000, saying="longer than the model's")


class DemoOnARealModelTest(Command):
    @unittest.skipUnless(SMOLLM2.exists(), "SmolLM2 is not downloaded")
    @unittest.skipIf(os.environ.get("TIERKV_TEST_BRIEF"), "a whole story takes too long here")
    def test_fp16_answers_every_question(self):
        """Which answers are right is the model's affair; that there are answers, from the whole story, is ours."""
        value = self.good_json("demo", "-m", SMOLLM2, "--kv", "fp16", timeout=540)
        (result,) = value["results"]
        self.assertGreater(value["tokens"], 5000)
        self.assertEqual(len(result["answers"]), 3)
        for answer in result["answers"]:
            self.assertRegex(answer["answer"], r"\w")
        self.assertLess(result["ppl"], 40)


if __name__ == "__main__":
    unittest.main()
