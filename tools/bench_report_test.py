#!/usr/bin/env python3
"""Proves that bench_report.py takes the right numbers to the right places, can be run again, and leaves the rest of it alone."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
REPORT = os.path.join(HERE, "bench_report.py")
sys.path.insert(0, HERE)
import bench_report  # noqa: E402

PARTS = ("machine", "targets", "decode", "lengths", "prefill", "encode", "model")
PAGE = "before\n" + "".join(f"<!-- bench:{name} -->\nold {name}\n<!-- /bench -->\nbetween\n" for name in PARTS) + "after\n"


def row(case, **more):
    return {"case": case, "isa": "avx512vnni", "hardware": "a processor", "commit": "abc", "bits": 2.5, "gbps": 12.5, "waited": 0.0,
            **more}


def attention(setting, op, kilo, median, peer, theirs, threads=2, waited=0.0):
    return row(f"cache/{setting}/{op}/{kilo}Kx32x8x128_t{threads}", threads=threads, median_ms=median,
               ns_per_token=median * 1e6 / (kilo * 1024),
               ceiling_gbps=20.0, ceiling_fraction=0.625, peer=peer, peer_isa="avx2", peer_median_ms=theirs, peer_waited=waited,
               ratio=theirs / median)


ROWS = [
    row("base/memory/read/512M_t2", threads=2, gbps=18.25, median_ms=30),
    attention("balanced", "decode", 4, 0.25, "ggml f16", 2.0),
    attention("balanced", "decode", 32, 2.0, "ggml f16", 24.0),
    attention("balanced", "decode", 32, 2.0, "ggml q8_0", 14.0),
    attention("balanced", "decode", 32, 2.0, "ggml f16 by token", 77.0),
    attention("kivi4", "decode", 32, 3.0, "ggml q4_0", 60.0, waited=0.3),
    attention("fp16", "prefill512", 32, 100.0, "ggml f16", 110.0),
    row("cache/balanced/graduate/32Kx32x8x128_t2", threads=2, median_ms=0.02, decode_ms=2.0, share=0.01),
    row("quant/rot2/unpack/1Kx8x128", threads=1, median_ms=0.3, ns_per_token=293.0),
]
MODEL = [{"title": "small", "threads": 2, "kv": kv, "stock": stock, "depth": 4096, "decode_tokens_per_second": speed,
          "decode_ratio": ratio,
          "p50_ms": 10.0, "prefill_tokens_per_second": 100.0, "resident_bytes": 2**21}
         for kv, stock, speed, ratio in (("f16", True, 31.0, 1.0), ("balanced", False, 93.0, 3.0))]


class BenchReport(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_on(self, rows, page=PAGE, model=None, more=()):
        with open(self.path("rows.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)
        with open(self.path("page.md"), "w", encoding="utf-8") as file:
            file.write(page)
        command = [sys.executable, REPORT, self.path("rows.jsonl"), "--doc", self.path("page.md"), "--data",
                   self.path("data/grid.csv"),
                   "--model-data", self.path("data/model.csv")]
        if model is not None:
            with open(self.path("model.json"), "w", encoding="utf-8") as file:
                json.dump(model, file)
            command += ["--model", self.path("model.json")]
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        with open(self.path("page.md"), encoding="utf-8") as file:
            return done, file.read()

    def test_numbers_reach_their_tables(self):
        done, page = self.run_on(ROWS, model=MODEL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("old ", page)
        self.assertEqual(page.count("between"), len(PARTS))
        self.assertIn("a processor, our kernels: avx512vnni, ggml's: avx2; commit abc.", page)
        self.assertIn("18.2 GB/s with 2 threads", page)
        self.assertIn("| 32/8 d128 | balanced | 2 | 2.50 | 12.0x | 7.0x |  |", page)
        self.assertIn("| 32/8 d128 | fp16 | 100 | 2.50 | 1.1x |  |  |", page)
        self.assertIn("| balanced | 0.25 | 2 | +0 % |", page)
        self.assertIn("| ggml f16 | 2 | 24 | +50 % |", page)
        self.assertIn("| ggml f16 by token |  | 77 |", page)
        self.assertIn("| append one token at 32K, 32/8 d128, 2 threads | balanced | 2.50 |  | 20 µs | 1 % |", page)
        self.assertIn("| 4K | balanced | 93.0 | 3.00x |", page)

    def test_every_point_is_a_line_of_the_data(self):
        self.run_on(ROWS)
        with open(self.path("data/grid.csv"), encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))

        def find(**wanted):
            (found,) = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
            return found

        balanced = find(op="decode", tokens="32768", setting="balanced")
        self.assertEqual((balanced["heads"], balanced["kv_heads"], balanced["head_dim"], balanced["threads"]),
                         ("32", "8", "128", "2"))
        self.assertEqual((balanced["ms"], balanced["times_ggml_f16"], balanced["times_ggml_q8_0"]), ("2", "12", "7"))
        self.assertEqual((balanced["times_ggml_q4_0"], balanced["disturbed"], balanced["commit"]), ("", "0", "abc"))
        self.assertEqual(find(op="decode", setting="kivi4")["disturbed"], "1")
        self.assertEqual(find(op="decode", tokens="32768", setting="ggml f16")["ms"], "24")
        self.assertEqual(find(op="decode", setting="ggml f16 by token")["ms"], "77")
        self.assertEqual(find(op="append")["share"], "0.01")
        self.assertEqual(find(op="unpack")["tokens"], "1024")
        self.assertEqual(find(op="read")["gbps"], "18.25")
        self.assertEqual(len(lines), 4 + 1 + 1 + 1 + 6)  # points, append, unpack, read, and each peer once a place

    def test_klt_stands_beside_rot2(self):
        rot2 = attention("rot2", "decode", 16, 2.0, "ggml f16", 9.0)
        klt = attention("klt", "decode", 16, 2.5, "ggml f16", 9.0)
        longer = attention("klt", "decode", 128, 9.5, "ggml f16", 90.0)
        _, page = self.run_on(ROWS + [rot2, klt, longer])
        self.assertIn("| 32/8 d128 | 2 | 16K | 2 | 2.5 | 1.25 | 2.50 | 2.50 |", page)
        self.assertNotIn("| 32/8 d128 | 2 | 128K |", page)  # there is no rot2 to compare with
        _, page = self.run_on(ROWS)
        self.assertNotIn("klt", page)

    def test_requirements_are_judged(self):
        _, page = self.run_on(ROWS)
        self.assertIn("| decode, `balanced`, against ggml f16 | 12.0x | 8.0x | 15.0x | reached |", page)
        self.assertIn("| decode, `balanced`, against ggml q8_0 | 7.0x | 10.0x | 18.0x | missed |", page)
        self.assertIn("| unpack of 1,024 tokens, 8 heads, `rot2`, one thread | 0.3 ms | < 0.5 ms | < 0.2 ms | reached |", page)
        self.assertIn("share of a decode step | 1 % | < 3 % | < 1 % | aim reached |", page)

    def test_a_disturbed_point_is_marked(self):
        _, page = self.run_on(ROWS)
        self.assertIn("| 32/8 d128 | kivi4 \\* |", page)
        self.assertIn("1 of 5 points", page)

    def test_a_part_without_data_keeps_its_text(self):
        _, page = self.run_on(ROWS)
        self.assertIn("old model", page)

    def test_again_changes_nothing(self):
        _, once = self.run_on(ROWS, model=MODEL)
        _, twice = self.run_on(ROWS, page=once, model=MODEL)
        self.assertEqual(once, twice)

    def test_the_model_s_speed_is_data_too(self):
        self.run_on(ROWS, model=MODEL)
        with open(self.path("data/model.csv"), encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        columns = ("setting", "tokens", "decode_tokens_per_second", "resident_mib")
        self.assertEqual([tuple(line[column] for column in columns) for line in lines],
                         [("stock f16", "4096", "31", "2"), ("balanced", "4096", "93", "2")])

    def test_results_without_a_peer_are_enough(self):
        alone = [{k: v for k, v in r.items() if not k.startswith("peer_") and k != "ratio"} for r in ROWS]
        done, page = self.run_on(alone)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ggml's: no peer", page)

    def test_a_point_measured_again_replaces_the_old_one(self):
        _, page = self.run_on(ROWS + [attention("balanced", "decode", 32, 1.0, "ggml q4_0", 50.0)])
        self.assertIn("| 32/8 d128 | balanced | 1 | 2.50 |  |  | 50.0x |", page)

    def test_a_smoke_test_is_refused(self):
        done, page = self.run_on([{**ROWS[1], "tokens": 1024}])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--quick", done.stderr)
        self.assertEqual(page, PAGE)

    def test_a_page_without_a_place_is_refused(self):
        done, page = self.run_on(ROWS, page="nothing\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(page, "nothing\n")

    def test_the_real_pages_have_every_place(self):
        pages = ""
        for path in bench_report.PAGES:
            with open(os.path.join(HERE, "..", path), encoding="utf-8") as file:
                pages += file.read()
        done, _ = self.run_on(ROWS, page=pages, model=MODEL)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_parts_may_lie_in_several_pages(self):
        first, second = PAGE.split("<!-- bench:decode -->")
        with open(self.path("second.md"), "w", encoding="utf-8") as file:
            file.write("<!-- bench:decode -->" + second)
        done, page = self.run_on(ROWS, page=first, more=["--doc", self.path("second.md")])
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("second.md"), encoding="utf-8") as file:
            self.assertIn("| 32/8 d128 | balanced |", file.read())
        self.assertIn("our kernels", page)


if __name__ == "__main__":
    unittest.main()
