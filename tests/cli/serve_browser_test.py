#!/usr/bin/env python3
"""The page of `tierkv serve` in real Chromium, headless: a chat, figures that move, light and dark, a phone, the keyboard.

TIERKV_SCREENSHOTS=FOLDER keeps the pictures: those of docs/use/server.md are made so, with SmolLM2 (TIERKV_SCREENSHOT_MODEL).
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from client_python import client_python
from server import Server, quiet_environment
from served import MODEL, text_of

HERE = Path(__file__).parent


@unittest.skipUnless(shutil.which("chromium") and shutil.which("chromedriver"),
                     "Chromium is not installed (Debian: chromium, chromium-driver)")
class ServeBrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        python = client_python("browser")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        pictures = os.environ.get("TIERKV_SCREENSHOTS") or folder.name
        model = os.environ.get("TIERKV_SCREENSHOT_MODEL")
        kv = "balanced" if model else "balanced,calibrate=off"
        cls.server = Server(model or MODEL, "-c", 2048, environment=quiet_environment(folder.name), kv=kv)
        cls.addClassCleanup(cls.server.stop)
        if model:
            cls.server.complete(Path(os.environ["TIERKV_SCREENSHOT_TEXT"]).read_text()[:3500], 4)
            messages = ["Why is the sky blue? Answer in two sentences.", "And why is it red in the evening? One sentence."]
        else:
            cls.server.complete(text_of(1, 700), 4)
            messages = ["here stone river", "north"]
        command = [python, HERE / "browser_client.py", f"http://127.0.0.1:{cls.server.port}/", pictures, *messages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        cls.seen = json.loads(done.stdout)

    def test_the_chat_answers(self):
        talk = self.seen["light"]["talk"]
        self.assertGreater(len(talk.splitlines()), 3, talk)
        self.assertIn("tokens read", self.seen["light"]["timing"])
        self.assertEqual(self.seen["fresh"]["talk"].strip(), "")

    def test_figures_move(self):
        before, after = self.seen["before"], self.seen["light"]
        for part in ("tiers", "ours", "list", "speed", "states"):
            self.assertNotEqual(before[part], after[part], part)
        self.assertEqual(after["history"], 6)
        self.assertIn("archive", after["quality"])
        self.assertIn("packed", after["states"])
        self.assertIn("on disk", after["states"])
        self.assertIn("first token", after["speed"])

    def test_nothing_is_wider_than_the_window(self):
        for name, width in (("light", 1280), ("dark", 1280), ("phone", 360)):
            seen = self.seen[name]
            self.assertEqual((seen["width"], seen["scrolls"], seen["wide"]), (width, False, []), name)
            self.assertEqual(seen["overlaps"], 0, "messages stand on each other")

    def test_dark_is_dark_and_light_is_light(self):
        def brightness(name):
            return sum(int(part) for part in self.seen[name]["back"].strip("rgba()").split(",")[:3])

        self.assertGreater(brightness("light"), 600)
        self.assertLess(brightness("dark"), 150)

    def test_the_console_is_quiet_and_nobody_else_is_asked(self):
        self.assertEqual(self.seen["console"], [])
        own = f"http://127.0.0.1:{self.server.port}/"
        others = [url for url in self.seen["requests"] if not url.startswith((own, "data:"))]
        self.assertIn(own, self.seen["requests"])
        self.assertEqual(others, [])

    def test_everything_is_reached_by_the_keyboard(self):
        self.assertLessEqual({"send", "fresh"}, set(self.seen["tabs"]))


if __name__ == "__main__":
    unittest.main()
