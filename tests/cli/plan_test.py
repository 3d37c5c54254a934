#!/usr/bin/env python3
"""`tierkv plan`."""

import unittest

from command import Command


class PlanTest(Command):
    def test_fp16_is_the_formula(self):
        shape = ("--layers", 4, "--heads", 8, "--kv-heads", 2, "--head-dim", 64)
        value = self.good_json("plan", *shape, "--ctx", 1000, "--batch", 3, "--kv", "fp16", "--kv", "balanced", "--memory", "1MiB")
        self.assertEqual(value["fp16_bytes"], 2 * 2 * 4 * 2 * 64 * 1000 * 3)
        fp16, balanced = value["plans"]
        self.assertGreaterEqual(fp16["total_bytes"], value["fp16_bytes"])
        self.assertEqual(fp16["sequences_that_fit"], 0)
        self.assertEqual(balanced["sequences_that_fit"], (1 << 20) // balanced["sequence_bytes"])

    def test_what_is_planned_is_what_a_run_takes(self):
        for kv in ("fp16", "balanced,calibrate=off", "kivi2"):
            arguments = ("generate", "-f", self.text, "-m", self.model("qwen3"), "-n", 1, "--kv", kv, "--ignore-end")
            (result,) = self.good_json(*arguments)["results"]
            (plan,) = self.good_json("plan", "-m", self.model("qwen3"), "--ctx", result["length"], "--kv", kv)["plans"]
            real = result["memory"]["total_bytes"] - result["memory"]["free_bytes"]
            self.assertAlmostEqual(plan["total_bytes"] / real, 1, delta=0.05)
            for tier, planned in plan["tiers"].items():
                rows = result["memory"]["tiers"][tier]["rows"] / (3 * 2)
                self.assertAlmostEqual(planned["tokens"], rows, delta=64)

    def test_long_contexts_grow_by_blocks(self):
        shape = ("--layers", 1, "--heads", 1, "--head-dim", 64, "--kv", "balanced")
        lengths = [8192, 12000, 20000, 131072]
        bytes_of = [self.good_json("plan", *shape, "--ctx", n)["plans"][0]["total_bytes"] for n in lengths]
        archive = (bytes_of[3] - bytes_of[2]) / (131072 - 20000)
        self.assertAlmostEqual(bytes_of[1] + archive * 8000, bytes_of[2], delta=0.02 * bytes_of[2])
        self.assertAlmostEqual(archive * 8 / 128, 3.33, delta=0.3)  # bits of a value

    def test_windows_are_counted(self):
        """FP16 keeps no more of a sliding layer than its window either: the ratio of "fp16" is about one."""
        for ctx in (256, 4096):
            value = self.good_json("plan", "-m", self.model("gemma3"), "--ctx", ctx, "--kv", "fp16", "--window", 128)
            self.assertEqual(value["fp16_bytes"], 4 * 128 * value["layers"] * value["kv_heads"] * value["head_dim"])
        whole = self.good_json("plan", "-m", self.model("gemma3"), "--ctx", 4096, "--kv", "fp16")
        full = 4 * 4096 * whole["layers"] * whole["kv_heads"] * whole["head_dim"]
        self.assertLess(whole["fp16_bytes"], full)
        self.assertLess(whole["plans"][0]["compression"], 1.1)

    def test_document_000(self):
        value = self.good_json("plan", "--adr004")
        first = value["memory_scaling"][0]
        self.assertEqual(first["fp16_bytes"], 2 * 32 * 32 * 128 * 2048 * 2)
        self.assertEqual(value["memory_scaling"][3]["fp16_bytes"], 2 * 118 * 48 * 256 * 2048 * 512 * 2)
        example = value["appendix_a"]
        self.assertEqual(example["fp16_bytes"], 2 * 80 * 64 * 128 * 32768 * 8 * 2)
        self.assertEqual([round(p["bytes"] / 1e9, 2) for p in example["parts"]], [1.34, 2.35, 84.56])
        self.assertGreater(example["measured_total_bytes"], example["total_bytes"])

    def test_bad_shapes(self):
        self.bad("plan", "--layers", 2, saying="--head-dim")
        self.bad("plan", "--layers", 2, "--heads", 2, "--head-dim", 33, saying="head_dim")
        self.bad("plan", "-m", self.model(), "--ctx", 5000, saying="longer than the model's")
        self.bad("plan", "-m", self.model(), "--memory", "lots", saying="--memory")
        self.bad("plan", "-m", self.model("mamba"), saying="mamba")
        self.bad("plan", "-m", self.model("deepseek2"), saying="MLA")


if __name__ == "__main__":
    unittest.main()
