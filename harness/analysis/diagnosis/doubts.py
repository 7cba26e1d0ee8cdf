"""Settings that were told of a job and that the rules refuse: what is said of them, and a line with others."""

from harness.analysis.diagnosis.commands import can_be_named, changed, command
from harness.analysis.diagnosis.refusals import Rulings, is_doubted, told
from harness.analysis.diagnosis.values import Case, Fix


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
    return Fix(f"{text}; legal would be, without CUDA graphs:", _without_graphs(case))


def legal_line(case: Case, rulings: Rulings) -> str:
    """The diagnosis again, with settings that the rules accept; "" where no one change makes them."""
    return _without_graphs(case) if _is_legal_without_graphs(case, rulings) and can_be_named(case) else ""


def _is_legal_without_graphs(case: Case, rulings: Rulings) -> bool:
    if case.spec is None or case.spec.cuda_graph.impl == "none":
        return False
    return not rulings.refusal(changed(case.spec, graphs="none"))


def _without_graphs(case: Case) -> str:
    return command(case, "diagnose", *case.asked_with, graphs="none", paths=case.paths)
