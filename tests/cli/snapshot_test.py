#!/usr/bin/env python3
"""`tierkv snapshot`: save, load, inspect, verify."""

import json
import unittest
from pathlib import Path

from command import SMOLLM2, TEXT, Command, little_disk


class SnapshotTest(Command):
    def save(self, kind="llama", *more):
        return self.good_json("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(kind), *more)

    def test_resumes_without_reading_again_and_bit_for_bit(self):
        for kind in ("llama", "gemma3", "gpt-oss"):
            with self.subTest(kind):
                saved = self.save(kind, "-n", 24)
                loaded = self.good_json("snapshot", "load", "s.tkv", "-m", self.model(kind), "-n", 24)
                self.assertEqual(loaded["tokens"], saved["tokens"])
                self.assertEqual(loaded["prefill_tokens"], 0)
                self.assertGreater(saved["prefill_tokens"], 1000)

    def test_goes_on_with_more_text(self):
        saved = self.save()
        value = self.good_json("snapshot", "load", "s.tkv", "-m", self.model(), "-n", 4, "-p", "north then")
        self.assertLess(value["prefill_tokens"], 20)
        self.assertEqual(value["length"], saved["length"] + value["prefill_tokens"] + value["decode_tokens"])

    def test_inspect_and_verify(self):
        saved = self.save()
        value = self.good_json("snapshot", "inspect", "s.tkv")
        self.assertEqual((value["kind"], value["layers"], value["kv"]), ("session", 3, "balanced"))
        self.assertEqual(value["length"], saved["length"])
        self.assertGreater(value["tiers"]["archive"]["rows"], 0)
        self.assertTrue(self.good_json("snapshot", "verify", "s.tkv")["whole"])
        self.assertIn("archive", self.good("snapshot", "inspect", "s.tkv").stdout)
        # --json before the file is no trap.
        self.assertEqual(json.loads(self.good("snapshot", "inspect", "--json", "s.tkv").stdout), value)

    def test_a_calibrated_session_is_checked_without_its_calibration(self):
        calibration, model = self.folder / "model.tkc", self.model("llama")
        long = self.folder / "long.txt"
        long.write_text("".join(chr(33 + (i * i * 7 + i * 31 + (i >> 5)) % 94) for i in range(3000)))
        sizes = ("--tokens", 2400, "--window", 1200, "--sample", 1024, "--every", 32)
        self.good("calibrate", "-m", model, "-f", long, "-o", calibration, *sizes, "-q")
        self.save("llama", "--kv", f"balanced,calibration={calibration}")
        there = self.good_json("snapshot", "inspect", "s.tkv")
        self.assertEqual(there["calibration"]["found"], str(calibration))
        self.assertGreater(there["tiers"]["archive"]["rows"], 0)
        calibration.rename(self.folder / "elsewhere.tkc")
        value = self.good_json("snapshot", "verify", "s.tkv")
        self.assertTrue(value["whole"])
        self.assertEqual(value["calibration"], {"id": there["calibration"]["id"], "found": None})
        self.assertEqual((value["length"], value["codecs"], value["tiers"]), (there["length"], there["codecs"], None))
        self.assertIn("resuming needs calibration " + value["calibration"]["id"], self.good("snapshot", "verify", "s.tkv").stdout)
        self.assertIn("which is not here", self.good("snapshot", "inspect", "s.tkv").stdout)
        # In the cache folder it is found under any name.
        known = self.folder / "cache" / "calibration" / "some.tkc"
        known.parent.mkdir(parents=True)
        (self.folder / "elsewhere.tkc").rename(known)
        self.assertEqual(self.good_json("snapshot", "inspect", "s.tkv")["calibration"]["found"], str(known))
        whole = bytearray((self.folder / "s.tkv").read_bytes())
        whole[len(whole) // 2] ^= 4
        known.unlink()
        (self.folder / "s.tkv").write_bytes(whole)
        self.bad("snapshot", "verify", "s.tkv")

    @unittest.skipUnless(SMOLLM2.exists(), "the default model is not here")
    def test_the_example_of_the_help(self):
        self.text.write_text(TEXT * 2)
        self.good("snapshot", "save", "book.tkv", "-f", self.text, "--kv", "balanced,hot=32,warm=64", "-m", SMOLLM2, "-q")
        value = self.good_json("snapshot", "verify", "book.tkv")
        self.assertEqual(value["calibration"]["found"], "it ships with tierkv")
        self.assertGreater(value["tiers"]["archive"]["rows"], 0)

    def test_damage_is_found(self):
        self.save()
        whole = (self.folder / "s.tkv").read_bytes()
        damaged = self.folder / "d.tkv"
        for at in (3, 9, 17, 25, 40, 2000, len(whole) // 2, len(whole) - 9):
            damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            self.bad("snapshot", "verify", "d.tkv")
            self.bad("snapshot", "load", "d.tkv", "-m", self.model())
        for length in (0, 7, 20, 31, 100, len(whole) // 2, len(whole) - 1):
            damaged.write_bytes(whole[:length])
            self.bad("snapshot", "inspect", "d.tkv")

    def test_another_model_is_refused(self):
        self.save("llama")
        self.bad("snapshot", "load", "s.tkv", "-m", self.model("qwen2"), saying="another model")
        # The same shape with other weights.
        other = bytearray(self.model().read_bytes())
        other[-70000:-60000] = bytes(10000)
        (self.folder / "other.gguf").write_bytes(other)
        self.bad("snapshot", "load", "s.tkv", "-m", "other.gguf", saying="another model")

    def test_a_full_disk_leaves_nothing(self):
        arguments = ("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(), "--kv", "fp16")
        self.bad(*arguments, saying="s.tkv", preexec_fn=little_disk(100000))
        self.assertEqual(self.files(), ["text.txt"])
        self.save()
        before = (self.folder / "s.tkv").read_bytes()
        self.bad(*arguments, preexec_fn=little_disk(100000))
        self.assertEqual((self.folder / "s.tkv").read_bytes(), before)
        self.assertEqual(self.files(), ["s.tkv", "text.txt"])

    def test_sessions_that_earlier_versions_wrote_load(self):
        golden = Path(__file__).resolve().parents[1] / "golden" / "session_1.session"
        value = self.good_json("snapshot", "inspect", golden)
        del value["file"]
        self.assertEqual(value, json.loads(golden.with_suffix(".json").read_text()))
        self.assertTrue(self.good_json("snapshot", "verify", golden)["whole"])
        loaded = self.good_json("snapshot", "load", golden, "-m", self.model(), "-n", 4)
        self.assertEqual(loaded["prefill_tokens"], 0)
        self.assertGreaterEqual(loaded["length"], value["length"])

    def test_text_that_does_not_fit_after_it(self):
        self.save()
        self.text.write_text(TEXT * 5)
        self.bad("snapshot", "load", "s.tkv", "-f", self.text, "-m", self.model(), saying="4,096")


if __name__ == "__main__":
    unittest.main()
