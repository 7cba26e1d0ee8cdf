"""Fixes in the order in which they are offered, and the doubts about them."""

from dataclasses import replace

from harness.diagnose.commands import ask_again, can_be_named, changed, command, trial_command, trial_specs
from harness.diagnose.plan import Outlook
from harness.diagnose.seen import is_device_oom
from harness.diagnose.stages import Trial, unexplained_bytes
from harness.diagnose.values import Case, Change, Fix, Recognised, Rulings, is_doubted, told
from harness.judging.oom.verdict import threshold
from harness.units import GIB, format_bytes, format_percent


def doubts(case: Case, rulings: Rulings) -> tuple[str, ...]:
    """Of a job that ended well: that its software or settings are not as told."""
    if case.status != "ok" or not is_doubted(case, rulings):
        return ()
    return (
        f"The rules refuse the settings as told: {told(rulings.job)}. The job ran all the same: it had another release of "
        "the software, another graph scope or other settings. They are left out of account.",
    )


def other_settings(case: Case, rulings: Rulings) -> Fix:
    """What is wrong with the settings that were told, and a line with such as the rules accept, if one change makes them."""
    text = f"These cannot be the job's settings as given: {told(rulings.job)}. Pass those that it ran with"
    if not _is_legal_without_graphs(case, rulings):
        return Fix(f"{text}.")
    if not can_be_named(case):
        return Fix(f"{text}; with --cuda_graph_impl none they are legal.")
    return Fix(f"{text}; legal would be, without CUDA graphs:", _settings_without_graphs(case))


def legal_line(case: Case, rulings: Rulings) -> str:
    """The diagnosis again, with settings that the rules accept; "" where no one change makes them."""
    return _settings_without_graphs(case) if _is_legal_without_graphs(case, rulings) and can_be_named(case) else ""


def _is_legal_without_graphs(case: Case, rulings: Rulings) -> bool:
    if case.spec is None or case.spec.cuda_graph.impl == "none":
        return False
    return not rulings.refusal(changed(case.spec, graphs="none"))


def _settings_without_graphs(case: Case) -> str:
    return command(case, "diagnose", *case.asked_with, graphs="none", paths=case.paths)


_ALLOCATOR_FIRST = "rank_out_of_memory_beside_headroom"  # its fix is the A/B, which comes first anyway
_EXPORT = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
# Their fixes ask for recompute, of which the planner says more where it was asked.
_ANSWERED_BY_PLAN = frozenset({
    "out_of_memory_with_expandable_segments", "predicted_too_large", "layernorm_and_still_out_of_memory",
    "recompute_and_still_out_of_memory",
})  # fmt: skip


def fixes(
    case: Case,
    oom_class: str,
    symptoms: tuple[Recognised, ...],
    outlook: Outlook | None,
    trial: Trial | None,
    rulings: Rulings,
) -> tuple[Fix, ...]:
    """What is wrong with the settings, the allocator because it costs no time, the cheapest change that fits, symptoms."""
    found = _of_settings(case, oom_class, rulings)
    if is_doubted(case, rulings):
        case, outlook = replace(case, spec=None), None
    found += _of_memory(case, oom_class, outlook, trial, rulings)
    if (not is_device_oom(case) and case.has_oom) or oom_class in ("killed", "cuda_graph_pools", "outside_allocator"):
        found.append(Fix(case.verdict.next_experiment))
    if _ended_otherwise(case, symptoms):
        found.append(Fix(case.verdict.next_experiment))
    tried = _tried(oom_class, outlook)
    found += [Fix(_sentence(row.fix)) for row in symptoms if row.id not in tried]
    if rulings.job and case.spec is not None and not case.has_oom and case.is_told:
        found += [Fix(_sentence(f"{finding.id}: {finding.fix}")) for finding in rulings.job]
    if not found and case.has_nan:
        found.append(
            Fix(case.verdict.advice or "With FP8 and recompute: recompute core_attn only; if it stays, try bf16.")
        )
    if not found and (oom_class == "capacity" or case.status not in ("ok", "unknown")):
        found.append(Fix(case.verdict.next_experiment))
    return tuple(dict.fromkeys(found))


def _of_settings(case: Case, oom_class: str, rulings: Rulings) -> list[Fix]:
    """What is to be told of the job, where it is refused or missing."""
    if is_doubted(case, rulings):
        return [] if case.status == "ok" else [other_settings(case, rulings)]
    if oom_class == "capacity" and case.spec is None and can_be_named(case):
        text = "With the job's settings in place of the capitals the planner names the cheapest that fits:"
        return [Fix(text, ask_again(case))]
    return []


def _of_memory(case: Case, oom_class: str, outlook: Outlook | None, trial: Trial | None, rulings: Rulings) -> list[Fix]:
    """The allocator, the job's own limit, the cheapest change that fits."""
    if trial is not None and trial.confirmed:
        return [Fix("Keep expandable segments on; nothing else has to change.", _EXPORT)]
    found = []
    if oom_class == "fragmentation" and not case.is_on_cpu:
        found += [_try_allocator(case, rulings), *_without_graphs(case, rulings)]
    if oom_class == "self_imposed_limit":
        found += _limit(case)
    return [*found, *_planned(case, outlook, rulings)] if is_device_oom(case) else found


def _tried(oom_class: str, outlook: Outlook | None) -> frozenset[str]:
    """Symptoms whose fix is in other words among the fixes already."""
    tried = frozenset({_ALLOCATOR_FIRST} if oom_class == "fragmentation" else ())
    is_planned = outlook is not None and not outlook.problem and not outlook.fits_already
    return tried | _ANSWERED_BY_PLAN if is_planned else tried


def _ended_otherwise(case: Case, symptoms: tuple[Recognised, ...]) -> bool:
    """Whether neither memory nor a known symptom of its own words ended the job: settings alone explain no crash."""
    failed = case.status not in ("ok", "oom", "unknown") and not case.has_oom
    return failed and not case.has_nan and not any(row.is_said for row in symptoms)


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
    if not can_be_named(case):
        return "Then diagnose its logs, with those of this job behind --against."
    against = " ".join(f"--against {path}" for path in case.paths)
    return f"Then diagnose its logs with {against} behind them."


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
    text = f"Cheapest change predicted to fit into {budget}: recompute {change.text}{without}, peak {format_bytes(change.peak_bytes)}{cost}."
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
        f"No recompute setting is predicted to fit into {budget}: spread the model (PP before TP: it costs less time)"
        f"{_also_smaller(case)}."
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
            return Fix(
                text, command(case, "plan", "--fit_into", into, "--margin", "0", "--over", f"pp={stages},{more}")
            )
    return Fix(
        f"{text} PP {2 * stages} is not legal with these sizes as they are: more GPUs, or other sizes of TP and VPP."
    )


def _also_smaller(case: Case) -> str:
    """What else makes a job smaller, of what it does not have already."""
    spec = case.spec
    if spec is None:
        return ""
    ways = (
        "a smaller micro-batch" if spec.batch.micro_batch_size > 1 else "",
        "" if spec.optimizer.use_distributed_optimizer else "the distributed optimizer",
    )
    return "".join(f", or {way}" for way in ways if way)


def _limit(case: Case) -> list[Fix]:
    """The job's own `--memory_limit`, which is nearer than any other layout."""
    limit = case.spec.measure.memory_limit_bytes if case.spec else None
    if limit is None:
        return []
    text = f"The limit is the job's own (--memory_limit {limit / GIB:.6g}): raise it, or see what is predicted to fit into it:"
    return [Fix(text, command(case, "plan", "--fit_into", f"{limit / GIB:.6g}"))]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
