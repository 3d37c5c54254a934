#!/usr/bin/env python3
"""Tests of check_snippets.py: it finds a block that is not its file's text, and can put it right."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).parent / "check_snippets.py"
SOURCE = "int f() {\n  // [one]\n  int a = 1;\n    // [two]\n    a += 2;\n    // [/two]\n  // [/one]\n}\n"
DOCUMENT = "# T\n\n<!-- snippet f.cc one -->\n```cpp\nint a = 1;\n  a += 2;\n```\n\n"
DOCUMENT += "<!-- snippet f.cc two -->\n```cpp\na += 2;\n```\n"


class SnippetsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "docs" / "use").mkdir(parents=True)
        (self.root / "f.cc").write_text(SOURCE)

    def run_tool(self, text, *options):
        (self.root / "docs" / "use" / "t.md").write_text(text)
        return subprocess.run([sys.executable, TOOL, *options, self.root], capture_output=True, text=True).returncode

    def test_equal_blocks_pass(self):
        self.assertEqual(self.run_tool(DOCUMENT), 0)

    def test_a_changed_block_is_found_and_mended(self):
        self.assertEqual(self.run_tool(DOCUMENT.replace("a = 1", "a = 3")), 1)
        self.assertEqual(self.run_tool(DOCUMENT.replace("a = 1", "a = 3"), "--write"), 0)
        self.assertEqual((self.root / "docs" / "use" / "t.md").read_text(), DOCUMENT)

    def test_missing_parts_and_files_are_named(self):
        for wrong in (DOCUMENT.replace(" two", " three"), DOCUMENT.replace("f.cc one", "g.cc one"),
                      DOCUMENT.replace("```cpp\nint", "int")):
            self.assertEqual(self.run_tool(wrong), 2)


if __name__ == "__main__":
    unittest.main()
