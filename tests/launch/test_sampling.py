"""The sampler frames the ranks: it looks first and writes last."""

import json
import sys
from dataclasses import replace

import pytest

from tests.launch.conftest import run

SAMPLER = """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
ranks_at_first_look = len(list(out.parent.glob("pid_*")))
def finish(number, frame):
    out.write_text(json.dumps({"at_start": ranks_at_first_look, "at_end": len(list(out.parent.glob("pid_*")))}))
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
time.sleep(0.3)
out.write_text("{}")
time.sleep(60)
"""


@pytest.fixture
def sampled(scripted, tmp_path):
    """A plan with a sampler of this code; its script stands where the real one has `-m harness.engine.nvml`."""

    def make(code, *options):
        plan, script = scripted("ok"), tmp_path / "sampler.py"
        script.write_text(code)
        out = str(plan.run_dir / "ranks" / "nvml_n.json")
        return replace(plan, sampler=(sys.executable, str(script), "sample", "--out", out, *options))

    return make


def test_the_sampler_looks_before_the_first_rank_and_after_the_last(sampled):
    plan = sampled(SAMPLER)
    outcome = run(plan)
    assert (outcome.status, outcome.unwatched) == ("ok", None)
    assert json.loads(plan.sampler_file.read_text()) == {"at_start": 0, "at_end": 2}


def test_a_sampler_that_dies_does_not_stop_the_run_and_an_earlier_sample_is_not_taken_for_its_own(sampled):
    plan = sampled("raise SystemExit('no driver')")
    plan.sampler_file.parent.mkdir(parents=True)
    plan.sampler_file.write_text("old")
    outcome = run(plan)
    assert outcome.status == "ok" and "code 1" in outcome.unwatched
    assert plan.sampler_log.read_text() == "no driver\n"
    assert not plan.sampler_file.exists()
