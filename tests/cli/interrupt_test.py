#!/usr/bin/env python3
"""Ctrl-C and closed pipes."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import time
import unittest

from command import BIN, Command


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

    def test_ctrl_c_while_the_output_is_full_loses_nothing_of_it(self):
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        filled = os.write(writing, b" " * 4076)

        def waiting_bytes():
            return struct.unpack("i", fcntl.ioctl(reading, termios.FIONREAD, bytes(4)))[0]

        command = [BIN, "generate", "that", "-m", self.model("gemma3"), "--ignore-end"]
        command += ["-n", "4000", "--temp", "1", "--json", "out.json"]
        ends = {"stdout": writing, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, **ends) as process:
            while waiting_bytes() < 4096 and process.poll() is None:
                time.sleep(0.05)
            time.sleep(0.2)  # now it waits for somebody to read
            process.send_signal(signal.SIGINT)
            os.close(writing)
            time.sleep(0.2)
            with os.fdopen(reading, "rb") as pipe:
                text = pipe.read()[filled:].decode()
            said = process.stderr.read().decode()
        self.assertEqual(process.returncode, 130, said)
        (result,) = json.loads((self.folder / "out.json").read_text())["results"]
        self.assertIn(result["text"], text)

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


if __name__ == "__main__":
    unittest.main()
