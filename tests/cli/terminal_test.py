#!/usr/bin/env python3
"""Colours, bars and the chat on a pseudo-terminal."""

import signal
import unittest

from pseudo_terminal import OnTerminal


class TerminalTest(OnTerminal):
    def test_colours_and_bars_only_where_wanted(self):
        arguments = ("demo", "-m", self.model(), "--tokens", 600, "--kv", "fp16", "--kv", "balanced")
        colourful, code = self.on_terminal(*arguments)
        self.assertEqual(code, 0)
        self.assertIn("\033[31m", colourful)
        self.assertIn("█", colourful)
        plain, _ = self.on_terminal(*arguments, environment={"NO_COLOR": "1"})
        self.assertNotIn("\033[31m", plain)
        self.assertNotIn("\033[1m", plain)
        quiet, _ = self.on_terminal(*arguments, "-q", environment={"NO_COLOR": "1"})
        self.assertNotIn("\033", quiet)
        piped = self.good(*arguments)
        self.assertNotIn("\033", piped.stdout + piped.stderr)
        self.assertNotIn("█", piped.stdout + piped.stderr)

    def test_evaluation_shows_bars_on_a_terminal_only(self):
        common = ("-m", self.model(), "--kv", "fp16")
        for arguments in (
            ("ppl", "-f", self.text, "--ctx", 256, "--tokens", 512, *common),
            ("recall", "--task", "passkey", "--ctx", 512, "--depths", 50, "--trials", 1, *common),
            ("bench", "--depths", "0,256", "-n", 4, *common),
            ("plan", *common),
        ):
            with self.subTest(arguments[0]):
                plain, code = self.on_terminal(*arguments, environment={"NO_COLOR": "1"})
                self.assertEqual(code, 0)
                self.assertNotRegex(plain, r"\033\[[0-9;]*m")
                piped = self.good(*arguments)
                self.assertEqual(piped.stderr, "")
                self.assertNotIn("\033", piped.stdout)

    def test_chat_stops_a_reply_at_ctrl_c_and_goes_on(self):
        keys = [("> ", "here\n"), ("here\r\n", 0.3), ("here\r\n", signal.SIGINT), ("here\r\n", 0.3), ("here\r\n", "/tiers\n")]
        keys.append(("tokens, --kv balanced", "/quit\n"))
        arguments = ("chat", "-m", self.model("gemma3"), "-n", 4000, "--temp", 1)
        output, code = self.on_terminal(*arguments, environment={"NO_COLOR": "1"}, keys=keys)
        self.assertEqual(code, 0, output)

    def test_chat_ends_at_end_of_input(self):
        _, code = self.on_terminal("chat", "-m", self.model(), "-n", 4, environment={"NO_COLOR": "1"}, keys=[("> ", "\x04")])
        self.assertEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
