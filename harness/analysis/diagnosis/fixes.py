"""What to try next, in the order in which it is to be tried; every command asks for settings that the rules accept."""

from dataclasses import replace

from harness.analysis.diagnosis.commands import changed, command, trial_command, trial_specs
from harness.analysis.diagnosis.outlook import Outlook
from harness.analysis.diagnosis.refusals import Rulings, is_doubted, told
from harness.analysis.diagnosis.seen_in_memory import is_device_oom
from harness.analysis.diagnosis.stages import unexplained_bytes
from harness.analysis.diagnosis.trial import Trial
from harness.analysis.diagnosis.values import Case, Change, Fix, Recognised
from harness.analysis.oom.thresholds import threshold
from harness.units import GIB, format_bytes, format_percent

_ALLOCATOR_FIRST = "rank_out_of_memory_beside_headroom"  # its fix is the A/B, which comes first anyway
_EXPORT = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_STDIN = "-"
_MOST_PATHS = 4  # more than these make no line to paste


def fixes(
    case: Case,
    oom_class: str,
    symptoms: tuple[Recognised, ...],
    outlook: Outlook | None,
    trial: Trial | None,
    rulings: Rulings,
) -> tuple[Fix, ...]:
    """What is wrong with the settings, the allocator because it costs no time, the cheapest change that fits, symptoms."""
    found = []
    if is_doubted(case, rulings):
        found.append(_other_settings(case, rulings))
        case, outlook = replace(case, spec=None), None
    if trial is not None and trial.confirmed:
        found.append(Fix("Keep expandable segments on; nothing else has to change.", _EXPORT))
    elif oom_class == "fragmentation" and not case.is_on_cpu:
        found += [_try_allocator(case, rulings), *_without_graphs(case, rulings)]
    if is_device_oom(case) and not (trial and trial.confirmed):
        found += _planned(case, outlook, rulings)
    if (not is_device_oom(case) and case.has_oom) or oom_class in ("killed", "cuda_graph_pools", "outside_allocator"):
        found.append(Fix(case.verdict.next_experiment))
    if _ended_otherwise(case, symptoms):
        found.append(Fix(case.verdict.next_experiment))
    tried = {_ALLOCATOR_FIRST} if oom_class == "fragmentation" else set()
    found += [Fix(_sentence(row.fix)) for row in symptoms if row.id not in tried]
    if rulings.job and case.spec is not None and not case.has_oom and case.is_told:
        found += [Fix(_sentence(f"{finding.id}: {finding.fix}")) for finding in rulings.job]
    if not found and case.has_nan:
        found.append(Fix("With FP8 and recompute: recompute core_attn only; if it stays, try bf16."))
    if not found and (oom_class == "capacity" or case.status not in ("ok", "unknown")):
        found.append(Fix(case.verdict.next_experiment))
    return tuple(dict.fromkeys(found))


def _ended_otherwise(case: Case, symptoms: tuple[Recognised, ...]) -> bool:
    """Whether neither memory nor a known symptom of its own words ended the job: settings alone explain no crash."""
    failed = case.status not in ("ok", "oom", "unknown") and not case.has_oom
    return failed and not case.has_nan and not any(row.is_said for row in symptoms)


def _other_settings(case: Case, rulings: Rulings) -> Fix:
    """What is wrong with the settings that were told, and a line with such as the rules accept, where one change makes them."""
    assert case.spec is not None
    text = f"These cannot be the job's settings as given: {told(rulings.job)}. Pass those that it ran with"
    eager = changed(case.spec, graphs="none")
    if case.spec.cuda_graph.impl == "none" or rulings.refusal(eager):
        return Fix(f"{text}.")
    if not _can_be_named(case):
        return Fix(f"{text}; with --cuda_graph_impl none they are legal.")
    line = command(case, "diagnose", graphs="none", paths=case.paths)
    return Fix(f"{text}; legal would be, without CUDA graphs:", line)


def _try_allocator(case: Case, rulings: Rulings) -> Fix:
    if case.expandable_segments:
        text = "Expandable segments were on already: a snapshot of the allocator shows what keeps the pieces apart."
        return _checked(Fix(text, command(case, "run", "--snapshot_on_oom")), case, rulings)
    text = "Only an A/B proves it: the same job without and with expandable segments, nothing else changed."
    if case.spec is None:
        return Fix(f"{text} With CUDA graphs also NCCL_GRAPH_REGISTER=0. {_then_compare(case)}", _EXPORT)
    refusal = rulings.refusal(*trial_specs(case.spec))
    return Fix(f"{text} The rules refuse it here: {refusal}.") if refusal else Fix(text, trial_command(case))


