"""Limits on the cost of a client of riffle-serve: bodies, headers, slow senders and readers, waiting requests;
keys, hosts and origins; and a server that is killed."""

import json
import os
import socket
import threading
import time

import pytest
from serving import Server, cached, need, running, text_of

need("starlette", "uvicorn")

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(model_path):
    yield from running(
        model_path, "--read-timeout", "1", "--write-timeout", "1", "--max-seqs", "2",
        "--max-waiting", "3", "--max-connections", "40", "--timeout", "60",
    )  # fmt: skip


@pytest.fixture()
def connect(server):
    made = []

    def new():
        one = socket.create_connection((server.host, server.port), timeout=30)
        made.append(one)
        return one

    yield new
    for one in made:
        one.close()


def closed_after(connection, seconds=15):
    """Returns the seconds until the server closes the connection."""
    begun = time.monotonic()
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - begun


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_of_100_mb_is_refused_and_not_kept(server, connect):
    before = server.resident()
    connection = connect()
    connection.sendall(HEAD + b"Content-Length: 104857600\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    # Without a length: in chunks that do not end.
    connection = connect()
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    sent, chunk = 0, b"10000\r\n" + b" " * 65536 + b"\r\n"
    try:
        while sent < 100 * MIB:
            connection.sendall(chunk)
            sent += 65536
    except ConnectionError:
        pass
    assert closed_after(connection) < 10
    assert server.resident() < before + 40 * MIB
    assert server.complete("a")["choices"]


def test_a_body_just_below_the_limit_is_read(server):
    body = b'{"prompt": "a", "max_tokens": 1}'
    assert server.post("/v1/completions", body + b" " * (4 * MIB))[0] == 200
    assert server.post("/v1/completions", body + b" " * (5 * MIB))[0] == 413


def test_slow_senders_are_cut_off(server, connect):
    nothing, half, body = connect(), connect(), connect()
    half.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    body.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt"')
    assert max(closed_after(one) for one in (nothing, half, body)) < 10
    # A byte now and then does not help, nor does a first request that was complete.
    slow = connect()
    slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert slow.recv(65536).startswith(b"HTTP/1.1 200 ")
    begun = time.monotonic()
    try:
        for _ in range(100):
            slow.sendall(b"G")
            time.sleep(0.1)
    except ConnectionError:
        pass
    assert time.monotonic() - begun < 8


def test_headers_without_end_are_refused(server, connect):
    before = server.resident()
    connection = connect()
    sent = 0
    try:
        connection.sendall(HEAD)
        while sent < 50 * MIB:
            connection.sendall(b"X-Filler: " + b"a" * 65536 + b"\r\n")
            sent += 65536
    except ConnectionError:
        pass
    assert sent < 5 * MIB and server.resident() < before + 20 * MIB
    for junk in (b"\x16\x03\x01\x00\xa5\x01\x00", b"GET\r\n\r\n", b"\xff" * 100 + b"\r\n\r\n"):
        connection = connect()
        connection.sendall(junk)
        assert closed_after(connection) < 10
    assert server.get("/health")[0] == 200


def answer_to(connection, data):
    """Sends a request. Returns all that comes back until the server closes the connection."""
    connection.sendall(data)
    received = b""
    try:
        while more := connection.recv(65536):
            received += more
    except ConnectionError:  # cut off while it waits for the rest of a request
        pass
    return received


def test_lengths_that_lie_are_refused(server, connect):
    body = b'{"prompt": "a", "max_tokens": 1}'
    for lie in (
        b"Content-Length: 5\r\n\r\n" + body,
        b"Content-Length: -5\r\n\r\n" + body,
        b"Content-Length: many\r\n\r\n" + body,
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body,
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        b"Transfer-Encoding: gzip\r\n\r\n" + body,
    ):
        answer = answer_to(connect(), HEAD + lie)
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head, answer
        answer, _ = json.JSONDecoder().raw_decode(text.decode())  # the rest is a request of its own
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    # A body that ends before its length: nobody is left to answer.
    connection = connect()
    connection.sendall(HEAD + b"Content-Length: 500\r\n\r\n" + body)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(65536) == b""
    assert server.idle() and server.complete("a")["choices"]


def test_a_reader_that_stops_loses_its_answer(server):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((server.host, server.port))
    fields = {"prompt": "Once", "max_tokens": 3500, "ignore_eos": True, "stream": True, "n": 2,
              "logprobs": 5}  # fmt: skip
    body = json.dumps(fields).encode()
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert connection.recv(1024)
    end = time.monotonic() + 60
    while (newest := server.get("/state")[1]["requests"][0])["state"] == "answering":
        assert time.monotonic() < end
        time.sleep(0.2)
    connection.close()
    assert newest["state"] == "gone" and newest["answer_tokens"] < 2 * 3500


def test_more_requests_than_may_wait_are_refused(server):
    statuses = []

    def ask(i):
        body = {"prompt": f"Number {i}", "max_tokens": 150, "ignore_eos": True}
        statuses.append(server.post("/v1/completions", body)[0])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses.count(200) >= 5 and statuses.count(429) >= 1
    assert set(statuses) == {200, 429}
    status, answer = server.post("/v1/completions", {"prompt": "a", "n": 20})
    assert status == 429 and "--max-waiting" in answer["error"]["message"]
    assert server.idle()["totals"]["refused"] >= 1


def test_more_connections_than_allowed_are_closed(server, connect):
    many = [connect() for _ in range(80)]
    closed = sum(closed_at_once(one) for one in many)
    assert 40 <= closed < 80
    for one in many:
        one.close()
    time.sleep(0.2)
    assert server.get("/health")[0] == 200


def closed_at_once(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except OSError:  # nothing to read: it is open
        return False


def test_hosts_and_origins_of_others_are_refused(server):
    for headers in ({"Host": "evil.example"}, {"Host": "localhost.evil.example:80"},
                    {"Origin": "https://evil.example"}, {"Origin": "null"}):  # fmt: skip
        assert server.get("/health", **headers)[0] == 403, headers
    for headers in ({"Host": "localhost:9"}, {"Host": "[::1]:9"},
                    {"Origin": server.url, "Host": server.url[7:]}):  # fmt: skip
        assert server.get("/health", **headers)[0] == 200, headers


def test_only_programs_on_this_machine_can_connect(server):
    with open("/proc/net/tcp") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    port = f":{server.port:04X}"
    assert [one for one in listening if one.endswith(port)] == ["0100007F" + port]


def test_requests_need_a_key(model_path, tmp_path):
    (tmp_path / "keys").write_text("first\n\nsecond\n")
    flags = ("--api-key", "third", "--api-key-file", str(tmp_path / "keys"),
             "--allow-origin", "https://app.example")  # fmt: skip
    for server in running(model_path, *flags, env={"RIFFLE_API_KEY": "fourth"}):
        for key in ("first", "second", "third", "fourth"):
            assert server.get("/v1/models", Authorization=f"Bearer {key}")[0] == 200
        for value in ("", "Bearer", "Bearer ", "Bearer firs", "Bearer first2", "Basic first",
                      "Bearer \xff"):  # fmt: skip
            status, answer = server.get("/v1/models", Authorization=value)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert server.post("/v1/completions", {"prompt": "a"})[0] == 401
        assert server.get("/state")[0] == 401
        assert server.get("/health")[0] == 200 and server.request("GET", "/")[0] == 200
        status, headers, _ = server.request(
            "OPTIONS", "/v1/models",
            headers={"Origin": "https://app.example", "Access-Control-Request-Method": "GET",
                     "Access-Control-Request-Headers": "authorization"},
        )  # fmt: skip
        assert status == 200
        assert headers["access-control-allow-origin"] == "https://app.example"
        assert server.get("/health", Origin="https://other.example")[0] == 403


def test_time_for_a_request_is_limited(model_path):
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
    for server in running(model_path, "--timeout", "1"):
        status, answer = server.post("/v1/completions", body)
        assert status == 504 and answer["error"]["code"] == "timeout"
        last = [line for line in server.stream("/v1/completions", body)][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        server.idle(5)


def test_prompts_are_read_once_even_if_the_server_is_killed(model_path, tmp_path):
    ask = {"prompt": text_of(1500) + " Who?", "max_tokens": 4, "temperature": 0}
    server = Server(model_path, "--prefix-cache", str(tmp_path / "cache"))
    first = server.complete(**ask)
    server.stop(kill=True)
    server.start()
    again = server.complete(**ask)
    other = server.complete(text_of(1500) + " When?")
    server.stop(kill=True)
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert cached(first) == 0 and cached(again) > 1500 and cached(other) > 1500
    # A kill in the middle of an answer, and then of a save.
    server.start()
    for line in server.stream("/v1/completions", {**ask, "prompt": text_of(2000, "Eve")}):
        if line.startswith("data: "):
            server.process.kill()
            break
    server.stop(kill=True)
    server.start()
    assert cached(server.complete(text_of(2000, "Eve"))) > 2000
    assert server.stop() == 0
    assert not [name for name in os.listdir(tmp_path / "cache") if ".part-" in name]
