#!/usr/bin/env python3
"""What `tierkv serve` says about itself: metrics, the cache by tier, the page."""

import re
import unittest

from served import Served, text_of


class ServeMetricsTest(Served):
    def test_prometheus_reads_every_line(self):
        self.server.complete(text_of(31, 100), 8)
        reply = self.server.get("/metrics")
        self.assertTrue(reply.headers["Content-Type"].startswith("text/plain"))
        lines = reply.body.decode().splitlines()
        sample = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z]+="[^"]*"\})? (-?[0-9.e+-]+|\+Inf)$')
        for line in lines:
            self.assertRegex(line, r"^# (HELP|TYPE) \S+ .+$" if line.startswith("#") else sample)
        names = {line.split()[0] for line in lines if not line.startswith("#")}
        for name in ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total",
                     "llamacpp:requests_processing",
                     'tierkv_kv_bytes{tier="hot"}', "tierkv_kv_resident_bytes", 'tierkv_inter_token_seconds_bucket{le="+Inf"}'):
            self.assertIn(name, names)
        self.assertGreaterEqual(self.server.metric("llamacpp:tokens_predicted_total"), 8)
        self.assertGreaterEqual(self.server.metric("tierkv_time_to_first_token_seconds_count"), 1)

    def graduated(self, tier):
        return self.server.metric('tierkv_kv_graduated_tokens_total{tier="%s"}' % tier)

    def test_memory_is_told_by_tier(self):
        before = [self.graduated(tier) for tier in ("warm", "archive")]
        value = self.server.complete(text_of(32, 1500), 4)
        tokens = value["usage"]["total_tokens"]
        # All but the newest leave the hot tier; all but 512 and a block the warm one.
        warm, archive = (self.graduated(tier) - had for tier, had in zip(("warm", "archive"), before))
        self.assertGreater(warm, tokens - 200)
        self.assertLess(warm, tokens)
        self.assertGreater(archive, 0)
        self.assertLess(archive, tokens - 400)
        self.assertEqual(self.server.metric("tierkv_kv_evicted_tokens_total"), 0)
        memory = self.server.get("/v1/kv/memory").json()
        self.assertGreater(memory["tiers"]["archive"]["tokens"], 0)
        parts = sum(tier["bytes"] for tier in memory["tiers"].values())
        parts += memory["parked"]["bytes"] + memory["bookkeeping_bytes"] + memory["free_bytes"]
        self.assertEqual(parts, memory["total_bytes"])
        states = {one["state"] for one in self.server.get("/v1/kv/conversations").json()}
        self.assertLessEqual(states, {"idle", "prompt", "busy", "parked"})


class ServeThresholdsTest(Served):
    ARGUMENTS = ("--api-key", "sesame")
    KEY = {"Authorization": "Bearer sesame"}

    def thresholds(self):
        return self.server.get("/v1/kv/thresholds", headers=self.KEY).json()

    def put(self, body):
        return self.server.ask("PUT", "/v1/kv/thresholds", body, headers=self.KEY)

    def test_they_have_adr_004_s_names(self):
        told = self.thresholds()
        self.assertEqual(set(told), {"model_id", "quality_target", "quality_score", "layers"})
        names = {"layer", "hot_boundary", "warm_boundary", "archive_bits", "archive_quantizer"}
        self.assertTrue(all(set(layer) == names for layer in told["layers"]))
        self.assertEqual([layer["layer"] for layer in told["layers"]], list(range(len(told["layers"]))))

    def test_all_layers_or_some_are_set(self):
        reply = self.put({"hot_boundary": 96, "warm_boundary": 608})
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.json(), self.thresholds())
        self.assertEqual({(one["hot_boundary"], one["warm_boundary"]) for one in self.thresholds()["layers"]}, {(96, 608)})
        self.assertEqual(self.put({"layers": [{"layer": 1, "hot_boundary": 128}]}).status, 200)
        first, second, *_ = self.thresholds()["layers"]
        self.assertEqual((first["hot_boundary"], second["hot_boundary"], second["warm_boundary"]), (96, 128, 608))
        self.assertEqual(self.put({"archive_bits": 4}).status, 200)
        self.assertEqual({one["archive_bits"] for one in self.thresholds()["layers"]}, {4})
        # What is told can be sent back.
        self.assertEqual(self.put({"layers": self.thresholds()["layers"]}).status, 200)
        reply = self.server.post("/v1/completions", {"prompt": text_of(5, 900), "max_tokens": 4}, headers=self.KEY)
        self.assertEqual(reply.status, 200)
        tiers = self.server.get("/v1/kv/memory", headers=self.KEY).json()["tiers"]
        self.assertGreater(tiers["hot"]["tokens"], 64)

    def test_what_cannot_be_changes_nothing(self):
        before = self.thresholds()
        for body in ({"hot_boundary": 0}, {"hot_boundary": 1e9}, {"hot_boundary": "x"}, {"hot_boundary": 100, "warm_boundary": 50},
                     {"archive_bits": 9}, {"layers": 1}, {"layers": [1]}, {"layers": [{}]}, {"layers": [{"layer": 999}]},
                     {"hot": 5}, {"layers": [{"layer": 0, "hot_boundary": 100}, {"layer": 0, "archive_bits": 100}]}):
            with self.subTest(body):
                self.assert_refused(self.put(body), 400)
        self.assertEqual(self.thresholds(), before)
        self.assertEqual(self.server.ask("PUT", "/v1/kv/thresholds", {"hot_boundary": 96}).status, 401)


class ServePageTest(Served):
    def test_the_page_asks_nobody_else(self):
        reply = self.server.get("/")
        self.assertEqual((reply.status, reply.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", reply.headers["Content-Security-Policy"])
        page = reply.body.decode()
        self.assertTrue(page.rstrip().endswith("</html>"))
        self.assertEqual(re.findall(r"(?:https?:)?//[a-z]", page), [])
        # Every route that it asks is there.
        for path in set(re.findall(r'get\("(/[^"]*)"\)', page)):
            self.assertEqual(self.server.get(path).status, 200, path)


if __name__ == "__main__":
    unittest.main()
