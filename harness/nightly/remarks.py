"""Writes the remarks on a night's cases below the table: the reason, what differs, the runs, the next command."""

import itertools
from collections.abc import Iterable, Sequence

from harness.judge.gate import Verdict
from harness.nightly.values import CaseRun, CaseVerdict, NightVerdict
from harness.nightly.words import finding_text, is_red, one_line, outcome_text
from harness.records.metrics import BY_NAME
from harness.units import command_text, format_percent, format_share


def case_title(case: CaseVerdict) -> str:
    """Return ``llama3_8b.mlp: regression  (owner: perf-team)``."""
    owner = f"  (owner: {case.planned.owner})" if case.planned.owner else ""
    return f"{case.planned.name}: {outcome_text(case)}{owner}"


def further_command(case: CaseVerdict) -> str:
    """Return the command that shows details: a comparison with the golden, or one run. Empty without a run."""
    is_bad = case.outcome in ("failed", "oom")
    recorded = [run for run in case.runs if run.record]
    alike = [run for run in recorded if run.record and (run.record.status != "ok") == is_bad]
    if not recorded:
        return ""
    run_dir = (alike or recorded)[-1].run_dir
    if case.golden_path is not None and not is_bad:
        return command_text("explain", run_dir, case.golden_path)
    return command_text("results", "show", run_dir)


def _run_line(run: CaseRun) -> str:
    status = run.record.status if run.record else "never finished"
    because = "; ".join(one_line(text) for text in (run.infrastructure, run.reason) if text)
    return f"Run: {run.purpose} {status}{f' ({because})' if because else ''}: {run.run_dir}"


_MOVED = (Verdict.REGRESSION, Verdict.IMPROVEMENT)


def explanation(case: CaseVerdict) -> Iterable[str]:
    """Yield the remarks on a case in the order of a reader's questions."""
    findings = [each for each in case.findings if each.verdict in _MOVED or (each.evidence and each.reason)]
    findings.sort(key=lambda finding: finding.verdict is not Verdict.REGRESSION)
    is_explained = findings and case.outcome not in ("failed", "oom")
    reason = "" if is_explained else one_line(case.planned.refused or case.reason)
    failures = dict.fromkeys(one_line(run.record.failure) for run in case.runs if run.record and run.record.failure)
    yield from filter(None, [reason])
    yield from map(finding_text, findings)
    yield from (f"Failure: {failure}" for failure in failures if failure not in reason)
    yield from _about_pairs(case)
    yield from filter(None, [one_line(case.remark)])
    yield from (f"Environment differs: {found.text}{' (accepted)' * found.accepted}" for found in case.drift)
    yield from (f"Caveat: {one_line(caveat)}" for caveat in case.caveats)


def _about_pairs(case: CaseVerdict) -> Iterable[str]:
    """Yield how the new build compares with the old one: ``TFLOP/s/GPU -7.9 % +- 1.1 % (99 %), p 2e-5``."""
    pairs = case.pairs
    if pairs is None:
        return
    figures = "; ".join(
        f"{BY_NAME[found.metric].title} {format_percent(found.change)}"
        + (f" +- {format_share(found.margin)} (99 %), p {found.p_value:.1g}" if found.margin and found.p_value else "")
        for found in pairs.findings
        if found.change is not None
    )
    named = f"New build against the old one ({pairs.against}), {pairs.num_pairs} pairs"
    yield f"{named}: {one_line(pairs.fault) or figures}"


def next_steps(verdict: NightVerdict) -> Iterable[str]:
    """Yield how inconclusive cases get a verdict; nothing for an unfinished or a replayed night."""
    if verdict.num_due or verdict.plan.launch.launcher == "replay":
        return
    unsure = [case for case in verdict.cases if _is_unsure(case)]
    withheld = {case.planned.name: _withholding(case) for case in unsure}
    differing = [*filter(withheld.get, withheld)]
    if differing:
        every = dict.fromkeys(itertools.chain.from_iterable(withheld.values()))
        options = " ".join(f"--accept_difference {name}" for name in every)
        yield f"To judge in spite of differences from the golden, start the next night with: {options}"
    new = [case.planned.name for case in unsure if _is_new(case)]
    if chosen := [word for name in (*new, *differing) for word in ("--case", name)]:
        given = verdict.plan.golden_dir
        folder = ("--golden_dir", given) if given else ()
        command = command_text("golden", "promote", verdict.night_dir, *chosen, *folder, "--reason", "TEXT")
        yield f"To store tonight's values as golden values: {command}"


def _is_unsure(case: CaseVerdict) -> bool:
    return is_red(case) and case.outcome == "inconclusive" and bool(case.counted)


def _is_new(case: CaseVerdict) -> bool:
    return case.golden_path is None and not case.is_golden_damaged


def _withholding(case: CaseVerdict) -> Sequence[str]:
    reasons = {text for finding in case.findings for text in finding.reason.split("; ")}
    return tuple(each.name for each in case.drift if not each.accepted and each.text in reasons)


def to_copy(case: CaseVerdict) -> Iterable[str]:
    """Yield the folders of a case's runs, and the command for details."""
    yield from map(_run_line, case.all_runs)
    if command := further_command(case):
        yield f"Details: {command}"
