#!/usr/bin/env python3
"""`tierkv serve` scraped by a real Prometheus, promtool's opinion of its metrics, and a dashboard that asks for what exists."""

import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from server import Server, quiet_environment
from served import MODEL, text_of

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "data" / "grafana" / "tierkv-serve.json"
KEY = {"Authorization": "Bearer sesame"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Monitored(unittest.TestCase):
    """A server with a key, and something in its cache."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.server = Server(MODEL, "--api-key", "sesame", environment=quiet_environment(folder.name))
        cls.addClassCleanup(cls.server.stop)
        body = {"prompt": text_of(31, 300), "max_tokens": 12, "ignore_eos": True}
        for _ in range(2):
            reply = cls.server.post("/v1/completions", body, headers=KEY)
            assert reply.status == 200, reply.body
        cls.text = cls.server.get("/metrics", headers=KEY).body.decode()


class ServeDashboardTest(Monitored):
    def test_it_names_metrics_that_are_there(self):
        there = {re.match(r"[\w:]+", line).group() for line in self.text.splitlines() if not line.startswith("#")}
        targets = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
        named = {name for expr in targets for name in re.findall(r"\b(?:tierkv_|process_|llamacpp:)\w+", expr)}
        self.assertGreater(len(named), 20)
        self.assertEqual(named - there, set())

    def test_promtool_finds_nothing_to_say_about_our_names(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus)")
        # llama-server's names are not ours to choose: a colon is for rules, by promtool's lights.
        ours = "\n".join(line for line in self.text.splitlines() if "llamacpp:" not in line) + "\n"
        done = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


@unittest.skipUnless(shutil.which("prometheus"), "Prometheus is not installed (Debian: prometheus)")
class ServePrometheusTest(Monitored):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = free_port()
        config = cls.folder / "prometheus.yml"
        config.write_text("scrape_configs:\n- job_name: tierkv\n  scrape_interval: 1s\n  scrape_timeout: 900ms\n"
                          "  authorization: {credentials: sesame}\n"
                          f"  static_configs: [{{targets: ['127.0.0.1:{cls.server.port}']}}]\n")
        cls.log = open(cls.folder / "prometheus.log", "w+")
        cls.addClassCleanup(cls.log.close)
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={cls.folder}/data",
                   f"--web.listen-address=127.0.0.1:{cls.port}"]
        cls.prometheus = subprocess.Popen(command, stdout=cls.log, stderr=cls.log)
        cls.addClassCleanup(cls.prometheus.wait)
        cls.addClassCleanup(cls.prometheus.terminate)

    def ask(self, expression):
        address = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(address, timeout=20) as reply:
            answer = json.load(reply)
        self.assertEqual(answer["status"], "success", expression)
        return answer["data"]["result"]

    def value(self, expression, seconds=60):
        """The one value, when Prometheus has one."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.prometheus.poll() is None:
            try:
                result = self.ask(expression)
                if result:
                    return float(result[0]["value"][1])
            except OSError:
                pass  # it is not up yet
            time.sleep(0.2)
        self.log.seek(0)
        self.fail(f"{expression} has no value: {self.log.read()[-2000:]}")

    def test_it_scrapes_and_answers(self):
        self.assertEqual(self.value("up == 1"), 1)
        self.assertGreater(self.value("tierkv_kv_resident_bytes"), 0)
        self.assertEqual(self.value("sum(tierkv_written_tokens_total)"), 24)
        self.assertEqual(self.value("llamacpp:tokens_predicted_total"), 24)
        self.assertEqual(self.value('tierkv_prefix_hits_total{source="memory"}'), 1)
        self.assertEqual(self.value("tierkv_time_to_first_token_seconds_count"), 2)
        self.assertGreater(self.value("tierkv_kv_fp16_bytes / tierkv_kv_resident_bytes"), 0)
        # Numbers move.
        body = {"prompt": text_of(32, 100), "max_tokens": 6, "ignore_eos": True}
        self.assertEqual(self.server.post("/v1/completions", body, headers=KEY).status, 200)
        self.assertEqual(self.value("tierkv_written_tokens_total == 30"), 30)
        # Every question of the dashboard is one that Prometheus understands.
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel["targets"]:
                self.ask(target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*"))


if __name__ == "__main__":
    unittest.main()
