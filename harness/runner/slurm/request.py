"""What `--launcher slurm` asks for beyond a run: Slurm's options, and whether to wait for the job."""

from dataclasses import dataclass

from harness.records.job import SlurmOptions


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """``submit`` False: prepare the job and stop. ``detach``: submit it and do not wait. ``array``: a task per cell."""

    options: SlurmOptions
    submit: bool = True
    detach: bool = False
    array: bool = False
