#!/usr/bin/env python3
"""--rope-... and --yarn-...: a model past the length it was made for."""

import unittest
from pathlib import Path

from command import Command

YARN = ("--rope-scaling", "yarn", "--rope-scale", 4)


class RopeTest(Command):
    """The tiny models were made for 4,096 tokens."""

    def generate(self, *arguments):
        value = self.good_json("generate", "-m", self.model(), "-n", 12, "-p", "that river sees the north", "--temp", 0, *arguments)
        return value["results"][0]["tokens"]

    def test_every_command_with_a_model_has_them(self):
        names = {"--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx", "--yarn-ext-factor",
                 "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"}
        for command in ("chat", "generate", "plan", "ppl", "recall", "bench", "demo", "calibrate", "serve", "snapshot save",
                        "snapshot load"):
            words = set(self.good(*command.split(), "--help").stdout.split())
            self.assertEqual(names - words, set(), command)

    def test_positions_go_as_far_as_they_are_stretched(self):
        model = ("-m", self.model())
        for arguments, most in ((YARN, 16384), (("--rope-scale", 2), 8192), (("--rope-freq-scale", 0.5), 8192),
                                (("--rope-scaling", "linear", "--rope-scale", 1.5), 6144)):
            with self.subTest(arguments):
                self.assertEqual(self.good_json("plan", *model, *arguments, "--kv", "fp16")["ctx"], most)
                sentence = self.bad("plan", *model, *arguments, "-c", most + 1, saying=f"{most:,}")
                self.assertIn("--rope", sentence)
                self.bad("generate", "hi", *model, *arguments, "-c", most + 1, saying=f"{most:,}")
        self.assertEqual(len(self.generate(*YARN, "-c", 16384)), 12)
        self.bad("generate", "hi", *model, "-c", "8k", saying="was made for 4,096")

    def test_they_change_what_is_predicted_and_as_libllama_has_it(self):
        plain = self.generate("--kv", "fp16")
        self.assertEqual(self.generate("--kv", "fp16", "--rope-scaling", "none", "--rope-freq-base", 10000), plain)
        rows = self.good_json("ppl", "-m", self.model(), "-f", self.text, "--ctx", 512, "--tokens", 512, "--reference", "stock",
                              *YARN, "--kv", "fp16")
        self.assertLess(max(row["kld"] for row in rows), 1e-4)
        own = self.good_json("ppl", "-m", self.model(), "-f", self.text, "--ctx", 512, "--tokens", 512, "--kv", "fp16")
        self.assertGreater(abs(own[0]["ppl"] - rows[0]["ppl"]), 1e-3)

    def test_a_long_text_runs_through_every_tier(self):
        self.write_text_of_many_tokens()
        sizes = ("--ctx", 5000, "--tokens", 5000)
        value = self.good_json("ppl", "-m", self.model(), "-f", self.text, *YARN, *sizes, "--kv", "balanced")
        self.assertEqual(value[0]["ctx"], 5000)
        self.assertGreater(value[1]["bits_archive"], 0)

    def test_what_a_budget_moves_to_a_file_is_read_with_the_same_rope(self):
        """Twice the context, in two fifths of the bytes: the answer begins the same."""
        self.text.write_text("".join(chr(33 + (i * i * 7 + i * 31 + (i >> 5)) % 94) for i in range(8000)))
        kv, budget = "balanced,calibrate=off", 600000
        small = f"{kv},cold={self.folder},spill=exact,byte_budget={budget}"
        run = ("generate", "-m", self.model(), "-f", self.text, "-n", 16, "--ignore-end", *YARN)
        whole, spilled = (self.good_json(*run, "--kv", each)["results"][0] for each in (kv, small))
        self.assertGreater(whole["resident_bytes"], 2 * budget)
        self.assertLessEqual(spilled["resident_bytes"], budget)
        # Blocks out of the file are added up in another order, and with random weights a rounding tells sooner or later.
        self.assertEqual(spilled["tokens"][:4], whole["tokens"][:4])

    def test_contradictions_and_bad_numbers_are_refused(self):
        for arguments, saying in (
            (("--rope-scale", 4, "--rope-freq-scale", 0.25), "--rope-freq-scale"),
            (("--rope-scaling", "none", "--rope-scale", 4), "none"),
            (("--rope-scaling", "ntk"), "yarn"),
            (("--rope-scale", 0), "--rope-scale"),
            (("--rope-scale", "-2"), "--rope-scale"),
            (("--rope-scale", "four"), "--rope-scale"),
            (("--rope-scale", "nan"), "--rope-scale"),
            (("--rope-freq-base", 1), "--rope-freq-base"),
            (("--rope-freq-scale", "inf"), "--rope-freq-scale"),
            (("--yarn-orig-ctx", 0), "--yarn-orig-ctx"),
            (("--yarn-ext-factor", "-0.5"), "--yarn-ext-factor"),
        ):
            with self.subTest(arguments):
                self.bad("generate", "hi", "-m", self.model(), *arguments, saying=saying)
        self.bad("plan", "--layers", 2, "--heads", 4, "--head-dim", 64, *YARN, saying="-m")

    def test_a_session_goes_on_with_the_rope_it_was_read_with(self):
        session = ("s.tkv", "-m", self.model())
        self.good("snapshot", "save", *session, "-f", self.text, *YARN, "-q")
        self.good("snapshot", "load", *session, "-n", 2, *YARN)
        sentence = self.bad("snapshot", "load", *session, "-n", 2, saying="another RoPE")
        self.assertIn("--rope-scaling yarn --rope-freq-scale 0.25", sentence)
        self.bad("snapshot", "load", *session, "-n", 2, "--rope-scale", 4, saying="another RoPE")

    def test_a_calibration_has_a_file_for_each_rope(self):
        self.write_text_of_many_tokens()
        sizes = ("-f", self.text, "--tokens", 2400, "--window", 1200, "--sample", 1024, "--every", 32, "-q")
        own = self.good_json("calibrate", "-m", self.model(), *sizes)
        run = ("generate", "-m", self.model(), "-p", "that river", "-n", 2, "--kv", "balanced", *YARN)
        self.assertIn("made with another RoPE", self.good(*run).stderr)
        stretched = self.good_json("calibrate", "-m", self.model(), *sizes, *YARN)
        self.assertEqual(own["fingerprint"], stretched["fingerprint"])
        self.assertNotEqual(own["file"], stretched["file"])
        self.assertTrue(Path(own["file"]).is_file() and Path(stretched["file"]).is_file())
        self.assertNotIn("another RoPE", self.good(*run).stderr)

    def test_a_file_may_say_it_for_every_command(self):
        config = self.folder / "config.toml"
        config.write_text('rope-scaling = "linear"\nrope-scale = 2\n[plan]\nrope-scale = 3\n')
        self.assertEqual(len(self.generate("--config", config, "-c", 8192)), 12)
        self.bad("generate", "hi", "-m", self.model(), "--config", config, "-c", 8193, saying="8,192")
        value = self.good_json("plan", "-m", self.model(), "--kv", "fp16", "--config", config)
        self.assertEqual(value["ctx"], 12288)


if __name__ == "__main__":
    unittest.main()
