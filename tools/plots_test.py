#!/usr/bin/env python3
"""Proves that the pictures of docs are drawn from the numbers that the pages print: no plot contradicts the table beside it."""

import csv
import json
import unittest
from pathlib import Path

import cuda_report

ROOT = Path(__file__).resolve().parent.parent


def rows(name):
    with open(ROOT / "docs/build/data" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(name):
    return (ROOT / name).read_text(encoding="utf-8").replace("**", "")


class PlotsData(unittest.TestCase):
    def test_quality_is_what_the_table_says(self):
        text = page("docs/use/quality.md")
        for row in rows("quality.csv"):
            if row["delta_se"]:  # all but the reference
                numbers = [f"{float(row['ppl']):.3f}", f"{float(row['delta']):+.3f}", f"{float(row['delta_se']):.3f}",
                           f"{float(row['kld']):.4f}", f"{100 * float(row['top1']):.1f} %", f"{float(row['bits_total']):.2f}",
                           f"{float(row['resident_mib']):.1f} MiB"]  # fmt: skip
                self.assertIn("| " + " | ".join(numbers) + " |", text, row["setting"])

    def test_readme_says_the_same(self):
        text = page("README.md")
        for name in ("quality", "balanced", "balanced,archive=rot2/mid2", "stock q8_0", "stock q4_0"):
            (row,) = [row for row in rows("quality.csv") if row["setting"] == name]
            delta, error = (float(row[key]) + 1e-9 for key in ("delta", "delta_se"))  # halves are rounded up there
            self.assertIn(f"| {float(row['bits_total']):.2f} | {delta:+.2f} ± {error:.2f} |", text, name)

    def test_speed_is_what_the_table_says(self):
        text = page("docs/use/performance.md")
        for row in rows("model.csv"):
            tokens = int(row["tokens"])
            name = f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
            self.assertIn(f"| {name} | {row['setting']} | {float(row['decode_tokens_per_second']):.1f} |", text)

    def test_the_grid_on_a_device_is_what_the_tables_say(self):
        data = ROOT / "docs/build/data/cuda_grid.json"
        if not data.exists():
            self.skipTest("not measured yet")
        self.assertIn(cuda_report.grid(json.loads(data.read_text(encoding="utf-8"))), page("docs/build/cuda.md"))

    def test_every_picture_of_the_data_is_there(self):
        for name in ("pareto", "divergence", "decode-32x8x128", "decode-ratio", "prefill512-ratio", "model-decode"):
            self.assertIn("prefers-color-scheme:dark", (ROOT / f"docs/plots/{name}.svg").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
