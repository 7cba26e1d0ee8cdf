"""What to try where a job that ended well is slower than another and no known symptom says why."""

from collections.abc import Sequence

from harness.analysis.diagnosis.commands import ask_again, can_be_named
from harness.analysis.diagnosis.doubts import legal_line
from harness.analysis.diagnosis.refusals import Rulings, is_doubted
from harness.analysis.diagnosis.seen_in_speed import NOTICEABLE, loss_of_speed
from harness.analysis.diagnosis.symptom import Facts
from harness.analysis.diagnosis.values import Case, Fix, Recognised


def of_speed(facts: Facts, case: Case, symptoms: Sequence[Recognised], rulings: Rulings) -> tuple[Fix, ...]:
    """``case``: the job with its settings as told, also where ``facts`` leaves them out of account."""
    lost = loss_of_speed(facts)
    if lost is None or lost <= NOTICEABLE or case.status != "ok" or case.has_nan or symptoms:
        return ()
    assert facts.reference is not None
    slower = f"{case.name} is {lost:.1%} slower than {facts.reference.name}"
    if is_doubted(case, rulings):
        line = legal_line(case, rulings)
        if line:
            return (Fix(f"{slower}: pass the settings that it ran with; legal would be, without CUDA graphs:", line),)
        return (Fix(f"{slower}: pass the settings that it ran with, which tell why."),)
    if case.spec is None and can_be_named(case):
        return (Fix(f"{slower}: its settings, in place of the capitals, tell why:", ask_again(case)),)
    if case.spec is None:
        return (Fix(f"{slower}: -mr RECIPE -g GPU --recompute SETTING, as it ran, tell why."),)
    return (Fix(f"{slower}, and no known setting explains it: see what else differs (sizes, software, GPUs, nodes)."),)
