#!/usr/bin/env python3
"""`tierkv chat`, with lines from a pipe."""

import unittest

from command import Command


class ChatTest(Command):
    def chat(self, *lines, **options):
        arguments = ("chat", "-m", self.model(), "-n", 12, "--temp", 0, "-q")
        return self.good_json(*arguments, stdin="".join(line + "\n" for line in lines), **options)

    def test_piped_lines_are_messages(self):
        value = self.chat("here is the river", "and then?")
        self.assertEqual([m["role"] for m in value["messages"]], ["user", "assistant"] * 2)
        self.assertGreater(value["length"], 24)

    def test_a_saved_conversation_goes_on_as_if_never_left(self):
        whole = self.chat("here is the river", "and then?")
        self.chat("here is the river", f"/save {self.folder}/talk.tkv")
        resumed = self.chat(f"/load {self.folder}/talk.tkv", "and then?")
        self.assertEqual(resumed["messages"], whole["messages"])
        self.assertEqual(resumed["length"], whole["length"])
        self.assertEqual(self.files(), ["talk.tkv", "text.txt"])

    def test_reset_forgets_and_quit_ends(self):
        value = self.chat("here", "/reset", "/quit", "there")
        self.assertEqual((value["messages"], value["length"]), ([], 0))

    def test_tiers(self):
        done = self.good("chat", "-m", self.model(), "-n", 4, stdin="here\n/tiers\n/help\n")
        self.assertIn("hot", done.stderr)

    def test_a_script_learns_of_a_wrong_command(self):
        done = self.run_cli("chat", "-m", self.model(), "-n", 4, "-q", stdin="/frobnicate\n/load nowhere\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/frobnicate", done.stderr)


if __name__ == "__main__":
    unittest.main()
