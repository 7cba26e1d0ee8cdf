"""Writes the remarks on a night's cases below the table: the reason, what differs, the runs, the next command."""

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError
from harness.judge.gate import Verdict
from harness.judge.promotion import PromotionOptions, promote
from harness.nightly.values import CaseFinding, CaseRun, CaseVerdict, NightVerdict
from harness.nightly.words import finding_text, is_red, one_line, outcome_text
from harness.records.folders import golden_dir
from harness.records.golden import Difference
from harness.records.goldens import promotion_path, read_golden
from harness.records.metrics import BY_NAME
from harness.units import command_text, format_percent, format_share, grouped


def case_title(case: CaseVerdict) -> str:
    """Return ``llama3_8b.mlp: regression  (owner: perf-team)``."""
    owner = f"  (owner: {case.planned.owner})" if case.planned.owner else ""
    return f"{case.planned.name}: {outcome_text(case)}{owner}"


def further_command(case: CaseVerdict) -> str:
    """Return the command that shows details: a comparison with the golden, or one run. Empty without a run."""
    run_dir = _last_run(case)
    if run_dir is None:
        return ""
    if case.golden_path is not None and case.outcome not in ("failed", "oom"):
        return command_text("explain", run_dir, case.golden_path)
    return command_text("results", "show", run_dir)


def run_lines(runs: Iterable[CaseRun]) -> tuple[str, ...]:
    """Return ``repeat ok: <folder>/{0,1,2}``: runs that ended alike in one line, as a shell expands it."""
    alike = grouped(((_kind(run), run.run_dir.parent), run.run_dir.name) for run in runs)
    return tuple(
        f"{kind}: {parent}/{names[0] if len(names) == 1 else '{' + ','.join(names) + '}'}"
        for (kind, parent), names in alike.items()
    )


def _kind(run: CaseRun) -> str:
    status = run.record.status if run.record else "never finished"
    because = "; ".join(one_line(text) for text in (run.infrastructure, run.reason) if text)
    return f"{run.purpose} {status}{f' ({because})' if because else ''}"


def explanation(case: CaseVerdict) -> Iterable[str]:
    """Yield the remarks on a case in the order of a reader's questions."""
    findings = [finding for finding in case.findings if finding.verdict not in (Verdict.PASS, Verdict.NOT_GATED)]
    findings.sort(key=lambda finding: finding.verdict is not Verdict.REGRESSION)
    is_explained = findings and case.outcome not in ("failed", "oom")
    reason = "" if is_explained else one_line(case.planned.refused or case.reason)
    failures = dict.fromkeys(one_line(run.record.failure) for run in case.runs if run.record and run.record.failure)
    drift = one_line("; ".join(map(_drift_text, case.drift)))
    yield from filter(None, [reason])
    yield from _about_findings(case, findings)
    yield from (f"Failure: {failure}" for failure in failures if failure not in reason)
    yield from _about_pairs(case)
    yield from filter(None, [one_line(case.remark)])
    if drift and drift not in {one_line(finding.reason) for finding in findings}:
        yield f"Environment differs from the golden's: {drift}"
    yield from (f"Caveat: {one_line(caveat)}" for caveat in case.caveats)


def _drift_text(found: Difference) -> str:
    return f"{found.text}{' (accepted)' if found.accepted else ''}"


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
    """Yield how inconclusive cases get a verdict: store tonight's values as golden values, or accept differences.

    Nothing for a night from which `golden promote` takes no values: unfinished or replayed.
    """
    if verdict.num_due or verdict.plan.launch.launcher == "replay":
        return
    unsure = [case for case in verdict.cases if is_red(case) and case.outcome == "inconclusive" and case.counted]
    new = [case for case in unsure if not (case.golden_path or case.is_golden_damaged)]
    yield from _promotion("of cases without a golden", verdict, new)
    differing = [case for case in unsure if _withholding(case)]
    if differing:
        names = dict.fromkeys(itertools.chain.from_iterable(map(_withholding, differing)))
        options = " ".join(f"--accept_difference {name}" for name in names)
        yield f"To judge in spite of differences from the golden, start the next night with: {options}"
        yield from _promotion("in place of these goldens", verdict, differing)


def _withholding(case: CaseVerdict) -> Sequence[str]:
    reasons = {text for finding in case.findings for text in finding.reason.split("; ")}
    return tuple(each.name for each in case.drift if not each.accepted and each.text in reasons)


def _promotion(which: str, verdict: NightVerdict, cases: Iterable[CaseVerdict]) -> Iterable[str]:
    """Yield the command that stores the cases' values, with the options without which it would be refused."""
    plan, chosen, options, paths = verdict.plan, list[str](), dict[str, str](), set[Path]()
    folder = Path(plan.golden_dir) if plan.golden_dir else None
    for case in cases:
        allowed = PromotionOptions(replace_other=True, accept_spread=True, thresholds=case.planned.thresholds)
        with suppress(BadRequestError):  # refused with any options
            new = promote(case.counted, reason="TEXT", author="you", now=datetime.now(UTC), options=allowed)
            path = promotion_path(golden_dir(folder), case.counted[0].spec)
            if path.is_file() and read_golden(path).fingerprint not in (None, new.fingerprint):
                options["--replace_other"] = ""
            if new.overridden:
                options["--accept_spread"] = ", although they vary by more than half the threshold"
            chosen += ["--case", case.planned.name] if path not in paths else []
            paths.add(path)
    if chosen:
        words = ["--every"] if len(chosen) == 2 * len(plan.cases) else chosen
        words += ["--golden_dir", plan.golden_dir] if plan.golden_dir else []
        command = command_text("golden", "promote", verdict.night_dir, *words, *options, "--reason", "TEXT")
        yield f"To store tonight's values {which}{''.join(options.values())}: {command}"


def to_copy(case: CaseVerdict) -> Iterable[str]:
    """Yield the folders of a case's runs, and the command for details."""
    yield from (f"Runs: {line}" for line in run_lines(case.runs))
    yield from (f"Runs of the pairs: {line}" for line in run_lines(case.pairs.runs if case.pairs else ()))
    if command := further_command(case):
        yield f"Details: {command}"


def _about_findings(case: CaseVerdict, findings: Sequence[CaseFinding]) -> Iterable[str]:
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict is Verdict.INCONCLUSIVE and finding.evidence is None:
            by_reason.setdefault(one_line(finding.reason), []).append(BY_NAME[finding.metric].title)
        else:
            yield finding_text(finding)
    yield from (f"{', '.join(titles)}: {reason}" for reason, titles in by_reason.items())
    is_by_time = any(finding.evidence and finding.evidence.is_suspicious for finding in findings)
    if case.outcome == "regression" and case.pairs is None and not is_by_time:
        yield "Not run again: memory and counted work do not vary."


def _last_run(case: CaseVerdict) -> Path | None:
    """Return the last run that ended as the case did, else the last one with a record."""
    is_bad = case.outcome in ("failed", "oom")
    with_record = [(run.run_dir, run.record) for run in case.runs if run.record]
    alike = [run_dir for run_dir, record in with_record if (record.status != "ok") == is_bad]
    chosen = alike or [run_dir for run_dir, _ in with_record]
    return chosen[-1] if chosen else None
