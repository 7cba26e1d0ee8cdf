"""Chooses the kind of a job by its options."""

from harness.errors import BadRequestError
from harness.launch import kubeflow_job, slurm_job
from harness.launch.cluster_job import ClusterJob
from harness.launch.environment import Host
from harness.records.job import JobOptions, JobRecord


def cluster_job(record: JobRecord, host: Host) -> ClusterJob:
    """Return the job of ``record``. One BadRequestError for all values that the job's file cannot hold."""
    if record.options.launcher == "slurm":
        return slurm_job.slurm_job(record, host)
    return kubeflow_job.kubeflow_job(record, host)


def option_problems(asked: JobOptions, pass_env: tuple[str, ...]) -> list[BadRequestError]:
    """Return the problems of the options alone: values that the job's file cannot hold."""
    if asked.launcher == "slurm":
        return slurm_job.option_problems(asked, pass_env)
    return kubeflow_job.option_problems(asked, pass_env)
