"""Memory that a rank needs beside the tensors of torch's allocator, modelled from NCCL's and DeepEP's sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from harness.experiment.experiment import ExperimentSpec
from harness.predict.ledger import KIB, user_buffer_bytes
from harness.predict.schedule import schedule_of
from harness.units import MIB, format_bytes

# A CUDA context with the kernels of torch, cuBLAS, cuDNN and transformer-engine; about 1.06 GB on an H100 before the
# first communicator (NVIDIA/nccl issue 1685). A run records it: peak_device_bytes less peak_reserved_bytes and the
# parts below.
OUTSIDE_ALLOCATOR_BYTES = 1_000_000_000

# NCCL 2.18 to 2.28. A connection over NVLink allocates its three protocols' buffers at the receiver (LL 512 KiB, LL128
# 4.7 MiB, Simple 4 MiB) and flags at the sender, both rounded up to 2 MiB.
_CONNECTION_BYTES = (10 + 2) * MIB
_NETWORK_CONNECTION_BYTES = 2 * 9 * MIB
_CHANNELS = {True: 24, False: 16}  # of collectives, by whether the group is inside one node
_NETWORK_CHANNELS = 4
_PEER_CHANNELS = {True: 32, False: 4}  # of messages to one peer, likewise
# The pool of messages over the network: channels x 16 steps x chunk. Every communicator allocates the sender's.
_POOL_BYTES = {True: 32 * 16 * 512 * KIB, False: 2 * 16 * 16 * 128 * KIB}
_NVLS_BYTES_PER_RANK = 16 * 2 * MIB

# DeepEP (`csrc/config.hpp`, `deep_ep/buffer.py`): half of 20 SMs are channels; tokens that one channel may receive, by
# the size of the group; of each token also 128 experts' indices, weights and scales.
_DEEPEP_CHANNELS, _DEEPEP_NVLINK_RANKS, _DEEPEP_NETWORK_TOKENS = 10, 8, 128
_DEEPEP_TOKENS = ((8, 256), (64, 288), (128, 560))
_DEEPEP_MOST_TOKENS = 720
_DEEPEP_TOKEN_BYTES = 128 * (8 + 4 + 4) + 8

Traffic = Literal["collectives", "all-to-all", "neighbours"]


@dataclass(frozen=True)
class Communicator:
    """One NCCL communicator of a rank: ``size`` ranks, each ``stride`` global ranks from the next.

    ``together``: so many of them in a row, and the next ones further away; 0 if all follow the stride.
    """

    name: str
    size: int
    stride: int
    traffic: Traffic = "collectives"
    together: int = 0

    def num_bytes(self, spec: ExperimentSpec) -> int:
        """Return the device memory of its buffers on one rank.

        Two A100 on NVLink: 256 MiB of pool and 24 connections of 12 MiB, 544 MiB; four: half as many more for the tree,
        688 MiB (both as in NVIDIA/nccl issue 964).
        """
        local = min(self.together or self.size, max(1, spec.gpus_per_node // self.stride))
        is_inside = local == self.size
        if self.traffic == "neighbours":
            return _POOL_BYTES[is_inside] + min(2, local - 1) * _PEER_CHANNELS[is_inside] * _CONNECTION_BYTES
        found = _POOL_BYTES[is_inside] + self._collective_bytes(local, is_inside=is_inside)
        if local > 2 and spec.gpu_type.is_at_least(9):
            found += local * _NVLS_BYTES_PER_RANK
        if self.traffic == "all-to-all":
            found += (local - 1) * _PEER_CHANNELS[is_inside] * _CONNECTION_BYTES
        return found

    def _collective_bytes(self, local: int, *, is_inside: bool) -> int:
        """The buffers of rings, and of trees, which have half as many connections more; two ranks need no tree."""
        if local == 1:
            return _NETWORK_CHANNELS * _NETWORK_CONNECTION_BYTES
        ring = _CHANNELS[is_inside] * _CONNECTION_BYTES
        return ring if self.size == 2 else ring * 3 // 2


def communicators(spec: ExperimentSpec) -> tuple[Communicator, ...]:
    """Return those of a step (megatron-core 0.16 `parallel_state.py`) and of the training loops; none on a CPU."""
    if spec.gpu_type.is_cpu:
        return ()
    return tuple(each for each in _groups(spec) if each.size > 1)


def _groups(spec: ExperimentSpec) -> Iterator[Communicator]:
    p, world = spec.parallelism, spec.num_gpus
    tp, cp, pp = p.tensor_model_parallel_size, p.context_parallel_size, p.pipeline_model_parallel_size
    yield Communicator("world", world, 1)
    yield Communicator("gradient norm", world if spec.optimizer.use_distributed_optimizer else tp * pp, 1)
    yield Communicator("tensor parallel", tp, 1)
    yield Communicator("context parallel", cp, tp, "neighbours" if p.cp_comm_type == "p2p" else "all-to-all")
    yield Communicator("data parallel", cp * spec.data_parallel_size, tp)
    yield Communicator("model parallel", tp * pp, 1 if tp > 1 else world // pp, together=tp if tp > 1 else 0)
    yield from _neighbours(spec)
    if pp > 1 and (spec.model.share_embeddings_and_output_weights or spec.model.mtp_num_layers):
        yield Communicator("embedding", 2, world // pp * (pp - 1))
    if spec.model.moe is not None:
        ep, etp = p.expert_model_parallel_size, p.expert_tensor_size
        has_alltoall = spec.kernels.moe_token_dispatcher_type == "alltoall"  # noqa: S105 (a dispatcher of tokens)
        yield Communicator("expert parallel", ep, etp, "all-to-all" if has_alltoall else "collectives")
        yield Communicator("tokens per expert", ep * etp, 1)
        yield Communicator("expert data parallel", world // (pp * ep * etp), ep * etp)
        balancing = spec.model.moe.moe_router_load_balancing_type
        if balancing not in ("none", "sinkhorn"):  # its loss is logged
            yield Communicator("losses of all stages", pp, world // pp)
        if balancing in ("aux_loss", "seq_aux_loss"):
            yield Communicator("losses of a sequence", tp * cp, 1)
            yield Communicator("losses of all copies", spec.data_parallel_size, tp * cp)
        if balancing == "global_aux_loss" or spec.model.moe.moe_router_enable_expert_bias:
            yield Communicator("routing of a stage", world // pp, 1)


def _neighbours(spec: ExperimentSpec) -> Iterator[Communicator]:
    """Return those of messages between pipeline stages.

    Messages that overlap are not batched (`p2p_communication.py` `_p2p_ops`): torch makes a communicator for each peer,
    and with two stages, of which messages in one direction go through the group of all ranks, another one.
    """
    pp = spec.parallelism.pipeline_model_parallel_size
    if schedule_of(spec, 0).vp_size == 1:
        yield Communicator("pipeline parallel", pp, spec.num_gpus // pp, "neighbours")
    elif pp > 1:
        for name in ("previous stage", "next stage"):
            yield Communicator(name, 2, spec.num_gpus // pp, "neighbours")


def dispatcher_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of the buffers of DeepEP or HybridEP, which one rank keeps for all layers.

    DeepSeek-V3 (hidden size 7168) over EP 64 with DeepEP: 360 MiB for NVLink and 320 MiB for the network.
    """
    moe, ep = spec.model.moe, spec.parallelism.expert_model_parallel_size
    if moe is None or ep == 1 or spec.gpu_type.is_cpu or not spec.kernels.has_flex_dispatcher:
        return 0
    tokens, hidden = spec.user_buffer_shape
    num_nodes = ceil(ep / spec.gpus_per_node)
    if spec.kernels.moe_flex_dispatcher_backend == "hybridep":
        # Every rank may receive all tokens of the group (`NVLCoordinator`); messages between nodes are held three
        # times.
        experts_of_node = moe.num_moe_experts // num_nodes
        received = tokens * ep * (2 * hidden + 4 * experts_of_node)
        return received + tokens * hidden * 2 * (1 + 3 * (num_nodes - 1) if num_nodes > 1 else 0)
    token_bytes = 2 * hidden + _DEEPEP_TOKEN_BYTES
    per_channel = next((most for ranks, most in _DEEPEP_TOKENS if ep <= ranks), _DEEPEP_MOST_TOKENS)
    nvlink = _DEEPEP_CHANNELS * min(ep, _DEEPEP_NVLINK_RANKS) * per_channel * token_bytes
    if ep <= _DEEPEP_NVLINK_RANKS:
        return nvlink
    num_rdma_ranks = ep // _DEEPEP_NVLINK_RANKS
    return nvlink + 2 * _DEEPEP_CHANNELS * num_rdma_ranks * _DEEPEP_NETWORK_TOKENS * token_bytes


