#!/usr/bin/env python3
"""Defaults from a configuration file."""

import unittest

from command import Command


class ConfigTest(Command):
    def write(self, text, name="XDG_CONFIG_HOME/tierkv/config.toml"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def generate(self, *arguments):
        return self.good_json("generate", "that river", *arguments)

    def test_the_command_line_wins_over_the_table_and_that_over_the_top(self):
        self.write(f'model = "{self.model()}"\nkv = "fp16"\nthreads = 1\n[generate]\ntokens = 3\nignore-end = true\n')
        (result,) = self.generate()["results"]
        self.assertEqual((result["kv"], len(result["tokens"])), ("fp16", 3))
        (result,) = self.generate("--kv", "int8", "-n", 5)["results"]
        self.assertEqual((result["kv"], len(result["tokens"])), ("int8", 5))
        self.write(f'kv = "fp16"\nmodel = "{self.model()}"\n[generate]\nkv = ["int8", "kivi4"]\ntokens = 2\n')
        self.assertEqual([r["kv"] for r in self.generate()["results"]], ["int8", "kivi4"])

    def test_another_file_or_none(self):
        self.write("model = 'nowhere.gguf'\n")
        other = self.write(f"model = '{self.model()}'\n[generate]\ntokens = '2'\n", "other.toml")
        self.assertEqual(len(self.generate("--config", other, "--ignore-end")["results"][0]["tokens"]), 2)
        self.good("generate", "hi", "-m", self.model(), "-n", 1, "--no-config")
        self.bad("generate", "hi", saying="nowhere.gguf")
        self.bad("generate", "hi", "--config", "absent.toml", saying="absent.toml")

    def test_kv_is_for_commands_with_one_setting(self):
        self.write("kv = 'int8'\n")
        kv = [plan["kv"] for plan in self.good_json("plan", "-m", self.model())["plans"]]
        self.assertIn("balanced", kv)

    def test_a_shape_needs_no_model_although_the_file_names_one(self):
        self.write("model = 'nowhere.gguf'\n")
        self.good("plan", "--layers", 2, "--heads", 2, "--head-dim", 64)

    def test_errors_name_file_and_line(self):
        for text, line, saying in (
            ("model = 'x'\nkv = \n", 2, ""),
            ("\nfrobnicate = 1\n", 2, "frobnicate"),
            ("[frobnicate]\nkv = 'fp16'\n", 1, "frobnicate"),
            ("[generate]\ntemp = 0.5\nfrob = 1\n", 3, "frob"),
            ("[generate]\n\ntemp = 'hot'\n", 3, "hot"),
            ("[generate]\ntokens = -3\n", 2, "-3"),
            ("threads = 1979-05-27\n", 1, "number"),
        ):
            with self.subTest(text):
                path = self.write(text)
                sentence = self.bad("generate", "hi", "-m", self.model(), saying=saying)
                self.assertTrue(sentence.startswith(f"tierkv: {path}:{line}: "), sentence)
                self.assertTrue(self.bad("config").startswith(f"tierkv: {path}:{line}: "))

    def test_config_shows_what_is_set(self):
        value = self.good_json("config")
        self.assertEqual((value["there"], value["settings"]), (False, []))
        path = self.write("threads = 1\n[chat]\ntemp = 0.25\n[snapshot.save]\ndeep = true\n")
        value = self.good_json("config")
        self.assertEqual((value["file"], value["there"]), (str(path), True))
        found = [(s["command"], s["option"], s["values"], s["line"]) for s in value["settings"]]
        self.assertEqual(found[:2], [("", "threads", ["1"], 1), ("chat", "temp", ["0.25"], 3)])
        self.assertEqual(found[2:], [("snapshot save", "deep", ["true"], 5)])
        self.assertIn("0.25", self.good("config").stdout)


if __name__ == "__main__":
    unittest.main()
