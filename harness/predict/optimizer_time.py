"""The seconds of the optimizer's step: on the GPU, in host memory, of Muon's matrix products, and between ranks."""

from typing import NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.optimizer_states import on_host
from harness.predict.compose import Parameters
from harness.predict.model_states import Adam, owned_parameters, state_bytes

COPY = 0.80
"""Share of the link to the host that copies of pinned memory reach. Chosen by hand, with the only published H100 row of
activation offloading in view: with 0.80 that row is predicted 4 % too fast."""

HOST_ADAM_PER_S = 1.24e9
"""Parameters that a thread updates in a second of its own: torch 2.13's fused AdamW on an AMD EPYC that other programs
used too, best of 7 steps (results/benchmarks/host_adam.json). Processors differ."""

_NEWTON_SCHULZ_STEPS = 5  # megatron-core's default
_PRODUCTS_PER_STEP = 3


class Exchange(NamedTuple):
    """Seconds of gradients or weights between ranks, and the passes of a micro-batch that hide them."""

    seconds: float
    backward: bool = False
    forward: bool = False

    def left(self, backward_s: float, forward_s: float) -> float:
        """Return the seconds that passes of these lengths do not hide."""
        return max(0.0, self.seconds - self.backward * backward_s - self.forward * forward_s)


def optimizer_seconds(
    spec: ExperimentSpec, parameters: Parameters, bytes_per_s: float, flops_per_s: float, adam: Adam = "fused"
) -> float:
    """Return the seconds: the step reads and writes its state, reads gradients, writes weights; bound by memory.

    Weights that are quantised on arrival are read, written for both directions of a product, and their buffer is
    cleared.
    """
    per, owned = state_bytes(spec, adam), owned_parameters(spec, parameters)
    kept = sum(owned) * (1 - on_host(spec))
    moved = 2 * per.optimizer * sum(owned) + kept * (2 * (per.cast + per.widened) + per.gradient + 2)
    if quantises_on_arrival(spec):
        moved += (2 + 2 + 2) * (parameters.dense + parameters.expert)
    muon = muon_flops(spec, owned) / flops_per_s if spec.optimizer.is_muon else 0.0
    return moved / bytes_per_s + muon + host_seconds(spec, sum(owned))


def quantises_on_arrival(spec: ExperimentSpec) -> bool:
    """MXFP8 weights are gathered in BF16, and every rank quantises its stage (`param_and_grad_buffer.py`)."""
    in_buffer = spec.optimizer.use_distributed_optimizer and not spec.ddp.use_megatron_fsdp
    return in_buffer and spec.precision.transformer_config.get("fp8_recipe") == "mxfp8"


def host_seconds(spec: ExperimentSpec, owned: float) -> float:
    """Return the seconds of the processor's update and of its copies, gradients down and weights up, in fp32.

    torchrun gives a rank one thread, unless OMP_NUM_THREADS says otherwise. With `overlap_cpu_optimizer_d2h_h2d`
    gradients are copied during updates; weights go up from memory that is not pinned, for which the processor waits.
    Where the data sheet states no link to the host, copies take no time. 1e9 parameters on an H100: 0.81 s of update,
    78 ms for each way.
    """
    num = owned * on_host(spec)
    threads = spec.env.get("OMP_NUM_THREADS", "")
    update = num / (HOST_ADAM_PER_S * (int(threads) if threads.isdigit() and int(threads) else 1))
    link = spec.gpu_type.host_bandwidth
    copy = 4 * num / (link * COPY) if link else 0.0
    down = max(update, copy) if spec.optimizer.overlap_cpu_optimizer_d2h_h2d else update + copy
    return down + copy


def muon_flops(spec: ExperimentSpec, owned: tuple[float, float]) -> float:
    """Return the FLOPs of Newton-Schulz iterations over a rank's matrices, each taken as squares of its shorter side.

    A step multiplies a square of side n three times: 6 n per element; n = 4096 in 5 steps takes 122,880.
    """
    model, p = spec.model, spec.parallelism
    dense = min(model.hidden_size, model.ffn_hidden_size // p.tensor_model_parallel_size)
    expert = min(model.hidden_size, model.moe.moe_ffn_hidden_size // p.expert_tensor_size) if model.moe else 0
    per_side = _NEWTON_SCHULZ_STEPS * _PRODUCTS_PER_STEP * 2
    return per_side * (owned[0] * dense + owned[1] * expert)
