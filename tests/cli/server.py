"""A `tierkv serve` that runs for a test, and clients of it."""

import http.client
import json
import os
import signal
import subprocess
import threading

from command import BIN

CHAT = "/v1/chat/completions"
TEXT_COMPLETION = "/v1/completions"


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Server:
    """The process, from its first line on stdout, which says the port, to stop()."""

    def __init__(self, model, *arguments, environment=None, kv="balanced,calibrate=off", **options):
        command = [BIN, "serve", "-m", str(model), "--port", "0", "--kv", kv, "-q", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                        **options)
        line = self.process.stdout.readline()
        if "listening on" not in line:
            self.process.kill()
            raise AssertionError(f"the server did not start: {line}{self.process.stderr.read()}")
        self.port = int(line.rsplit(":", 1)[1])

    def stop(self, signal_number=signal.SIGTERM):
        """Ends it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            code = self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def connect(self, timeout=240):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """One request. `body` is sent as JSON unless it is bytes."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        reply = Reply(response.status, response.headers, response.read())
        connection.close()
        return reply

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def complete(self, prompt, tokens=16, **fields):
        """A greedy text that does not end early."""
        fields = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
        reply = self.post(TEXT_COMPLETION, fields)
        if reply.status != 200:
            raise AssertionError(f"{reply.status}: {reply.body}")
        return reply.json()

    def open_stream(self, path, body):
        """A streamed request: its connection, and its events as they come. The connection closes with the last of them."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()

        def events():
            for line in response:
                line = line.decode().strip()
                if line.startswith("data: "):
                    yield line[6:]
            connection.close()

        return connection, response, events()

    def metric(self, name):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"there is no metric {name}")


def together(calls):
    """Runs the calls at the same time, each on a thread; their results in order."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as problem:  # noqa: BLE001: the test looks at it
            results[i] = problem

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def quiet_environment(folder):
    """Nothing of the user's: no configuration, no calibrations."""
    names = {name: os.path.join(folder, name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    return {**os.environ, "TIERKV_CACHE": os.path.join(folder, "cache"), **names}
