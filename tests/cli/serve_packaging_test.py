#!/usr/bin/env python3
"""The unit of systemd and the container file for `tierkv serve`: what they say is what the program takes."""

import re
import shutil
import subprocess
import unittest
from pathlib import Path

from command import BIN, Command

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


class ServePackagingTest(Command):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed (Debian: systemd)")
    def test_systemd_takes_the_unit(self):
        text = (PACKAGING / "tierkv-serve.service").read_text()
        # The program is not installed here, and neither is its manual page.
        text = text.replace("/usr/local/bin/tierkv", str(Path(BIN).resolve())).replace("Documentation=man:tierkv(1)\n", "")
        unit = self.folder / "tierkv-serve.service"
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=120)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "tierkv" in line]
        self.assertEqual((done.returncode, ours), (0, []))

    def test_the_unit_starts_what_there_is(self):
        (self.folder / "config.toml").write_text(f'model = "{self.model()}"\n[serve]\nport = 0\n')
        unit = (PACKAGING / "tierkv-serve.service").read_text()
        for line in re.findall(r"^ExecStart(?:Pre)?=/usr/local/bin/tierkv (.*)$", unit, re.M):
            words = line.replace("/etc/tierkv/config.toml", str(self.folder / "config.toml")).split()
            self.good(*words, *([] if "--check" in words else ["--print-config"]))

    def test_the_container_s_variables_are_options(self):
        text = (PACKAGING / "Containerfile").read_text()
        variables = dict(pair.split("=", 1) for pair in re.findall(r"TIERKV_SERVE_[A-Z_]+=[\w.]+", text))
        self.assertIn("TIERKV_SERVE_KV_BUDGET", variables)
        self.environment |= variables | {"TIERKV_SERVE_API_KEY": "sesame"}
        self.assertIn("0.0.0.0", self.good("serve", "--print-config").stdout)


if __name__ == "__main__":
    unittest.main()
