"""The workflow in the guide to nights is one that GitHub reads, and its command one that runs."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(name="workflow")
def _workflow():
    (text,) = re.findall(
        r"```yaml\n(name: nightly\n.*?)```", (ROOT / "harness" / "night" / "README.md").read_text(), re.DOTALL
    )
    return yaml.load(text, Loader=yaml.BaseLoader)


def test_the_workflow_has_what_a_workflow_needs(workflow):
    (job,) = workflow["jobs"].values()

    assert set(workflow) >= {"on", "jobs"}
    assert set(job) >= {"runs-on", "steps"}
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert job["steps"][-1]["with"]["path"].split() == ["junit.xml", "pages", "results/nights"]


def test_its_command_is_understood_as_it_stands(workflow, mbr_perf, tmp_path, monkeypatch):
    (line,) = [step["run"] for step in workflow["jobs"]["nightly"]["steps"] if "run" in step]
    script, *words = shlex.split(line.replace("$GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md")))
    monkeypatch.chdir(tmp_path)

    answer = mbr_perf(*words, "--results_dir", tmp_path / "results", "--dryrun")

    assert (ROOT / script).is_file()
    assert answer.code == 0, answer.err
    assert "dense" in answer.out
