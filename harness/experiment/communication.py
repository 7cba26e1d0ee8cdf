"""What a rank sends to the others of a group, over which links, and how many copies of its tokens go to experts."""

from typing import Literal

from harness.experiment.experiment import ExperimentSpec

Group = Literal["tp", "cp", "ep", "etp", "dp", "edp"]


def group_bandwidth(spec: ExperimentSpec, group: Group, link: float = 1.0, network: float = 1.0) -> float:
    """The bytes/s at which one rank sends to the others of its group, where it reaches these shares of its links.

    Ranks are numbered tp-cp-dp-pp and etp-ep-edp-pp (megatron-core `parallel_state`). What leaves the NVLink domain
    goes over the network at the same time as the rest over NVLink. A flex dispatcher sends a token once to each domain.
    """
    links = spec.gpu_type.links
    assert links is not None  # nothing is predicted for a processor
    size, stride = extent(spec, group)
    inside = max(1, min(size, links.domain_gpus // stride))
    if inside >= size:
        return links.nvlink * link
    crossing = 1 - inside / size
    if group == "ep" and spec.kernels.has_flex_dispatcher:
        crossing *= _copies(spec, size // inside)
    return min(links.nvlink * link, links.network * network / crossing)


def _copies(spec: ExperimentSpec, num_domains: int) -> float:
    """Return the copies of a token that reach domains, over its experts: one to each domain with any of them.

    With the experts of a token spread evenly over domains, k of them are in ``n (1 - (1 - 1/n)^k)`` domains on average.
    Routing by groups leaves ``moe_router_group_topk`` groups of neighbouring experts to choose from.
    """
    moe = spec.model.moe
    if moe is None:
        return 1.0
    topk, reachable = moe.moe_router_topk, float(num_domains)
    if moe.moe_router_num_groups and moe.moe_router_group_topk:
        reachable = min(reachable, max(1.0, num_domains * moe.moe_router_group_topk / moe.moe_router_num_groups))
    return reachable * (1 - (1 - 1 / reachable) ** topk) / topk


def extent(spec: ExperimentSpec, group: Group) -> tuple[int, int]:
    """Return the size of a group, and the distance between its neighbours in rank numbers."""
    p = spec.parallelism
    tp, cp = p.tensor_model_parallel_size, p.context_parallel_size
    ep, etp = p.expert_model_parallel_size, p.expert_tensor_size
    per_stage = max(1, spec.num_gpus // p.pipeline_model_parallel_size)
    extents: dict[Group, tuple[int, int]] = {
        "tp": (tp, 1),
        "cp": (cp, tp),
        "ep": (ep, etp),
        "etp": (etp, 1),
        # gradients are reduced over data-parallel and context-parallel ranks together
        "dp": (max(1, per_stage // tp), tp),
        "edp": (max(1, per_stage // (etp * ep)), etp * ep),
    }
    return extents[group]
