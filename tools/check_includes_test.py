#!/usr/bin/env python3
"""Proves that check_includes.py fails when it must and only then: one temporary tree for each rule."""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKER = os.path.join(HERE, "check_includes.py")
sys.path.insert(0, HERE)
import check_includes  # noqa: E402


def run_on(files, *runs):
    """(exit code, output) of the last of some runs over one tree, each a list of options."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        for options in runs or ([],):
            done = subprocess.run([sys.executable, CHECKER, *options, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


class CheckIncludes(unittest.TestCase):
    def accepts(self, path, text):
        code, out = run_on({"src/base/a.h": "#include <vector>\n", path: text})
        self.assertEqual(code, 0, out)

    def refuses(self, path, text, expected):
        code, out = run_on({"src/base/a.h": "#include <vector>\n", path: text})
        self.assertEqual(code, 1, out)
        self.assertIn(expected, out)

    def test_every_edge_of_the_map_is_accepted(self):
        self.accepts("src/quant/a.cc",
                     '#include "quant/a.h"\n#include "base/f16.h"\n#include "tierkv/status.h"\n#include <xxhash.h>\n')
        self.accepts("src/attn/a.cc", '#include "quant/a.h"\n#include "base/f16.h"\n')
        self.accepts("src/tiers/a.cc", '#include "attn/a.h"\n#include "plan/a.h"\n')
        self.accepts("src/cache/a.cc", '#include "policy/a.h"\n#include "attn/a.h"\n#include <toml++/toml.h>\n')
        self.accepts("src/llama/a.cc", '#include "calib/a.h"\n')
        self.accepts("src/llama/a_test.cc", '#include "snapshot/testing.h"\n')
        self.accepts("apps/a.cc", '#include "tierkv/cache.h"\n#include <tierkv/cache.h>\n#include <cstdio>\n')
        self.accepts("apps/tierkv/a.cc", '#include "engine/engine.h"\n')
        self.accepts("src/engine/a.cc", '#include "engine/a.h"\n#include "tierkv/llama.h"\n#include <llama.h>\n')
        self.accepts("tests/a.cc", '#include "quant/codec.h"\n')
        self.accepts("include/tierkv/a.h", '#include <cstdint>\n#include <stdint.h>\n#include "tierkv/b.h"\n')

    def test_upward_edges_are_refused(self):
        self.refuses("src/base/b.h", '#include "quant/codec.h"\n', "src/base/b.h:1: quant/codec.h: base may include no other room")
        self.refuses("src/quant/a.cc", '\n#include "attn/a.h"\n', "src/quant/a.cc:2: attn/a.h: quant may include base")
        self.refuses("src/policy/a.cc", '#include "cache/a.h"\n', "policy may include base")
        self.refuses("src/attn/a.cc", '#  include <cache/a.h>\n', "attn may include base, quant")
        self.refuses("src/policy/a.cc", '#include "quant/codec.h"\n', "policy may include base")

    def test_private_headers_are_refused_outside_the_library(self):
        self.refuses("apps/a.cc", '#include "quant/codec.h"\n', "public headers and engine/ only")
        self.refuses("python/a.cc", '#include "engine/engine.h"\n', "public headers only")
        self.refuses("src/engine/a.cc", '#include "llama/crew.h"\n', "engine may include no other room")
        self.refuses("src/llama/a.cc", '#include "engine/engine.h"\n', "llama may include base, calib, learn, quant")
        self.refuses("python/a.cc", '#include <cache/a.h>\n', "public headers only")

    def test_public_headers_stand_alone(self):
        self.refuses("include/tierkv/a.h", '#include "base/f16.h"\n', "only tierkv/ and the standard library")
        self.refuses("include/tierkv/a.h", "#include <toml++/toml.h>\n", "only tierkv/ and the standard library")
        self.refuses("include/tierkv/a.h", "#include <xxhash.h>\n", "only tierkv/ and the standard library")

    def test_paths_are_spelled_one_way(self):
        self.refuses("src/quant/a.cc", '#include "a.h"\n', 'write "room/file.h"')
        self.refuses("src/quant/a.cc", '#include "../base/f16.h"\n', "never with ..")

    def test_an_unknown_room_must_be_declared(self):
        self.refuses("src/attic/a.cc", "#include <vector>\n", "room src/attic is not in")

    def test_folders_of_a_large_room_have_directions_too(self):
        self.accepts("src/cuda/decode/a.cuh", '#include "cuda/decode/b.cuh"\n#include "cuda/launch/desc.h"\n#include "base/a.h"\n')
        self.accepts("src/cuda/a.cc", '#include "cuda/memory/a.h"\n#include "cuda/a.h"\n')
        self.accepts("src/cuda/launch/a_test.cc", '#include "cuda/plan/twin_testing.h"\n#include "cuda/a.h"\n')
        self.refuses("src/cuda/launch/a.h", '#include "cuda/plan/plan.h"\n',
                     "src/cuda/launch/a.h:1: cuda/plan/plan.h: folder launch may include no other of this room")
        self.refuses("src/cuda/decode/a.cuh", '#include "cuda/device_attention.h"\n', "folder decode may include launch, simt of")
        self.refuses("src/cuda/a.cc", '#include "cuda/runtime/runtime.h"\n', "folder of the room itself may include")
        self.refuses("src/cuda/attic/a.h", '#include "cuda/launch/desc.h"\n', "folder attic of src/cuda is not in")

    def test_comments_do_not_count(self):
        self.accepts("src/base/c.h", '/* gone:\n#include "quant/codec.h"\n*/\n// #include "quant/codec.h"\n')

    def test_length_is_limited(self):
        self.accepts("bench/a.cc", "\n" * 800)
        self.refuses("bench/a.cc", "\n" * 801, "801 lines, at most 800")

    def whole_tree(self, map_text="", **more):
        """Every room of the table, and a document with `map_text` between the marks."""
        files = {f"src/{room}/a.cc": "" for room in check_includes.ROOMS}
        files[check_includes.MAP] = "before\n" + check_includes.MAP_BEGIN + map_text + check_includes.MAP_END + "after\n"
        return {**files, **more}

    def test_the_map_must_be_the_table(self):
        code, out = run_on(self.whole_tree("\n" + check_includes.map_of_rooms() + "\n"))
        self.assertEqual(code, 0, out)
        code, out = run_on(self.whole_tree("\n" + check_includes.map_of_rooms().replace("src/base/", "src/cellar/") + "\n"))
        self.assertEqual(code, 1, out)
        self.assertIn("the map of rooms is not the table", out)
        code, out = run_on({**self.whole_tree(), check_includes.MAP: "no marks\n"})
        self.assertEqual(code, 1, out)
        self.assertIn("has no lines <!-- rooms", out)
        code, out = run_on({**{f"src/{room}/a.cc": "" for room in check_includes.ROOMS}, "docs/a.md": ""})
        self.assertEqual(code, 1, out)
        self.assertIn("missing, the map of rooms belongs there", out)

    def test_write_map_mends_the_document(self):
        code, out = run_on(self.whole_tree("old\n"), ["--write-map"], [])
        self.assertEqual(code, 0, out)

    def test_rooms_and_folders_are_the_same(self):
        files = self.whole_tree("\n" + check_includes.map_of_rooms() + "\n")
        code, out = run_on({**files, "src/attic/a.cc": ""})
        self.assertEqual(code, 1, out)
        self.assertIn("src/attic: a folder that is not in", out)
        del files["src/base/a.cc"]
        code, out = run_on(files)
        self.assertEqual(code, 1, out)
        self.assertIn("src/base: a room in tools/check_includes.py without a folder", out)

    def test_an_empty_tree_is_an_error(self):
        code, _ = run_on({"docs/a.md": ""})
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()
