"""Runs on one GPU: every recompute setting of a shape."""

from collections.abc import Iterator, Sequence

import checks
from case import Case, Check, Unfinished, case_name, case_of_run
from runs import Ran, Runs
from shapes import FIRST, Shape, legal_settings

from harness.records.run import RunRecord


def train_settings(runs: Runs, shape: Shape, only: Sequence[str] | None) -> Iterator[Case]:
    """Train every legal setting, or those of ``only``; the first is the control without recompute.

    A control of an earlier sitting is trained again where a setting is left to compare with it.
    """
    legal = legal_settings(shape.settle(runs.target))
    for text in only or ():
        if text not in legal:
            found = "a rule forbids it, it does nothing in this model, or it combines some modules only"
            yield Case(case_name(shape.name, text), text, (Check("trained", "skipped", found),))
    wanted = [text for text in legal if only is None or text in ("none", *only)]
    texts = sorted(wanted, key=lambda text: text not in FIRST)
    kept = {text: runs.kept.get(case_name(shape.name, text)) for text in texts}
    is_whole = all(kept.values())
    control: RunRecord | None = None
    for text in texts:
        name, earlier = case_name(shape.name, text), kept[text]
        if earlier and (is_whole or text != "none"):
            yield earlier
            continue
        ran = runs.run(name, shape, recompute=text)
        if isinstance(ran, Unfinished):
            yield ran.case(name, text)
            continue
        if text == "none":
            control = ran.record
        found_checks = (*checks.of_training(ran), *_against_control(ran, text, control))
        yield case_of_run(name, found_checks, ran.seconds, ran.record, text)


def _against_control(ran: Ran, text: str, control: RunRecord | None) -> Iterator[Check]:
    record = ran.record
    if text == "none" or record is None or record.status != "ok":
        return
    if control is None or control.status != "ok":
        yield Check("same_losses", "not_run", "the run without recompute, to compare with, did not end well")
        return
    yield checks.same_losses(record, control)
    if text.startswith("full"):
        yield checks.peak_not_above(record, control)
