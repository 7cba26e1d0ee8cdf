"""The batch file of a job: its text, its quoting, what reaches it of the shell, and values that it refuses."""

import subprocess
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.slurm_job import slurm_job
from harness.records.batches import BatchLaunch
from harness.records.folders import checkout_dir
from harness.records.job import SlurmOptions
from tests.cluster.conftest import job_record
from tests.commands import refused

EXPECTED = Path(__file__).parents[1] / "data" / "slurm" / "job.sbatch"
SHELL = {"HOME": "/home/ann", "PATH": "/usr/bin:/bin", "NCCL_DEBUG": "WARN", "SLURM_JOB_ID": "7", "EDITOR": "vi"}


@pytest.fixture
def make_job():
    def make(shell=None, launch=None, job_dir="/scratch/results/jobs/JOB", **options):
        record = job_record(
            job_dir, name="mbr-perf.llama3_70b", nnodes=4, gpus_per_node=8, launch=launch or BatchLaunch(),
            results_dir="/scratch/results", options=SlurmOptions(**{"time_limit_minutes": 30} | options),
        )  # fmt: skip
        host = Host(python="/opt/mbr-perf/bin/python", hostname="login", num_cores=4, shell=shell or SHELL)
        return slurm_job(record, host)

    return make


def directives(job):
    return [line.removeprefix("#SBATCH --") for line in job.render().splitlines() if line.startswith("#SBATCH")]


def test_the_whole_file_is_as_kept(make_job):
    asked = make_job(
        partition="batch", account="perf", qos="high", reservation="nightly", constraint="h100&ib", segment=2
    )  # fmt: skip
    assert EXPECTED.read_text() == asked.render()


def test_variables_passed_by_name_are_named_to_sbatch_and_their_values_are_nowhere(make_job):
    job = make_job(shell={**SHELL, "HF_TOKEN": "canary"}, launch=BatchLaunch(pass_env=("HF_TOKEN", "WANDB_MODE")))
    assert job.submit_command[2] == "--export=HF_TOKEN,WANDB_MODE"
    assert "canary" not in job.render()
    assert not any("canary" in word for word in job.submit_command)


@pytest.mark.parametrize("name", ["NVIDIA_API_KEY", "CUDA_VISIBLE_DEVICES", "SLURM_NNODES", "TMPDIR"])
def test_a_variable_that_is_secret_by_name_or_true_of_the_submitting_machine_only_is_not_exported(make_job, name):
    text = make_job(shell={**SHELL, name: "canary"}).render()
    assert f"export {name}=" not in text and "canary" not in text


def test_a_variable_whose_value_looks_secret_is_left_out_and_named(make_job):
    job = make_job(shell={**SHELL, "UCX_URL": "https://ann:canary@host/"})
    assert job.left_out == ("UCX_URL",)
    assert "canary" not in job.render()


@pytest.mark.parametrize(
    "value", ["a'b", 'a"b', "$(touch canary)", "`touch canary`", "a\nb\n#SBATCH --nodes=9", "$HOME", "a\\", "ä ", "*"]
)
def test_an_exported_value_arrives_byte_for_byte(make_job, value, tmp_path):
    exports = [part for part in make_job(shell={"NCCL_X": value}).render().split("\n\n") if "export NCCL_X" in part]
    out = tmp_path / "out"
    script = f'cd {tmp_path}\n{exports[0]}\nprintf %s "$NCCL_X" > {out}'
    subprocess.run(["/bin/bash", "-c", script], env={}, timeout=20, check=True)
    assert out.read_text() == value
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "directive"),
    [
        ({"gpus": "gpus-per-node"}, "gpus-per-node=8"),
        ({"gpus": "gres"}, "gres=gpu:8"),
        # A short job is warned later than at once.
        ({"time_limit_minutes": 1}, "signal=B:USR1@15"),
        ({"time_limit_minutes": 5}, "signal=B:USR1@75"),
        ({"time_limit_minutes": 600}, "signal=B:USR1@90"),
    ],
)
def test_gpus_and_signals_are_asked_for_as_the_cluster_wants_it(make_job, options, directive):
    assert directive in directives(make_job(**options))


def test_a_cluster_without_gpus_is_not_asked_for_them(make_job):
    assert not [line for line in directives(make_job(gpus="none")) if "gpu" in line.partition("=")[0]]


def test_a_container_sees_results_and_checkout_where_they_are(make_job):
    text = make_job(container_image="nvcr.io#nvidia/nemo:25.02", container_mounts=("/data:/data:ro",)).render()
    checkout = checkout_dir()
    assert "--container-image='nvcr.io#nvidia/nemo:25.02' \\\n" in text
    assert f"{checkout}:{checkout}" in text
    assert "/scratch/results:/scratch/results" in text
    assert ",/data:/data:ro \\\n" in text
    assert "  python3 -m harness.cluster.task " in text


def test_every_value_that_no_file_can_hold_is_named_at_once(make_job):
    launch = BatchLaunch(pass_env=("ALL",))
    with pytest.raises(BadRequestError) as caught:
        make_job(
            job_dir="/scratch/a b", launch=launch, partition="x\ntouch F", account="$(id)", qos="", reservation="r;s",
            constraint="a b", container_image="i\nj", python="",
        )  # fmt: skip
    message = str(caught.value)
    options = ("--results_dir", "--partition", "--account", "--qos", "--reservation", "--constraint",
               "--container_image", "--slurm_python", "--pass_env")  # fmt: skip
    assert [option for option in options if f"{option} " not in message] == []


def test_mounts_need_a_container_and_a_folder_that_their_list_can_name(make_job):
    refused(lambda: make_job(container_mounts=("/a:/a",)), "--container_mounts ")
    refused(lambda: make_job(job_dir="/scratch/a,b", container_image="image"), "'/scratch/a,b' ")
