"""Routing of tokens to experts without data."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Literal

import torch


@dataclass
class Place:
    """``device``: meta, or cpu for a check. ``target``: the device whose kernels decide what is saved."""

    device: torch.device
    target: Literal["cpu", "cuda"] = "cuda"

    @property
    def is_real(self) -> bool:
        return self.device.type == "cpu"

    @property
    def stands_for_cuda(self) -> bool:
        return self.target == "cuda"


# One per process: megatron asks for the device from many places, none of which can be handed an argument.
PLACE = Place(torch.device("meta"))


@dataclass
class Routing:
    """The load that every dispatcher of this process assumes."""

    imbalance: float = 1.0


ROUTING = Routing()


class HostCounts(list):
    """Token counts on the host, with the few methods of tensors and arrays that megatron calls on them."""

    def tolist(self) -> list[int]:
        """Return a plain list."""
        return list(self)

    def ravel(self) -> "HostCounts":
        """Return the counts, which are flat already."""
        return self

    def numel(self) -> int:
        """Return the number of counts."""
        return len(self)

    @property
    def T(self) -> "HostCounts":  # noqa: N802 (numpy's name)
        """Return the counts: equal counts look the same transposed."""
        return self


def spread(num_tokens: int, num_ways: int) -> HostCounts:
    """Return ``num_ways`` counts that add up to ``num_tokens`` and differ by one at most."""
    small, more = divmod(num_tokens, num_ways)
    return HostCounts([small + 1] * more + [small] * (num_ways - more))


class _Selected(torch.autograd.Function):
    """`masked_select` with a known number of hits; saves what torch saves: the input and the mask."""

    @staticmethod
    def forward(ctx, values, mask, num_selected):
        """[any shape] -> [num_selected]."""
        ctx.save_for_backward(values, mask)
        return values.new_empty(num_selected)

    @staticmethod
    def backward(ctx, grad):
        """Scatter the gradient back."""
        return torch.zeros_like(ctx.saved_tensors[0], dtype=grad.dtype), None, None


def install() -> None:
    """Replace the counting of the all-to-all and all-gather dispatchers, and the selection by a routing map."""
    from megatron.core.transformer.moe import moe_utils, router, token_dispatcher

    router.sinkhorn = _with_rounds(router.sinkhorn)
    alltoall = token_dispatcher.MoEAlltoAllTokenDispatcher
    alltoall.preprocess = _alltoall_counts(alltoall.preprocess)
    alltoall._maybe_dtoh_and_synchronize = lambda _self, _point, counts=None: counts
    token_dispatcher.MoEAllGatherTokenDispatcher.dispatch_postprocess = _allgather_postprocess
    token_dispatcher.permute = _counting(moe_utils.permute, lambda call: call["num_out_tokens"])
    token_dispatcher.unpermute = _counting(moe_utils.unpermute, lambda call: call["permuted_tokens"].shape[0])
    _select_by_count()


_SINKHORN_ROUNDS = 4  # until 4,096 tokens with logits of variance 1 are spread over 8 to 128 experts


class _Rounds:
    """A tolerance that the error reaches after some rounds."""

    def __init__(self, num: int):
        self._num_left = num

    def __lt__(self, _error) -> bool:
        self._num_left -= 1
        return self._num_left >= 0


def _with_rounds(sinkhorn: Callable) -> Callable:
    return lambda cost: sinkhorn(cost) if PLACE.is_real else sinkhorn(cost, _Rounds(_SINKHORN_ROUNDS))


def _alltoall_counts(static_counts: Callable) -> Callable:
    def preprocess(dispatcher, routing_map):
        if dispatcher.drop_and_pad:
            return static_counts(dispatcher, routing_map)  # every expert gets its capacity, whatever the data
        sent = routing_map.shape[0] * dispatcher.config.moe_router_topk
        received = round(sent * _imbalance(dispatcher))
        dispatcher.num_out_tokens = sent
        tp, ep, local = dispatcher.tp_size, dispatcher.ep_size, dispatcher.num_local_experts
        if ep > 1 or tp > 1:
            dispatcher.input_splits, dispatcher.output_splits = spread(sent, ep), spread(received, ep)
            dispatcher.output_splits_tp = HostCounts([received] * tp)
        else:
            received = sent  # one rank holds all experts: it gets what it sends
        if local > 1:
            dispatcher.num_global_tokens_per_local_expert = spread(received * tp, tp * ep * local)
        return spread(received * tp, local)

    return preprocess


def _imbalance(dispatcher) -> float:
    """Return the factor on a rank's tokens. The capacity factor bounds it: tokens beyond that are dropped."""
    limit = dispatcher.config.moe_expert_capacity_factor
    return ROUTING.imbalance if limit is None else min(ROUTING.imbalance, limit)


def _allgather_postprocess(dispatcher, hidden_states, probs):
    """Replace megatron's method, with known counts: gather all tokens, select those of the local experts."""
    from megatron.core.transformer.moe import token_dispatcher

    first, last = dispatcher.local_expert_indices[0], dispatcher.local_expert_indices[-1] + 1
    dispatcher.hidden_shape_before_permute = hidden_states.shape
    dispatcher.local_map = dispatcher.routing_map[:, first:last].contiguous()
    dispatcher.local_probs = probs[:, first:last].contiguous()
    balanced = hidden_states.shape[0] * dispatcher.router_topk / dispatcher.ep_size
    num_selected = round(balanced * (ROUTING.imbalance if dispatcher.ep_size > 1 else 1))
    counts = spread(num_selected, dispatcher.num_local_experts)
    permuted, _, dispatcher.reversed_local_input_permutation_mapping, *_ = token_dispatcher.permute(
        hidden_states, dispatcher.local_map, num_out_tokens=num_selected, fused=dispatcher.config.moe_permute_fusion
    )
    with _expecting(num_selected):
        dispatcher.local_probs = dispatcher.local_probs.T.contiguous().masked_select(
            dispatcher.local_map.T.contiguous()
        )
    dispatcher.routing_map = None
    return permuted, counts, dispatcher.local_probs


_expected: ContextVar[int | None] = ContextVar("expected", default=None)


@contextmanager
def _expecting(num_selected: int) -> Iterator[None]:
    token = _expected.set(num_selected)
    try:
        yield
    finally:
        _expected.reset(token)


def _counting(function: Callable, count_of: Callable[[dict], int]) -> Callable:
    """Wrap ``function`` so that its `masked_select` knows how many elements it finds."""
    parameters = inspect.signature(function)

    @wraps(function)
    def call(*args, **kwargs):
        with _expecting(count_of(parameters.bind(*args, **kwargs).arguments)):
            return function(*args, **kwargs)

    return call


def _select_by_count() -> None:
    masked_select = torch.Tensor.masked_select

    def select(values, mask):
        expected = _expected.get()
        if PLACE.is_real or expected is None:
            return masked_select(values, mask)
        return _Selected.apply(values, mask, expected)

    torch.Tensor.masked_select = select
