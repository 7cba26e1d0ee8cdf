"""The dry run of the installed megatron-core, as a finding beside our own."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.launch.environment import SAFE_PATH, Host
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.redact import quoted_error

TIMEOUT_S = 60.0  # megatron-core comes off a shared file system on a cold node
EACH_S = 1.0  # for every further question

# What megatron-core 0.16 says where it misses transformer-engine: the last is its comparison of no version with one.
_MISSING = ("ransformer-engine", "ransformer Engine", "TransformerEngine", "TE >=", "TE version", "'NoneType'")


@dataclass(frozen=True)
class Question:
    """A request, the software that it is judged for, and the variables of its ranks as far as they are known."""

    spec: ExperimentSpec
    software: Software
    env: Mapping[str, str] | None = None


class Answer(Frozen):
    """What ``harness.engine.config_probe`` prints: ``kind``, ``text`` and ``place`` of the exception unless accepted.

    ``problem``: why there is no answer.
    """

    accepted: bool = False
    problem: str = ""
    kind: str = ""
    text: str = ""
    meaning: str | None = None
    place: str | None = None
    without_transformer_engine: bool = False


def megatron_finding(
    spec: ExperimentSpec,
    software: Software,
    host: Host,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Finding:
    """What the real `TransformerConfig` says of ``spec`` under the ranks' variables ``env``.

    An error when it refuses, else a note. A note also when it cannot be asked, hangs or crashes: nothing is claimed on
    its behalf.
    """
    return megatron_findings({0: Question(spec, software, env)}, host, timeout_s=timeout_s)[0]


def megatron_findings(asked: Mapping[int, Question], host: Host, *, timeout_s: float = TIMEOUT_S) -> dict[int, Finding]:
    """As :func:`megatron_finding` of many, all for GPUs or all for the processor: megatron-core is imported once."""
    askable = [one for one in asked.values() if not _missing(one.software)]
    answers = _answers(askable, host, timeout_s + EACH_S * (len(askable) - 1)) if askable else iter(())
    return {
        place: _unasked(f"{missing} not installed here")
        if (missing := _missing(one.software))
        else _finding(next(answers), one.software)
        for place, one in asked.items()
    }


def refusal(said: Finding) -> str:
    """What megatron-core refuses, and its words, in one line."""
    return f"{said.message}: {said.mcore_text or ''}".removesuffix(": ")


def unasked_notes(said: Collection[Finding]) -> tuple[str, ...]:
    """Why megatron-core gave no answer, and to how many of all that it was asked."""
    why = Counter(f"{one.message}; {one.fix}" for one in said if not one.blocks and one.fix)
    return tuple(f"{number} of {len(said)}: {told}" for told, number in why.items())


def _missing(software: Software) -> str:
    needed = {"megatron-core": software.megatron_core, "torch": software.torch}
    return " and ".join(name for name, version in needed.items() if version is None)


def _answers(asked: Sequence[Question], host: Host, timeout_s: float) -> Iterator[Answer]:
    """One for each; where it cannot be had, its ``problem``."""
    command = (host.python, "-m", "harness.engine.config_probe")
    shell = {**host.shell, **SAFE_PATH, PARENT_PID_VARIABLE: str(os.getpid())}
    lines = [json.dumps({"spec": one.spec.model_dump(mode="json"), "env": dict(one.env or {})}) for one in asked]
    try:
        done = subprocess.run(
            command, input="\n".join(lines).encode(), env=shell, capture_output=True, timeout=timeout_s, check=False
        )
        out = done.stdout
        otherwise = _failed(done.returncode, done.stderr) if done.returncode else "there is no answer"
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        otherwise = f"megatron-core did not answer within {timeout_s:g} s"
    answered = out.decode(errors="replace").splitlines()
    for place in range(len(asked)):
        yield _answer(answered[place]) if place < len(answered) else Answer(problem=otherwise)


def _answer(line: str) -> Answer:
    try:
        said = Answer.model_validate_json(line)
    except ValidationError:
        return Answer(problem=f"the answer cannot be read: {line[:200]!r}")
    return said.model_copy(update={"problem": f"asking megatron-core {said.problem}"}) if said.problem else said


def _failed(exit_code: int, err: bytes) -> str:
    return f"asking megatron-core ended with exit code {exit_code}: {quoted_error(err)}"


def _finding(said: Answer, software: Software) -> Finding:
    if said.problem:
        return _unasked(said.problem)
    version = software.megatron_core
    if said.accepted:
        but = " but for what transformer-engine decides, which is not installed here"
        message = f"megatron-core {version} accepts the configuration{but if said.without_transformer_engine else ''}"
        return Finding(id="MCORE", severity="note", message=message, fix="")
    if said.without_transformer_engine and software.transformer_engine and any(w in said.text for w in _MISSING):
        return _unasked("it stops because transformer-engine is not installed on this machine")
    meaning = f": {said.meaning}" if said.meaning else ""
    fix = (
        f"read {said.place} of megatron-core" if said.place else f"upgrade megatron-core {version}, or drop the setting"
    )
    return Finding(
        id="MCORE",
        severity="error",
        message=f"megatron-core {version} refuses this configuration{meaning}",
        fix=f"{fix}; where a rule knows the setting, its finding names it",
        mcore_text=f"{said.kind}: {said.text}".removesuffix(": "),
    )


def _unasked(why: str) -> Finding:
    return Finding(
        id="MCORE",
        severity="note",
        message=f"megatron-core's own configuration was not built: {why}",
        fix="run the check where the job will run",
    )
