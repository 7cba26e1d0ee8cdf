"""`mbr-perf nightly --aa`, with recorded runs in place of training."""

import json
from html import unescape
from xml.etree import ElementTree as Xml

import pytest

from harness.history.store import read_history
from tests.nightly.night_recordings import PORT_TAKEN, SECONDS, Stage, cut_short

FIRST = 3  # number of the first A/A run of a case of three repeats
LABELS = ["A", "A'", "A'", "A", "A", "A'", "A'", "A"]


@pytest.fixture(name="nightly")
def _nightly(mbr_perf):
    return lambda stage, *more: mbr_perf(*stage.arguments(*more))


@pytest.fixture(name="recorded")
def _recorded(tmp_path):
    """A case of three repeats that needs no golden, and its A/A, A' ``slower`` than A; ``failures`` by number."""

    def build(slower=1.0, failures=None, **cases):
        stage = Stage(tmp_path, cases or {"dense": "repeats: 3, golden: optional"})
        for number in range(FIRST):
            stage.record("dense", number)
        for number, label in enumerate(LABELS, FIRST):
            stage.record("dense", number, SECONDS * (slower if label == "A'" else 1.0), (failures or {}).get(number))
        return stage

    return build


def parsed(answer):
    document = json.loads(answer.out)
    return document, {case["name"]: case for case in document["cases"]}


def verdicts(case):
    return {row["metric"]: row["verdict"] for row in case["comparison"] if row["verdict"] != "not_gated"}


@pytest.mark.slow
def test_an_aa_that_holds_lets_the_night_be_judged_and_adds_nothing_to_history(recorded, nightly, tmp_path):
    answer = nightly(recorded(), "--aa", "--json")
    document, cases = parsed(answer)
    aa = document["aa"]
    assert (answer.code, document["outcome"], cases["dense"]["outcome"]) == (0, "pass", "pass")
    assert (aa["case"], aa["holds"], aa["num_pairs"], aa["alpha"]) == ("dense", True, 4, 0.01)
    assert [(run["number"], run["label"], run["status"]) for run in aa["runs"]] == [
        (number, label, "ok") for number, label in enumerate(LABELS, FIRST)
    ]
    assert [run["number"] for run in cases["dense"]["runs"]] == [0, 1, 2]
    assert len(read_history(tmp_path / "results")) == 3
    shown = tmp_path / "results" / "nights" / document["night_id"] / "report" / "night.md"
    assert "A/A of dense, 4 pairs, replayed: nothing was measured: holds" in " ".join(shown.read_text().split())


@pytest.mark.slow
def test_where_the_aa_differs_a_regression_is_inconclusive_memory_is_judged_and_every_report_shows_it(
    recorded, nightly, mbr_perf, tmp_path
):
    stage = recorded(slower=1.1, dense="repeats: 3")
    nightly(stage, "--confirm", "0")
    stage.promote("dense", faster=1.2)
    answer = nightly(stage, "--aa", "--confirm", "0", "--junit", tmp_path / "junit.xml")
    folder = stage.newest().night_dir / "report"
    document = json.loads((folder / "night.json").read_text())
    [case] = document["cases"]
    assert (answer.code, document["outcome"], document["aa"]["holds"]) == (6, "inconclusive", False)
    assert verdicts(case) == {"tflops_per_gpu": "inconclusive", "peak_allocated_bytes": "pass"}
    speed = next(row for row in document["aa"]["comparison"] if row["metric"] == "tflops_per_gpu")
    assert speed["change"] == pytest.approx(1 / 1.1 - 1, abs=2e-3)
    assert speed["p_value"] < 1e-6
    doubt = "tonight's own A/A differs: TFLOP/s/GPU by -9.0 %"
    assert doubt in case["reason"]
    assert "the A/A of dense" in answer.out
    for text in (answer.out, (folder / "night.md").read_text(), (folder / "night.html").read_text()):
        assert doubt in " ".join(unescape(text).replace("\\", "").split())
    [test] = Xml.parse(tmp_path / "junit.xml").getroot().iterfind(".//testcase[@name='A/A']")
    assert doubt in test.find("skipped").get("message")
    assert doubt in document["aa"]["doubts"]["time"]
    voided = [set(kept.voided) for kept in read_history(tmp_path / "results") if kept.night_id == folder.parent.name]
    assert len(voided) == 3 and all("tflops_per_gpu" in names for names in voided)
    assert not any("peak_allocated_bytes" in names for names in voided)
    for what in ((folder.parent, "--every"), (folder.parent / "cases" / "dense" / "0",)):
        promoted = mbr_perf("golden", "promote", *what, "--reason", "new", "--golden_dir", stage.goldens)
        assert (promoted.code, doubt in " ".join(promoted.err.split())) == (2, True)


