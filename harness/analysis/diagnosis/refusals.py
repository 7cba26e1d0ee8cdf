"""What the rules say of a job's settings, and of those that a command to paste would ask for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.analysis.diagnosis.values import Case
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import Finding

Judge = Callable[[ExperimentSpec], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class Rulings:
    """``job``: the rules that refuse the job's own settings. ``start``: those that would refuse others, started here."""

    job: tuple[Finding, ...] = ()
    start: Judge = lambda _: ()

    def refusal(self, *specs: ExperimentSpec) -> str:
        """Why not all of ``specs`` could be started: rule, message and fix of each; empty where they could."""
        return told({finding.id: finding for spec in specs for finding in self.start(spec)}.values())


NO_RULINGS = Rulings()


def told(findings: Iterable[Finding]) -> str:
    """Rules with what they say and their fix, in one line."""
    return "; ".join(f"{finding.id}: {finding.message} (fix: {finding.fix})" for finding in findings)


def is_doubted(case: Case, rulings: Rulings) -> bool:
    """Whether the settings were told by somebody, are refused by the rules, and the job trained all the same."""
    has_trained = case.has_oom or case.step_time_s is not None or case.status == "ok"
    return case.is_told and bool(rulings.job) and has_trained
