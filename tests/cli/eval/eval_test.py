#!/usr/bin/env python3
"""eval_test.py TIERKV TINY_MODELS: the commands ppl, recall, bench and report, on tiny models and short texts."""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TIERKV, MODELS = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
WORDS = "the rain fell on the stone bridge and nobody in the town had seen another summer like this one before it ended".split()


def prose(words):
    return " ".join(WORDS[(7 * i * i + 3 * i) % len(WORDS)] for i in range(words)) + ".\n"


class Evaluation(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)
        self.folder = Path(self.holder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(prose(300))

    def run_tierkv(self, *arguments, code=0, environment=None):
        done = subprocess.run([str(TIERKV), *map(str, arguments)], capture_output=True, text=True, cwd=self.folder, timeout=300,
                              env={**os.environ, **(environment or {})})  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def refused(self, *arguments, says=(), environment=None):
        """Exit code 2, one sentence, nothing on stdout."""
        done = self.run_tierkv(*arguments, code=2, environment=environment)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for part in says:
            self.assertIn(part, done.stderr)

    def model(self, kind="llama"):
        return ["-m", MODELS / f"{kind}.gguf", "-t", 1]

    def ppl(self, *arguments, kind="llama"):
        done = self.run_tierkv("ppl", *self.model(kind), "-f", self.text, *arguments, "--json")
        return json.loads(done.stdout)

    # --- ppl

    def test_ppl_reports_every_field_for_every_setting(self):
        rows = self.ppl("--ctx", 256, "--tokens", 700, "--kv", "balanced,hot=32,warm=64", "--kv", "int8", "--stock", "f16,q8_0")
        self.assertEqual([(r["kv"], r["stock"]) for r in rows],
                         [("fp16", False), ("balanced,hot=32,warm=64", False), ("int8", False), ("f16", True),
                          ("q8_0", True)])  # fmt: skip
        for row in rows:
            for key in ("ppl", "delta", "delta_se", "kld", "top1", "bits_archive", "bits_total", "resident_bytes", "tokens",
                        "seconds"):
                self.assertIsInstance(row[key], (int, float), f"{row['kv']} {key}")
            self.assertEqual(row["tokens"], 2 * (256 - 64) + 188 - 64)  # three windows, a quarter of 256 skipped in each
            self.assertAlmostEqual(row["delta"], row["ppl"] - rows[0]["ppl"], delta=1e-6 * row["ppl"])
        fp16, balanced, int8, stock, q8_0 = rows
        self.assertEqual((fp16["delta"], fp16["delta_se"], fp16["kld"], fp16["top1"]), (0, 0, 0, 1))
        self.assertGreater(balanced["kld"], int8["kld"])
        self.assertGreater(balanced["kld"], 1e-6)
        self.assertGreater(balanced["delta_se"], 0)
        # F32 weights: our FP16 cache and libllama's agree but for rounding.
        self.assertLess(stock["kld"], 1e-5)
        self.assertLess(abs(stock["delta"]), 2e-3 * fp16["ppl"])
        self.assertEqual(stock["bits_total"], 16)
        self.assertEqual(q8_0["bits_total"], 8.5)
        self.assertLess(balanced["bits_archive"], 4)

    def test_ppl_does_not_depend_on_chunks_where_nothing_is_compressed(self):
        one = self.ppl("--ctx", 128, "--tokens", 256, "--kv", "fp16", "--chunk", 1)
        many = self.ppl("--ctx", 128, "--tokens", 256, "--kv", "fp16", "--chunk", 128)
        self.assertEqual(len(one), 1)
        self.assertAlmostEqual(one[0]["ppl"], many[0]["ppl"], delta=1e-3 * one[0]["ppl"])

    def test_ppl_of_one_window_by_hand(self):
        """A random model is near the uniform guess, so its perplexity is of the vocabulary's order."""
        row = self.ppl("--ctx", 128, "--tokens", 128, "--skip", 0, "--kv", "fp16")[0]
        self.assertEqual(row["tokens"], 127)
        self.assertTrue(50 < row["ppl"] < 5000, row["ppl"])

    def test_ppl_says_what_was_left_unread(self):
        tiers = "hot=32,warm=64,archive=rot2,sinks=4"
        settings = ["--kv", tiers, "--kv", tiers + ",skip=top:1"]
        self.text.write_text(prose(1000))
        for chunk, skips in ((1, True), (32, False)):  # a prompt reads everything
            fp16, plain, one = self.ppl("--ctx", 700, "--tokens", 700, "--chunk", chunk, *settings)
            self.assertNotIn("skipped_blocks", plain)
            self.assertEqual(one["skipped_blocks"] > 0, skips)
            self.assertEqual(one["read_blocks"] > 0, skips)
            self.assertEqual(one["kld"] != plain["kld"], skips)

    def test_ppl_serves_sliding_windows(self):
        rows = self.ppl("--ctx", 192, "--tokens", 192, "--kv", "fp16", "--stock", "f16", kind="gemma3")
        self.assertLess(rows[1]["kld"], 1e-4)

    def test_ppl_text_goes_to_stdout_and_json_to_its_file(self):
        done = self.run_tierkv("ppl", *self.model(), "-f", self.text, "--ctx", 128, "--tokens", 128, "--json", "out.json")
        self.assertIn("balanced", done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertEqual([r["kv"] for r in json.loads((self.folder / "out.json").read_text())], ["fp16", "balanced"])

    def test_ppl_compares_at_equal_bytes(self):
        self.text.write_text(prose(1500))
        ours = "hot=32,warm=64,archive=rot2+top4,sinks=4"
        rows = self.ppl("--ctx", 1024, "--tokens", 1024, "--compare", ours)
        self.assertEqual(rows[0]["kv"], "fp16")
        self.assertEqual((rows[1]["label"], rows[1]["kv"]), ("ours", ours))
        by_name = {r["label"]: r for r in rows[1:]}
        expected = {"fifo", "h2o", "snapkv", "tova", "scissorhands", "streaming_llm", "pyramidkv", "akv", "kivi"}
        self.assertLessEqual(expected, set(by_name))
        target = rows[1]["compare"]["target_bytes"]
        self.assertLess(target, 0.6 * rows[0]["resident_bytes"])
        for name, row in by_name.items():
            self.assertEqual(row["compare"]["target_bytes"], target)
            self.assertEqual(row["compare"]["fits"], row["compare"]["bytes"] <= target, name)
            # Filled with text it takes what it took filled with noise.
            self.assertLess(abs(row["resident_bytes"] / row["compare"]["bytes"] - 1), 0.03, name)
            if "evict=" in row["kv"]:
                self.assertTrue(row["compare"]["fits"], name)
                # Tails grow in fifths of what they will be, and a tiny model is little else.
                self.assertGreater(row["compare"]["bytes"], 0.8 * target, name)
                self.assertGreater(row["kld"], 1e-6, name)
        self.assertNotIn("top", by_name["fifo"]["kv"].split("archive=")[-1])

    def test_compare_takes_a_setting_of_ours_and_one_length(self):
        model = self.model()
        evicts = "fp16,evict=h2o,max_seq_len=64"
        self.refused("ppl", *model, "-f", self.text, "--ctx", 256, "--compare", evicts, says=["eviction policy"])
        self.refused("ppl", *model, "-f", self.text, "--ctx", 256, "--compare", "mine.toml", says=["mine.toml"])
        self.refused("ppl", *model, "-f", self.text, "--ctx", 256, "--compare", "nonsense", says=["nonsense"])
        self.refused("recall", *model, "--ctx", "1024,2048", "--compare", "balanced", says=["--compare", "--ctx"])
        self.refused("recall", *model, "--compare", "balanced", says=["--compare", "--ctx"])

    def test_recall_compares_at_equal_bytes(self):
        done = self.run_tierkv("recall", *self.model(), "--task", "passkey", "--ctx", 1024, "--depths", 50, "--trials", 1,
                               "--compare", "hot=32,warm=64,archive=rot2,sinks=4", "--json", "out.json")  # fmt: skip
        rows = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(rows[0]["kv"], "fp16")
        self.assertLessEqual({"ours", "h2o", "snapkv", "streaming_llm"}, {r.get("label") for r in rows})
        for row in rows[1:]:
            self.assertEqual(row["total"], 1)
            self.assertIn("gave_way", row["compare"])
        self.assertIn("tokens kept", done.stdout)
        self.assertIn("evict=snapkv", done.stdout)

    def test_ppl_refuses_what_it_cannot_do(self):
        model = self.model()
        self.refused("ppl", *model, says=["tierkv fetch wikitext2"], environment={"TIERKV_CACHE": str(self.folder)})
        self.refused("ppl", *model, "-f", "missing.txt", says=["missing.txt"])
        self.refused("ppl", "-m", "missing.gguf", "-f", self.text, says=["missing.gguf"])
        self.refused("ppl", *model, "-f", self.text, "--ctx", 100000, says=["4,096"])
        self.refused("ppl", *model, "-f", self.text, "--ctx", 64, "--skip", 64, says=["--skip"])
        self.refused("ppl", *model, "-f", self.text, "--stock", "q5_1", says=["q5_1", "q8_0"])
        self.refused("ppl", *model, "-f", self.text, "--kv", "nonsense", says=["nonsense"])
        self.refused("ppl", *self.model("mamba"), "-f", self.text, says=["mamba"])
        self.text.write_text("few")
        self.refused("ppl", *model, "-f", self.text, "--ctx", 256, says=["nothing is left"])
        self.text.write_text("")
        self.refused("ppl", *model, "-f", self.text, says=["empty"])

    # --- recall

    def recall(self, *arguments, kind="llama"):
        done = self.run_tierkv("recall", *self.model(kind), *arguments, "--json")
        return [{key: value for key, value in row.items() if key != "run"} for row in json.loads(done.stdout)]

    def test_recall_counts_every_cell(self):
        rows = self.recall("--task", "passkey,lines", "--ctx", "1024,1200", "--depths", "90,10", "--trials", 2, "--keys", 2, "--kv",
                           "int8", "--text", "prose,table")  # fmt: skip
        cells = [(r["kv"], r["stock"], r["task"], r["kind"], r["ctx"], r["depth"]) for r in rows]
        self.assertEqual(len(cells), 2 * 2 * 2 * 2 * 2)  # FP16 is always asked too
        self.assertEqual(len(set(cells)), len(cells))
        self.assertEqual({r["kv"] for r in rows}, {"fp16", "int8"})
        for row in rows:
            self.assertEqual(row["total"], 2)
            self.assertEqual(row["correct"] + len(row["wrong"]), 2)
            self.assertEqual(row["correct"], sum(a["correct"] for a in row["answers"]))
            self.assertEqual(row["free_changed"], sum(a["changed"] for a in row["answers"]))
            for answer in row["answers"]:
                self.assertRegex(answer["said"], "^ ?[0-9]{5}$")  # digits whatever the model would rather say
                self.assertEqual(answer["correct"], answer["said"].strip() == answer["expected"])
                self.assertLessEqual(answer["p_all"], answer["p_digits"] * (1 + 1e-9))
            if row["kv"] == "fp16":
                self.assertEqual(row["free_changed"], 0)

    def test_recall_reads_another_stretch_in_every_trial(self):
        (self.folder / "book.txt").write_text("".join(f"Line {i} of the book says little. " for i in range(3000)))
        rows = self.recall("--task", "passkey", "--ctx", 512, "--depths", "10,90", "--trials", 3, "--kv", "fp16", "--text", "code",
                           "--haystack", "book.txt", "--haystack", self.text)  # fmt: skip
        self.assertEqual([(r["kind"], r["haystack"]) for r in rows[::2]],
                         [("code", "generated"), ("file", "book.txt"), ("file", str(self.text))])  # fmt: skip
        for name in ("generated", "book.txt"):
            stretches = [a["stretch"] for r in rows if r["haystack"] == name for a in r["answers"]]
            self.assertEqual(len(set(stretches)), 6)

    def test_recall_quotes(self):
        rows = self.recall("--task", "quote", "--ctx", 1800, "--depths", "5,95", "--trials", 1, "--quotes", 2, "--kv", "fp16",
                           "--stock", "f16")  # fmt: skip
        self.assertEqual([(r["kv"], r["depth"], r["total"]) for r in rows],
                         [("fp16", 95, 2), ("fp16", 5, 2), ("f16", 95, 2), ("f16", 5, 2)])  # fmt: skip
        for row in rows:
            self.assertEqual(row["correct"] + len(row["wrong"]), 2)
            self.assertAlmostEqual(row["leading_share"], row["leading_words"] / row["words"])
            for answer in row["answers"]:
                self.assertGreaterEqual(answer["away"], 500)
                self.assertEqual(answer["words"], len(answer["expected"].split()))
                self.assertEqual(answer["correct"], answer["leading_words"] == answer["words"])
                self.assertLess(answer["leading_words"], answer["words"])  # a made-up model copies nothing

    def test_recall_measures_what_decoding_leaves_unread(self):
        """Prompts read every block. Were questions and answers fed as prompts, `skip` would change nothing here."""
        tiers = "hot=32,warm=64,archive=rot2,sinks=4"
        settings = [tiers, tiers + ",skip=top:1", tiers + ",skip=top:1000"]
        rows = self.recall("--ctx", 1600, "--depths", "10", "--trials", 1, *[x for s in settings for x in ("--kv", s)])
        plain, one, many = ([r for r in rows if r["kv"] == s] for s in settings)
        self.assertEqual([r["task"] for r in one], ["passkey", "quote"])
        for off, on, all_read in zip(plain, one, many):
            self.assertTrue(off["by_token"])
            self.assertNotIn("skipped_blocks", off)
            self.assertGreater(on["read_blocks"], 0)
            self.assertGreater(on["skipped_blocks"], 3 * on["read_blocks"])  # one is read of eight or nine
            self.assertGreater(on["skipped_mass"], 0)
            self.assertNotEqual(on["p_token"], off["p_token"])
            self.assertEqual((all_read["skipped_blocks"], all_read["skipped_mass"]), (0, 0))
            self.assertGreater(all_read["read_blocks"], 0)
            self.assertEqual(all_read["p_token"], off["p_token"])  # with nothing left out, to the bit
        # Of a question that is a prompt everything is read, and only the answer's tokens skip.
        prompt = self.recall("--ctx", 1600, "--depths", "10", "--trials", 1, "--question", "prompt", "--kv", settings[1])
        for row, stepped in zip([r for r in prompt if r["kv"] == settings[1]], one):
            self.assertEqual((row["question"], stepped["question"]), ("prompt", "token"))
            self.assertTrue(0 < row["skipped_blocks"] < stepped["skipped_blocks"])
            self.assertNotEqual(row["p_token"], stepped["p_token"])
        rows = self.recall("--task", "passkey", "--ctx", 512, "--depths", "50", "--trials", 1, "--kv", "int8")
        self.assertFalse(any(r["by_token"] for r in rows))

    def test_recall_says_the_same_twice_and_what_stock_says(self):
        common = ["--task", "passkey", "--ctx", 1024, "--kv", "fp16", "--stock", "f16", "--trials", 1, "--depths", "5,95"]
        rows = self.recall(*common)
        self.assertEqual(rows, self.recall(*common))
        ours, theirs = [r for r in rows if not r["stock"]], [r for r in rows if r["stock"]]
        for one, other in zip(ours, theirs):  # F32 weights: they agree but for rounding
            self.assertAlmostEqual(math.log(one["p_digits"]), math.log(other["p_digits"]), delta=0.1)

    def test_recall_serves_sliding_windows_and_other_texts(self):
        self.text.write_text(prose(40))  # repeated to fill the context
        rows = self.recall("--task", "lines", "--ctx", 900, "--depths", "50", "--keys", 1, "--trials", 1, "--haystack", self.text,
                           "--kv", "balanced",
                           "--stock", "f16", kind="gemma3")  # fmt: skip
        self.assertEqual([r["total"] for r in rows], [1, 1, 1])

    def test_recall_lists_what_was_missed(self):
        done = self.run_tierkv("recall", *self.model(), "--ctx", 1400, "--depths", "50", "--trials", 1, "--kv", "fp16",
                               "--json", "r.json")  # fmt: skip
        self.assertIn("Missed:", done.stdout)
        for row in json.loads((self.folder / "r.json").read_text()):
            for answer in row["answers"]:
                self.assertIn(answer["expected"] if row["task"] == "passkey" else f"of {answer['words']} words", done.stdout)
        self.run_tierkv("report", "r.json", "-o", "r.html")

    def test_recall_draws(self):
        self.run_tierkv("recall", *self.model(), "--task", "passkey", "--ctx", 512, "--depths", "50", "--trials", 1, "--kv", "fp16",
                        "--plot", "map.html")
        self.assertRegex((self.folder / "map.html").read_text(), r'<td class="(found|none)">[01]/1</td>')

    def test_recall_refuses_what_it_cannot_do(self):
        self.refused("recall", *self.model(), "--ctx", 128, says=["128"])
        self.refused("recall", *self.model(), "--ctx", 99999, says=["4,096"])
        self.refused("recall", *self.model(), "--depths", "150", says=["150"])
        self.refused("recall", *self.model(), "--haystack", "missing.txt", says=["missing.txt"])
        self.refused("recall", *self.model(), "--task", "poems", says=["poems"])
        self.refused("recall", *self.model(), "--text", "poems", says=["poems"])
        self.refused("recall", *self.model(), "--task", "quote", "--ctx", 600, says=["600", "500"])
        self.text.write_text(" \n")
        self.refused("recall", *self.model(), "--haystack", self.text, says=["no text"])

    # --- bench

    def test_bench_measures_every_setting_at_every_depth(self):
        done = self.run_tierkv("bench", *self.model(), "--depths", "0,100,300", "-n", 4, "--kv", "balanced", "--stock", "q8_0",
                               "--json")
        rows = json.loads(done.stdout)
        self.assertEqual(len(rows), 3 * 3)
        for row in rows:
            self.assertGreater(row["p50_ms"], 0)
            self.assertGreaterEqual(row["p99_ms"], row["p50_ms"])
            self.assertEqual(row["decode_tokens"], 4)
            self.assertGreater(row["ttft_seconds"], 0)
            self.assertEqual("host_share" in row, not row["stock"])
            if row["stock"] and row["kv"] == "f16":
                self.assertEqual(row["decode_ratio"], 1)
        self.assertTrue(all(0 < r["host_share"] < 1 for r in rows if not r["stock"]))

    def test_bench_stays_within_the_context(self):
        done = self.run_tierkv("bench", *self.model(), "--depths", "4096", "-n", 4, "-b", 1024, "--kv", "fp16", "--stock", "none",
                               "--json")
        self.assertEqual({r["depth"] for r in json.loads(done.stdout)}, {4096 - 6})
        self.refused("bench", *self.model(), "--depths", "5000", says=["4,096"])

    # --- report

    def results(self):
        base = {"model": "M & <m>", "stock": False}
        return {
            "ppl.json": [{**base, "kv": kv, "ppl": 10 + d, "delta": d, "delta_se": 0.01, "kld": d / 10, "top1": 0.9,
                          "bits_archive": b, "bits_total": b,
                          "resident_bytes": 1000, "tokens": 100, "seconds": 1}
                         for kv, d, b in (("fp16", 0, 16), ("balanced", 0.2, 3), ("compact", 0.9, 2.2))],
            "recall.json": [{**base, "task": "passkey", "kv": "balanced", "ctx": c, "depth": d, "correct": 1, "total": 2}
                            for c in (1024, 2048) for d in (5, 95)],
            "bench.json": [{**base, "kv": kv, "depth": d, "p50_ms": 3 + d / 100, "p99_ms": 9, "decode_tokens_per_second": 200,
                            "ttft_seconds": d / 50,
                            "decode_ratio": 0.8, "prefill_tokens_per_second": 50}
                           for kv in ("fp16", "balanced") for d in (0, 1024)],
        }  # fmt: skip

    def write_results(self, *names):
        files = self.results()
        for name in names:
            (self.folder / name).write_text(json.dumps(files[name], indent=1))
        return names

    def test_report_is_one_page_with_every_section_and_setting(self):
        self.run_tierkv("report", *self.write_results("ppl.json", "recall.json", "bench.json"), "-o", "r.html")
        page = (self.folder / "r.html").read_text()
        for part in ("Quality", "Recall", "Speed", "ΔPPL", "M &amp; &lt;m&gt;", "1/2", "-o r.html"):
            self.assertIn(part, page)
        for results in self.results().values():
            for row in results:
                self.assertRegex(page, rf"</span>{row['kv']}</td>")
        if "could not be fetched" in page:
            self.skipTest("this build has no Chart.js")
        self.assertIn("Chart.js v", page)
        self.assertEqual(len(re.findall("<canvas", page)), 6)

    def test_report_asks_nobody_for_anything(self):
        self.run_tierkv("report", *self.write_results("ppl.json", "recall.json", "bench.json"), "-o", "r.html")
        page = (self.folder / "r.html").read_text()
        self.assertIn("default-src 'none'", page)
        ours = re.sub(r"/\*!.*?</script>", "</script>", page, flags=re.S)  # the library names its home in its licence
        for outside in ("http:", "https:", "src=", "href=", "@import", "url(", "sourceMappingURL", "fetch("):
            self.assertNotIn(outside, ours)

    def test_results_say_how_they_were_made(self):
        row = self.ppl("--ctx", 128, "--tokens", 128, "--kv", "fp16")[0]
        self.assertEqual(row["text"], str(self.text))
        self.assertRegex(row["run"]["date"], r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        self.assertRegex(row["run"]["machine"], r", \d+ cores?, ")
        self.assertRegex(row["run"]["arguments"], r"^tierkv ppl -m .* --ctx 128 --tokens 128 --kv fp16 --json$")

    def test_report_says_where_the_plots_went(self):
        self.refused("report", *self.write_results("ppl.json"), "--svg", "plots", says=["--svg", "tools/plots.py"])

    def test_report_does_with_what_there_is(self):
        for name in ("ppl.json", "recall.json", "bench.json"):
            self.run_tierkv("report", *self.write_results(name), "-o", "r.html")
        sparse = [{"kv": "x", "ppl": 3.5, "delta_se": None}]
        (self.folder / "sparse.json").write_text(json.dumps(sparse))
        self.run_tierkv("report", "sparse.json", "-o", "r.html")
        self.assertIn("3.5000", (self.folder / "r.html").read_text())

    def test_report_of_real_results(self):
        self.run_tierkv("ppl", *self.model(), "-f", self.text, "--ctx", 128, "--tokens", 256, "--stock", "q4_0", "--json",
                        "ppl.json")
        self.run_tierkv("bench", *self.model(), "--depths", "0,64", "-n", 2, "--stock", "none", "--json", "bench.json")
        self.run_tierkv("report", "ppl.json", "bench.json", "-o", "r.html")
        self.assertIn("stock q4_0", (self.folder / "r.html").read_text())

    def test_report_names_the_file_and_the_line(self):
        bad = self.folder / "bad.json"
        bad.write_text('[{"ppl": 1,\n "kv": "x"},\n oops]')
        self.refused("report", "bad.json", "-o", "r.html", says=["bad.json", "line 3"])
        bad.write_text('[{"ppl": 1,\n "kv": "x"}')
        self.refused("report", "bad.json", "-o", "r.html", says=["bad.json", "line 2", "ends too early"])
        bad.write_text("")
        self.refused("report", "bad.json", "-o", "r.html", says=["bad.json", "line 1"])
        for content, says in (("[]", "no results"), ('[{"kv": "x"}]', "entry 1"), ('[{"kv": "x", "ppl": "high"}]', '"ppl"'),
                              ("[3]", "not an object"),
                              ('[{"kv": "x", "ctx": 1, "depth": 2, "correct": 3, "total": 2}]', "3 of 2"),
                              ('[{"ppl": 3}]', '"kv"')):  # fmt: skip
            bad.write_text(content)
            self.refused("report", "bad.json", "-o", "r.html", says=["bad.json", says])
        self.refused("report", "missing.json", says=["missing.json"])
        self.refused("report", says=["no results"])
        self.write_results("ppl.json")
        self.refused("report", "ppl.json", "-o", "no/such/folder/r.html", says=["no/such/folder"])
        self.assertFalse((self.folder / "r.html").exists())

    def test_numbers_that_are_not_there_are_null(self):
        """One block of tokens has no standard error: JSON says null, not NaN."""
        rows = self.ppl("--ctx", 32, "--tokens", 32, "--skip", 20, "--kv", "int8")
        self.assertIsNone(rows[1]["delta_se"])
        self.assertTrue(math.isfinite(rows[1]["delta"]))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
