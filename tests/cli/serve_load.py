"""Many clients of mixed habits on one server, for a while: what the short test of CI and `make soak` run.

    tests/cli/serve_load.py --program build/bin/tierkv --model MODEL [--clients 64] [--seconds 1800] [--kv balanced]

Every client asks prompts of its own and of a common stock, streamed or not, and leaves some answers half way. Greedy answers are
compared with those that a lone client got before (of a server of its own that reuses nothing). Nothing but 200 and 429 is right.
Memory of the process is looked at all the time.
"""

import argparse
import http.client
import json
import os
import random
import sys
import threading
import time

WORDS = "that here stone river sees north then the tide or an iron sin".split()


def text_of(seed, words):
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """Prompts are (seed, words, tokens); `expected` has a lone client's answers."""

    def __init__(self, port, pid, stock, expected, clients, seconds):
        self.port, self.pid, self.stock, self.expected = port, pid, stock, expected
        self.clients, self.until = clients, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.answers = self.refused = self.left = 0
        self.problems = []
        self.memory = []  # (seconds since the beginning, bytes)

    def body(self, prompt, stream):
        seed, words, tokens = prompt
        return {"prompt": text_of(seed, words), "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream,
                "cache_prompt": False}

    def ask(self, prompt, leave):
        """Status and text; a client that leaves reads one piece."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(self.body(prompt, leave)), headers)
            response = connection.getresponse()
            if leave:
                response.readline()
                return response.status, None
            data = json.loads(response.read())
            return response.status, data["choices"][0]["text"] if response.status == 200 else data
        finally:
            connection.close()

    def client(self, number):
        chosen = random.Random(number)
        while time.monotonic() < self.until and not self.problems:
            prompt, leave = chosen.choice(self.stock), chosen.random() < 0.2
            try:
                status, text = self.ask(prompt, leave)
            except Exception as problem:  # noqa: BLE001: the report has it
                status, text = 0, repr(problem)
            with self.lock:
                if status == 429:
                    self.refused += 1
                elif status != 200:
                    self.problems.append(f"{prompt}: {status} {text}")
                elif leave:
                    self.left += 1
                else:
                    self.answers += 1
                    if text != self.expected[prompt]:
                        self.problems.append(f"{prompt}: {text!r} instead of {self.expected[prompt]!r}")
            time.sleep(chosen.uniform(0.0, 0.2) if status != 429 else chosen.uniform(0.2, 1.0))

    def run(self):
        start = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.memory.append((time.monotonic() - start, resident_bytes(self.pid)))
            time.sleep(0.5)
        return {"answers": self.answers, "refused": self.refused, "left": self.left, "problems": self.problems[:5],
                "resident_mib": [round(b / 2**20, 1) for _, b in self.memory[:: max(1, len(self.memory) // 20)]]}

    def growth(self, after_s):
        """The largest resident size after that time, over what it was then."""
        then = [b for t, b in self.memory if t >= after_s]
        return max(then) / then[0] if then else 1.0


def make_stock(count, longest):
    """Long and short prompts; every fourth is short."""
    chosen = random.Random(11)
    return [(seed, int(chosen.uniform(4, longest if seed % 4 else 30)), chosen.randint(4, 40)) for seed in range(count)]


def answers_alone(server_of, stock):
    """A lone client's answers, on a server of its own."""
    server = server_of("-np", "1")
    lone = Load(server.port, server.process.pid, stock, {}, 1, 0)
    expected = {prompt: lone.ask(prompt, False)[1] for prompt in stock}
    server.stop()
    return expected


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv", default="balanced,calibrate=off")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--settled", type=float, default=300, help="seconds after which memory must not grow")
    options = parser.parse_args()
    os.environ["TIERKV_BIN"] = options.program
    os.environ.setdefault("TIERKV_TINY_MODELS", os.path.dirname(options.model))
    from server import Server  # noqa: PLC0415: it reads the environment

    stock = make_stock(60, 300)
    expected = answers_alone(lambda *a: Server(options.model, "--no-store", *a, kv=options.kv), stock)
    server = Server(options.model, "--no-store", "-np", 8, "--queue", 40, "--kv-budget", "64MiB", kv=options.kv)
    load = Load(server.port, server.process.pid, stock, expected, options.clients, options.seconds)
    report = load.run()
    server.stop()
    report["growth"] = round(load.growth(options.settled), 4)
    print(json.dumps(report, indent=1))
    if report["problems"] or report["growth"] > 1.02:
        sys.exit("the load test failed")


if __name__ == "__main__":
    main()
