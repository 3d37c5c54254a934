#!/usr/bin/env python3
"""Learning a model in passing, as chat, generate and `tierkv models` show it."""

import os
import unittest

from command import Command


class LearningTest(Command):
    def setUp(self):
        super().setUp()
        self.write_text_of_many_tokens()

    def calibrate(self, *arguments):
        sizes = ["--tokens", 2400, "--window", 1200, "--sample", 1024, "--every", 32]
        return self.good_json("calibrate", "-m", self.model(), "-f", self.text, *sizes, "-q", *arguments)

    def generate(self, *arguments):
        self.text.write_text(self.text.read_text()[:1500])
        return ["generate", "-m", self.model(), "-f", self.text, "-n", 2, *arguments]

    def files(self):
        return sorted(path.name for path in (self.folder / "cache").rglob("*") if path.is_file())

    def test_generate_says_how_far_it_is(self):
        done = self.good(*self.generate())
        self.assertIn("learning this model: 0 of 8,192 tokens; older tokens wait at 4 bits", done.stderr)
        self.assertRegex(done.stderr, "learning this model: 1,[0-9]{3} of 8,192 tokens")
        self.assertEqual(self.good(*self.generate("-q")).stderr, "")

    def test_json_has_it(self):
        learning = self.good_json(*self.generate("-q"))["results"][0]["learning"]
        self.assertEqual((learning["phase"], learning["waiting"], learning["wanted"]), ("gathering", True, 8192))
        self.assertGreater(learning["tokens"], 1000)
        value = self.good_json(*self.generate("-q", "--kv", "balanced,calibrate=off"))["results"][0]
        self.assertEqual((value["learning"]["phase"], value["learning"]["waiting"]), ("off", False))
        self.assertIn("not calibrated", value["learning"]["sentence"])
        self.assertEqual(self.good_json(*self.generate("-q", "--kv", "fp16"))["results"][0]["learning"]["phase"], "off")

    def test_off_leaves_no_file(self):
        self.good(*self.generate("-q", "--kv", "balanced,calibrate=off"))
        self.assertEqual(self.files(), [])

    def test_tiers_of_a_chat_say_it(self):
        done = self.good("chat", "-m", self.model(), stdin="/tiers\n/quit\n")
        self.assertEqual(done.stderr.count("learning this model: 0 of 8,192 tokens"), 2)
        self.assertEqual(self.good("chat", "-m", self.model(), "-q", stdin="/quit\n").stderr, "")
        self.assertNotIn("learning", self.good("chat", "-m", self.model(), "--kv", "fp16", stdin="/quit\n").stderr)
        self.calibrate()
        self.assertNotIn("learning", self.good("chat", "-m", self.model(), stdin="/quit\n").stderr)

    def test_a_calibration_that_is_there_is_not_learned_again(self):
        made = self.calibrate()
        self.assertEqual(self.good_json(*self.generate("-q"))["results"][0]["learning"]["phase"], "off")
        self.assertEqual(self.files(), [f"{made['fingerprint']}.tkc"])

    def test_a_damaged_calibration_is_one_line(self):
        made = self.calibrate()
        path = self.folder / "cache" / "calibration" / f"{made['fingerprint']}.tkc"
        path.write_bytes(path.read_bytes()[:-100])
        done = self.good(*self.generate())
        self.assertEqual(done.stderr.count("a calibration is not used"), 1)
        self.assertIn("learning this model", done.stderr)
        self.assertIn("not usable", self.good("models").stdout)

    @unittest.skipIf(os.geteuid() == 0, "root writes everywhere")
    def test_a_folder_that_cannot_be_written_stops_nothing(self):
        (self.folder / "cache").mkdir(exist_ok=True)
        (self.folder / "cache").chmod(0o500)
        self.good(*self.generate())
        (self.folder / "cache").chmod(0o700)

    def test_self_calibrate_is_said_to_be_gone(self):
        self.assertIn("no longer needed", self.good(*self.generate("--self-calibrate")).stderr)

    def test_models_lists_and_removes(self):
        self.assertIn("nothing was learned", self.good("models").stdout)
        made = self.calibrate()
        (known,) = self.good_json("models")["models"]
        self.assertEqual((known["fingerprint"], known["tokens"], known["problem"]), (made["fingerprint"], 2400, ""))
        self.assertIn(made["fingerprint"], self.good("models").stdout)
        self.bad("models", "remove", "nobody", saying="no model nobody")
        self.good("models", "remove", made["fingerprint"][:6])
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()
