#!/usr/bin/env python3
"""What only a real model shows: SmolLM2, where it has been downloaded."""

import unittest

from command import SMOLLM2, Command


class RealModelTest(Command):
    @unittest.skipUnless(SMOLLM2.exists(), "SmolLM2 is not downloaded")
    def test_the_bytes_it_reports_are_the_process_s_bytes(self):
        """Two processes that differ in nothing but --kv differ in resident memory by what their caches say."""
        words = "The old ferry left the harbour at noon with nine people and a piano on board, and nobody looked back at the town. "
        self.text.write_text(words * 64)
        self.environment["MALLOC_ARENA_MAX"] = "1"  # what libllama leaves in arenas of its threads changes from run to run
        results = []
        for kv in ("fp16", "balanced"):
            output = self.good_json("generate", "-f", self.text, "-m", SMOLLM2, "-n", 2, "--ignore-end", "--kv", kv, "-q")
            (result,) = output["results"]
            results.append(result)
        fp16, balanced = results
        self.assertGreater(fp16["length"], 1500)
        said = fp16["resident_bytes"] - balanced["resident_bytes"]
        seen = fp16["rss_anonymous_bytes"] - balanced["rss_anonymous_bytes"]
        self.assertGreater(said, 20 << 20)
        self.assertAlmostEqual(seen / said, 1, delta=0.1)
        for result in results:  # a few pages of each of the 60 tensors, not the 5.6 MiB they are
            self.assertLess(result["micro_batch_bytes"], 1 << 20)

    @unittest.skipUnless(SMOLLM2.exists(), "SmolLM2 is not downloaded")
    def test_what_is_planned_is_what_a_run_takes(self):
        """Tables give every head its own bits, and rows that are kept better wait for queries: the plan knows both."""
        self.text.write_text("The old ferry left the harbour at noon with nine people and a piano on board. " * 80)
        for kv in ("balanced,archive=klt1.875", "balanced,archive=klt1.25+top4"):
            arguments = ("generate", "-f", self.text, "-m", SMOLLM2, "-n", 1, "--ignore-end", "--kv", kv, "-q")
            (result,) = self.good_json(*arguments)["results"]
            (plan,) = self.good_json("plan", "-m", SMOLLM2, "--ctx", result["length"], "--kv", kv, "-q")["plans"]
            real = result["memory"]["total_bytes"] - result["memory"]["free_bytes"]
            self.assertGreater(result["length"], 1200)
            self.assertAlmostEqual(plan["total_bytes"] / real, 1, delta=0.05)
            rows = result["memory"]["tiers"]["archive"]["rows"] / (30 * 3)
            self.assertAlmostEqual(plan["tiers"]["archive"]["tokens"], rows, delta=128)


if __name__ == "__main__":
    unittest.main()
