"""Stands in for a launcher while `mbr-perf capture` runs a script: writes the command down and exits 0.

It is a program of its own, started as `python -I -S shim.py NAME FOLDER WORD...`, and must start fast.
"""

import json
import os
import re
import shutil
import sys
from itertools import count, pairwise
from pathlib import Path

_PROGRAM = re.compile(r"(?:^|[_.-])(?:(?:pre)?train|fine_?tune|sft|main_ppo|run_script)|torch\.distributed\.")
_HELPER = re.compile(r"convert|preprocess|prepare|download|tokeniz|dataset")
_ALONE = re.compile(
    r"-[luvQKOEsWH]|--(?:label|unbuffered|verbose|quiet|overlap|no-kill|overcommit|exact|wait|exclusive|parsable"
    r"|requeue|no-requeue|hold|pty|contiguous|test-only|help|version)|.*=.*|-[A-Za-z].+",
    re.DOTALL,
)
"""Options of srun and sbatch behind which no value stands."""
_SIZES = (
    (r"(?:-N|--nodes)", ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    (r"(?:-n|--ntasks)", ("SLURM_NTASKS",)),
    (r"--ntasks-per-node", ("SLURM_NTASKS_PER_NODE",)),
    (r"(?:--gpus-per-node|--gres|--gpus-per-task)", ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")),
)
_FIRST_TASK = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0",
               "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "localhost",
               "SLURM_NODELIST": "localhost"}  # fmt: skip
_PREFIX = "MBR_PERF_CAPTURE_PREFIX"


def main(name: str, folder: Path, words: list[str]) -> int:
    """Do what the launcher ``name`` shall do in a capture; return its exit code."""
    if name in ("pkill", "killall"):
        return 0  # `pkill python` would also end this command
    if name == "ray":
        return _replaced_by(words[words.index("--") + 1 :]) if "--" in words else 0
    if name in ("srun", "sbatch"):
        return _scheduled(name, folder, words)
    if name.startswith("python") and not _trains(words):
        path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != folder / "bin")
        return _replaced_by([shutil.which(name, path=path) or f"no {name} on PATH", *words])
    prefix = json.loads(os.environ.pop(_PREFIX, "[]"))
    job = {"command": [*prefix, name, *words], "folder": str(Path.cwd()), "environment": dict(os.environ)}
    draft = folder / f"draft.{os.getpid()}"
    draft.write_text(json.dumps(job))
    for number in count(1):
        try:
            (folder / f"{number:06d}.json").hardlink_to(draft)  # whole or absent, also if the script is killed now
        except FileExistsError:
            continue
        break
    return 0


def _replaced_by(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)  # noqa: S606 (the script's own command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127


def _trains(words: list[str]) -> bool:
    rest = iter(words)
    for word in rest:
        if word in ("-c", "-"):
            return False
        if word in ("-X", "-W"):
            next(rest, "")
        elif word == "-m" or not word.startswith("-"):
            program = next(rest, "") if word == "-m" else Path(word).name
            named = _PROGRAM.search(program) and not _HELPER.search(program)
            return bool(named or {"--micro-batch-size", "--micro_batch_size"} & set(rest))
    return False


def _scheduled(name: str, folder: Path, words: list[str]) -> int:
    """Run the command or the script of a Slurm job here, as the first of its tasks."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 if _ALONE.fullmatch(words[at]) else 2
    options, rest = words[:at], words[at:]
    if name == "sbatch":
        script = _script(options, rest, folder)
        lines = re.findall(r"^#SBATCH\s+(.*)$", script.read_text(errors="replace"), re.MULTILINE)
        options = [*(word for line in lines for word in line.partition(" #")[0].split()), *options]
        rest = ["bash", str(script), *rest[1:]]
    _set_slurm("\0".join(options))
    if name == "sbatch":
        print("1" if "--parsable" in options else "Submitted batch job 1", flush=True)  # noqa: T201 (as sbatch does)
        os.dup2(2, 1)  # a job writes to a file, not to sbatch's answer
    else:
        sizes = [f"--nodes={os.environ['SLURM_NNODES']}"]
        tasks = os.environ.get("SLURM_NTASKS_PER_NODE")
        os.environ[_PREFIX] = json.dumps(["srun", *sizes, *([f"--ntasks-per-node={tasks}"] if tasks else [])])
    return _replaced_by(rest) if rest else 0


def _set_slurm(typed: str) -> None:
    """Set the variables that Slurm gives the first task of a job of these options."""
    for option, variables in _SIZES:
        if found := re.findall(rf"(?:^|\0){option}(?:=|\0|(?<=-[nN]))(?:gpu:(?:\w+:)?)?(\d+)", typed):
            os.environ.update(dict.fromkeys(variables, found[-1]))
    given = re.search(r"(?:^|\0)--export=([^\0]*)", typed)
    os.environ.update(dict(re.findall(r"(\w+)=([^,]*)", given[1])) if given else {})
    os.environ.update({name: value for name, value in _FIRST_TASK.items() if name not in os.environ})


def _script(options: list[str], rest: list[str], folder: Path) -> Path:
    given = (word.partition("=")[2] or after for word, after in pairwise([*options, ""]) if word[:6] == "--wrap")
    wrapped = next(given, "")
    if rest and not wrapped:
        return Path(rest[0])
    script = folder / f"batch.{os.getpid()}"
    script.write_text(wrapped or sys.stdin.read())
    return script


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
