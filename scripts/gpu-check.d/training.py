"""Runs on one GPU: every recompute setting of a shape."""

from collections.abc import Iterator, Sequence
from functools import partial

import checks
from case import Case, Check, case_name
from runs import Ran, Runs, case_of
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
        if text == "none":
            control = ran.record
        yield case_of(name, ran, partial(_checked, text, control), text)


def _checked(text: str, control: RunRecord | None, ran: Ran) -> Iterator[Check]:
    yield from checks.of_training(ran)
    record = ran.record
    if text == "none" or record is None or record.status != "ok":
        return
    yield checks.same_losses(record, control, "recompute")
    if text.startswith("full") and control and control.status == "ok":
        yield checks.peak_not_above(record, control)
