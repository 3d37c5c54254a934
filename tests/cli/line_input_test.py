#!/usr/bin/env python3
"""What is typed or pasted into `tierkv chat`, on a terminal and from a pipe."""

import json
import os
import unittest

from pseudo_terminal import OnTerminal

# With what switches bracketed paste on before it.
PROMPT, MORE = "\033[?2004h> ", "\033[?2004h. "
UP, LEFT, HOME = "\033[A", "\033[D", "\033[H"


def pasted(text):
    return f"\033[200~{text}\033[201~"


@unittest.skipIf("TIERKV_NO_LIBEDIT" in os.environ, "built without libedit")
class LineInputTest(OnTerminal):
    def setUp(self):
        super().setUp()
        self.state = self.folder / "XDG_STATE_HOME"
        self.history = self.state / "tierkv" / "chat_history"
        for name in ("LANG", "LC_ALL", "LC_CTYPE"):
            self.environment.pop(name, None)

    def turns(self, *typed, more=()):
        """What the user said, after each of `typed` was typed at a prompt of its own."""
        return self.said([(PROMPT, text, i + 1) for i, text in enumerate((*typed, "/quit\r"))], more)

    def said(self, keys, more=()):
        arguments = ("chat", "-m", self.model(), "-n", 2, "--json", "out.json", "-q", *more)
        self.output, status = self.on_terminal(*arguments, environment={"NO_COLOR": "1"}, keys=keys)
        self.assertEqual(status, 0, self.output)
        messages = json.loads((self.folder / "out.json").read_text())["messages"]
        return [message["content"] for message in messages if message["role"] == "user"]

    def test_arrow_keys_edit_the_line(self):
        self.assertEqual(self.turns(f"rver{LEFT}{LEFT}{LEFT}i{HOME}the \r"), ["the river"])
        self.assertNotIn("^[", self.output)

    def test_an_earlier_turn_comes_back(self):
        self.assertEqual(self.turns("the tide\r", f"{UP}s\r"), ["the tide", "the tides"])

    def test_history_outlives_the_program_and_is_nobody_elses(self):
        self.turns("stone river\r")
        self.assertEqual(self.history.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.turns(f"{UP}{UP}\r"), ["stone river"])  # /quit is the newest

    def test_no_history_leaves_nothing(self):
        self.turns("stone river\r", more=("--no-history",))
        self.assertFalse(self.history.exists())

    def test_a_folder_that_cannot_be_written_loses_the_history_alone(self):
        self.state.write_text("a file")
        self.assertEqual(self.turns("stone\r"), ["stone"])

    def test_pasted_lines_are_one_turn(self):
        self.assertEqual(self.turns(pasted("that river\rsees\nnorth\n") + "\r"), ["that river\nsees\nnorth"])

    def test_a_long_paste_arrives_whole(self):
        text = "\n".join(f"line {i} of the tide" for i in range(120))
        self.assertEqual(self.turns(pasted(text) + "\r"), [text])

    def test_what_is_pasted_is_no_command(self):
        self.assertEqual(self.turns(pasted("/quit\nthe river") + "\r"), ["/quit\nthe river"])

    def test_three_quotes_hold_several_lines(self):
        keys = [(PROMPT, '"""the river\r'), (MORE, "sees\r"), (MORE, 'north"""\r', 2), (PROMPT, "/quit\r", 2)]
        self.assertEqual(self.said(keys), ["the river\nsees\nnorth"])

    def test_characters_of_several_bytes(self):
        self.assertEqual(self.turns("größer €𝄞\x7f!\r"), ["größer €!"])

    def test_ctrl_c_clears_a_line_and_leaves_from_an_empty_one(self):
        keys = [(PROMPT, "forget this"), ("forget this", "\x03"), (PROMPT, "the tide\r", 2), (PROMPT, "\x03", 3)]
        self.assertEqual(self.said(keys), ["the tide"])

    def test_a_dumb_terminal_has_plain_lines(self):
        keys = [("> ", "here\n"), ("here\r\n", "/quit\n")]
        output, code = self.on_terminal("chat", "-m", self.model(), "-n", 2, "-q", environment={"TERM": "dumb"}, keys=keys)
        self.assertEqual(code, 0)
        self.assertNotIn("\033", output)


class PipedLinesTest(OnTerminal):
    def said(self, text):
        value = self.good_json("chat", "-m", self.model(), "-n", 2, "-q", stdin=text)
        return [message["content"] for message in value["messages"] if message["role"] == "user"]

    def test_blocks(self):
        self.assertEqual(self.said('"""\nhere\n\nthere\n"""\nthen\n'), ["here\n\nthere", "then"])
        self.assertEqual(self.said('"""here"""\n"""/quit\nit"""  \n'), ["here", "/quit\nit"])

    def test_a_block_that_the_end_cuts_off_is_a_turn(self):
        self.assertEqual(self.said('"""here\nthere\n'), ["here\nthere"])


class FullContextTest(OnTerminal):
    def chat(self, *lines, more=()):
        arguments = ("chat", "-m", self.model(), "-n", 12, "--temp", 0, "--ctx", 160, *more)
        done = self.good(*arguments, "--json", stdin="".join(line + "\n" for line in lines))
        return json.loads(done.stdout), done.stderr

    def test_a_full_context_drops_the_oldest_turns_and_says_so(self):
        lines = [f"the river sees {word}" for word in ("stone", "iron", "tide", "north", "then", "here", "sin", "or")]
        value, remarks = self.chat(*lines, more=("--system", "that tide"))
        said = [m["content"] for m in value["messages"] if m["role"] == "user"]
        self.assertGreater(value["dropped_turns"], 0)
        self.assertEqual(said, lines[value["dropped_turns"] :])
        self.assertEqual(value["messages"][0], {"role": "system", "content": "that tide"})
        self.assertLess(value["length"], 160)
        self.assertIn("dropped", remarks)

    def test_what_is_left_is_as_if_the_rest_had_never_been(self):
        kept, _ = self.chat("here is stone", "and the river", "/drop 1", "then")
        self.assertEqual(kept["dropped_turns"], 1)
        self.assertEqual([m["content"] for m in kept["messages"]][::2], ["and the river", "then"])

    def test_all_turns_may_go(self):
        kept, _ = self.chat("here is stone", "/drop 1", "then")
        alone, _ = self.chat("then")
        self.assertEqual((kept["messages"], kept["length"]), (alone["messages"], alone["length"]))

    def test_what_drop_refuses(self):
        for line, saying in (("/drop", "number"), ("/drop x", "number"), ("/drop 0", "number"), ("/drop 2", "0 turns")):
            done = self.run_cli("chat", "-m", self.model(), "-q", stdin=line + "\n")
            self.assertEqual(done.returncode, 2)
            self.assertIn(saying, done.stderr)

    def test_a_message_that_never_fits(self):
        lines = "here\n" + "the river " * 100 + "\nthen\n"
        done = self.run_cli("chat", "-m", self.model(), "-q", "--ctx", 64, "-n", 4, stdin=lines)
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot hold", done.stderr)


if __name__ == "__main__":
    unittest.main()
