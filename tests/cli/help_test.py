#!/usr/bin/env python3
"""--help, --version and shell completion."""

import re
import shutil
import subprocess
import unittest

from command import Command


class HelpTest(Command):
    def test_every_command_explains_itself_with_examples(self):
        commands = ["demo", "chat", "generate", "plan", "ppl", "recall", "calibrate", "models", "bench", "report"]
        commands += ["snapshot", "fetch", "config", "man"]
        top = self.good("--help").stdout
        for command in commands:
            self.assertIn(f"\n  {command}", top)
            self.assertIn("Examples:", self.good(command, "--help").stdout)
        for part in ("inspect", "verify", "save", "load"):
            self.assertIn("--json", self.good("snapshot", part, "--help").stdout)

    def options_of_every_command(self):
        """(command, long options) as --help has them, those of parts of a command included."""
        names = re.findall(r"^  (\w+) ", self.good("--help").stdout.split("Commands:")[1].split("Examples:")[0], re.MULTILINE)
        self.assertIn("chat", names)
        for name in names + ["snapshot save", "snapshot load", "snapshot inspect", "snapshot verify"]:
            text = self.good(*name.split(), "--help").stdout
            yield name, re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)

    def test_manual_page_and_completions_name_every_command_and_option(self):
        page = self.good("man").stdout
        shells = [self.good("completion", shell).stdout for shell in ("bash", "fish")]
        for command, options in self.options_of_every_command():
            part = page.split(f'.SS "tierkv {command}"\n')[1].split("\n.S")[0]
            self.assertIn("--config", options)
            for option in options:
                with self.subTest(f"{command} {option}"):
                    self.assertIn(option.replace("-", "\\-"), part)
                    self.assertIn(option, shells[0])
                    self.assertIn("-l " + option[2:], shells[1])

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_manual_page_is_clean(self):
        page = self.good("man").stdout
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("tierkv chat", done.stdout)

    def test_version(self):
        self.assertRegex(self.good("--version").stdout, r"^tierkv \d+\.\d+\.\d+$")

    def test_completion_scripts_know_commands_and_options(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.good("completion", shell).stdout
            for word in ("snapshot", "generate", "ppl", "recall", "calibrate", "bench", "report", "balanced", "temp"):
                self.assertIn(word, script)
            if which := shutil.which(shell):
                self.assertEqual(subprocess.run([which, "-n"], input=script, text=True).returncode, 0, shell)
        self.bad("completion", "tcsh", saying="bash")

    def test_bash_completes(self):
        (self.folder / "c.sh").write_text(self.good("completion", "bash").stdout)

        def complete(*words):
            quoted = " ".join(f"'{word}'" for word in words)
            script = f"source ./c.sh; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tierkv; echo ${{COMPREPLY[@]}}"
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=self.folder).stdout.split()

        self.assertEqual(complete("tierkv", "gen"), ["generate"])
        self.assertEqual(complete("tierkv", "snapshot", "ver"), ["verify"])
        self.assertIn("--repeat-penalty", complete("tierkv", "generate", "--re"))
        self.assertEqual(complete("tierkv", "chat", "--kv", "bal"), ["balanced"])
        self.assertEqual(complete("tierkv", "fetch", "wiki"), ["wikitext2"])
        self.assertEqual(complete("tierkv", "re"), ["recall", "report"])
        self.assertIn("--stock", complete("tierkv", "ppl", "--st"))


if __name__ == "__main__":
    unittest.main()
