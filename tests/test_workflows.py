"""GitHub can read the workflows, the guide to nights shows one of them, and the command in it runs."""

import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture(name="workflow")
def _workflow():
    return yaml.load((WORKFLOWS / "nightly.yml").read_text(), Loader=yaml.BaseLoader)


@pytest.mark.parametrize("name", ["check", "nightly"])
def test_a_workflow_has_what_github_needs(name):
    workflow = yaml.load((WORKFLOWS / f"{name}.yml").read_text(), Loader=yaml.BaseLoader)
    (job,) = workflow["jobs"].values()

    assert set(workflow) >= {"name", "on", "permissions", "jobs"}
    assert set(job) >= {"runs-on", "steps", "timeout-minutes"}
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert all((ROOT / step["run"].split()[0]).is_file() for step in job["steps"] if "run" in step)


def test_the_nightly_workflow_keeps_the_reports(workflow):
    (job,) = workflow["jobs"].values()

    assert job["steps"][-1]["with"]["path"].split() == ["junit.xml", "pages", "results/nights"]


def test_its_command_is_understood_as_it_stands(workflow, mbr_perf, tmp_path, monkeypatch):
    (line,) = [step["run"] for step in workflow["jobs"]["nightly"]["steps"] if "run" in step]
    script, *words = shlex.split(line.replace("$GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md")))
    monkeypatch.chdir(tmp_path)

    answer = mbr_perf(*words, "--results_dir", tmp_path / "results", "--dryrun")

    assert (ROOT / script).is_file()
    assert answer.code == 0, answer.err
    assert "dense" in answer.out
