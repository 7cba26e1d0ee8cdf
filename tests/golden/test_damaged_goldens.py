"""With a golden that cannot be read nothing passes; every command that reads goldens names it."""

import json

import pytest

from tests.nightly.night_recordings import Stage


@pytest.fixture(name="stage")
def _stage(tmp_path, mbr_perf):
    """A suite of one case with an optional golden, measured once and promoted; the night replays it."""
    made = Stage(tmp_path, {"dense": "golden: optional"})
    made.record("dense", 0)
    mbr_perf(*made.arguments())
    made.promote("dense")
    return made


def golden_of(stage):
    (path,) = stage.goldens.glob("*/*.json")
    return path


def value_as(stage, text):
    """Replace the golden's throughput with the text; return its line."""
    path = golden_of(stage)
    throughput = json.loads(path.read_text())["metrics"]["tflops_per_gpu"]["value"]
    path.write_text(path.read_text().replace(f'"value": {throughput}', f'"value": {text}'))
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if f'"value": {text}' in line)


@pytest.mark.slow
def test_a_night_with_a_damaged_golden_is_inconclusive_even_if_none_is_required(stage, mbr_perf):
    line = value_as(stage, "NaN")
    answer = mbr_perf(*stage.arguments("--json"))
    case = json.loads(answer.out)["cases"][0]
    assert (answer.code, case["outcome"]) == (6, "inconclusive")
    assert f"{golden_of(stage)}:{line}: metrics.tflops_per_gpu.value: " in case["reason"]
    shown = mbr_perf(*stage.arguments())
    assert "no golden" not in shown.out


def test_the_list_of_goldens_names_the_damaged_one_and_lists_the_others(stage, mbr_perf):
    whole = golden_of(stage)
    damaged = whole.with_name("other.json")
    damaged.write_text(whole.read_text()[:100])
    shown = mbr_perf("golden", "list", "--golden_dir", stage.goldens)
    assert shown.code == 6
    assert f"{whole.parent.name}/{whole.name}" in shown.out
    assert f": {damaged}:" in shown.out
    document = json.loads(mbr_perf("golden", "list", "--golden_dir", stage.goldens, "--json").out)
    assert [row["path"] for row in document["goldens"]] == [str(whole)]
    assert [row["path"] for row in document["damaged"]] == [str(damaged)]