def _without_graphs(case: Case, rulings: Rulings) -> list[Fix]:
    """Where private pools hold much beside the remainders, the experiment that shows their part."""
    figures = case.verdict.figures
    pools, there = (figures.private_pool_bytes, figures.total_bytes) if figures else (None, None)
    if not pools or not there or pools < threshold("pool_share") * there:
        return []
    text = f"Private pools hold {format_bytes(pools)} ({pools / there:.0%} of the device): the same job without CUDA graphs shows their part."
    if case.spec is None or case.spec.cuda_graph.impl == "none" or rulings.refusal(changed(case.spec, graphs="none")):
        return [Fix(text)]
    return [Fix(text, command(case, "run", graphs="none"))]


def _then_compare(case: Case) -> str:
    """How the second job of an A/B is held against this one, whose logs alone are there."""
    if not _can_be_named(case):
        return "Then diagnose its logs, with those of this job behind --against."
    against = " ".join(f"--against {path}" for path in case.paths)
    return f"Then diagnose its logs with {against} behind them."


def _can_be_named(case: Case) -> bool:
    """Whether a line to paste can give the job's logs again."""
    return 0 < len(case.paths) <= _MOST_PATHS and _STDIN not in case.paths


def _checked(fix: Fix, case: Case, rulings: Rulings) -> Fix:
    """The fix without its command where the rules refuse the job's settings here."""
    refusal = rulings.refusal(case.spec) if case.spec else ""
    return Fix(f"{fix.text} The rules refuse the job's settings here: {refusal}.") if refusal else fix


def _planned(case: Case, outlook: Outlook | None, rulings: Rulings) -> list[Fix]:
    if outlook is None or outlook.fits_already:
        return []
    if outlook.problem:
        return [Fix(f"No change was planned: {outlook.problem}")]
    budget = format_bytes(outlook.budget_bytes or 0)
    return [
        _change(case, outlook.change, budget, rulings) if outlook.change else _spread(case, outlook, budget, rulings)
    ]


def _change(case: Case, change: Change, budget: str, rulings: Rulings) -> Fix:
    cost = "" if change.overhead is None else f", {format_percent(change.overhead)} {change.cost} against no recompute"
    graphs = next((value for name, value in change.changes if name == "cuda_graph_impl"), None)
    without = " without CUDA graphs" if graphs else ""
    tight = " (tight)" if change.verdict != "FITS" else ""
    text = f"Cheapest change predicted to fit into {budget}: recompute {change.text}{without}, peak {format_bytes(change.peak_bytes)}{tight}{cost}."
    more = unexplained_bytes(case)
    if more is not None and more > 0:
        text += " What is unexplained is taken off."
    refusal = rulings.refusal(changed(case.spec, recompute=change.text, graphs=graphs)) if case.spec else ""
    if refusal:
        return Fix(f"{text} The rules refuse it here: {refusal}.")
    return Fix(text, command(case, "run", recompute=change.text, graphs=graphs))


def _spread(case: Case, outlook: Outlook, budget: str, rulings: Rulings) -> Fix:
    """No recompute setting is enough: more pipeline stages, as far as the rules accept them."""
    text = (
        f"No recompute setting is predicted to fit into {budget}: spread the model (PP before TP: it costs less time)."
    )
    if case.spec is None:
        return Fix(text)
    if case.spec.cuda_graph.impl != "none":
        text += " With --cuda_graph_impl none more settings are legal."
    sizes = case.spec.parallelism
    stages = sizes.pipeline_model_parallel_size
    for more in (2 * stages, 4 * stages):
        layout = sizes.model_copy(update={"pipeline_model_parallel_size": more})
        if not rulings.refusal(case.spec.model_copy(update={"parallelism": layout})):
            into = f"{(outlook.budget_bytes or 0) / GIB:.4g}"
            return Fix(text, command(case, "plan", "--fit_into", into, "--over", f"pp={stages},{more}"))
    return Fix(
        f"{text} PP {2 * stages} is not legal with these sizes as they are: more GPUs, or other sizes of TP and VPP."
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
