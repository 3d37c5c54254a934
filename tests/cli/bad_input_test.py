#!/usr/bin/env python3
"""What every command refuses, and how it says so."""

import json
import unittest

from command import TEXT, Command, little_disk


class BadInputTest(Command):
    def test_models(self):
        whole = self.model().read_bytes()
        (self.folder / "empty.gguf").write_bytes(b"")
        (self.folder / "text.gguf").write_text("this is not a model at all")
        (self.folder / "nothing.gguf").write_bytes(whole[:24])
        (self.folder / "header.gguf").write_bytes(whole[:3000])
        (self.folder / "half.gguf").write_bytes(whole[: len(whole) // 2])
        for name, saying in {
            "nowhere.gguf": "no model file",
            "empty.gguf": "not a GGUF",
            "text.gguf": "not a GGUF",
            "nothing.gguf": "GGUF",
            "header.gguf": "truncated",
            "half.gguf": "truncated",
            ".": "folder",
            "smollm2": "tierkv fetch smollm2",
        }.items():
            for command in self.commands_with_a_model():
                with self.subTest(f"{command} {name}"):
                    self.bad(*command, "-m", name, saying=saying)
        self.assertNotIn("new.tkv", self.files())

    def test_models_that_the_cache_does_not_serve(self):
        refusals = {"bloom": "ALiBi", "mamba": "recurrent", "lfm2": "hybrid", "deepseek2": "MLA", "odd-head": "head_dim is 24"}
        for kind, why in refusals.items():
            for command in self.commands_with_a_model():
                with self.subTest(f"{command} {kind}"):
                    loads = command[:2] == ["snapshot", "load"]
                    self.bad(*command, "-m", self.model(kind), saying="another model" if loads else why)
        self.assertNotIn("new.tkv", self.files())

    def test_contexts(self):
        self.bad("chat", "-m", self.model(), "--ctx", 5000, saying="4,096")
        self.bad("generate", "hi", "-m", self.model(), "--ctx", 5000, saying="4,096")
        self.bad("generate", "-f", self.text, "-m", self.model(), "--ctx", 100, saying="prompt")
        self.text.write_text(TEXT * 5)
        self.bad("generate", "-f", self.text, "-m", self.model(), saying="4,096")
        self.bad("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(), saying="4,096")
        self.assertEqual(self.files(), ["text.txt"])

    def test_usage(self):
        self.bad(saying="command")
        self.bad("frobnicate", saying="frobnicate")
        self.bad("generate", "--frobnicate", saying="--frobnicate")
        self.bad("generate", "-m", self.model(), saying="no prompt")
        self.bad("generate", "hi", "-n", "many", saying="many")
        self.bad("generate", "hi", "--temp", "-1", saying="--temp")
        for number in ("nan", "NaN", "-nan", "inf", "1e999"):
            self.bad("generate", "hi", f"--temp={number}", saying="--temp")
            self.bad("chat", f"--top-p={number}", saying="--top-p")
            self.bad("ppl", "-f", self.text, f"--deep={number}", saying="--deep")
            self.bad("recall", f"--depths=5,{number}", saying="--depths")
            self.bad("snapshot", "save", "s.tkv", "--deep", f"--quality={number}", saying="--quality")
        self.bad("generate", "-f", "nowhere.txt", "-m", self.model(), saying="nowhere.txt")
        self.bad("generate", "hi", "-m", self.model(), "--json", "no/such/folder.json", saying="no/such/folder.json")
        self.bad("chat", "--kv", "fp16", "--kv", "int8", saying="one --kv")
        self.bad("fetch", "frobnicate", saying="smollm2")
        self.bad("fetch", "smollm2", "frobnicate", "--offline", saying="frobnicate")

    def test_sessions(self):
        self.bad("chat", "-m", self.model(), "--load", "nowhere.tkv", saying="No such file")
        self.bad("chat", "-m", self.model(), "--load", self.text, saying="not a tierkv session")
        self.commands_with_a_model()  # writes s.tkv
        self.bad("chat", "-m", self.model("qwen2"), "--load", "s.tkv", saying="another model")
        for part in ("inspect", "verify", "load"):
            self.bad("snapshot", part, "nowhere.tkv", saying="nowhere.tkv")
            self.bad("snapshot", part, self.text, saying="text.txt")
            self.bad("snapshot", part, ".", saying="directory")

    def test_places_that_cannot_be_written_are_refused_before_the_work(self):
        """The model does not exist either: it has not been looked for."""
        for place, saying in {"no/such/x": "no/such", ".": "folder", "text.txt/x": "text.txt"}.items():
            self.bad("snapshot", "save", place, "-f", self.text, "-m", "nowhere.gguf", saying=saying)
            self.bad("recall", "--plot", place, "-m", "nowhere.gguf", saying=saying)
            self.bad("report", "nowhere.json", "-o", place, saying=saying)
            for command in self.commands_with_a_model():
                self.bad(*command, "-m", "nowhere.gguf", "--json", place, saying=saying)

    def test_a_full_disk(self):
        """Every file that a command writes is there whole or not at all."""
        disk = {"preexec_fn": little_disk(100)}
        rows = [{"kv": "x", "ppl": 3.5}]
        (self.folder / "ppl.json").write_text(json.dumps(rows))
        before = self.files()
        small = ("-m", self.model(), "--kv", "fp16", "-q")
        one = ("--task", "passkey", "--ctx", 512, "--depths", 50, "--trials", 1)
        for command in (
            ["plan", *small, "--json", "out.json"],
            ["generate", "hi", "-n", 2, *small, "--json", "out.json"],
            ["ppl", "-f", self.text, "--ctx", 64, "--tokens", 64, *small, "--json", "out.json"],
            ["bench", "--depths", 0, "-n", 1, "--stock", "none", *small, "--json", "out.json"],
            ["recall", *one, *small, "--json", "out.json"],
            ["recall", *one, *small, "--plot", "out.html"],
            ["demo", "--tokens", 600, *small, "--json", "out.json"],
            ["report", "ppl.json", "-o", "out.html"],
            ["report", "ppl.json", "--json", "out.json", "-o", "page.html"],
        ):
            with self.subTest(str(command)):
                done = self.run_cli(*command, **disk)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn("nothing was kept", done.stderr)
                self.assertEqual(self.files(), before)
        done = self.run_cli("chat", *small, "-n", 2, stdin="here\n/save talk.tkv\n", **disk)
        self.assertEqual((done.returncode, self.files()), (2, before))
        self.assertIn("talk.tkv", done.stderr)

    def test_json_on_stdout_whatever_happens(self):
        for command in self.commands_with_a_model():
            with self.subTest(str(command)):
                done = self.run_cli(*command, "-m", "nowhere.gguf", "--json")
                value = json.loads(done.stdout)
                self.assertEqual((done.returncode, value["exit_code"]), (2, 2))
                self.assertEqual(done.stderr, f"tierkv: {value['error']}\n")
        for command in (
            ["report", "nowhere.json", "--json"],
            ["snapshot", "verify", "nowhere.tkv", "--json"],
            ["fetch", "nothing", "--json"],
            ["fetch", "smollm2", "--offline", "--json"],
            ["generate", "--nonsense", "--json"],
            ["plan", "--json", "--ctx", "x"],
        ):
            done = self.run_cli(*command)
            self.assertEqual((done.returncode, json.loads(done.stdout)["exit_code"]), (2, 2), command)

    def test_kv(self):
        for command in self.commands_with_a_model():
            self.bad(*command, "-m", self.model(), "--kv", "ballanced", saying="balanced")
        self.bad("generate", "hi", "--kv", "ballanced", saying="balanced")
        self.bad("generate", "hi", "--kv", "archive=rot9", saying="rot9")
        self.bad("generate", "hi", "--kv", "nowhere.toml", saying="nowhere.toml")

    def test_fetch_offline(self):
        done = self.run_cli("fetch", "smollm2", "--offline")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)
        self.assertFalse(self.good_json("fetch")["things"][0]["here"])


if __name__ == "__main__":
    unittest.main()