@dataclass(frozen=True)
class DeviceNeeds:
    """What a rank's device holds beside torch's allocator. The default is a CPU's: nothing."""

    context_bytes: int = 0
    nccl_bytes: int = 0
    num_communicators: int = 0
    user_buffer_bytes: int = 0
    dispatcher_bytes: int = 0

    @property
    def outside_bytes(self) -> int:
        return self.context_bytes + self.nccl_bytes + self.user_buffer_bytes + self.dispatcher_bytes

    @property
    def text(self) -> str:
        parts = (
            (self.nccl_bytes, f"of NCCL ({self.num_communicators} communicators)"),
            (self.context_bytes, "of CUDA context and libraries"),
            (self.user_buffer_bytes, "of user buffers"),
            (self.dispatcher_bytes, "of dispatcher buffers"),
        )
        return ", ".join(f"{format_bytes(size)} {what}" for size, what in parts if size)


def device_needs(spec: ExperimentSpec, context_bytes: int = OUTSIDE_ALLOCATOR_BYTES) -> DeviceNeeds:
    """Return what a rank of ``spec`` needs beside its tensors; nothing on a CPU."""
    if spec.gpu_type.is_cpu:
        return DeviceNeeds()
    groups = communicators(spec)
    return DeviceNeeds(
        context_bytes=context_bytes,
        nccl_bytes=sum(group.num_bytes(spec) for group in groups),
        num_communicators=len(groups),
        user_buffer_bytes=user_buffer_bytes(spec),
        dispatcher_bytes=dispatcher_bytes(spec),
    )
