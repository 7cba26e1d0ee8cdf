"""The webhook against real servers: good, failing, slow, redirecting, absent; its address shows up nowhere."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.errors import BadRequestError
from harness.runner.webhook import VARIABLE, WebhookAddress, send, webhook_address

CANARY = "T0PS3CR3T"


class Server(ThreadingHTTPServer):
    """Answers with ``codes`` one after the other, the last one for ever; ``slow_s``: before each answer."""

    def __init__(self, codes, slow_s=0.0, location=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes, self.slow_s, self.location = list(codes), slow_s, location
        self.received, self.released = [], threading.Event()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/services/{CANARY}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, self.headers["Content-Type"], body))
        if self.server.slow_s:
            self.server.released.wait(self.server.slow_s)
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.do_POST()

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def serving(*codes, **how):
    server = Server(codes, **how)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def told(url, **how):
    return send(webhook_address({VARIABLE: url}), b'{"text": "x"}', **{"pause_s": 0.0, **how})


def test_the_body_arrives_as_json():
    with serving(200) as server:
        assert told(server.url()) == ""

    assert server.received == [(f"/services/{CANARY}", "application/json; charset=utf-8", b'{"text": "x"}')]
    assert json.loads(server.received[0][2]) == {"text": "x"}


def test_a_server_that_stumbles_once_is_asked_again():
    with serving(503, 204) as server:
        assert told(server.url()) == ""

    assert len(server.received) == 2


def test_a_server_that_keeps_failing_is_asked_twice_and_no_more():
    with serving(500) as server:
        assert told(server.url()) == "the webhook was not told: the server answered 500"

    assert len(server.received) == 2


def test_a_refusal_is_final():
    with serving(403) as server:
        assert told(server.url()) == "the webhook was not told: the server answered 403"

    assert len(server.received) == 1


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_the_message_goes_nowhere_that_a_server_names(code):
    with serving(200) as other, serving(code, location=other.url()) as server:
        problem = told(server.url())

    assert problem == f"the webhook was not told: the server answered {code}, a redirect, which is not followed"
    assert other.received == []


def test_a_redirect_to_a_file_reads_no_file(tmp_path):
    (tmp_path / "x").write_text("y")
    with serving(302, location=f"file://{tmp_path}/x") as server:
        assert "a redirect, which is not followed" in told(server.url())


def test_a_slow_server_is_not_waited_for():
    with serving(200, slow_s=5.0) as server:
        start = time.monotonic()
        problem = told(server.url(), timeout_s=0.1)

        assert time.monotonic() - start < 2.0
    assert problem in (
        "the webhook was not told: no answer within 0.1 s",
        "the webhook was not told: no answer in time",
    )


def test_a_server_that_answers_a_byte_at_a_time_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()
        thread = threading.Thread(target=_trickle, args=(listener, ended))
        thread.start()
        start = time.monotonic()
        problem = told(f"http://127.0.0.1:{listener.getsockname()[1]}/{CANARY}", timeout_s=0.3)
        taken_s = time.monotonic() - start
        ended.set()
        thread.join()

    assert problem == "the webhook was not told: no answer within 0.3 s"
    assert taken_s < 3.0


def _trickle(listener, ended):
    """Two connections, each an endless header."""
    taken = []
    listener.settimeout(0.05)
    while not ended.is_set():
        try:
            taken.append(listener.accept()[0])
            taken[-1].sendall(b"HTTP/1.1 200 OK\r\n")
        except TimeoutError:
            pass
        for connection in taken:
            try:
                connection.sendall(b"X-A: b\r\n")
            except OSError:
                continue
    for connection in taken:
        connection.close()


def test_a_server_that_is_not_there_is_told_without_its_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert told(f"http://127.0.0.1:{port}/{CANARY}") == "the webhook was not told: Connection refused"


def test_a_host_that_does_not_exist_is_told_without_its_name():
    assert told(f"https://{CANARY.lower()}.invalid/{CANARY}") == "the webhook was not told: the server was not reached"


def test_what_answers_in_no_http_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: [_nonsense(listener) for _ in range(2)])
        thread.start()
        problem = told(f"http://127.0.0.1:{listener.getsockname()[1]}/{CANARY}")
        thread.join()

    assert problem == "the webhook was not told: the answer was no HTTP"


def _nonsense(listener):
    connection, _ = listener.accept()
    connection.recv(65536)
    connection.sendall(b"220 ready\r\n")
    connection.close()


@pytest.mark.parametrize(
    "value",
    ["", f"ftp://host/{CANARY}", f"file:///{CANARY}", CANARY, f"https:///{CANARY}", f"https://u:{CANARY}@host/",
     f"https://host/{CANARY} x", f"https://host/{CANARY}\n", f"https://[{CANARY}", f"https://host:x{CANARY}/"],
)  # fmt: skip
def test_a_value_that_is_no_address_is_refused_without_being_shown(value):
    with pytest.raises(BadRequestError) as refused:
        webhook_address({VARIABLE: value})

    assert CANARY not in str(refused.value)
    assert VARIABLE in str(refused.value)
    if value:
        assert "no user or password" in str(refused.value)


def test_an_unset_variable_is_refused():
    with pytest.raises(BadRequestError, match=f"{VARIABLE} is not set"):
        webhook_address({})


def test_the_address_is_in_no_text_of_the_value():
    address = WebhookAddress(f"https://host/{CANARY}")

    assert CANARY not in f"{address} {address!r}"
