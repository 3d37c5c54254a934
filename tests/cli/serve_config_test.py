#!/usr/bin/env python3
"""`tierkv serve`: settings from the command line, the environment and a file, --print-config, --check, --cors."""

import socket
import tomllib
import unittest

from command import Command
from served import Served


class ServeConfigTest(Command):
    def settings(self, *arguments):
        """What --print-config says: values, and where they come from."""
        text = self.good("serve", "--print-config", *arguments).stdout
        origins = {}
        for line in text.splitlines()[1:]:
            name, rest = line.lstrip("# ").split(" =", 1)
            origins[name] = rest.rsplit("# ", 1)[1]
        return tomllib.loads(text)["serve"], origins, text

    def config(self, text):
        path = self.folder / "config.toml"
        path.write_text(text)
        return path

    def test_the_command_line_wins_over_the_environment_and_that_over_the_file(self):
        file = self.config('model = "a.gguf"\n[serve]\nport = 1001\nqueue = 11\nhost = "127.0.0.9"\n')
        self.environment |= {"TIERKV_SERVE_PORT": "1002", "TIERKV_SERVE_QUEUE": "12"}
        values, origins, _ = self.settings("--config", file, "--port", 1003)
        self.assertEqual((values["port"], values["queue"], values["host"], values["model"], values["parallel"]),
                         (1003, 12, "127.0.0.9", "a.gguf", 4))
        self.assertEqual(origins["port"], "the command line")
        self.assertEqual(origins["queue"], "TIERKV_SERVE_QUEUE")
        self.assertEqual(origins["host"], f"{file}:5")
        self.assertEqual(origins["model"], f"{file}:1")
        self.assertEqual(origins["parallel"], "default")

    def test_every_option_has_its_variable_and_its_place_in_a_file(self):
        given = {"host": "127.0.0.2", "port": 1, "grpc-port": 2, "no-api-key": True, "alias": "x \"y\"", "parallel": 3, "ctx": 256,
                 "queue": 5, "conversations": 6, "kv-budget": "7MiB", "prompt-piece": 8, "timeout": 9.5, "drain": 10,
                 "max-body": 1111, "store": "/tmp/prefixes", "store-size": "3MiB", "no-store": True,
                 "slot-save-path": "/tmp", "cors": ["https://a.example", "https://b.example"], "model": "m.gguf", "threads": 1,
                 "kv": "hot=64,warm=448", "quiet": True, "rope-scaling": "yarn", "rope-scale": 4, "rope-freq-base": 500000,
                 "rope-freq-scale": 0.25, "yarn-orig-ctx": 2048, "yarn-ext-factor": 0.5, "yarn-attn-factor": 1.5,
                 "yarn-beta-slow": 2, "yarn-beta-fast": 16}
        values, _, text = self.settings()
        missing = {line.lstrip("# ").split(" =", 1)[0] for line in text.splitlines()[1:]} - set(given) - {"api-key"}
        self.assertEqual(missing, set(), "a new option needs a line here")
        for name, value in given.items():
            words = ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
            self.environment["TIERKV_SERVE_" + name.upper().replace("-", "_")] = words
        values, origins, text = self.settings()
        self.assertEqual(values, given)
        self.assertTrue(all(origins[name].startswith("TIERKV_SERVE_") for name in given), origins)
        # What is printed is a file that says the same.
        self.environment = {name: value for name, value in self.environment.items() if not name.startswith("TIERKV_SERVE_")}
        again, origins, _ = self.settings("--config", self.config(text))
        self.assertEqual(again, given)

    def test_keys_are_not_shown(self):
        self.environment["TIERKV_SERVE_API_KEY"] = "sesame,second"
        _, origins, text = self.settings()
        self.assertNotIn("sesame", text)
        self.assertIn("2 that are not shown", text)
        self.assertIn("TIERKV_SERVE_API_KEY", origins["api-key"])

    def test_mistakes_are_named(self):
        self.environment["TIERKV_SERVE_PROT"] = "8080"
        self.bad("serve", "--print-config", saying="TIERKV_SERVE_PROT")
        del self.environment["TIERKV_SERVE_PROT"]
        self.environment["TIERKV_SERVE_PORT"] = "http"
        self.bad("serve", "--print-config", saying="TIERKV_SERVE_PORT")
        self.good("config")  # other commands do not care


class ServeCheckTest(Command):
    def lines(self, *arguments, code=0):
        usual = [word for name, value in (("-m", self.model()), ("--port", 0)) if name not in arguments for word in (name, value)]
        done = self.run_cli("serve", "--check", "-q", *usual, *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return {line[7:].split()[0]: line for line in done.stdout.splitlines()}

    def test_all_is_well(self):
        lines = self.lines("--slot-save-path", self.folder, "--kv-budget", "64MiB", "-c", 512)
        self.assertEqual(set(lines), {"address", "port", "slots", "store", "model", "cache", "calibration", "budget", "start"})
        self.assertTrue(all(line.startswith("ok") for line in lines.values()), lines)
        self.assertEqual([path for path in self.folder.iterdir() if path.name.startswith(".tierkv-check")], [])

    def wrong(self, name, *arguments, saying=""):
        lines = self.lines(*arguments, code=2)
        self.assertTrue(lines[name].startswith("wrong"), lines)
        self.assertIn(saying, lines[name])
        return lines

    def test_everything_that_is_wrong_is_said_at_once(self):
        lines = self.wrong("address", "--host", "0.0.0.0", "--slot-save-path", "nowhere", saying="--api-key")
        self.assertTrue(lines["slots"].startswith("wrong"))
        self.assertTrue(lines["model"].startswith("ok"))

    def test_each_thing_alone(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            self.wrong("port", "--port", other.getsockname()[1], saying="cannot listen")
        self.wrong("model", "-m", "nowhere.gguf")
        self.wrong("model", "-m", self.model("mamba"))
        self.wrong("model", "-c", 1000000, saying="longer than the model's")
        self.wrong("budget", "--kv-budget", "20KiB", "-c", 4096, saying="takes")
        self.wrong("address", "--cors", "*", saying="--api-key")
        self.wrong("address", "--cors", "example.com/page", saying="origin")


class ServeCorsTest(Served):
    ARGUMENTS = ("--cors", "https://example.com", "--cors", "http://localhost:3000")

    def test_pages_of_these_origins_may_ask(self):
        for origin in ("https://example.com", "http://localhost:3000"):
            reply = self.server.get("/v1/models", headers={"Origin": origin})
            self.assertEqual((reply.status, reply.headers["Access-Control-Allow-Origin"]), (200, origin))
            self.assertEqual(reply.headers["Vary"], "Origin")
            asked = self.server.ask("OPTIONS", "/v1/chat/completions",
                                    headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
            self.assertEqual(asked.status, 204)
            self.assertIn("Authorization", asked.headers["Access-Control-Allow-Headers"])
            self.assertIn("POST", asked.headers["Access-Control-Allow-Methods"])

    def test_no_others_may(self):
        for origin in ("https://example.org", "https://example.com.evil.example", "null", "http://example.com"):
            reply = self.server.get("/v1/models", headers={"Origin": origin})
            self.assert_refused(reply, 403, "origin")
            self.assertIsNone(reply.headers["Access-Control-Allow-Origin"])
            self.assertEqual(self.server.ask("OPTIONS", "/v1/models", headers={"Origin": origin}).status, 403)


if __name__ == "__main__":
    unittest.main()
