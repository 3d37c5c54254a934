#!/usr/bin/env python3
"""Proves that check_text.py fails when it must and only then: one temporary tree for each rule."""

import os
import subprocess
import sys
import tempfile
import unittest

CHECKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_text.py")


class CheckText(unittest.TestCase):
    def run_on(self, files, git=False):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "wb") as file:
                    file.write(text if isinstance(text, bytes) else text.encode("utf-8"))
            if git:
                subprocess.run(["git", "init", "-q", root], check=True)
            done = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout

    def accepts(self, files, **how):
        code, out = self.run_on(files, **how)
        self.assertEqual(code, 0, out)

    def refuses(self, files, *expected, **how):
        code, out = self.run_on(files, **how)
        self.assertEqual(code, 1, out)
        for text in expected:
            self.assertIn(text, out)
        self.assertIn(f"{len(expected)} violations", out)

    def test_code_ends_at_132_columns(self):
        self.accepts({"src/a.cc": "x" * 132 + "\n", "a.md": "x" * 500 + "\n", "data.csv": "x" * 500})
        self.refuses({"src/a.cc": "\n" + "x" * 133 + "\n"}, "src/a.cc:2: 133 columns, at most 132")
        for name in ("a.h", "a.c", "a.cpp", "a.py", "a.sh", "a.cmake", "CMakeLists.txt", "Makefile", ".ci/run"):
            self.refuses({name: "x" * 133}, f"{name}:1: 133 columns")

    def test_columns_are_characters(self):
        self.accepts({"a.cc": "é" * 132})
        self.refuses({"a.cc": "é" * 133}, "133 columns")

    def test_conflict_markers_are_refused_in_every_file(self):
        for marker in ("<" * 7 + " HEAD", "=" * 7, ">" * 7 + " theirs", "|" * 7 + " base"):
            for name in ("a.cc", "a.md", "a.toml", "LICENSE"):
                self.refuses({name: f"one\n{marker}\n"}, f"{name}:2: a conflict marker")
        self.accepts({"a.md": "=" * 8 + "\n" + "<" * 7 + "\n" + " " + "=" * 7 + "\n"})

    def test_links_to_files(self):
        page = "[b](docs/b.md) ![c](docs/c.svg) [d](docs) [w](https://x.y/z) [m](mailto:a@b.c)\n[r]: docs/b.md\n"
        self.accepts({"a.md": page, "docs/b.md": "[up](../a.md)\n", "docs/c.svg": ""})
        self.refuses({"docs/a.md": "one\n[b](b.md)\n"}, "docs/a.md:2: dead link b.md: there is no such file")
        self.refuses({"a.md": "![b](b.svg \"a picture\")\n"}, "dead link b.svg")
        self.refuses({"a.md": "[r]: gone.md\n"}, "dead link gone.md")
        self.refuses({"docs/a.md": "[b](../../)\n"}, "it leaves the repository")

    def test_links_to_headings(self):
        page = "# One: `two`, three!\n## Again\n## Again\n## [a link](b.md) in it\n```\n# no heading\n```\n<a id=\"by-hand\"></a>\n"
        good = ("one-two-three", "again", "again-1", "a-link-in-it", "by-hand")
        self.accepts({"a.md": "".join(f"[x](b.md#{anchor})\n" for anchor in good), "b.md": page})
        self.accepts({"b.md": page + "[x](#again)\n"})
        for anchor in ("no-heading", "again-2", "Again", "two"):
            self.refuses({"a.md": f"[x](b.md#{anchor})\n", "b.md": page}, f"dead link b.md#{anchor}: there is no such heading")
        self.refuses({"a.md": "[x](#gone)\n"}, "dead link #gone")

    def test_code_is_no_link(self):
        self.accepts({"a.md": "```\n[b](b.md)\n```\n`[b](b.md)`\n"})
        self.refuses({"a.md": "```\n[b](b.md)\n```\n[b](b.md)\n"}, "a.md:4: dead link")

    def test_what_is_not_text_is_left_alone(self):
        self.accepts({"a.bin": b"\0\n" + b"=" * 7 + b"\n", "b.bin": b"\xff\n" + b"=" * 7 + b"\n"})

    def test_what_git_ignores_is_left_alone(self):
        files = {".gitignore": "/build/\n", "build/a.cc": "x" * 133, "a.cc": "x" * 133}
        self.refuses(files, "a.cc:1: 133 columns", git=True)

    def test_an_empty_tree_is_an_error(self):
        code, _ = self.run_on({})
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()
