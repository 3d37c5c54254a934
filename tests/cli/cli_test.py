#!/usr/bin/env python3
"""Tests of the command `tierkv` as a user meets it, on tiny models: TIERKV_BIN and TIERKV_TINY_MODELS say where both are."""

import contextlib
import json
import math
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BIN = os.environ.get("TIERKV_BIN", "build/bin/tierkv")
TINY = Path(os.environ.get("TIERKV_TINY_MODELS", "build/tiny_models"))
WORDS = "that here stone river sees north then the tide or an iron sin".split()
TEXT = " ".join(WORDS[(i * i + 3 * i) % len(WORDS)] for i in range(320))


def little_disk(size):
    """For preexec_fn: no file of the process may grow past `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT)
        self.environment = {**os.environ, "TIERKV_CACHE": str(self.folder / "cache")}

    def run_cli(self, *arguments, stdin="", **options):
        options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 240, **options}
        return subprocess.run([BIN, *map(str, arguments)], input=stdin, cwd=self.folder, env=self.environment, **options)

    def good(self, *arguments, **options):
        done = self.run_cli(*arguments, **options)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done

    def good_json(self, *arguments, **options):
        return json.loads(self.good(*arguments, "--json", **options).stdout)

    def bad(self, *arguments, saying="", code=2, **options):
        """Refused: the exit code, one line on stderr that says why, nothing on stdout."""
        done = self.run_cli(*arguments, **options)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("tierkv: "), done.stderr)
        self.assertIn(saying, lines[0])
        self.assertEqual(done.stdout, "")
        return lines[0]

    def model(self, kind="llama"):
        return TINY / f"{kind}.gguf"

    def commands_with_a_model(self):
        """Every command that takes a model, as it is called but for -m."""
        text, session = self.text, self.folder / "s.tkv"
        if not session.exists():
            self.good("snapshot", "save", session, "-p", "that river", "-m", self.model(), "-q")
        return (
            ["chat"], ["generate", "hi"], ["plan"], ["ppl", "-f", text], ["recall", "--haystack", text], ["bench", "-f", text],
            ["demo"],
            ["snapshot", "save", "new.tkv", "-f", text], ["snapshot", "load", session],
        )  # fmt: skip

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())


class DownloadedModelTest(Command):
    def test_a_changed_byte_is_noticed_and_a_good_file_is_read_once(self):
        path = self.folder / "cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
        path.parent.mkdir(parents=True)
        shutil.copy(self.model(), path)
        self.bad("generate", "hi", saying="not the file that was downloaded")
        digest = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        mark = path.with_name(path.name + ".checked")
        mark.write_text(f"{digest} {path.stat().st_size} {path.stat().st_ctime_ns}\n")  # as if it had been found good
        self.good("generate", "here", "-n", 2, "-q")
        before = path.stat()
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.bad("generate", "hi", saying="tierkv fetch smollm2")


class HelpTest(Command):
    def test_every_command_explains_itself_with_examples(self):
        commands = ["demo", "chat", "generate", "plan", "ppl", "recall", "calibrate", "bench", "report", "snapshot", "fetch"]
        top = self.good("--help").stdout
        for command in commands:
            self.assertIn(f"\n  {command}", top)
            self.assertIn("Examples:", self.good(command, "--help").stdout)
        for part in ("inspect", "verify", "save", "load"):
            self.assertIn("--json", self.good("snapshot", part, "--help").stdout)

    def test_version(self):
        self.assertRegex(self.good("--version").stdout, r"^tierkv \d+\.\d+\.\d+$")

    def test_completion_scripts_know_commands_and_options(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.good("completion", shell).stdout
            for word in ("snapshot", "generate", "ppl", "recall", "calibrate", "bench", "report", "balanced", "temp"):
                self.assertIn(word, script)
            if which := shutil.which(shell):
                self.assertEqual(subprocess.run([which, "-n"], input=script, text=True).returncode, 0, shell)
        self.bad("completion", "tcsh", saying="bash")

    def test_bash_completes(self):
        (self.folder / "c.sh").write_text(self.good("completion", "bash").stdout)

        def complete(*words):
            quoted = " ".join(f"'{word}'" for word in words)
            script = f"source ./c.sh; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tierkv; echo ${{COMPREPLY[@]}}"
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=self.folder).stdout.split()

        self.assertEqual(complete("tierkv", "gen"), ["generate"])
        self.assertEqual(complete("tierkv", "snapshot", "ver"), ["verify"])
        self.assertIn("--repeat-penalty", complete("tierkv", "generate", "--re"))
        self.assertEqual(complete("tierkv", "chat", "--kv", "bal"), ["balanced"])
        self.assertEqual(complete("tierkv", "fetch", "wiki"), ["wikitext2"])
        self.assertEqual(complete("tierkv", "re"), ["recall", "report"])
        self.assertIn("--stock", complete("tierkv", "ppl", "--st"))


class GenerateTest(Command):
    def test_json_has_text_speed_and_memory(self):
        value = self.good_json("generate", "that river", "-m", self.model(), "-n", 24, "--ignore-end")
        (result,) = value["results"]
        self.assertEqual((result["kv"], len(result["tokens"]), result["stop"]), ("balanced", 24, "length"))
        self.assertEqual(result["length"], result["prompt_tokens"] + 24)
        self.assertGreater(result["decode_tokens_per_second"], 0)
        self.assertGreaterEqual(result["resident_bytes"], result["memory"]["tiers"]["hot"]["payload_bytes"])

    def test_every_served_architecture(self):
        for kind in ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gpt-oss"):
            with self.subTest(kind):
                value = self.good_json("generate", "-f", self.text, "-m", self.model(kind), "-n", 4, "--ignore-end")
                self.assertEqual(len(value["results"][0]["tokens"]), 4)

    def test_settings_are_compared_in_one_run(self):
        kv = ("--kv", "fp16", "--kv", "hot=32,warm=0,archive=kivi2")
        value = self.good_json("generate", "-f", self.text, "-m", self.model(), "-n", 8, *kv)
        first, second = value["results"]
        self.assertEqual([first["kv"], second["kv"]], ["fp16", "hot=32,warm=0,archive=kivi2"])
        self.assertGreater(second["memory"]["tiers"]["archive"]["rows"], 0)
        self.assertLess(second["resident_bytes"], first["resident_bytes"])

    def test_seed_decides(self):
        def text(*more):
            return self.good("generate", "here", "-m", self.model(), "-n", 20, "--temp", 1, "--ignore-end", "-q", *more).stdout

        self.assertEqual(text("--seed", 5), text("--seed", 5))
        self.assertNotEqual(text("--seed", 5), text("--seed", 6))

    def test_repeat_penalty_changes_greedy_text(self):
        def tokens(penalty):
            arguments = ("generate", "here", "-m", self.model(), "-n", 40, "--ignore-end", "--repeat-penalty", penalty)
            return self.good_json(*arguments)["results"][0]["tokens"]

        self.assertLess(len(set(tokens(1))), len(set(tokens(5))))

    def test_stdin_file_and_prompt(self):
        one = self.good_json("generate", "-f", "-", "-m", self.model(), "-n", 4, stdin=TEXT)
        two = self.good_json("generate", "-f", self.text, "-m", self.model(), "-n", 4)
        self.assertEqual(one["results"][0]["tokens"], two["results"][0]["tokens"])

    def test_json_file_comes_with_text(self):
        done = self.good("generate", "that", "-m", self.model(), "-n", 4, "--json", "out.json", "-q")
        self.assertNotEqual(done.stdout, "")
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["command"], "generate")
        self.assertEqual(self.files(), ["out.json", "text.txt"])

    def test_tiers_are_shown_on_stderr(self):
        done = self.good("generate", "-f", self.text, "-m", self.model(), "-n", 32, "--tiers", "--tiers-every", 16, "--ignore-end")
        self.assertGreaterEqual(done.stderr.count("archive"), 3)
        self.assertNotIn("archive", done.stdout)

    def test_a_full_context_ends_it(self):
        value = self.good_json("generate", "that", "-m", self.model(), "-n", 500, "--ctx", 64, "--ignore-end")
        self.assertEqual((value["results"][0]["stop"], value["results"][0]["length"]), ("context", 64))


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


class DemoTest(Command):
    def test_demo_compares_the_settings(self):
        value = self.good_json("demo", "-m", self.model("qwen2"), "--tokens", 1500, "--scored", 64, "-n", 8)
        self.assertEqual([r["kv"] for r in value["results"]], ["fp16", "int8", "balanced"])
        fp16, int8, balanced = value["results"]
        self.assertEqual(fp16["delta_ppl_percent"], 0)
        self.assertLess(abs(int8["delta_ppl_percent"]), 2)
        self.assertLess(balanced["resident_bytes"], int8["resident_bytes"])
        self.assertLess(int8["resident_bytes"], fp16["resident_bytes"])
        for result in value["results"]:
            self.assertEqual(result["prefill_tokens"], value["tokens"] - value["scored_tokens"])
            self.assertIn("answer", result)
        self.assertIn("times less memory", value["summary"])

    def test_the_last_line_says_what_was_saved(self):
        done = self.good("demo", "-m", self.model(), "--tokens", 800, "--scored", 32, "-n", 4, "--kv", "fp16", "--kv", "compact")
        self.assertTrue(done.stdout.splitlines()[-1].startswith('In words: "compact" remembers all 800 tokens'))
        self.assertEqual(done.stderr, "")

    def test_too_long_for_the_model(self):
        self.bad("demo", "-m", self.model(), "--tokens", 6000, saying="longer than the model's")


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
        for kv in ("fp16", "balanced", "kivi2"):
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
        self.assertAlmostEqual(archive * 8 / 128, 2.55, delta=0.3)  # bits of a value

    def test_windows_are_counted(self):
        value = self.good_json("plan", "-m", self.model("gemma3"), "--ctx", 4096, "--kv", "fp16")
        self.assertLess(value["plans"][0]["total_bytes"], value["fp16_bytes"] / 4)

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


class SnapshotTest(Command):
    def save(self, kind="llama", *more):
        return self.good_json("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(kind), *more)

    def test_resumes_without_reading_again_and_bit_for_bit(self):
        for kind in ("llama", "gemma3", "gpt-oss"):
            with self.subTest(kind):
                saved = self.save(kind, "-n", 24)
                loaded = self.good_json("snapshot", "load", "s.tkv", "-m", self.model(kind), "-n", 24)
                self.assertEqual(loaded["tokens"], saved["tokens"])
                self.assertEqual(loaded["prefill_tokens"], 0)
                self.assertGreater(saved["prefill_tokens"], 1000)

    def test_goes_on_with_more_text(self):
        saved = self.save()
        value = self.good_json("snapshot", "load", "s.tkv", "-m", self.model(), "-n", 4, "-p", "north then")
        self.assertLess(value["prefill_tokens"], 20)
        self.assertEqual(value["length"], saved["length"] + value["prefill_tokens"] + value["decode_tokens"])

    def test_inspect_and_verify(self):
        saved = self.save()
        value = self.good_json("snapshot", "inspect", "s.tkv")
        self.assertEqual((value["kind"], value["layers"], value["kv"]), ("session", 3, "balanced"))
        self.assertEqual(value["length"], saved["length"])
        self.assertGreater(value["tiers"]["archive"]["rows"], 0)
        self.assertTrue(self.good_json("snapshot", "verify", "s.tkv")["whole"])
        self.assertIn("archive", self.good("snapshot", "inspect", "s.tkv").stdout)
        # --json before the file is no trap.
        self.assertEqual(json.loads(self.good("snapshot", "inspect", "--json", "s.tkv").stdout), value)

    def test_sessions_that_earlier_versions_wrote_load(self):
        golden = Path(__file__).resolve().parents[1] / "golden" / "session_1.session"
        value = self.good_json("snapshot", "inspect", golden)
        del value["file"]
        self.assertEqual(value, json.loads(golden.with_suffix(".json").read_text()))
        self.assertTrue(self.good_json("snapshot", "verify", golden)["whole"])
        loaded = self.good_json("snapshot", "load", golden, "-m", self.model(), "-n", 4)
        self.assertEqual(loaded["prefill_tokens"], 0)
        self.assertGreaterEqual(loaded["length"], value["length"])

    def test_damage_is_found(self):
        self.save()
        whole = (self.folder / "s.tkv").read_bytes()
        damaged = self.folder / "d.tkv"
        for at in (3, 9, 17, 25, 40, 2000, len(whole) // 2, len(whole) - 9):
            damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            self.bad("snapshot", "verify", "d.tkv")
            self.bad("snapshot", "load", "d.tkv", "-m", self.model())
        for length in (0, 7, 20, 31, 100, len(whole) // 2, len(whole) - 1):
            damaged.write_bytes(whole[:length])
            self.bad("snapshot", "inspect", "d.tkv")

    def test_another_model_is_refused(self):
        self.save("llama")
        self.bad("snapshot", "load", "s.tkv", "-m", self.model("qwen2"), saying="another model")
        # The same shape with other weights.
        other = bytearray(self.model().read_bytes())
        other[-70000:-60000] = bytes(10000)
        (self.folder / "other.gguf").write_bytes(other)
        self.bad("snapshot", "load", "s.tkv", "-m", "other.gguf", saying="another model")

    def test_a_full_disk_leaves_nothing(self):
        arguments = ("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(), "--kv", "fp16")
        self.bad(*arguments, saying="s.tkv", preexec_fn=little_disk(100000))
        self.assertEqual(self.files(), ["text.txt"])
        self.save()
        before = (self.folder / "s.tkv").read_bytes()
        self.bad(*arguments, preexec_fn=little_disk(100000))
        self.assertEqual((self.folder / "s.tkv").read_bytes(), before)
        self.assertEqual(self.files(), ["s.tkv", "text.txt"])

    def test_text_that_does_not_fit_after_it(self):
        self.save()
        self.text.write_text(TEXT * 5)
        self.bad("snapshot", "load", "s.tkv", "-f", self.text, "-m", self.model(), saying="4,096")


class BadInputTest(Command):
    def test_models(self):
        whole = self.model().read_bytes()
        (self.folder / "empty.gguf").write_bytes(b"")
        (self.folder / "text.gguf").write_text("this is not a model at all")
        (self.folder / "nothing.gguf").write_bytes(whole[:24])
        (self.folder / "header.gguf").write_bytes(whole[:3000])
        (self.folder / "half.gguf").write_bytes(whole[: len(whole) // 2])
        for name, saying in {
            "nowhere.gguf": "no model file",
            "empty.gguf": "not a GGUF",
            "text.gguf": "not a GGUF",
            "nothing.gguf": "GGUF",
            "header.gguf": "truncated",
            "half.gguf": "truncated",
            ".": "folder",
            "smollm2": "tierkv fetch smollm2",
        }.items():
            for command in self.commands_with_a_model():
                with self.subTest(f"{command} {name}"):
                    self.bad(*command, "-m", name, saying=saying)
        self.assertNotIn("new.tkv", self.files())

    def test_models_that_the_cache_does_not_serve(self):
        for kind, why in {"bloom": "ALiBi", "mamba": "recurrent", "lfm2": "hybrid", "deepseek2": "MLA",
                          "odd-head": "head_dim is 24"}.items():
            for command in self.commands_with_a_model():
                with self.subTest(f"{command} {kind}"):
                    loads = command[:2] == ["snapshot", "load"]
                    self.bad(*command, "-m", self.model(kind), saying="another model" if loads else why)
        self.assertNotIn("new.tkv", self.files())

    def test_contexts(self):
        self.bad("chat", "-m", self.model(), "--ctx", 5000, saying="4,096")
        self.bad("generate", "hi", "-m", self.model(), "--ctx", 5000, saying="4,096")
        self.bad("generate", "-f", self.text, "-m", self.model(), "--ctx", 100, saying="prompt")
        self.text.write_text(TEXT * 5)
        self.bad("generate", "-f", self.text, "-m", self.model(), saying="4,096")
        self.bad("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(), saying="4,096")
        self.assertEqual(self.files(), ["text.txt"])

    def test_usage(self):
        self.bad(saying="command")
        self.bad("frobnicate", saying="frobnicate")
        self.bad("generate", "--frobnicate", saying="--frobnicate")
        self.bad("generate", "-m", self.model(), saying="no prompt")
        self.bad("generate", "hi", "-n", "many", saying="many")
        self.bad("generate", "hi", "--temp", "-1", saying="--temp")
        for number in ("nan", "NaN", "-nan", "inf", "1e999"):
            self.bad("generate", "hi", f"--temp={number}", saying="--temp")
            self.bad("chat", f"--top-p={number}", saying="--top-p")
            self.bad("ppl", "-f", self.text, f"--deep={number}", saying="--deep")
            self.bad("recall", f"--depths=5,{number}", saying="--depths")
            self.bad("snapshot", "save", "s.tkv", "--deep", f"--quality={number}", saying="--quality")
        self.bad("generate", "-f", "nowhere.txt", "-m", self.model(), saying="nowhere.txt")
        self.bad("generate", "hi", "-m", self.model(), "--json", "no/such/folder.json", saying="no/such/folder.json")
        self.bad("chat", "--kv", "fp16", "--kv", "int8", saying="one --kv")
        self.bad("fetch", "frobnicate", saying="smollm2")

    def test_sessions(self):
        self.bad("chat", "-m", self.model(), "--load", "nowhere.tkv", saying="No such file")
        self.bad("chat", "-m", self.model(), "--load", self.text, saying="not a tierkv session")
        self.commands_with_a_model()  # writes s.tkv
        self.bad("chat", "-m", self.model("qwen2"), "--load", "s.tkv", saying="another model")
        for part in ("inspect", "verify", "load"):
            self.bad("snapshot", part, "nowhere.tkv", saying="nowhere.tkv")
            self.bad("snapshot", part, self.text, saying="text.txt")
            self.bad("snapshot", part, ".", saying="directory")

    def test_places_that_cannot_be_written_are_refused_before_the_work(self):
        """The model does not exist either: it has not been looked for."""
        for place, saying in {"no/such/x": "no/such", ".": "folder", "text.txt/x": "text.txt"}.items():
            self.bad("snapshot", "save", place, "-f", self.text, "-m", "nowhere.gguf", saying=saying)
            self.bad("recall", "--plot", place, "-m", "nowhere.gguf", saying=saying)
            self.bad("report", "nowhere.json", "-o", place, saying=saying)
            for command in self.commands_with_a_model():
                self.bad(*command, "-m", "nowhere.gguf", "--json", place, saying=saying)

    def test_a_full_disk(self):
        """Every file that a command writes is there whole or not at all."""
        disk = {"preexec_fn": little_disk(100)}
        rows = [{"kv": "x", "ppl": 3.5}]
        (self.folder / "ppl.json").write_text(json.dumps(rows))
        before = self.files()
        small = ("-m", self.model(), "--kv", "fp16", "-q")
        one = ("--task", "passkey", "--ctx", 512, "--depths", 50, "--trials", 1)
        for command in (
            ["plan", *small, "--json", "out.json"],
            ["generate", "hi", "-n", 2, *small, "--json", "out.json"],
            ["ppl", "-f", self.text, "--ctx", 64, "--tokens", 64, *small, "--json", "out.json"],
            ["bench", "--depths", 0, "-n", 1, "--stock", "none", *small, "--json", "out.json"],
            ["recall", *one, *small, "--json", "out.json"],
            ["recall", *one, *small, "--plot", "out.svg"],
            ["demo", "--tokens", 600, "--scored", 16, "-n", 1, *small, "--json", "out.json"],
            ["report", "ppl.json", "-o", "out.html"],
            ["report", "ppl.json", "--json", "out.json", "--svg", "."],
        ):
            with self.subTest(str(command)):
                done = self.run_cli(*command, **disk)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn("nothing was kept", done.stderr)
                self.assertEqual(self.files(), before)
        done = self.run_cli("chat", *small, "-n", 2, stdin="here\n/save talk.tkv\n", **disk)
        self.assertEqual((done.returncode, self.files()), (2, before))
        self.assertIn("talk.tkv", done.stderr)

    def test_json_on_stdout_whatever_happens(self):
        for command in self.commands_with_a_model():
            with self.subTest(str(command)):
                done = self.run_cli(*command, "-m", "nowhere.gguf", "--json")
                value = json.loads(done.stdout)
                self.assertEqual((done.returncode, value["exit_code"]), (2, 2))
                self.assertEqual(done.stderr, f"tierkv: {value['error']}\n")
        for command in (["report", "nowhere.json", "--json"], ["snapshot", "verify", "nowhere.tkv", "--json"],
                        ["fetch", "nothing", "--json"],
                        ["fetch", "smollm2", "--offline", "--json"], ["generate", "--nonsense", "--json"],
                        ["plan", "--json", "--ctx", "x"]):  # fmt: skip
            done = self.run_cli(*command)
            self.assertEqual((done.returncode, json.loads(done.stdout)["exit_code"]), (2, 2), command)

    def test_kv(self):
        for command in self.commands_with_a_model():
            self.bad(*command, "-m", self.model(), "--kv", "ballanced", saying="balanced")
        self.bad("generate", "hi", "--kv", "ballanced", saying="balanced")
        self.bad("generate", "hi", "--kv", "archive=rot9", saying="rot9")
        self.bad("generate", "hi", "--kv", "nowhere.toml", saying="nowhere.toml")

    def test_fetch_offline(self):
        done = self.run_cli("fetch", "smollm2", "--offline")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)
        self.assertFalse(self.good_json("fetch")["things"][0]["here"])


class CalibrateTest(Command):
    def setUp(self):
        super().setUp()
        # Bytes of every kind: each is a token of the tiny vocabulary.
        letters = [chr(33 + (i * i * 7 + i * 31 + (i >> 5)) % 94) for i in range(6000)]
        self.text.write_text("".join(letters))

    def calibrate(self, *arguments):
        return ["calibrate", "-m", self.model(), "-f", self.text, "--tokens", 2400, "--window", 1200, "--sample", 1024, "--every",
                32, "-q", *arguments]

    def test_writes_a_file_and_says_what_is_in_it(self):
        value = self.good_json(*self.calibrate("-o", "m.tkc"))
        self.assertEqual(value["tokens"], 2400)
        self.assertEqual(value["sampled"], 1024)
        self.assertEqual(value["bytes"], (self.folder / "m.tkc").stat().st_size)
        self.assertEqual(len(value["key_bits_by_layer"]), 3)
        self.assertLessEqual(sum(value["key_bits_by_layer"]) / 3, 1.5)
        self.assertEqual((value["layers_without_residual"], value["layers_without_projection"]), (0, 0))
        again = self.good_json(*self.calibrate("-o", "again.tkc", "-t", 1))
        self.assertEqual(again["fingerprint"], value["fingerprint"])
        text = self.good(*self.calibrate("-o", "m.tkc")).stdout
        self.assertIn(value["fingerprint"], text)

    def test_without_o_it_goes_where_the_archive_looks(self):
        value = self.good_json(*self.calibrate())
        self.assertEqual(Path(value["file"]), self.folder / "cache" / "calibration" / f"{value['fingerprint']}.tkc")
        self.assertTrue(Path(value["file"]).is_file())

    def test_texts_are_mixed(self):
        other = self.folder / "other.txt"
        other.write_text("".join(chr(97 + (i * 11 + i // 7) % 26) for i in range(3000)))
        value = self.good_json(*self.calibrate("-f", other, "-o", "m.tkc"))
        self.assertEqual((value["windows"], len(value["texts"])), (2, 2))

    def test_probing_gives_every_layer_a_weight(self):
        self.assertNotIn("probe", self.good_json(*self.calibrate("-o", "plain.tkc")))
        value = self.good_json(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 64))["probe"]
        weights = value["lambda_keys"] + value["lambda_values"]
        self.assertEqual((value["tokens"], len(weights)), (64, 6))
        self.assertAlmostEqual(sum(math.log(w) for w in weights), 0.0, places=6)
        self.assertIn("probing took", self.good(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 64)).stdout)
        self.bad(*self.calibrate("-o", "m.tkc", "--probe", "--probe-tokens", 1), saying="probe-tokens")

    def test_bad_input_leaves_nothing(self):
        self.bad(*self.calibrate("-o", "no/such/m.tkc"), saying="no/such")
        self.bad("calibrate", "-m", self.model(), saying="tierkv fetch wikitext2")
        self.bad("calibrate", "-m", self.model(), "-f", "nowhere.txt", saying="nowhere.txt")
        self.text.write_text("too short")
        self.bad(*self.calibrate(), saying="2048")
        self.text.write_text("a" * 5000)
        self.bad(*self.calibrate(), saying="repeats")
        self.assertEqual([path.name for path in (self.folder / "cache").rglob("*") if path.is_file()], [])

    def long_model(self):
        """The tiny model with a context that a prompt of 4096 tokens leaves room in."""
        length = b"llama.context_length" + (4).to_bytes(4, "little")
        before, after = length + (4096).to_bytes(4, "little"), length + (8192).to_bytes(4, "little")
        whole = self.model().read_bytes()
        self.assertEqual(whole.count(before), 1)
        (self.folder / "long.gguf").write_bytes(whole.replace(before, after))
        return self.folder / "long.gguf"

    def made(self):
        return sorted((self.folder / "cache").rglob("*.tkc"))

    def test_self_calibrate(self):
        self.text.write_text(self.text.read_text()[:4300])
        generate = ["generate", "-m", self.long_model(), "-f", self.text, "-n", 2, "--self-calibrate"]
        self.assertNotIn("calibrat", self.good(*generate, "--kv", "fp16").stderr)  # no setting would use it
        self.assertEqual(self.made(), [])
        done = self.good(*generate, "--kv", "fp16", "--kv", "balanced")
        self.assertRegex(done.stderr, "calibrated from 4,?[0-9]{3} tokens of the prompt in .*, kept as " + str(self.folder))
        self.assertNotIn("no calibration", done.stderr)
        self.assertEqual(len(self.made()), 1)
        first = self.made()[0].read_bytes()
        again = self.good(*generate)
        self.assertNotIn("calibrat", again.stderr)
        self.assertEqual(self.made()[0].read_bytes(), first)
        self.made()[0].write_bytes(first[:-100])
        self.bad(*generate, "-q", saying="checksum")

    def test_self_calibrate_refuses_a_short_prompt(self):
        self.text.write_text(self.text.read_text()[:4000])
        done = self.good("generate", "-m", self.model(), "-f", self.text, "-n", 2, "--self-calibrate")
        self.assertRegex(done.stderr, "--self-calibrate: the prompt has 3993 tokens, and calibration needs 4096")
        self.assertIn("no calibration of this model: the archive is rot2", done.stderr)
        self.assertEqual(self.made(), [])

    def test_a_prompt_without_room_is_refused_before_it_calibrates(self):
        self.bad("generate", "-m", self.model(), "-f", self.text, "--self-calibrate", "-q", saying="leaves no room")
        self.assertEqual(self.made(), [])

    def test_another_models_calibration_is_refused(self):
        self.good(*self.calibrate("-o", "m.tkc"))
        self.bad("generate", "hi", "-m", self.model("qwen2"), "--kv", "balanced,calibration=m.tkc", "-q", saying="calibration")

    def test_chat_says_that_there_is_no_calibration(self):
        self.assertIn("no calibration of this model", self.good("chat", "-m", self.model(), stdin="/quit\n").stderr)
        self.assertEqual(self.good("chat", "-m", self.model(), "-q", stdin="/quit\n").stderr, "")
        self.assertNotIn("calibration", self.good("chat", "-m", self.model(), "--kv", "fp16", stdin="/quit\n").stderr)
        self.good(*self.calibrate())
        self.assertNotIn("calibration", self.good("chat", "-m", self.model(), stdin="/quit\n").stderr)

    def test_interrupted_leaves_nothing(self):
        self.text.write_text(self.text.read_text() * 40)
        command = [BIN, "calibrate", "-m", str(self.model()), "-f", "text.txt", "-o", "m.tkc", "--tokens", "200000", "--every", "1"]
        running = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE)
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        self.assertEqual((running.returncode, said), (130, b"tierkv: interrupted\n"))
        self.assertEqual(self.files(), ["text.txt"])


class TerminalTest(Command):
    """On a pseudo-terminal."""

    def on_terminal(self, *arguments, environment=None, keys=()):
        """Output, exit code. `keys`: (text to wait for, what to type, the signal to send or the seconds to wait)."""
        main, side = pty.openpty()
        environment = {**self.environment, "TERM": "xterm", **(environment or {})}
        ends = {"stdin": side, "stdout": side, "stderr": side}
        process = subprocess.Popen([BIN, *map(str, arguments)], cwd=self.folder, start_new_session=True, env=environment, **ends)
        os.close(side)
        output, waiting, deadline = b"", list(keys), time.monotonic() + 120
        while time.monotonic() < deadline:
            if select.select([main], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    if block := os.read(main, 65536):
                        output += block
                        while waiting and waiting[0][0].encode() in output:
                            _, key = waiting.pop(0)
                            if isinstance(key, float):
                                time.sleep(key)
                            elif isinstance(key, signal.Signals):
                                process.send_signal(key)
                            else:
                                os.write(main, key.encode())
                        continue
            if process.poll() is not None:
                break
        else:
            process.kill()
            self.fail(f"{arguments} did not end: {output!r}")
        os.close(main)
        return output.decode(errors="replace"), process.wait()

    def test_colours_and_bars_only_where_wanted(self):
        arguments = ("demo", "-m", self.model(), "--tokens", 600, "--scored", 32, "-n", 2, "--kv", "fp16", "--kv", "balanced")
        colourful, code = self.on_terminal(*arguments)
        self.assertEqual(code, 0)
        self.assertIn("\033[31m", colourful)
        self.assertIn("█", colourful)
        plain, _ = self.on_terminal(*arguments, environment={"NO_COLOR": "1"})
        self.assertNotIn("\033[31m", plain)
        self.assertNotIn("\033[1m", plain)
        quiet, _ = self.on_terminal(*arguments, "-q", environment={"NO_COLOR": "1"})
        self.assertNotIn("\033", quiet)
        piped = self.good(*arguments)
        self.assertNotIn("\033", piped.stdout + piped.stderr)
        self.assertNotIn("█", piped.stdout + piped.stderr)

    def test_evaluation_shows_bars_on_a_terminal_only(self):
        common = ("-m", self.model(), "--kv", "fp16")
        for arguments in (
            ("ppl", "-f", self.text, "--ctx", 256, "--tokens", 512, *common),
            ("recall", "--task", "passkey", "--ctx", 512, "--depths", 50, "--trials", 1, *common),
            ("bench", "--depths", "0,256", "-n", 4, *common),
            ("plan", *common),
        ):
            with self.subTest(arguments[0]):
                plain, code = self.on_terminal(*arguments, environment={"NO_COLOR": "1"})
                self.assertEqual(code, 0)
                self.assertNotRegex(plain, r"\033\[[0-9;]*m")
                piped = self.good(*arguments)
                self.assertEqual(piped.stderr, "")
                self.assertNotIn("\033", piped.stdout)

    def test_chat_stops_a_reply_at_ctrl_c_and_goes_on(self):
        keys = [("> ", "here\n"), ("here\r\n", 0.3), ("here\r\n", signal.SIGINT), ("here\r\n", 0.3), ("here\r\n", "/tiers\n")]
        keys.append(("tokens, --kv balanced", "/quit\n"))
        arguments = ("chat", "-m", self.model("gemma3"), "-n", 4000, "--temp", 1)
        output, code = self.on_terminal(*arguments, environment={"NO_COLOR": "1"}, keys=keys)
        self.assertEqual(code, 0, output)

    def test_chat_ends_at_end_of_input(self):
        _, code = self.on_terminal("chat", "-m", self.model(), "-n", 4, keys=[("> ", "\x04")])
        self.assertEqual(code, 0)


class InterruptTest(Command):
    def start(self, *arguments):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([BIN, *map(str, arguments)], cwd=self.folder, env=self.environment, **pipes)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process

    def test_ctrl_c_ends_writing_with_what_there_is(self):
        arguments = ("generate", "that", "-m", self.model("gemma3"), "-n", 4000, "--temp", 1, "--ignore-end", "--json", "out.json")
        process = self.start(*arguments)
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        (result,) = json.loads((self.folder / "out.json").read_text())["results"]
        self.assertEqual(result["stop"], "interrupted")
        self.assertLess(len(result["tokens"]), 4000)

    def test_ctrl_c_while_reading_leaves_no_file(self):
        process = self.start("snapshot", "save", "s.tkv", "-f", "-", "-m", self.model())
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertEqual(self.files(), ["text.txt"])

    def test_ctrl_c_leaves_json(self):
        for command in (["ppl", "-f", "-"], ["recall", "--haystack", "-"], ["bench", "-f", "-"], ["generate", "-f", "-"]):
            with self.subTest(command[0]):
                process = self.start(*command, "-m", self.model(), "--json")
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130)
                self.assertEqual(json.loads(output)["exit_code"], 130)

    def test_the_second_ctrl_c_ends_it_at_once(self):
        process = self.start("snapshot", "save", "s.tkv", "-f", "-", "-m", self.model())
        for _ in range(2):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)

    def test_a_closed_pipe_ends_it(self):
        process = self.start("generate", "that", "-m", self.model(), "-n", 4000, "--temp", 1, "--ignore-end")
        process.stdout.read(10)
        process.stdout.close()
        process.stderr.read()
        self.assertEqual(process.wait(timeout=60), -signal.SIGPIPE)


class RealModelTest(Command):
    """On SmolLM2, where it has been downloaded."""

    MODEL = Path(os.environ.get("TIERKV_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierkv")
    MODEL = MODEL / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

    @unittest.skipUnless(MODEL.exists(), "SmolLM2 is not downloaded")
    def test_the_bytes_it_reports_are_the_process_s_bytes(self):
        """Two processes that differ in nothing but --kv differ in resident memory by what their caches say."""
        words = "The old ferry left the harbour at noon with nine people and a piano on board, and nobody looked back at the town. "
        self.text.write_text(words * 64)
        results = []
        for kv in ("fp16", "balanced"):
            (result,) = self.good_json("generate", "-f", self.text, "-m", self.MODEL, "-n", 2, "--ignore-end", "--kv", kv,
                                       "-q")["results"]
            results.append(result)
        fp16, balanced = results
        self.assertGreater(fp16["length"], 1500)
        said = fp16["resident_bytes"] - balanced["resident_bytes"]
        seen = fp16["rss_anonymous_bytes"] - balanced["rss_anonymous_bytes"]
        self.assertGreater(said, 20 << 20)
        self.assertAlmostEqual(seen / said, 1, delta=0.15)
        for result in results:  # a few pages of each of the 60 tensors, not the 5.6 MiB they are
            self.assertLess(result["micro_batch_bytes"], 1 << 20)


if __name__ == "__main__":
    unittest.main()
