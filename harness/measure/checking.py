"""Checks a request by every rule and by the installed megatron-core."""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from pydantic import ValidationError

from harness.errors import BadRequestError, ExitCode, ManyProblemsError, raise_all
from harness.experiment.effective import EffectiveRecompute, effective_if_cut
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import SEVERITIES, Finding
from harness.experiment.software import Software
from harness.launch.environment import Host, output_of
from harness.measure.understanding import (
    RunRequest,
    Settled,
    job_launcher,
    mending,
    rank_environment,
    rule_problem,
    settle,
    with_exports,
    with_note_on_steps,
)
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.redact import redact_shapes

TIMEOUT_S = 60.0  # on a cold node megatron-core loads from a shared file system
EACH_S = 1.0  # for every further question

# Messages of megatron-core 0.16 when transformer-engine is missing. The last one compares a version with None.
_MISSING = ("ransformer-engine", "ransformer Engine", "TransformerEngine", "TE >=", "TE version", "'NoneType'")


@dataclass(frozen=True)
class Question:
    """A request, the software that it is judged for, and the known variables of its ranks."""

    spec: ExperimentSpec
    software: Software
    env: Mapping[str, str] | None = None


class Answer(Frozen):
    """The output of ``harness.engine.config_probe``. ``problem``: why there is no answer."""

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
    """Return the answer of the real `TransformerConfig`: an error if it refuses, else a note."""
    return megatron_findings({0: Question(spec, software, env)}, host, timeout_s=timeout_s)[0]


def megatron_findings(asked: Mapping[int, Question], host: Host, *, timeout_s: float = TIMEOUT_S) -> dict[int, Finding]:
    """Like :func:`megatron_finding` for many requests, all for GPUs or all for the CPU. Imports megatron-core once."""
    askable = [question for question in asked.values() if not _missing(question.software)]
    answers = _answers(askable, host, timeout_s + EACH_S * (len(askable) - 1)) if askable else iter(())
    return {
        place: _unasked(f"{missing} not installed here")
        if (missing := _missing(question.software))
        else _finding(next(answers), question.software)
        for place, question in asked.items()
    }


def unasked_notes(findings: Collection[Finding]) -> tuple[str, ...]:
    """Say why megatron-core gave no answer, and to how many of the questions."""
    why = Counter(f"{finding.message}; {finding.fix}" for finding in findings if not finding.blocks and finding.fix)
    return tuple(f"{number} of {len(findings)}: {reason}" for reason, number in why.items())


def _missing(software: Software) -> str:
    needed = {"megatron-core": software.megatron_core, "torch": software.torch}
    return " and ".join(name for name, version in needed.items() if version is None)


def _answers(asked: Sequence[Question], host: Host, timeout_s: float) -> Iterator[Answer]:
    """Yield one answer per question. An answer with ``problem`` if megatron-core gave none."""
    command = (host.python, "-m", "harness.engine.config_probe")
    shell = {**host.shell, PARENT_PID_VARIABLE: str(os.getpid())}
    lines = [json.dumps({"spec": item.spec.model_dump(mode="json"), "env": dict(item.env or {})}) for item in asked]
    out, why = output_of(command, timeout_s, shell, "\n".join(lines).encode())
    otherwise = f"asking megatron-core: {why}" if why else "there is no answer"
    answered = out.decode(errors="replace").splitlines()
    for line in answered[: len(asked)]:
        try:
            answer = Answer.model_validate_json(line)
            said = f"asking megatron-core {answer.problem}" if answer.problem else ""
            yield answer.model_copy(update={"problem": said})
        except ValidationError:
            yield Answer(problem=f"the answer cannot be read: {line[:200]!r}")
    yield from repeat(Answer(problem=otherwise), max(0, len(asked) - len(answered)))


