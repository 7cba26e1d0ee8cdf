"""Finds losses and gradients that are not finite in the messages of trainers."""

import re

from harness.judging.oom.verdict import OomVerdict

# Messages of megatron-core's checks of gradients and losses, and of its rerun state machine.
_NON_FINITE = re.compile(
    r"found (?P<found>NaN|Inf) in local (?:grad norm|forward loss)|Unexpected result (?P<result>nan|-?inf)\b"
    r"|\bvalidation loss at .{0,80}\blm loss value: (?P<value>nan|NAN|-?inf|-?INF)\b|\b[Bb]ad grad[_ ]norm detected|\b(?:loss|grad[_ ]norm) (?:is|was|became) (?P<said>nan|NaN|-?inf)\b"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_ITERATION = re.compile(r"\biteration #?(\d{1,9})\b")
NOT_FINITE_ADVICE = (
    "Check the losses before it. A rising loss points to the learning rate or the data; otherwise suspect precision or a "
    "GPU. With FP8 and recompute: recompute only core_attn, not layernorm. Then run the same job with -c bf16."
)


def is_non_finite(text: str) -> bool:
    """Return whether the line reports a result that is not finite."""
    return _NON_FINITE.search(text) is not None


def rank_in(text: str) -> int | None:
    """Return the rank that such a line names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def non_finite(text: str) -> OomVerdict | None:
    """Return the verdict on such a line, with rank and iteration; None for other lines."""
    match = _NON_FINITE.search(text)
    if match is None:
        return None
    what = "a gradient" if "grad" in text else "the loss" if "loss" in text else "a result"
    what = "the validation loss" if match["value"] else what
    rank, iteration = rank_in(text), _ITERATION.search(text)
    where = f" on rank {rank}" if rank is not None else ""
    when = f" at iteration {iteration[1]}" if iteration else ""
    value = match["found"] or match["result"] or match["said"] or match["value"]
    reason = f"{what} was not finite{f' ({value})' if value else ''}{where}{when}"
    return OomVerdict("not_oom", "high", reason, advice=NOT_FINITE_ADVICE)
