"""What `mbr-perf nightly` tells others: files where asked for, and a webhook whose address shows up nowhere."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from harness.runner.webhook import VARIABLE

REPLAYS = Path(__file__).parents[1] / "data" / "replay"
CANARY = "T0PS3CR3T"


@pytest.fixture(name="nightly")
def _nightly(mbr_perf, tmp_path):
    """A suite of one recorded run without a golden, which it may lack."""
    (tmp_path / "golden").mkdir()
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"title: Replayed\ncases:\n  - name: good\n    golden: optional\n"
        f"    request: {{model_recipe_name: {REPLAYS / 'replayed.yaml'}, gpu: cpu}}\n"
    )
    folders = ("--results_dir", tmp_path / "results", "--golden_dir", tmp_path / "golden")
    replay = ("--launcher", "replay", "--from", REPLAYS / "ok")
    return lambda *options: mbr_perf("nightly", suite, *replay, *folders, *options)


@pytest.fixture(name="server")
def _server():
    """Takes one message, and keeps it."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.received = received
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_output_is_written_where_it_was_asked_for(nightly, tmp_path):
    asked = {
        "junit": "junit.xml", "step_summary": "summary.md", "jsonl": "cases.jsonl", "prometheus": "night.prom", "html": "html",
    }  # fmt: skip
    options = [part for name, place in asked.items() for part in (f"--{name}", tmp_path / place)]

    answer = nightly(*options, "--json")

    document = json.loads(answer.out)
    night_id = document["night_id"]
    assert (answer.code, document["outcome"]) == (0, "pass")
    assert {str(tmp_path / place) for place in list(asked.values())[:-1]} <= set(document["report"])
    assert Xml.parse(tmp_path / "junit.xml").getroot().get("tests") == "1"
    assert "| good | pass |" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / "cases.jsonl").read_text())["night_id"] == night_id
    assert 'case="good",outcome="pass"} 1.0' in (tmp_path / "night.prom").read_text()
    assert f"{night_id}.html#case-good" in (tmp_path / "html" / "index.html").read_text()
    assert (tmp_path / "html" / f"{night_id}.html").is_file()


def test_outputs_that_cannot_work_start_nothing(nightly, tmp_path):
    answer = nightly("--junit", tmp_path / "no" / "junit.xml", "--prometheus", tmp_path / "x.txt")

    assert answer.code == 2
    assert "--junit" in answer.err
    assert "--prometheus" in answer.err
    assert not (tmp_path / "results").exists()


def test_a_webhook_is_told_and_its_address_is_written_nowhere(nightly, server, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/{CANARY}")

    answer = nightly("--webhook", "--html", tmp_path / "html")

    ((path, body),) = server.received
    assert path == f"/{CANARY}"
    assert body["text"].startswith("Replayed: PASS (exit 0): nothing to look at")
    assert CANARY not in answer.out + answer.err
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if CANARY.encode() in path.read_bytes()]


def test_a_webhook_that_fails_is_told_and_changes_nothing(nightly, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"http://{CANARY.lower()}.invalid/{CANARY}")

    answer = nightly("--webhook")

    assert answer.code == 0
    assert "the webhook was not told: the server was not reached" in answer.err
    assert CANARY.lower() not in (answer.out + answer.err).lower()


def test_a_webhook_without_an_address_starts_nothing(nightly, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)

    answer = nightly("--webhook")

    assert (answer.code, (tmp_path / "results").exists()) == (2, False)
    assert f"{VARIABLE} is not set" in answer.err


def test_every_wrong_option_is_told_at_once(nightly, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)

    answer = nightly("--webhook", "--prometheus", tmp_path / "x.txt", "--detach")

    assert answer.code == 2
    for told in (f"{VARIABLE} is not set", "node-exporter reads only *.prom", "it waits for its jobs"):
        assert told in answer.err


def test_nobody_is_told_unless_asked(nightly, server, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/{CANARY}")

    nightly()

    assert server.received == []
