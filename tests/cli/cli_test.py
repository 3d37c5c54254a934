#!/usr/bin/env python3
"""Tests of the command `tierkv` as a user meets it, on tiny models: TIERKV_BIN and TIERKV_TINY_MODELS say where both are."""

import contextlib
import json
import os
import pty
import resource
import select
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


class CliTest(unittest.TestCase):
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

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())


class HelpTest(CliTest):
    def test_every_command_explains_itself_with_examples(self):
        commands = ["demo", "chat", "generate", "plan", "snapshot", "fetch"]
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
            for word in ("snapshot", "generate", "balanced", "temp"):
                self.assertIn(word, script)
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


class GenerateTest(CliTest):
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


class ChatTest(CliTest):
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


class DemoTest(CliTest):
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


class PlanTest(CliTest):
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


class SnapshotTest(CliTest):
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
        def little_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        arguments = ("snapshot", "save", "s.tkv", "-f", self.text, "-m", self.model(), "--kv", "fp16")
        self.bad(*arguments, saying="s.tkv", preexec_fn=little_disk, restore_signals=False)
        self.assertEqual(self.files(), ["text.txt"])
        self.save()
        before = (self.folder / "s.tkv").read_bytes()
        self.bad(*arguments, preexec_fn=little_disk, restore_signals=False)
        self.assertEqual((self.folder / "s.tkv").read_bytes(), before)
        self.assertEqual(self.files(), ["s.tkv", "text.txt"])


class BadInputTest(CliTest):
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
            with self.subTest(name):
                self.bad("generate", "hi", "-m", name, saying=saying)
                self.bad("plan", "-m", name, saying=saying)

    def test_models_that_the_cache_does_not_serve(self):
        for kind, why in {"bloom": "ALiBi", "mamba": "recurrent", "lfm2": "hybrid", "deepseek2": "MLA"}.items():
            with self.subTest(kind):
                self.bad("generate", "hi", "-m", self.model(kind), saying=why)

    def test_contexts(self):
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
        self.bad("generate", "-f", "nowhere.txt", "-m", self.model(), saying="nowhere.txt")
        self.bad("generate", "hi", "-m", self.model(), "--json", "no/such/folder.json", saying="no/such/folder.json")
        self.bad("chat", "--kv", "fp16", "--kv", "int8", saying="one --kv")
        self.bad("fetch", "frobnicate", saying="smollm2")

    def test_kv(self):
        self.bad("generate", "hi", "--kv", "ballanced", saying="balanced")
        self.bad("generate", "hi", "--kv", "archive=rot9", saying="rot9")
        self.bad("generate", "hi", "--kv", "nowhere.toml", saying="nowhere.toml")

    def test_fetch_offline(self):
        done = self.run_cli("fetch", "smollm2", "--offline")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)
        self.assertFalse(self.good_json("fetch")["things"][0]["here"])


class TerminalTest(CliTest):
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

    def test_chat_stops_a_reply_at_ctrl_c_and_goes_on(self):
        keys = [("> ", "here\n"), ("here\r\n", 0.3), ("here\r\n", signal.SIGINT), ("here\r\n", 0.3), ("here\r\n", "/tiers\n")]
        keys.append(("tokens, --kv balanced", "/quit\n"))
        arguments = ("chat", "-m", self.model("gemma3"), "-n", 4000, "--temp", 1)
        output, code = self.on_terminal(*arguments, environment={"NO_COLOR": "1"}, keys=keys)
        self.assertEqual(code, 0, output)

    def test_chat_ends_at_end_of_input(self):
        _, code = self.on_terminal("chat", "-m", self.model(), "-n", 4, keys=[("> ", "\x04")])
        self.assertEqual(code, 0)


class InterruptTest(CliTest):
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


if __name__ == "__main__":
    unittest.main()
