"""riffle-serve as a process, for tests, and plain HTTP to it."""

import http.client
import json
import os
import re
import select
import subprocess
import sys
import time

import pytest
from conftest import PACKAGE

#: Words that repeat without end; the model has 1.2 tokens for each.
WORDS = "rain fell on the old town while a clerk counted the coins in the drawer".split()


def text_of(n_words, name="Ann"):
    """A text of n words that differs from the first word on between names."""
    return f"The book of {name}. " + " ".join(WORDS[i % len(WORDS)] for i in range(n_words))


class Server:
    """riffle-serve with the small model, on a port of its own."""

    def __init__(self, model_path, *flags, env=None):
        self.arguments = [sys.executable, "-B", "-m", "riffle.serve", "-m", model_path]
        self.arguments += ["--port", "0", "-c", "4096", "--threads", "1", *flags]
        self.env = dict(os.environ, PYTHONPATH=str(PACKAGE), **(env or {}))
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.arguments, env=self.env, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        self.printed = self.process.stdout.readline() if ready else b""
        if not self.printed:
            self.process.kill()
            raise AssertionError(f"no server: {self.process.communicate()[1].decode()}")
        self.host, port = re.fullmatch(rb"http://(\S+):(\d+)/v1\n", self.printed).groups()
        self.host, self.port = self.host.decode(), int(port)
        self.url = f"http://{self.host}:{self.port}"

    def stop(self, kill=False):
        (self.process.kill if kill else self.process.terminate)()
        out, self.said = self.process.communicate(timeout=60)
        assert out == b""
        return self.process.returncode

    def request(self, method, path, body=None, headers=None):
        """Returns status, headers and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path, **headers):
        status, _, body = self.request("GET", path, headers=headers)
        return status, json.loads(body)

    def post(self, path, body, **headers):
        """Sends an object, or bytes; returns status and object."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        status, _, answer = self.request("POST", path, data, headers)
        return status, json.loads(answer)

    def complete(self, prompt, **fields):
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        status, answer = self.post("/v1/completions", body)
        assert status == 200, answer
        return answer

    def stream(self, path, body):
        """Yields the lines of a stream that are not empty."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.strip():
                    yield line.decode().rstrip("\n")
        finally:
            connection.close()

    def resident(self):
        """Returns the resident bytes of the process."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def idle(self, seconds=30):
        """Waits until no request runs and nothing is computed any more; returns the state."""
        end = time.monotonic() + seconds
        running = {"checking", "waiting", "reading", "answering"}
        while True:
            state = self.get("/state")[1]
            busy = [one for one in state["requests"] if one["state"] in running]
            if not busy and not state["stats"]["n_decoding"]:
                return state
            assert time.monotonic() < end, (busy, state["stats"])
            time.sleep(0.05)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def need(*modules):
    """Skips the file aloud where a module is not installed."""
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")


def running(model_path, *flags, **more):
    """A fixture's body: a server that is stopped at the end."""
    server = Server(model_path, *flags, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
