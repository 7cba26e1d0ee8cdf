"""Entries before anything is predicted: resolved, judged by the rules, and put to the installed megatron-core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.launch.environment import Host
from harness.run.megatron_says import Question, megatron_findings, refusal, unasked_notes
from harness.run.understanding import Checked, RunRequest, check_request, in_one_sentence

Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Draft(Generic[Asked]):
    """What is asked for, what the checks say, and why it may not run, else empty. ``checked`` None: not resolved.

    ``twin``: the place of another draft that computes the same.
    """

    asked: Asked
    checked: Checked | None
    problem: str = ""
    twin: int | None = None

    @property
    def spec(self) -> ExperimentSpec | None:
        """What it would run."""
        return self.checked.spec if self.checked else None

    @property
    def may_run(self) -> bool:
        """Legal, and not the same as another."""
        return not self.problem and self.twin is None

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The rules that forbid it."""
        return tuple(finding for finding in self.checked.findings if finding.blocks) if self.checked else ()


def drafted(asked: Asked, request: RunRequest, host: Host, words: Callable[[Finding], str]) -> Draft[Asked]:
    """One entry, checked as `mbr-perf run` checks ``request``. ``words``: how a rule that forbids it is told."""
    try:
        checked = check_request(request, host, assume=None, ask_megatron=False)
    except BadRequestError as problem:
        return Draft(asked, None, in_one_sentence(problem))
    draft = Draft(asked, checked)
    return replace(draft, problem="; ".join(words(finding) for finding in draft.blocking))


def ask_megatron(drafts: Sequence[Draft[Asked]], host: Host) -> tuple[list[Draft[Asked]], tuple[str, ...]]:
    """The drafts with what the installed megatron-core refuses marked as such, and notes on what it did not answer.

    It is asked before GPUs are taken; entries for the CPU take none. Twins are asked too: when the entry that they equal
    is refused, one of them may still run.
    """
    asked = {
        place: Question(one.checked.spec, one.checked.software, one.checked.env)
        for place, one in enumerate(drafts)
        if one.checked and not one.problem and not one.checked.spec.gpu_type.is_cpu
    }
    said = megatron_findings(asked, host)
    return [_with(said.get(place), one) for place, one in enumerate(drafts)], unasked_notes(said.values())


def _with(said: Finding | None, one: Draft[Asked]) -> Draft[Asked]:
    if said is None or one.checked is None or not said.blocks:
        return one
    checked = replace(one.checked, findings=(*one.checked.findings, said))
    return replace(one, checked=checked, problem=refusal(said))
