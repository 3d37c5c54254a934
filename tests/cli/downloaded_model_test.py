#!/usr/bin/env python3
"""A model that was downloaded and changed since."""

import os
import shutil
import unittest

from command import Command


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


if __name__ == "__main__":
    unittest.main()
