#!/usr/bin/env python3
"""What `tierkv serve` keeps and finds again: a known prompt from memory, and from disk after a restart, against reading it; bytes of
a conversation against FP16, as it is and packed; time between tokens beside a long prompt.

    tools/serve_store_measure.py build/bin/tierkv [--context 4096] [--model smollm2] [--kv balanced] [--threads 2]

Every contestant is the same program in the same run. Times are given twice: on the clock, and as processor time of the server, which
other people's work on the machine does not change much. Prints one JSON object.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import tempfile
import time

WORDS = "the a river stone over under light house window north garden old bright slow morning evening told walked many".split()


class Server:
    def __init__(self, options, folder, *arguments):
        command = [options.program, "serve", "-m", options.model, "--port", "0", "--kv", options.kv, "-q", "-c",
                   str(options.context + 512), "--store", os.path.join(folder, "store"), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def processor_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        return reply

    def first_token(self, tokens):
        """Of an answer of one token: clock and processor seconds, and how many tokens were known."""
        start, processor = time.monotonic(), self.processor_s()
        reply = self.ask("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        return {"clock_s": round(time.monotonic() - start, 4), "processor_s": round(self.processor_s() - processor, 2),
                "known": reply["usage"]["prompt_tokens_details"]["cached_tokens"]}

    def settle(self):
        while True:
            store = self.ask("/v1/kv/store")
            if store["written_bytes"] and not store["waiting_bytes"]:
                time.sleep(0.3)
                return store
            time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=120)


def prompt(server, seed, length):
    chosen = random.Random(seed)
    text = " ".join(chosen.choice(WORDS) for _ in range(length + 8))
    return server.ask("/tokenize", {"content": text, "add_special": True})["tokens"][:length]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv", default="balanced")
    options = parser.parse_args()
    result = {"context": options.context, "kv": options.kv}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, folder, "-np", "1")
        tokens = prompt(server, 1, options.context)
        result["read"] = server.first_token(tokens)
        result["memory"] = server.first_token(tokens)
        memory = server.ask("/v1/kv/memory")
        copies = [c for c in server.ask("/v1/kv/conversations") if c["tokens"] >= options.context]
        result["conversation_bytes"] = copies[0]["bytes"]
        result["fp16_bytes"] = int(memory["fp16_bytes"] / sum(c["tokens"] for c in server.ask("/v1/kv/conversations")) * options.context)
        result["store"] = server.settle()
        del result["store"]["folder"]
        server.stop()
        server = Server(options, folder, "-np", "1")
        result["disk"] = server.first_token(tokens)
        server.stop()
    result["read_over_memory"] = round(result["read"]["clock_s"] / result["memory"]["clock_s"], 1)
    result["read_over_disk"] = round(result["read"]["clock_s"] / result["disk"]["clock_s"], 1)
    result["fp16_over_bytes"] = round(result["fp16_bytes"] / result["conversation_bytes"], 2)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
