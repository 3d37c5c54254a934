#!/usr/bin/env python3
"""`tierkv calibrate` and --kv calibration=FILE."""

import math
import signal
import subprocess
import time
import unittest
from pathlib import Path

from command import BIN, Command


class CalibrateTest(Command):
    def setUp(self):
        super().setUp()
        self.write_text_of_many_tokens()

    def calibrate(self, *arguments):
        sizes = ["--tokens", 2400, "--window", 1200, "--sample", 1024, "--every", 32]
        return ["calibrate", "-m", self.model(), "-f", self.text, *sizes, "-q", *arguments]

    def test_writes_a_file_and_says_what_is_in_it(self):
        value = self.good_json(*self.calibrate("-o", "m.tkc"))
        self.assertEqual(value["tokens"], 2400)
        self.assertEqual(value["sampled"], 1024)
        self.assertEqual(value["bytes"], (self.folder / "m.tkc").stat().st_size)
        self.assertEqual(len(value["key_bits_by_layer"]), 3)
        self.assertLessEqual(sum(value["key_bits_by_layer"]) / 3, 1.5)
        self.assertEqual((value["layers_without_residual"], value["layers_without_projection"]), (0, 0))
        again = self.good_json(*self.calibrate("-o", "again.tkc", "-t", 1))
        self.assertEqual(again["fingerprint"], value["fingerprint"])
        text = self.good(*self.calibrate("-o", "m.tkc")).stdout
        self.assertIn(value["fingerprint"], text)

    def test_without_o_it_goes_where_the_archive_looks(self):
        value = self.good_json(*self.calibrate())
        self.assertEqual(Path(value["file"]), self.folder / "cache" / "calibration" / f"{value['fingerprint']}.tkc")
        self.assertTrue(Path(value["file"]).is_file())

    def test_texts_are_mixed(self):
        other = self.folder / "other.txt"
        other.write_text("".join(chr(97 + (i * 11 + i // 7) % 26) for i in range(3000)))
        value = self.good_json(*self.calibrate("-f", other, "-o", "m.tkc"))
        self.assertEqual((value["windows"], len(value["texts"])), (2, 2))

    def test_probing_gives_every_layer_a_weight(self):
        self.assertNotIn("probe", self.good_json(*self.calibrate("-o", "plain.tkc")))
        value = self.good_json(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 64))["probe"]
        weights = value["lambda_keys"] + value["lambda_values"]
        self.assertEqual((value["tokens"], len(weights)), (64, 6))
        self.assertAlmostEqual(sum(math.log(w) for w in weights), 0.0, places=6)
        self.assertIn("probing took", self.good(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 64)).stdout)
        self.bad(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 1), saying="probe-tokens")

    def test_bad_input_leaves_nothing(self):
        self.bad(*self.calibrate("-o", "no/such/m.tkc"), saying="no/such")
        self.bad("calibrate", "-m", self.model(), saying="tierkv fetch wikitext2")
        self.bad("calibrate", "-m", self.model(), "-f", "nowhere.txt", saying="nowhere.txt")
        self.text.write_text("too short")
        self.bad(*self.calibrate(), saying="2048")
        self.text.write_text("a" * 5000)
        self.bad(*self.calibrate(), saying="repeats")
        self.assertEqual([path.name for path in (self.folder / "cache").rglob("*") if path.is_file()], [])

    def test_another_models_calibration_is_refused(self):
        self.good(*self.calibrate("-o", "m.tkc"))
        self.bad("generate", "hi", "-m", self.model("qwen2"), "--kv", "balanced,calibration=m.tkc", "-q", saying="calibration")

    def test_interrupted_leaves_nothing(self):
        self.text.write_text(self.text.read_text() * 40)
        command = [BIN, "calibrate", "-m", str(self.model()), "-f", "text.txt", "-o", "m.tkc", "--tokens", "200000", "--every", "1"]
        running = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE)
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        self.assertEqual((running.returncode, said), (130, b"tierkv: interrupted\n"))
        self.assertEqual(self.files(), ["text.txt"])


if __name__ == "__main__":
    unittest.main()
