"""What collectors put around the lines of a log: the text, its node and its rank stay the same."""

import json

import pytest

from harness.foreign.logs.lines import log_lines

LINES = ("loading", "Traceback (most recent call last):", "    run()", "KeyError: 'tokens'", "end")


@pytest.mark.parametrize(
    ("wrap", "host"),
    [
        (lambda line: f"(TrainWorker pid=77, ip=10.0.0.7) {line}", "10.0.0.7"),
        (lambda line: f"(my-job, pid=77) {line}", None),
        (lambda line: f"\x1b[36m(Worker(actor-1) pid=77)\x1b[0m {line}", None),
        (lambda line: f"[pod/worker-2/pytorch] {line}", "worker-2"),
        (lambda line: f"trainer-1  | {line}", "trainer-1"),
        (lambda line: f"node07: {line}", "node07"),
        (lambda line: f"Aug 21 14:00:01 node07 train[77]: {line}", "node07"),
        (lambda line: f"2026-08-21T14:00:01.5Z stderr F {line}", None),
        (lambda line: f"2026/08/21 14:00:01 {line}", None),
        (lambda line: f"> {line}", None),
        (lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr"}), None),
        (lambda line: json.dumps({"severity": "ERROR", "message": line}), None),
    ],
)
def test_what_a_collector_puts_around_a_line_is_taken_away(tmp_path, wrap, host):
    (tmp_path / "a.log").write_text("\n".join(map(wrap, LINES)) + "\n")
    read = list(log_lines([tmp_path / "a.log"]))
    assert [line.text for line in read] == [line.strip() for line in LINES]
    assert {line.host for line in read} == {host}


def test_several_lines_in_one_json_object_are_lines(tmp_path):
    (tmp_path / "a.log").write_text(json.dumps({"level": "error", "msg": "\n".join(LINES)}) + "\n")
    assert [line.text for line in log_lines([tmp_path / "a.log"])] == [line.strip() for line in LINES]
