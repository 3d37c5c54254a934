#!/usr/bin/env python3
"""Proves that cuda_report.py prints what was measured, in order, and leaves the rest of a page alone."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cuda_report

PAGE = "before\n<!-- bench:cuda-grid -->\nold\n<!-- /bench -->\nafter\n"


def row(cache="kivi2", batch=8, heads=(32, 8), dim=128, length=131072, us=170.0, **more):
    return {"cache": cache, "batch": batch, "query_heads": heads[0], "kv_heads": heads[1], "dim": dim, "length": length, "us": us,
            "sdpa": "cudnn-folded", "sdpa_us": 950.0, "ratio": 950.0 / us, "tbs": 3.55, "error": 8e-4, **more}  # fmt: skip


class CudaReport(unittest.TestCase):
    def test_a_cell_has_time_ratio_and_bytes(self):
        text = cuda_report.grid([row(), row("kivi4", us=23.25)])
        self.assertIn("| B8 128K | 950 cudnn | 170 / 5.59x / 3.55 | 23.2 / 40.86x / 3.55 | — |", text)
        self.assertNotIn("FlashInfer", text)

    def test_flashinfer_has_a_column_where_it_was_timed(self):
        text = cuda_report.grid([row(flashinfer_us=1000.4, flashinfer_ratio=5.9), row(batch=1)])
        self.assertIn("| shape | SDPA | FlashInfer | kivi2 |", text)
        self.assertIn("| B8 128K | 950 cudnn | 1000 | 170", text)
        self.assertIn("| B1 128K | 950 cudnn |  | 170", text)
        self.assertIn("faster than FlashInfer in 1 of 1", text)

    def test_what_is_slower_or_wrong_is_not_hidden(self):
        text = cuda_report.grid([row(), row(length=8192, us=1900.0), row(batch=1, us=float("nan"), ratio=float("nan"))])
        self.assertIn("`kivi2`: faster than SDPA in 1 of 2 shapes, at most 5.59 times", text)
        self.assertIn("| B1 128K | 950 cudnn | — |", text)

    def test_tables_follow_the_page(self):
        text = cuda_report.grid([row(heads=(32, 4)), row(dim=64), row(length=8192), row()])
        order = [text.index(part) for part in ("32/8 heads of 128", "B8 8K", "B8 128K", "32/8 heads of 64", "32/4 heads of 128")]
        self.assertEqual(order, sorted(order))

    def test_the_program_replaces_its_part(self):
        with tempfile.TemporaryDirectory() as folder:
            data, doc = Path(folder) / "grid.json", Path(folder) / "page.md"
            data.write_text(json.dumps([row(), {"cache": "kivi2", "ragged_us": 5.0}]))
            doc.write_text(PAGE)
            command = [sys.executable, cuda_report.__file__, "--data", str(data), "--doc", str(doc)]
            for _ in range(2):  # the second time nothing changes
                subprocess.run(command, check=True)
                text = doc.read_text()
            self.assertTrue(re.fullmatch(r"before\n<!-- bench:cuda-grid -->\n.*B8 128K.*<!-- /bench -->\nafter\n", text, re.S))
            self.assertEqual(len(json.loads(data.read_text())), 1)
            doc.write_text("no place")
            self.assertNotEqual(subprocess.run(command, capture_output=True).returncode, 0)


if __name__ == "__main__":
    unittest.main()