def _finding(answer: Answer, software: Software) -> Finding:
    if answer.problem:
        return _unasked(answer.problem)
    version = software.megatron_core
    if answer.accepted:
        but = ", except for what transformer-engine checks, which is not installed here"
        message = f"megatron-core {version} accepts the configuration{but if answer.without_transformer_engine else ''}"
        return Finding(id="MCORE", severity="note", message=message, fix="")
    if answer.without_transformer_engine and software.transformer_engine and any(w in answer.text for w in _MISSING):
        return _unasked("transformer-engine is not installed on this machine")
    meaning = f": {answer.meaning}" if answer.meaning else ""
    fix = (
        f"read {answer.place} of megatron-core"
        if answer.place
        else f"upgrade megatron-core {version}, or drop the setting"
    )
    return Finding(
        id="MCORE",
        severity="error",
        message=f"megatron-core {version} refuses this configuration{meaning}",
        fix=f"{fix}. If a rule covers the setting, the finding of that rule names it",
        mcore_text=f"{answer.kind}: {answer.text}".removesuffix(": "),
    )


def _unasked(why: str) -> Finding:
    return Finding(
        id="MCORE",
        severity="note",
        message=f"megatron-core's own configuration was not built: {why}",
        fix="run the check where the job will run",
    )


@dataclass(frozen=True)
class Checked(Settled):
    """The verdict on a request. ``effective``: None if the model cannot be partitioned as requested.

    ``env``: the variables of its ranks, None if there is a problem with them. ``judge``: applies the rules to others.
    """

    findings: tuple[Finding, ...]
    effective: EffectiveRecompute | None
    judge: Callable[[ExperimentSpec], Sequence[Finding]] = field(repr=False, compare=False)
    env: dict[str, str] | None = None

    @property
    def cure(self) -> tuple[str, ...]:
        """Return options that mend all errors; empty without errors, or where rules do not explain all of them."""
        return mending(self, self.findings, self.judge)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.BAD_REQUEST if any(finding.blocks for finding in self.findings) else ExitCode.OK


def check_request(
    request: RunRequest, host: Host, *, assume: str | None, ask_megatron: bool, gpu_point: bool = False
) -> Checked:
    """Resolve, then apply every rule. megatron-core is asked only without ``assume``, which means other releases."""
    settled = settle(request, host, assume, gpu_point=gpu_point, takes_secrets=True)
    spec, software = settled.spec, settled.software
    launcher = None if request.starts else job_launcher(request.asked)
    env, findings = rank_environment(spec, host, request.launch, request.nodes)
    variables, starter = spec.env if launcher else env, launcher or "mbr-perf"
    judge = partial(check, software=software, env=variables, force=request.force, launcher=starter)
    findings += judge(spec)
    if settled.secrets:  # no message may repeat their values
        known = {secret.message for secret in settled.secrets}
        others = (finding for finding in findings if finding.blocks and finding.message not in known)
        raise_all([*settled.secrets, *map(rule_problem, others)])
    if ask_megatron and assume is None:
        findings.append(_with_rule(megatron_finding(spec, software, host, env), findings))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    settled = settled if request.starts else with_exports(settled, request.asked)
    fields, effective = with_note_on_steps(settled), effective_if_cut(spec, software)
    return Checked(**fields, findings=tuple(findings), effective=effective, judge=judge, env=env)


def _with_rule(finding: Finding, findings: Iterable[Finding]) -> Finding:
    """megatron-core's refusal; a note where a rule already blocks the request with the same message."""
    own = finding.mcore_text or ""
    rule = next((f for f in findings if f.mcore_text and f.mcore_text.strip() in own), None)
    if rule is None:
        return finding
    severity = "note" if rule.blocks else finding.severity
    return finding.model_copy(update={"fix": f"follow the fix of {rule.id}", "severity": severity})


def in_one_sentence(problem: BadRequestError) -> str:
    """``problem (remedy)`` for one or several problems, with secrets masked."""
    if isinstance(problem, ManyProblemsError):
        return "; ".join(in_one_sentence(part) for part in problem.problems)
    return redact_shapes(f"{problem.message} ({problem.remedy})" if problem.remedy else problem.message)
