"""A double of DeepEP and HybridEP: every rank sends and receives the same number of tokens, spread evenly over its experts."""

import sys
import types

import torch


class _Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        return hidden_bytes * num_ranks

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


def _spread(total, num_ways):
    small, more = divmod(total, num_ways)
    return [small + 1] * more + [small] * (num_ways - more)


class Buffer:
    """DeepEP: tokens arrive once per rank, and are multiplied for their experts afterwards."""

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0):
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes

    @staticmethod
    def set_num_sms(num_sms):
        """Nothing runs."""

    @staticmethod
    def get_dispatch_config(num_ranks):
        """Sizes."""
        return _Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, topk_idx, num_experts, **_options):
        """Counts per rank, per node and per expert, and who gets what."""
        return None, None, num_experts, None, EventOverlap()

    def dispatch(self, x, topk_idx=None, topk_weights=None, num_tokens_per_expert=None, handle=None, **_options):
        """As many tokens as were sent."""
        received = torch.empty_like(x)
        if handle is not None:
            return received, None, None, None, None, EventOverlap()
        counts = _spread(topk_idx.numel(), num_tokens_per_expert // self.group.size())
        handle = (torch.empty(x.shape[0], self.group.size(), dtype=torch.int32, device=x.device),)
        return received, torch.empty_like(topk_idx), torch.empty_like(topk_weights), counts, handle, EventOverlap()

    def combine(self, x, handle, topk_weights=None, **_options):
        """Back to where they came from."""
        weights = None if topk_weights is None else torch.empty_like(topk_weights)
        return torch.empty_like(x), weights, EventOverlap()


class HybridEPBuffer:
    """HybridEP: tokens arrive permuted, once for each of their experts."""

    def __init__(self, group, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, **_options):
        self.num_ranks, self.num_local_experts = group.size(), num_local_experts

    def dispatch_with_permute(self, *, hidden, routing_map=None, probs=None, handle=None, pad_multiple=None,
                              num_permuted_tokens=None, **_options):  # fmt: skip
        """Hidden states, probabilities and counts by expert, padded where asked."""
        if handle is None:
            handle = self._handle(hidden, routing_map, pad_multiple)
        _num_tokens, counts = handle
        rows = sum(counts)
        out = torch.empty(rows, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        out_probs = None if probs is None else torch.empty(rows, dtype=probs.dtype, device=probs.device)
        return out, out_probs, None, torch.tensor(counts, device="cpu"), handle

    def combine_with_unpermute(self, *, hidden, handle, probs=None, **_options):
        """Back to where they came from."""
        num_tokens, _counts = handle
        num_experts = self.num_ranks * self.num_local_experts
        out = torch.empty(num_tokens, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        if probs is None:
            return out, None
        return out, torch.empty(num_tokens, num_experts, dtype=probs.dtype, device=probs.device)

    def _handle(self, hidden, routing_map, pad_multiple):
        unit = pad_multiple or 1
        counts = _spread(hidden.shape[0] * TOPK["value"], self.num_local_experts)
        return hidden.shape[0], [-(-count // unit) * unit for count in counts]


class EventOverlap:
    """Already over."""

    def __init__(self, event=None):
        self.event = event

    def current_stream_wait(self):
        """Nothing to wait for."""


# Experts per token: a routing map without data does not say. Set for every case.
TOPK = {"value": 1}

# Where megatron-core looks for events.
utils = sys.modules["deep_ep.utils"] = types.ModuleType("deep_ep.utils")
utils.EventOverlap = EventOverlap
utils.EventHandle = type("EventHandle", (), {})
