#!/usr/bin/env python3
"""The threads of libllama wait briefly beside other programs, unless the user wants something else."""

import subprocess
import unittest
from pathlib import Path

from command import BIN, Command


class BriefWaitsTest(Command):
    def settings(self, **environment):
        """What OpenMP finds in the environment of a command that has begun to work."""
        kept = {name: value for name, value in self.environment.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        words = [BIN, "chat", "-m", str(self.model()), "-n", "1", "-q"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(words, cwd=self.folder, env={**kept, **environment}, **pipes) as chat:
            chat.stdin.write(b"that\n")
            chat.stdin.flush()
            self.assertNotEqual(chat.stdout.read(1), b"")
            found = Path(f"/proc/{chat.pid}/environ").read_bytes().split(b"\0")
            chat.stdin.close()
            chat.stdout.read()
        self.assertEqual(chat.returncode, 0)
        return sorted(line.decode() for line in found if line.startswith((b"GOMP_", b"OMP_")))

    def test_brief_beside_others_unless_set(self):
        busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        self.addCleanup(busy.wait)
        self.addCleanup(busy.kill)
        (one,) = self.settings()
        self.assertRegex(one, r"^GOMP_SPINCOUNT=\d{1,4}$")
        self.assertEqual(self.settings(GOMP_SPINCOUNT="77"), ["GOMP_SPINCOUNT=77"])
        self.assertEqual(self.settings(OMP_WAIT_POLICY="active"), ["OMP_WAIT_POLICY=active"])


if __name__ == "__main__":
    unittest.main()
