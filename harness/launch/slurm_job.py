"""A Slurm job as a value: which values sbatch can take, the batch file, and the command that submits it."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.launch.cluster_job import CONTAINER_PYTHON, ClusterJob, exported, unfit, warning_s
from harness.launch.environment import Host, inherited
from harness.records.folders import checkout_dir
from harness.records.job import LOGS, JobRecord, SlurmOptions, time_limit_note

# sbatch replaces %, and reads quotes, backslashes, blanks and # in its own way. srun's words are quoted.
_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@:+=/-]*")
_FEATURES = re.compile(r"[A-Za-z0-9_.,&|*()\[\]:=+-]+")
_PATH = re.compile(r"/[A-Za-z0-9_.@+=~/-]*")  # a list of mounts splits at , and :
_QUOTED = re.compile(r"[^\x00-\x1f\x7f]+")
_FILE = "a batch file"


def option_problems(asked: SlurmOptions, pass_env: tuple[str, ...]) -> list[BadRequestError]:
    """Return the problems of the options alone: values that cannot go into a batch file as they are."""
    names = ("partition", "account", "qos", "reservation")
    problems = unfit({f"--{name}": getattr(asked, name) for name in names}, _NAMES, _FILE)
    problems += unfit({"--constraint": asked.constraint}, _FEATURES, _FILE)
    quoted = {"--container_image": asked.container_image, "--slurm_python": asked.python}
    if asked.container_mounts:
        quoted["--container_mounts"] = ",".join(asked.container_mounts)
    problems += unfit(quoted, _QUOTED, _FILE)
    for name in set(pass_env) & {"ALL", "NONE", "NIL"}:
        problems.append(BadRequestError(f"--pass_env {name!r} is an order to sbatch", remedy="leave it out"))
    if asked.container_mounts and asked.container_image is None:
        remedy = "name the image with --container_image, or leave the mounts out"
        problems.append(BadRequestError("--container_mounts without a container", remedy=remedy))
    return problems


# True of the machine where one submits: what it names there is not on the nodes, or Slurm sets it anew on each.
_OF_THIS_MACHINE = re.compile(
    r"SLURM_.*|SBATCH_.*|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|TMPDIR|XDG_(RUNTIME_DIR|SESSION_.*)"
)


@dataclass(frozen=True, kw_only=True)
class SlurmJob(ClusterJob):
    """One task for each node, started by srun."""

    asked: SlurmOptions

    @property
    def submit_command(self) -> tuple[str, ...]:
        """Return the command. The job gets only variables that the file exports or that are passed by name."""
        names = ",".join(self.record.launch.pass_env) or "NIL"
        return ("sbatch", "--parsable", f"--export={names}", str(self.record.script_path))

    @property
    def test_only(self) -> tuple[str, ...]:
        """Asks Slurm what it makes of the options; nothing is queued and no file is read."""
        options = (f"--{directive}" for directive in self._directives())
        return ("sbatch", "--test-only", "--export=NIL", *options, "--wrap=true")

    def render(self) -> str:
        """Return the batch file, whole."""
        directives = "\n".join(f"#SBATCH --{directive}" for directive in self._directives())
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.environment)
        left_out = f"\n# not exported, their values look secret: {' '.join(self.left_out)}" if self.left_out else ""
        return _TEMPLATE.format(
            directives=directives,
            exports=exports + left_out,
            note=shlex.quote(str(time_limit_note(Path(self.record.job_dir)))),
            srun=" \\\n  ".join(self._srun()),
            warning_s=warning_s(self.asked.time_limit_minutes),
        )

    def _directives(self) -> list[str]:
        record, asked = self.record, self.asked
        maybe = (
            ("partition", asked.partition), ("account", asked.account), ("qos", asked.qos),
            ("reservation", asked.reservation), ("constraint", asked.constraint), ("segment", asked.segment),
            ("exclude", asked.exclude),
        )  # fmt: skip
        return [
            f"job-name={record.name}",
            f"nodes={record.nnodes}",
            "ntasks-per-node=1",
            *self._gpus(),
            *(("exclusive", "mem=0") if asked.exclusive else ()),
            f"time={asked.time_limit_minutes}",
            *(f"{name}={value}" for name, value in maybe if value is not None),
            f"output={Path(record.job_dir) / LOGS / 'slurm-%j.out'}",
            "open-mode=append",
            "no-requeue",
            f"signal=B:USR1@{warning_s(asked.time_limit_minutes)}",
        ]

    def _gpus(self) -> tuple[str, ...]:
        num, how = self.record.gpus_per_node, self.asked.gpus
        if num == 0 or how == "none":
            return ()
        return (f"gres=gpu:{num}",) if how == "gres" else (f"gpus-per-node={num}",)

    def _srun(self) -> list[str]:
        record, asked = self.record, self.asked
        container = []
        if asked.container_image is not None:
            mounts = ",".join([*own_mounts(record), *asked.container_mounts])
            container = [
                f"--container-image={shlex.quote(asked.container_image)}",
                f"--container-mounts={shlex.quote(mounts)}",
            ]
        return [
            f"srun --nodes={record.nnodes} --ntasks={record.nnodes} --ntasks-per-node=1 --export=ALL",
            "--kill-on-bad-exit=1 --cpu-bind=none --label",
            *container,
            f'{shlex.join(self.task)} --master_addr "$head_addr" &',
        ]


def slurm_job(record: JobRecord, host: Host) -> SlurmJob:
    """Return the job of ``record`` for ``host``. One BadRequestError for all values that no batch file can hold."""
    asked = record.options
    assert isinstance(asked, SlurmOptions)
    problems = unfit({"--results_dir": record.job_dir}, _PATH, _FILE)
    problems += unfit({"the job's name": record.name}, _NAMES, _FILE)
    raise_all([*problems, *option_problems(asked, record.launch.pass_env)])
    environment, left_out = exported(inherited(host.shell), _OF_THIS_MACHINE)
    return SlurmJob(
        record=record,
        asked=asked,
        python=asked.python or (CONTAINER_PYTHON if asked.container_image is not None else host.python),
        environment=environment,
        left_out=left_out,
    )


def own_mounts(record: JobRecord) -> tuple[str, ...]:
    """Return the folders that a container must see at the same path: job, runs, sweep, and the checkout, if any."""
    folders = [Path(record.job_dir), *(Path(run.run_dir).parent for run in record.runs), Path(record.subject)]
    folders += [Path(record.results_dir)] if record.results_dir else []
    checkout = checkout_dir()
    wanted = sorted({folder for folder in [*folders, *([checkout] if checkout else [])] if folder.is_absolute()})
    inner = {folder for folder in wanted for other in wanted if folder != other and folder.is_relative_to(other)}
    return tuple(f"{folder}:{folder}" for folder in wanted if folder not in inner)


_TEMPLATE = """\
#!/bin/bash
# Written by mbr-perf. job.json in this folder lists the runs and their folders.
# `mbr-perf jobs submit DIR` submits it, `jobs wait DIR` follows and collects it.
{directives}

set -u

# From the shell that submitted, by name; mbr-perf adds the variables of its table on the nodes.
{exports}

# torchrun's ranks meet at the first node of the job.
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_addr=$(scontrol -o show node "$head_node" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
if [ -z "$head_addr" ]; then head_addr=$head_node; fi

# Slurm warns {warning_s} s before the time limit. The ranks are asked to end, so that they leave what they measured;
# srun itself would kill them at once.
time_limit_note={note}
srun_pid=
end_ranks() {{
  interrupted=yes
  scancel --quiet --signal=TERM "$SLURM_JOB_ID.0" || kill -TERM "$srun_pid"
}}
trap ': > "$time_limit_note"; end_ranks' USR1
trap end_ranks TERM

# One task per node; each starts its own ranks of every run.
{srun}
srun_pid=$!

# A trapped signal ends `wait` early.
while interrupted=no; wait "$srun_pid"; code=$?; [ "$interrupted" = yes ]; do :; done
exit "$code"
"""
