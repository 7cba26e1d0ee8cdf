"""Runs of the product: every setting of a shape trained, an OOM provoked and survived."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from harness.records.run import RunRecord
from harness.runner.gpu_check import checks
from harness.runner.gpu_check.case import Case, Unfinished, case_name, figures_of
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.product import Ran
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape, legal_settings, options_of
from harness.runner.gpu_check.target import Target

# Certain to be too much: with OOM_SAMPLES per micro-batch a layer keeps more than OOM_TENSORS tensors of hidden size.
OOM_SAMPLES = 16
OOM_TENSORS = 16
OOM_VOCABULARY = 10**12  # a processor: an embedding of hundreds of TB, which no operating system promises


def train_settings(runs: Runs, shape: Shape, only: Sequence[str] | None) -> Iterator[Case]:
    """Every legal setting, or those of ``only`` among them; the first is the control without recompute.

    The control of an earlier sitting is trained again where something is left to be compared with it.
    """
    control: RunRecord | None = None
    legal = legal_settings(shape.settle(runs.target))
    for text in only or ():
        if text not in legal:
            found = "no rule allows it, it does nothing in this model, or it is no single module"
            yield Case(case_name(shape.name, text), text, (Check("trained", "skipped", found),))
    texts = [text for text in legal if only is None or text in ("none", *only)]
    kept = {text: runs.kept_case(case_name(shape.name, text), shape, recompute=text) for text in texts}
    is_whole = all(kept.values())
    for text in texts:
        name, earlier = case_name(shape.name, text), kept[text]
        if earlier and (is_whole or text != "none"):
            yield earlier
            continue
        ran = runs.run(name, (*shape.options(runs.target), "--recompute", text))
        if isinstance(ran, Unfinished):
            yield ran.case(name, text)
            continue
        if text == "none":
            control = ran.record
        yield Case(name, text, tuple(_checks(ran, text, control)), figures_of(ran.record), ran.seconds, ran.record)


def _checks(ran: Ran, text: str, control: RunRecord | None) -> Iterator[Check]:
    yield checks.trained(ran)
    record = ran.record
    if record is None or record.status != "ok":
        return
    yield checks.memory_measured(record)
    yield checks.memory_in_order(record)
    yield checks.same_device(record)
    yield checks.recompute_acts(record)
    if text == "none":
        return
    if control is None or control.status != "ok":
        yield Check("same_losses", "not_run", "the run without recompute, to compare with, did not end well")
        return
    yield checks.same_losses(record, control)
    if text.startswith("full"):
        yield checks.peak_not_above(record, control)


def survive_oom(runs: Runs, shape: Shape) -> Iterator[Case]:
    """A request that cannot fit is recorded as out of memory, and the next run on the same GPU is a normal one."""
    oom, after = case_name(shape.name, "oom"), case_name(shape.name, "after_oom")
    too_much = oversize(runs.target, shape)
    kept = runs.kept_case(oom, shape, **too_much), runs.kept_case(after, shape, recompute="none")
    if kept[0] and kept[1]:
        yield from (kept[0], kept[1])
        return
    ran = runs.run(oom, (*shape.options(runs.target), *options_of(too_much)))
    if isinstance(ran, Unfinished):
        yield from (ran.case(oom), Case(after))
        return
    yield Case(oom, checks=checks.out_of_memory(ran), figures=figures_of(ran.record), seconds=ran.seconds,
               record=ran.record)  # fmt: skip
    ran = runs.run(after, (*shape.options(runs.target), "--recompute", "none"))
    if isinstance(ran, Unfinished):
        yield ran.case(after)
        return
    yield Case(after, "none", tuple(_checks(ran, "none", None)), figures_of(ran.record), ran.seconds, ran.record)


def oversize(target: Target, shape: Shape) -> dict[str, Any]:
    """What to ask for so that ``shape`` needs half as much again as the GPU has; its weights alone would fit."""
    if target.total_bytes is None:
        return {"recompute": "none", "set_values": (f"model.vocab_size={OOM_VOCABULARY}",)}
    spec = shape.settle(target).spec
    bytes_of_layer = OOM_TENSORS * OOM_SAMPLES * spec.batch.seq_length * spec.model.hidden_size * 2
    layers = ceil(1.5 * target.total_bytes / bytes_of_layer) + 2
    batch = {"micro_batch_size": OOM_SAMPLES, "global_batch_size": OOM_SAMPLES}
    return {"recompute": "none", "num_layers": layers, **batch}
