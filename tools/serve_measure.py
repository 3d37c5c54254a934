#!/usr/bin/env python3
"""Measures a running `tierkv serve`: many clients against one, a known prompt against reading it, streams beside a long prompt.

    tierkv serve -np 8 -c 8k --port 8080 &
    tools/serve_measure.py http://127.0.0.1:8080 [--clients 8] [--context 1024] [--tokens 64] [--long 4096]

Every client has a prompt of its own that nobody has sent before, so that nothing is reused but what the measurement means to reuse.
Prints one JSON object.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import statistics
import threading
import time
from urllib.parse import urlparse

WORDS = "the a river stone over under light house window north garden old bright slow morning evening told walked many".split()


class Client:
    def __init__(self, address):
        self.address = urlparse(address).netloc

    def stream(self, prompt, tokens):
        """Times of the pieces of an answer, from the request on, and its timings."""
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        start = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode()}")
        times, timings = [], {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["text"]:
                times.append(time.monotonic() - start)
            timings = event.get("timings", timings)
        connection.close()
        return times, timings

    def tokens(self, text):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        body = {"content": text, "add_special": True}
        connection.request("POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())["tokens"]
        connection.close()
        return found

    def prompt(self, seed, length):
        chosen = random.Random(seed)
        return self.tokens(" ".join(chosen.choice(WORDS) for _ in range(length + 8)))[:length]


def together(calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [result.result() for result in [pool.submit(call) for call in calls]]


def throughput(client, prompts, tokens):
    """Tokens a second of clients that all write, their prompts known: reading is measured apart."""
    start = time.monotonic()
    results = together([lambda p=prompt: client.stream(p, tokens) for prompt in prompts])
    return sum(timings["predicted_n"] for _, timings in results) / (time.monotonic() - start)


def gaps(times):
    return [1e3 * (b - a) for a, b in zip(times, times[1:])]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--long", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    client = Client(options.address)
    result = {"clients": options.clients, "context": options.context, "tokens": options.tokens, "long": options.long}

    prompts = [client.prompt(options.seed + i, options.context) for i in range(options.clients)]
    for prompt in prompts:
        client.stream(prompt, 1)
    result["tokens_per_second_of_one"] = throughput(client, prompts[:1], options.tokens)
    result["tokens_per_second_of_all"] = throughput(client, prompts, options.tokens)

    long = client.prompt(options.seed + 1000, options.long)
    times, timings = client.stream(long, 2)
    result["first_token_read_s"], result["read_tokens_per_second"] = times[0], timings["prompt_per_second"]
    times, timings = client.stream(long, 2)
    result["first_token_known_s"], result["known_tokens"] = times[0], timings["cache_n"]

    idle = gaps(client.stream(prompts[0], options.tokens)[0])
    other = client.prompt(options.seed + 2000, options.long)
    reading = threading.Thread(target=lambda: client.stream(other, 1))
    reading.start()
    busy = gaps(client.stream(prompts[1], 2 * options.tokens)[0])
    reading.join()
    for name, values in (("idle", idle), ("beside_a_prompt", busy)):
        result[f"inter_token_{name}_ms"] = {"median": statistics.median(values), "p99": percentile(values, 0.99)}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
