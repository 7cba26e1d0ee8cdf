"""What may stand in a batch file: every value that a person gives is checked before it is written into one."""

import re

from harness.errors import BadRequestError
from harness.records.job import JobRecord

_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@:+=/-]*")
_FEATURES = re.compile(r"[A-Za-z0-9_.,&|*()\[\]:=+-]+")
# Of a path: sbatch replaces %, and reads quotes, backslashes, blanks and # in its own way.
_PATH = re.compile(r"/[A-Za-z0-9_.,@:+=~/-]*")
# Words that sbatch takes for more than a variable of that name.
_EXPORT_WORDS = frozenset({"ALL", "NONE", "NIL"})


def value_problems(record: JobRecord) -> list[BadRequestError]:
    """Every value that cannot go into a batch file as it is, by the option that gave it."""
    asked = record.slurm
    checked = (
        ("--partition", asked.partition, _NAMES, "letters, digits and _ . , @ : + = / -"),
        ("--account", asked.account, _NAMES, "letters, digits and _ . , @ : + = / -"),
        ("--qos", asked.qos, _NAMES, "letters, digits and _ . , @ : + = / -"),
        ("--reservation", asked.reservation, _NAMES, "letters, digits and _ . , @ : + = / -"),
        ("--constraint", asked.constraint, _FEATURES, "names of features joined by & | , and in [ ] ( )"),
        ("--results_dir", record.job_dir, _PATH, "a path of letters, digits and _ . , @ : + = ~ -"),
        ("the job's name", record.name, _NAMES, "letters, digits and _ . -"),
    )
    problems = [
        BadRequestError(f"{option} {value!r} cannot stand in a batch file", remedy=f"use {allowed}")
        for option, value, pattern, allowed in checked
        if value is not None and not pattern.fullmatch(value)
    ]
    return [*problems, *_word_problems(record), *_passed_problems(record)]


def _word_problems(record: JobRecord) -> list[BadRequestError]:
    """Words of srun's command line: quoted, so that only what no line can hold is refused."""
    asked = record.slurm
    words = [("--container_image", asked.container_image), ("--slurm_python", asked.python)]
    words += [("--container_mounts", mount) for mount in asked.container_mounts]
    problems = [
        BadRequestError(
            f"{option} {value!r} is empty or holds characters that cannot be printed", remedy="leave it out"
        )
        for option, value in words
        if value is not None and not (value and value.isprintable())
    ]
    if asked.container_mounts and asked.container_image is None:
        remedy = "name the image with --container_image, or leave the mounts out"
        problems.append(BadRequestError("--container_mounts without a container", remedy=remedy))
    return problems


def _passed_problems(record: JobRecord) -> list[BadRequestError]:
    return [
        BadRequestError(
            f"--pass_env {name}: sbatch takes the word for more than a variable", remedy=f"leave {name} out"
        )
        for name in record.launch.pass_env
        if name.upper() in _EXPORT_WORDS
    ]