@pytest.mark.slow
def test_a_night_that_is_inconclusive_by_its_aa_alone_is_listed_and_shown_as_such(
    recorded, nightly, mbr_perf, tmp_path
):
    answer = nightly(recorded(failures={5: PORT_TAKEN}), "--aa", "--json")
    night_id, results = json.loads(answer.out)["night_id"], ("--results_dir", tmp_path / "results")
    assert "1 case: 1 ok; judged inconclusive" in mbr_perf("results", "list", *results).out
    shown = " ".join(mbr_perf("results", "show", night_id, *results).out.split())
    assert "1 case: 1 ok; judged inconclusive: tonight's own A/A failed: run 5: " in shown
    (tmp_path / "results" / "nights" / night_id / "report" / "night.json").write_text("[]")
    assert "1 ok; judged, but" in mbr_perf("results", "list", *results).out


@pytest.mark.slow
def test_a_night_with_an_aa_that_was_killed_and_resumed_equals_an_unbroken_one(recorded, nightly, mbr_perf, tmp_path):
    document, unbroken = parsed(nightly(recorded(slower=1.1), "--aa", "--aa_pairs", "3", "--json"))
    whole = tmp_path / "results" / "nights" / document["night_id"]
    for num_events in (1, 4, 8):
        copy = tmp_path / "results" / "nights" / f"cut-{num_events}"
        cut_short(whole, num_events, copy)
        answer = mbr_perf("nightly", "--resume", copy, "--json")
        again, cases = parsed(answer)
        assert answer.code == 6
        assert [run["label"] for run in again["aa"]["runs"]] == LABELS[:6]
        assert [run["number"] for run in cases["dense"]["runs"]] == [run["number"] for run in unbroken["dense"]["runs"]]
        for key in ("doubts", "comparison"):
            assert again["aa"][key] == document["aa"][key]


@pytest.mark.slow
def test_the_cheapest_case_that_can_be_measured_is_the_aa(tmp_path, nightly):
    stage = Stage(
        tmp_path,
        {
            "dense": "repeats: 1",
            "short": "request: {max_steps: 2}",
            "quick": "request: {recompute: none, max_steps: 5}",
            "lost": "request: {recompute: moe_act, max_steps: 3}",
        },
    )
    answer = nightly(stage, "--aa", "--dryrun")
    assert "8 runs of quick as the night's A/A" in answer.out.splitlines()[0]


@pytest.mark.slow
def test_an_aa_that_cannot_be_is_a_wrong_request(tmp_path, nightly):
    stage = Stage(
        tmp_path,
        {
            "dense": "repeats: 1",
            "lost": "request: {recompute: moe_act}",
            "short": "request: {max_steps: 2}",
            "big": "expected: {outcome: oom, until: '2099-01-01', reason: large}, request: {recompute: none}",
        },
    )
    for arguments, *expected in (
        (
            ("--aa_case", "dens", "--aa_pairs", "2", "--confirm", "-1", "--shard", "5/3", "--from", "x"),
            *("add --aa", "--aa_pairs 2", "did you mean 'dense'?", "--confirm -1", "--shard 5/3"),
        ),
        (("--aa", "--aa_case", "lost"), "--aa_case lost: refused: "),
        (("--aa", "--only", "lost"), "--aa: no case can run as the A/A"),
        (("--aa", "--aa_case", "short"), "1 step in its window"),
        (("--aa", "--aa_case", "big"), "--aa_case big: expected to end as oom"),
    ):
        answer = nightly(stage, *arguments, "--dryrun")
        assert (answer.code, [text for text in expected if text not in " ".join(answer.err.split())]) == (2, [])
    assert not stage.nights.exists()
