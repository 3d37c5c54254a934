#!/usr/bin/env python3
"""What `tierkv serve` keeps and finds again: a known prompt from memory, and from disk after a restart, against reading it; bytes
of a conversation against FP16, as it is and packed; time between tokens beside a long prompt; what HTTP and JSON cost.

    tools/serve_store_measure.py build/bin/tierkv [--context 4096] [--model smollm2] [--kv balanced]

Every contestant is the same program in the same run. Times are given twice: on the clock, and as processor time of the server,
which other people's work on the machine does not change much. Prints one JSON object.
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
        data = json.dumps(body) if body else None
        connection.request("POST" if body else "GET", path, data, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        return reply

    def first_token(self, tokens):
        """Of an answer of one token: clock and processor seconds, and how many tokens were known."""
        start, processor = time.monotonic(), self.processor_s()
        reply = self.ask("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        return {"clock_s": round(time.monotonic() - start, 4), "processor_s": round(self.processor_s() - processor, 2),
                "known": reply["usage"]["prompt_tokens_details"]["cached_tokens"]}

    def threads(self):
        """Processor nanoseconds by thread."""
        folder, out = f"/proc/{self.process.pid}/task", {}
        for thread in os.listdir(folder):
            try:
                with open(f"{folder}/{thread}/schedstat") as file:
                    out[thread] = int(file.read().split()[0])
            except OSError:
                pass
        return out

    def http_share(self, tokens, count):
        """What the thread of a streaming client's connection takes of the processor, against all of them."""
        before = self.threads()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        body = {"prompt": tokens, "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response, seen, after = connection.getresponse(), 0, {}
        for line in response:
            if line.startswith(b"data: {"):
                seen += 1
                if seen == count - 8:
                    after = self.threads()  # while its thread is there
        connection.close()
        spent = {thread: ns - before.get(thread, 0) for thread, ns in after.items()}
        ours = sum(ns for thread, ns in spent.items() if thread not in before)
        return {"share": round(ours / sum(spent.values()), 4), "us_a_token": round(ours / 1e3 / seen, 1)}

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
        conversations = server.ask("/v1/kv/conversations")
        fp16_a_token = server.ask("/v1/kv/memory")["fp16_bytes"] / sum(c["tokens"] for c in conversations)
        result["conversation_bytes"] = [c["bytes"] for c in conversations if c["tokens"] >= options.context][0]
        result["fp16_bytes"] = int(fp16_a_token * options.context)
        result["store"] = server.settle()
        del result["store"]["folder"]
        server.stop()
        server = Server(options, folder, "-np", "1")
        result["disk"] = server.first_token(tokens)
        result["http"] = server.http_share(tokens[:64], 256)
        server.stop()
        # A budget that two conversations do not fit into: the first is packed, and what it takes then is seen.
        budget = int(1.6 * result["conversation_bytes"])
        server = Server(options, folder, "-np", "1", "--kv-budget", str(budget))
        server.first_token(tokens)
        server.first_token(prompt(server, 2, options.context - 1024))
        packed = [c["bytes"] for c in server.ask("/v1/kv/conversations") if c["state"] == "parked"]
        result["packed_bytes"] = packed[0] if packed else None
        result["fp16_over_packed"] = round(result["fp16_bytes"] / packed[0], 1) if packed else None
        result["budget_bytes"], result["peak_bytes"] = budget, server.ask("/v1/kv/memory")["peak_bytes"]
        server.stop()
    result["read_over_memory"] = round(result["read"]["clock_s"] / result["memory"]["clock_s"], 1)
    result["read_over_disk"] = round(result["read"]["clock_s"] / result["disk"]["clock_s"], 1)
    result["fp16_over_bytes"] = round(result["fp16_bytes"] / result["conversation_bytes"], 2)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
