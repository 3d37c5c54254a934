#!/usr/bin/env python3
"""What people type who come from llama.cpp."""

import unittest

from command import Command


class HabitsTest(Command):
    def generate(self, *arguments):
        return self.good_json("generate", "-m", self.model(), "-n", 4, "-p", "that river", *arguments)["results"][0]

    def test_its_names_of_our_options(self):
        plain = self.generate("--temp", 0.5)
        self.assertEqual(self.generate("--temperature", 0.5, "-fa", "-ngl", 0, "--color")["tokens"], plain["tokens"])
        self.assertEqual(self.generate("--temp=0.5", "-fa", "on", "--flash-attn=auto")["tokens"], plain["tokens"])
        value = self.good_json("generate", "-m", self.model(), "-p", "x", "--n-predict", 3, "--ignore-eos")
        self.assertEqual(len(value["results"][0]["tokens"]), 3)

    def test_tokens_may_be_counted_in_k(self):
        arguments = ("generate", "-m", self.model(), "-p", "that", "--ignore-end", "-n", "1k")
        self.assertEqual(len(self.good_json(*arguments)["results"][0]["tokens"]), 1024)
        self.assertEqual(self.good_json("plan", "-m", self.model(), "-c", "2K", "--kv", "fp16")["ctx"], 2048)
        self.bad("generate", "hi", "-m", self.model(), "--ctx", "32k", saying="32,768")
        self.bad("generate", "hi", "-m", self.model(), "--ctx", "k", saying="--ctx")
        self.bad("generate", "hi", "-m", self.model(), "--ctx", "1.5k", saying="--ctx")

    def test_without_an_end_is_to_the_end_of_the_context(self):
        result = self.good_json("generate", "-m", self.model(), "-p", "x", "-n", -1, "--ctx-size", 64, "--ignore-end")["results"][0]
        self.assertEqual(result["stop"], "context")

    def test_one_sentence_for_what_means_nothing_here(self):
        for arguments, saying in (
            (("-ngl", 99), "leave the option out"),
            (("-ngl=99",), "processor"),
            (("--n-gpu-layers", "all"), "processor"),
            (("-hf", "someone/model"), "-m FILE"),
            (("-ctk", "q8_0"), "--kv int8"),
            (("--cache-type-v", "q4_0"), "--kv kivi4"),
            (("-ctv", "f16"), "--kv fp16"),
            (("-fa", "off"), "leave the option out"),
            (("-cnv",), "tierkv chat"),
        ):
            for command in (("generate", "-p", "hi"), ("chat",)):
                self.assertNotIn("not in range", self.bad(*command, "-m", self.model(), *arguments, saying=saying))

    def test_a_text_that_looks_like_one_is_a_text(self):
        for text in ("-ngl", "-hf", "--color"):
            value = self.good_json("generate", "-m", self.model(), "-n", 1, "-p", text)
            self.assertGreater(value["results"][0]["prompt_tokens"], 1)


if __name__ == "__main__":
    unittest.main()
