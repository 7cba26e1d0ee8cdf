"""What `mbr-perf nightly` writes for others, and the guide's programs that send its JSON on."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as Xml

import pytest
import typer.main
import yaml

from harness.app import app

REPLAYS = Path(__file__).parents[1] / "data" / "replay"
GUIDE = Path(__file__).parents[2] / "harness" / "nightly" / "README.md"


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
    asked = {"junit": "junit.xml", "step_summary": "summary.md", "html": "html"}
    options = [part for name, place in asked.items() for part in (f"--{name}", tmp_path / place)]
    answer = nightly(*options, "--json")
    document = json.loads(answer.out)
    night_id = document["night_id"]
    assert (answer.code, document["outcome"]) == (0, "pass")
    assert {str(tmp_path / place) for place in list(asked.values())[:-1]} <= set(document["report"])
    assert Xml.parse(tmp_path / "junit.xml").getroot().get("tests") == "1"
    assert "| good | pass |" in (tmp_path / "summary.md").read_text()
    index = (tmp_path / "html" / "index.html").read_text()
    names = {path.name for path in (tmp_path / "html").glob("*.html")} - {"index.html"}
    assert (len(names), f"{night_id}.html" in names) == (2, True)
    assert [name for name in names if quote(name) not in index] == []


def test_a_junit_file_that_is_a_link_stays_one(nightly, tmp_path):
    target, link = tmp_path / "target.xml", tmp_path / "link.xml"
    target.write_text("an earlier night")
    link.symlink_to(target)
    assert (nightly("--junit", link).code, link.is_symlink()) == (0, True)
    assert Xml.parse(target).getroot().get("tests") == "1"
    full = tmp_path / "full.xml"
    full.symlink_to("/dev/full")
    answer = nightly("--junit", full)
    assert (answer.code, full.is_symlink(), "No space left" in answer.err) == (0, True, True)


def test_a_night_that_breaks_off_leaves_no_junit_file_of_an_earlier_night(nightly, mbr_perf, tmp_path):
    night_dir = Path(json.loads(nightly("--junit", tmp_path / "junit.xml", "--json").out)["night_dir"])
    shutil.rmtree(night_dir / "cases" / "good")
    (night_dir / "cases" / "good").write_text("a file")
    answer = mbr_perf("nightly", "--resume", night_dir, "--junit", tmp_path / "junit.xml")
    assert (answer.code, (tmp_path / "junit.xml").exists()) == (3, False)
    assert f"mbr-perf nightly --resume {night_dir}" in answer.err


def test_outputs_that_cannot_work_start_nothing(nightly, tmp_path):
    answer = nightly("--junit", tmp_path / "no" / "junit.xml", "--html", REPLAYS / "replayed.yaml")
    assert (answer.code, "--junit" in answer.err, "--html" in answer.err) == (2, True, True)
    assert not (tmp_path / "results").exists()


def program(name):
    """The program that the guide shows under this name."""
    found = re.search(rf"`{name}`:\n\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None, name
    assert len(found[1].splitlines()) <= 10
    return found[1]


def test_the_guide_s_slack_program_posts_the_night(nightly, server):
    night = nightly("--json").out
    url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    command = [sys.executable, "-c", program("to_slack.py")]
    subprocess.run(command, input=night, text=True, check=True, env={"SLACK_WEBHOOK_URL": url}, timeout=60)
    assert server.received == [("/hook", {"text": "Replayed: pass (exit 0)"})]


def test_the_guide_s_gitlab_job_runs_a_command_that_exists(nightly):
    (job,) = yaml.safe_load(re.search(r"```yaml\n(nightly:.*?)```", GUIDE.read_text(), re.DOTALL)[1]).values()
    assert job["artifacts"]["reports"]["junit"] in job["script"][0]
    command = typer.main.get_command(app).commands["nightly"]
    command.make_context("nightly", shlex.split(job["script"][0])[2:])


def test_the_guide_s_prometheus_program_writes_gauges(nightly):
    night = json.loads(nightly("--json").out)
    night["cases"][0]["comparison"] = [{"metric": "step_time_s", "current": 0.5}, {"metric": "mfu", "current": None}]
    command = [sys.executable, "-c", program("to_prometheus.py")]
    text = subprocess.run(
        command, input=json.dumps(night), text=True, check=True, capture_output=True, timeout=60
    ).stdout
    labels = f'{{suite="{night["suite"]}",case="good"}}'
    assert text.splitlines() == [f"mbr_perf_case_exit_code{labels} 0", f"mbr_perf_case_step_time_s{labels} 0.5"]
