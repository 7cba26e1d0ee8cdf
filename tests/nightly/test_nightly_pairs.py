"""`mbr-perf nightly --against`, with recorded runs in place of training."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from harness.history.store import read_history
from harness.records.batches import EVENTS
from harness.records.night import pair_label
from tests.environments import environment
from tests.nightly.night_recordings import SECONDS, Stage, cut_short

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FIRST = 3  # number of the first run of the pairs, after three repeats
LABELS = ["old", "new", "new", "old", "old", "new", "new", "old", "old", "new"]


@pytest.fixture(name="old_build", scope="session")
def _old_build(tmp_path_factory):
    return environment(tmp_path_factory.mktemp("old") / "env").parent.parent


@pytest.fixture(name="recorded")
def _recorded(tmp_path, nightly):
    """A case of three repeats, its golden ``faster`` than it, and pairs in which the new build is that much ``slower``."""

    def build(slower=1.0, faster=1.2, failures=None, noise=0.0):
        stage = Stage(tmp_path, {"dense": "repeats: 3"})
        for number in range(FIRST):
            stage.record("dense", number)
        for place in range(len(LABELS)):
            seconds = SECONDS * (slower if pair_label(place) == "new" else 1.0) * (1 + noise * (place % 3))
            stage.record("dense", FIRST + place, seconds, (failures or {}).get(FIRST + place))
        nightly(stage, "--confirm", "0")
        stage.promote("dense", faster)
        return stage

    return build


def parsed(answer):
    document = json.loads(answer.out)
    return document, document["cases"][0]


def speed_in(rows):
    return next(row for row in rows if row["metric"] == "tflops_per_gpu")


def test_a_slower_build_is_red_by_its_pairs_and_every_report_shows_them(
    recorded, nightly, mbr_perf, old_build, tmp_path
):
    stage = recorded(slower=1.1, faster=1.2)
    answer = nightly(stage, "--against", old_build, "--json", "--junit", tmp_path / "junit.xml", "--html", tmp_path / "html")  # fmt: skip
    document, case = parsed(answer)
    pairs = case["pairs"]
    found = speed_in(pairs["comparison"])
    assert (answer.code, document["outcome"], case["outcome"]) == (5, "regression", "regression")
    assert (pairs["against"], pairs["num_pairs"], pairs["fault"]) == (str(old_build), 5, None)
    assert [(run["number"], run["label"]) for run in pairs["runs"]] == list(enumerate(LABELS, FIRST))
    assert (found["change"], found["verdict"]) == (pytest.approx(1 / 1.1 - 1, abs=3e-3), "regression")
    assert found["p_value"] < 1e-3 and found["new"] == pytest.approx(found["old"] / 1.1, rel=3e-3)
    assert [run["purpose"] for run in case["runs"]] == ["repeat"] * 3
    assert len(read_history(tmp_path / "results")) == 6  # of two nights, without the pairs
    shown = "-9.0 % against the old"
    report = stage.newest().night_dir / "report"
    assert shown in case["reason"]
    [test] = Xml.parse(tmp_path / "junit.xml").getroot().iterfind(".//testcase")
    pages = [path.read_text() for path in (tmp_path / "html").glob("*suite*.html")]
    assert shown in test.find("failure").get("message") and "old" in test.find("system-out").text
    assert any("New build against the old one" in page for page in pages)
    assert shown in (report / "night.md").read_text().replace("\\", "")
    plan = json.loads((stage.newest().night_dir / "night.json").read_text())
    assert plan["against"]["build"]["python"] == str(old_build / "bin" / "python")


def test_a_case_that_the_golden_calls_slower_is_green_if_the_old_build_is_as_slow(recorded, nightly, old_build):
    stage = recorded(slower=1.0, faster=1.2)
    assert nightly(stage).code == 5
    document, case = parsed(nightly(stage, "--against", old_build, "--json"))
    assert (document["exit_code"], case["outcome"], len(case["pairs"]["runs"])) == (0, "pass", 10)
    assert speed_in(case["comparison"])["verdict"] == "pass"
    assert speed_in(case["comparison"])["change"] < -0.15
    (golden,) = stage.goldens.rglob("*.json")
    for damage in (lambda: golden.write_text("{}"), golden.unlink):
        damage()
        assert nightly(stage).code == 6
        document, case = parsed(nightly(stage, "--against", old_build, "--json"))
        assert (document["exit_code"], case["outcome"], len(case["pairs"]["runs"])) == (0, "pass", 10)


def test_a_night_that_was_killed_between_pairs_and_resumed_equals_an_unbroken_one(
    recorded, nightly, mbr_perf, old_build, tmp_path
):
    stage = recorded(slower=1.1)
    document, unbroken = parsed(nightly(stage, "--against", old_build, "--json"))
    whole = tmp_path / "results" / "nights" / document["night_id"]
    num_events = len((whole / EVENTS).read_bytes().splitlines())
    for cut in (4, num_events - 3):
        copy = tmp_path / "results" / "nights" / f"cut-{cut}"
        cut_short(whole, cut, copy)
        answer = mbr_perf("nightly", "--resume", copy, "--json")
        _, case = parsed(answer)
        assert (answer.code, case["pairs"]["comparison"]) == (5, unbroken["pairs"]["comparison"])
        assert [run["label"] for run in case["pairs"]["runs"]] == LABELS


def test_a_night_that_is_resumed_from_the_old_environment_names_the_command_that_works(recorded, nightly, old_build):
    document, _ = parsed(nightly(recorded(slower=1.1), "--against", old_build, "--json"))
    works = [sys.executable, "-m", "harness.app", "nightly", "--resume", document["night_dir"]]
    wrong = subprocess.run([old_build / "bin" / "python", *works[1:]], cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert (wrong.returncode, " ".join(works) in " ".join(wrong.stderr.split())) == (2, True), wrong.stderr
    assert subprocess.run(works, cwd=ROOT, capture_output=True, check=False).returncode == 5


def test_last_good_is_the_environment_of_the_last_green_night(recorded, nightly, old_build, tmp_path):
    stage = recorded(slower=1.1, faster=1.2)
    none = nightly(stage, "--against", "last-good")
    line = none.out.partition("\n")[0]
    assert (none.code, "without pairs" in line, "and passed" in none.err) == (5, True, True)
    assert "and passed" in nightly(stage, "--against", "last-good", "--dryrun").out.splitlines()[2]
    good = json.loads(
        nightly(stage, "--only", "dense", "--against", old_build, "--json", "--golden_dir", stage.goldens).out
    )
    folder = tmp_path / "results" / "nights" / good["night_id"]
    for path, changed in ((folder / "report" / "night.json", {"exit_code": 0}), (folder / "night.json", {"python": str(old_build / "bin" / "python")})):  # fmt: skip
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    unjudged = nightly(stage, "--against", "last-good")
    assert (unjudged.code, "and passed" in unjudged.err) == (5, True)
    report = folder / "report" / "night.json"
    report.write_text(report.read_text().replace('"regression"', '"pass"'))
    answer = nightly(stage, "--against", "last-good", "--json")
    _, case = parsed(answer)
    assert (answer.code, case["pairs"]["against"]) == (5, f"last-good ({good['night_id']})")
    plan = json.loads((folder / "night.json").read_text())
    plan["software"]["h100"]["torch"] = "1.0"
    (folder / "night.json").write_text(json.dumps(plan))
    changed = nightly(stage, "--against", "last-good")
    assert (changed.code, "torch 1.0, now" in changed.err) == (5, True)
    (folder / "night.json").write_text(json.dumps(plan | {"python": "/none"}))
    gone = nightly(stage, "--against", "last-good")
    assert (gone.code, "no such file" in gone.err) == (2, True)


def test_every_wrong_environment_is_a_wrong_request(recorded, nightly, tmp_path, program):
    stage = recorded()
    before = len(list(stage.nights.iterdir()))
    lies, broken = program("echo yes", name="lies"), program("echo 'ImportError: no' >&2; exit 1", name="broken")
    (empty := tmp_path / "empty").mkdir()
    for arguments, *expected in (
        *((("--against", path), "--against", str(path)) for path in (tmp_path / "none", empty, stage.suite, lies)),
        (("--against", broken), "ImportError: no"),
        (("--against", sys.executable), "--against"),
        (("--against", tmp_path / "none", "--pairs", "4", "--confirm", "-1"), "--pairs 4", "--confirm -1", "--against"),
        (("--pairs", "5"), "--pairs needs --against"),
    ):
        answer = nightly(stage, *arguments)
        assert (answer.code, answer.out) == (2, ""), arguments
        assert all(text in " ".join(answer.err.split()) for text in expected), answer.err
    assert len(list(stage.nights.iterdir())) == before
