#!/usr/bin/env python3
"""`tierkv calibrate`, --self-calibrate and --kv calibration=FILE."""

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
        # Bytes of every kind: each is a token of the tiny vocabulary.
        letters = [chr(33 + (i * i * 7 + i * 31 + (i >> 5)) % 94) for i in range(6000)]
        self.text.write_text("".join(letters))

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

    def long_model(self):
        """The tiny model with a context that a prompt of 4096 tokens leaves room in."""
        length = b"llama.context_length" + (4).to_bytes(4, "little")
        before, after = length + (4096).to_bytes(4, "little"), length + (8192).to_bytes(4, "little")
        whole = self.model().read_bytes()
        self.assertEqual(whole.count(before), 1)
        (self.folder / "long.gguf").write_bytes(whole.replace(before, after))
        return self.folder / "long.gguf"

    def made(self):
        return sorted((self.folder / "cache").rglob("*.tkc"))

    def test_self_calibrate(self):
        self.text.write_text(self.text.read_text()[:4300])
        generate = ["generate", "-m", self.long_model(), "-f", self.text, "-n", 2, "--self-calibrate"]
        self.assertNotIn("calibrat", self.good(*generate, "--kv", "fp16").stderr)  # no setting would use it
        self.assertEqual(self.made(), [])
        done = self.good(*generate, "--kv", "fp16", "--kv", "balanced")
        self.assertRegex(done.stderr, "calibrated from 4,?[0-9]{3} tokens of the prompt in .*, kept as " + str(self.folder))
        self.assertNotIn("no calibration", done.stderr)
        self.assertEqual(len(self.made()), 1)
        first = self.made()[0].read_bytes()
        again = self.good(*generate)
        self.assertNotIn("calibrat", again.stderr)
        self.assertEqual(self.made()[0].read_bytes(), first)
        self.made()[0].write_bytes(first[:-100])
        self.bad(*generate, "-q", saying="checksum")

    def test_self_calibrate_refuses_a_short_prompt(self):
        self.text.write_text(self.text.read_text()[:4000])
        done = self.good("generate", "-m", self.model(), "-f", self.text, "-n", 2, "--self-calibrate")
        self.assertRegex(done.stderr, "--self-calibrate: the prompt has 3993 tokens, and calibration needs 4096")
        self.assertIn("no calibration of this model: the archive is rot2", done.stderr)
        self.assertEqual(self.made(), [])

    def test_a_prompt_without_room_is_refused_before_it_calibrates(self):
        self.bad("generate", "-m", self.model(), "-f", self.text, "--self-calibrate", "-q", saying="leaves no room")
        self.assertEqual(self.made(), [])

    def test_another_models_calibration_is_refused(self):
        self.good(*self.calibrate("-o", "m.tkc"))
        self.bad("generate", "hi", "-m", self.model("qwen2"), "--kv", "balanced,calibration=m.tkc", "-q", saying="calibration")

    def test_chat_says_that_there_is_no_calibration(self):
        self.assertIn("no calibration of this model", self.good("chat", "-m", self.model(), stdin="/quit\n").stderr)
        self.assertEqual(self.good("chat", "-m", self.model(), "-q", stdin="/quit\n").stderr, "")
        self.assertNotIn("calibration", self.good("chat", "-m", self.model(), "--kv", "fp16", stdin="/quit\n").stderr)
        self.good(*self.calibrate())
        self.assertNotIn("calibration", self.good("chat", "-m", self.model(), stdin="/quit\n").stderr)

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
