"""The wheel as users get it, and the workflows of CI."""

import json
import os
import shlex
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from harness.predict.shipped_traces import shipped_releases
from tests.commands import Answer
from tests.imported_logs import EXPANDABLE, TABLE, job_log

ROOT = Path(__file__).parents[1]
LOGS = {"good.log": f"core_attn {EXPANDABLE}", "oom.log": "core_attn"}
POINT = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32")


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution with all that it requires without extras, by name."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name.lower(), found)
    return found


@pytest.fixture(scope="module", name="environment")
def _environment(tmp_path_factory):
    """The commands of a fresh environment with the built wheel, and with links to the dependencies that it declares."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "environment", symlinks=True)
    (packages,) = (folder / "environment" / "lib").glob("python*/site-packages")
    for name, dependency in needed("mbr-perf", {}).items():
        tops = {file.parts[0] for file in dependency.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops if name != "mbr-perf" else ():
            (packages / top).symlink_to(dependency.locate_file(top))
    # pip itself requires that all dependencies are there: it may fetch none.
    own = folder / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", own, "install", "--no-index", wheel]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    return folder / "environment" / "bin"


@pytest.fixture(scope="module", name="elsewhere")
def _elsewhere(environment, tmp_path_factory):
    """Runs the installed command in one folder that held nothing but logs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, label in LOGS.items():
        (folder / name).write_text(job_log(next(job for job in TABLE if job.label == label)))
    home = tmp_path_factory.mktemp("home")

    def call(*arguments):
        settings = {"PATH": f"{environment}:{os.defpath}", "HOME": str(home)}
        command = [environment / "mbr-perf", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=60
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


def tree(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_it_ships_every_recipe_sweep_suite_and_golden(environment):
    (data,) = environment.parent.glob("lib/python*/site-packages/harness/_data")

    assert tree(data / "recipes") == tree(ROOT / "recipes")
    assert tree(data / "golden") == tree(ROOT / "results" / "golden")
    assert tree(data / "traces") == tree(ROOT / "results" / "traces")


@pytest.mark.slow
def test_it_lists_what_it_ships(elsewhere):
    assert "llama3_70b" in elsewhere("recipes", "list").out
    assert "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn" in elsewhere("golden", "list").out
    assert json.loads(elsewhere("schema", "plan").out)["title"] == "mbr-perf plan"


@pytest.mark.slow
def test_what_training_needs_is_really_absent(elsewhere):
    found = {line["name"]: line["found"] for line in json.loads(elsewhere("doctor", "--json").out)["lines"]}
    assert [found[name].startswith("not installed") for name in ("torch", "megatron-core")] == [True, True]
    assert found["GPU"].startswith("none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("recipes validate", "operating points"),
        ("compare good.log good.log", "TFLOP/s/GPU"),
        ("diagnose oom.log", "Fragmentation"),
        ("import --log good.log -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32", "54.95 GiB"),
        ("run -mr llama3_8b -g h100 -ng 8 --dryrun", "8 x H100 80GB SXM"),
    ],
)
def test_a_login_node_does_everything_but_train(elsewhere, words, says):
    answer = elsewhere(*words.split())
    assert (answer.code, answer.err, says in answer.out) == (0, "", True)


@pytest.mark.slow
@pytest.mark.parametrize("release", shipped_releases())
def test_an_assumed_release_has_traces_of_its_own(elsewhere, release):
    answer = elsewhere("plan", *POINT, "--assume", f"megatron-core={release},transformer-engine=2.11", "-v")

    assert answer.code == 0, answer.err
    assert f" megatron-core {release} " in " ".join(answer.out.split())


@pytest.mark.slow
def test_an_assumed_release_without_traces_is_no_other_one(elsewhere):
    answer = elsewhere("plan", *POINT, "--assume", "megatron-core=0.18.0,transformer-engine=2.11")

    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert " megatron-core 0.16.1" in said and " 0.18.0" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", [("plan", *POINT, "-sl", "2048"), ("run", "-mr", "llama3_8b")])
def test_what_needs_torch_says_what_to_install(elsewhere, command):
    answer = elsewhere(*command)

    assert answer.code == 2
    assert "torch" in answer.err
    assert answer.err.count("pip install 'mbr-perf[train]'") == 1
    assert "Traceback" not in answer.err


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
