"""A loss or a gradient that megatron-core found not to be finite: which, on which rank, at which iteration."""

import re

from harness.analysis.oom.verdict import OomVerdict

# As its checks of gradients and losses say it, and its rerun state machine around them.
_NON_FINITE = re.compile(
    r"found (?P<found>NaN|Inf) in local (?:grad norm|forward loss)|Unexpected result (?P<result>nan|-?inf)\b"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_ITERATION = re.compile(r"\biteration #?(\d{1,9})\b")
_ADVICE = (
    "Look at the losses before it: one that rose points at learning rate or data, one that did not at precision or a "
    "GPU. With FP8 and recompute: recompute core_attn only, not layernorm; then the same job with -c bf16."
)


def is_non_finite(text: str) -> bool:
    """Whether the line says so."""
    return _NON_FINITE.search(text) is not None


def rank_in(text: str) -> int | None:
    """The rank that such a line names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def non_finite(text: str) -> OomVerdict | None:
    """The verdict on such a line, with what it names; None for any other."""
    match = _NON_FINITE.search(text)
    if match is None:
        return None
    what = "a gradient" if "grad" in text else "the loss" if "loss" in text else "a result"
    rank, iteration = rank_in(text), _ITERATION.search(text)
    where = f" on rank {rank}" if rank is not None else ""
    when = f" at iteration {iteration[1]}" if iteration else ""
    reason = f"{what} was not finite ({match['found'] or match['result']}){where}{when}"
    return OomVerdict("not_oom", "high", reason, advice=_ADVICE)
