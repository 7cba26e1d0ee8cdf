"""What may stand in a batch file: every value that a person gives is checked before it is written into one."""

import re

from harness.errors import BadRequestError
from harness.records.job import JobRecord, SlurmOptions

_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@:+=/-]*")
_FEATURES = re.compile(r"[A-Za-z0-9_.,&|*()\[\]:=+-]+")
# Of a path: sbatch replaces %, and reads quotes, backslashes, blanks and # in its own way.
_PATH = re.compile(r"/[A-Za-z0-9_.,@:+=~/-]*")
_MOUNT = re.compile(r"[^:]+:/[^:]*(:[^:]+)?")
# Words that sbatch takes for more than a variable of that name.
_EXPORT_WORDS = frozenset({"ALL", "NONE", "NIL"})


_SAID_NAMES = "letters, digits and _ . , @ : + = / -"

_Checked = tuple[str, str | None, re.Pattern[str], str]


def value_problems(record: JobRecord) -> list[BadRequestError]:
    """Every value of the job that cannot go into a batch file as it is, by the option that gave it."""
    checked: list[_Checked] = [
        ("--results_dir", record.job_dir, _PATH, "a path of letters, digits and _ . , @ : + = ~ -"),
        ("the job's name", record.name, _NAMES, _SAID_NAMES),
    ]
    return [*_unfit(checked), *option_problems(record.slurm, record.launch.pass_env)]


def option_problems(asked: SlurmOptions, pass_env: tuple[str, ...]) -> list[BadRequestError]:
    """Those of the options alone."""
    checked: list[_Checked] = [
        ("--partition", asked.partition, _NAMES, _SAID_NAMES),
        ("--account", asked.account, _NAMES, _SAID_NAMES),
        ("--qos", asked.qos, _NAMES, _SAID_NAMES),
        ("--reservation", asked.reservation, _NAMES, _SAID_NAMES),
        ("--constraint", asked.constraint, _FEATURES, "names of features joined by & | , and in [ ] ( )"),
    ]
    return [*_unfit(checked), *_word_problems(asked), *_passed_problems(pass_env)]


def _unfit(checked: list[_Checked]) -> list[BadRequestError]:
    return [
        BadRequestError(f"{option} {value!r} cannot stand in a batch file", remedy=f"use {allowed}")
        for option, value, pattern, allowed in checked
        if value is not None and not pattern.fullmatch(value)
    ]


def _word_problems(asked: SlurmOptions) -> list[BadRequestError]:
    """Words of srun's command line: quoted, so that only what no line can hold is refused."""
    words = [("--container_image", asked.container_image), ("--slurm_python", asked.python)]
    words += [("--container_mounts", mount) for mount in asked.container_mounts]
    problems = [
        BadRequestError(
            f"{option} {value!r} is empty or holds characters that cannot be printed", remedy="leave it out"
        )
        for option, value in words
        if value is not None and not (value and value.isprintable())
    ]
    problems += [
        BadRequestError(
            f"--container_mounts {mount!r} is no mount", remedy="say SRC:DST, or SRC:DST:FLAGS, e.g. /data:/data:ro"
        )
        for mount in asked.container_mounts
        if mount.isprintable() and not all(_MOUNT.fullmatch(part) for part in mount.split(","))
    ]
    if asked.container_mounts and asked.container_image is None:
        remedy = "name the image with --container_image, or leave the mounts out"
        problems.append(BadRequestError("--container_mounts without a container", remedy=remedy))
    return problems


def _passed_problems(pass_env: tuple[str, ...]) -> list[BadRequestError]:
    return [
        BadRequestError(
            f"--pass_env {name}: sbatch takes the word for more than a variable", remedy=f"leave {name} out"
        )
        for name in pass_env
        if name.upper() in _EXPORT_WORDS
    ]
