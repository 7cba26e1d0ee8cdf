"""Builds and traces one model chunk and its parameters."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.autograd import Variable
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.engine.config import transformer_config
from harness.engine.model import gpt_model
from harness.engine.tracing import offloading
from harness.engine.tracing.ledger import StorageLedger
from harness.engine.tracing.routing import PLACE
from harness.engine.tracing.tracer import Tracer
from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec, OffloadSpec
from harness.experiment.model import ParallelismSpec
from harness.records.trace import TraceCase


class ParameterCount(NamedTuple):
    """Trained elements of one rank's dense and expert parameters, and bytes of all parameters as stored for compute."""

    dense: int
    expert: int
    bytes: int


def count(model: torch.nn.Module) -> ParameterCount:
    """Count parameters. Experts are the routed ones; shared experts count as dense, tied parameters once."""
    dense = expert = num_bytes = 0
    for name, parameter in model.named_parameters():
        trained = parameter.numel() if parameter.requires_grad else 0
        if ".experts." in name:
            expert += trained
        else:
            dense += trained
        num_bytes += stored_bytes(parameter)
    return ParameterCount(dense, expert, num_bytes + buffer_bytes(model))


def buffer_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of registered buffers: expert biases, and the two tables that YaRN keeps in every MLA layer."""
    storages = [buffer.untyped_storage() for buffer in model.buffers()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def stored_bytes(parameter: torch.nn.Parameter) -> int:
    """Return the bytes of data and, for quantised parameters, of transposes and scales."""
    quantized = getattr(parameter, "stand_in_quantized_bytes", None)
    return parameter.numel() * parameter.element_size() if quantized is None else quantized


def workspaces(model: torch.nn.Module) -> int:
    """Return the bytes of quantised copies that layers keep of weights stored in high precision."""
    tensors = [t for module in model.modules() for t in getattr(module, "stand_in_workspace", ())]
    return sum(t.untyped_storage().nbytes() for t in tensors)


def attach_main_grads(model: torch.nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
    """Give every parameter a gradient buffer, with the hook by which DDP fills it; return the buffers."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.main_grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(_into_main_grad)
    return [parameter.main_grad for parameter in trained]


def _into_main_grad(parameter: torch.nn.Parameter) -> None:
    if not parameter.grad_added_to_main_grad:
        parameter.main_grad.add_(parameter.grad)
    parameter.grad = None
    parameter.grad_added_to_main_grad = False


@dataclass(frozen=True)
class Batch:
    """Sizes of one micro-batch on one rank: sequence after context, hidden states after sequence parallelism."""

    size: int
    length: int
    hidden_shape: tuple[int, int, int]
    hidden_dtype: torch.dtype
    needs_mask: bool


@contextmanager
def _kept_by_part(gpt: torch.nn.Module, tracer: Tracer) -> Iterator[dict[str, int]]:
    """Add up the bytes that each part of the layers leaves alive, by the methods that CUDA graphs capture."""
    kept = {"_forward_attention": 0, "_forward_mlp": 0}
    patched = [(layer, name) for layer in gpt.decoder.layers for name in kept if hasattr(layer, name)]

    def counted(method, name: str):
        def run(*args, **kwargs):
            before, is_first = tracer.ledger.live_bytes, tracer.phase == "forward"
            out = method(*args, **kwargs)
            kept[name] += (tracer.ledger.live_bytes - before) * is_first
            return out

        return run

    for layer, name in patched:
        setattr(layer, name, counted(getattr(layer, name), name))
    try:
        yield kept
    finally:
        for layer, name in patched:
            delattr(layer, name)


class Chunk:
    """A GPTModel (maybe in its Float16Module) that stands for one pipeline stage's chunk."""

    def __init__(
        self, model: torch.nn.Module, batch: Batch, main_grad_dtype: torch.dtype, *, pre: bool, post: bool
    ) -> None:
        self.model, self.batch, self.pre, self.post = model, batch, pre, post
        self._main_grad_dtype = main_grad_dtype
        self.config = model.config
        self.gpt = model.module if isinstance(model, Float16Module) else model

    @cached_property
    def _mask(self) -> torch.Tensor | None:
        if not self.batch.needs_mask:
            return None
        length = self.batch.length
        return torch.ones(1, 1, length, length, dtype=torch.bool, device=PLACE.device).triu_(1)

    def measure(self) -> dict[str, Any]:
        """Run two passes: the first allocates what stays, the second is recorded. Return fields of a `ChunkTrace`."""
        assert self._micro_batch
        ledger = StorageLedger()
        main_grads = attach_main_grads(self.model, self._main_grad_dtype)
        for tensor in (*self.model.parameters(), *self.model.buffers(), *main_grads):
            ledger.add(tensor)
        ledger.new_epoch()
        self._pass(self._tracer(ledger))
        leaving_over, reloaded = self._leaving_over(ledger) if offloading.is_on(self.config) else (0, 0)
        gc.collect()
        ledger.new_epoch()
        tracer = self._tracer(ledger)
        with _kept_by_part(self.gpt, tracer) as kept:
            forward_peak, saved, backward_peak = self._pass(tracer)
        gc.collect()
        return {
            "saved_bytes": saved,
            "forward_peak_bytes": forward_peak,
            "backward_peak_bytes": backward_peak,
            "persistent_bytes": ledger.live_of(1) - workspaces(self.model),
            "lingering_bytes": ledger.live_bytes,
            "leaving_over_bytes": leaving_over,
            "reloaded_bytes": reloaded,
            "attention_bytes": kept["_forward_attention"],
            "mlp_bytes": kept["_forward_mlp"],
            "hidden_bytes": prod(self.batch.hidden_shape) * self.batch.hidden_dtype.itemsize,
            "ops": tracer.tally.rows(),
        }

    def _leaving_over(self, ledger: StorageLedger) -> tuple[int, int]:
        """Run the first step of offloading: return the forward peak above what is left, and the bytes that return."""
        gc.collect()
        offloading.forget()
        forward_peak, saved, _ = self._pass(self._tracer(ledger))
        reloaded = offloading.reloaded_bytes()
        offloading.end_step()
        return forward_peak - saved, reloaded

    def _tracer(self, ledger: StorageLedger) -> Tracer:
        return Tracer(ledger, PLACE.device.type, fuses=PLACE.stands_for_cuda)

    def _pass(self, tracer: Tracer) -> tuple[int, int, int]:
        """Return three byte counts: forward peak above the start, saved, backward peak above the saved."""
        ledger = tracer.ledger
        with _no_collection(), tracer:
            start = ledger.mark()
            received = self._received()
            output = self._forward()
            forward_peak = ledger.peak_bytes - start
            saved = ledger.mark() - start
            tracer.phase = "backward"
            self._backward(output)
            backward_peak = ledger.peak_bytes - start - saved
            del received, output
            self.gpt.set_input_tensor(None)
        return forward_peak, saved, backward_peak

    def _received(self) -> torch.Tensor | None:
        if self.pre:
            return None
        hidden = self._hidden()
        hidden.requires_grad_()
        self.gpt.set_input_tensor(hidden)
        return hidden

    def _hidden(self) -> torch.Tensor:
        return torch.empty(self.batch.hidden_shape, dtype=self.batch.hidden_dtype, device=PLACE.device)

    def _forward(self) -> torch.Tensor:
        batch = self._micro_batch
        # only the last stage's output is turned to fp32; in the one-stage job of a trace every chunk looks like the
        # last
        precision = {"fp32_output": self.post} if isinstance(self.model, Float16Module) else {}
        output = self.model(
            batch["tokens"], batch["position_ids"], self._mask, labels=batch["labels"],
            loss_mask=batch["loss_mask"], **precision,
        )  # fmt: skip
        if self.post:
            mask = batch["loss_mask"]
            return torch.sum(output.float().view(-1) * mask.view(-1)) / mask.sum()
        if self.config.deallocate_pipeline_outputs:
            # once sent, only the graph behind the output is needed (megatron's deallocate_output_tensor)
            output.data = torch.empty((1,), dtype=output.dtype, device=output.device)
        return output

    @cached_property
    def _micro_batch(self) -> dict[str, torch.Tensor]:
        """Make tokens, labels and loss mask before the pass, as the worker makes them before the first step."""
        size, length, device = self.batch.size, self.batch.length, PLACE.device
        ids = [torch.zeros(size, length, dtype=torch.long, device=device) for _ in range(2)]
        return {
            "tokens": ids[0],
            "labels": ids[1],
            "loss_mask": torch.ones(size, length, device=device),
            "position_ids": torch.arange(length, device=device)[None].expand(size, -1),
        }

    def _backward(self, output: torch.Tensor) -> None:
        grad = torch.ones_like(output) if self.post else self._hidden()
        # As megatron's custom_backward: torch.autograd.backward refuses an output whose data was taken away.
        Variable._execution_engine.run_backward(
            tensors=(output,), grad_tensors=(grad,), keep_graph=False, create_graph=False, inputs=(),
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector from deciding which bytes are alive."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stage_spec(case: TraceCase, implementation: Implementation) -> ExperimentSpec:
    """Return the spec of a job whose only pipeline stage is the chunk: the same layers, widths and settings."""
    spec = case.spec
    num_layers = max(case.num_layers, 1)  # a chunk without layers is built with one and loses it
    model = spec.model.of_kind(case.layer_kind, num_layers)
    p = spec.parallelism
    parallelism = ParallelismSpec(
        tensor_model_parallel_size=p.tensor_model_parallel_size,
        context_parallel_size=p.context_parallel_size,
        cp_comm_type=p.cp_comm_type,
        expert_model_parallel_size=p.expert_model_parallel_size,
        expert_tensor_parallel_size=p.expert_tensor_parallel_size,
        sequence_parallel=p.sequence_parallel,
    )
    return spec.model_copy(
        update={
            "model": model.model_copy(update={"mtp_num_layers": spec.model.mtp_num_layers if case.mtp else None}),
            "parallelism": parallelism,
            "kernels": spec.kernels.model_copy(update={"transformer_impl": implementation}),
            "num_gpus": world_size(parallelism),
        }
    )


def world_size(p: ParallelismSpec) -> int:
    """Return the ranks of the smallest job in which the dense and the expert groups of one stage both fit."""
    return lcm(
        p.tensor_model_parallel_size * p.context_parallel_size, p.expert_tensor_size * p.expert_model_parallel_size
    )


_Sizes = tuple[int, int, int, int]


class Groups:
    """Rank 0 of process groups that send nothing, with megatron's groups over them; kept while the sizes stay."""

    def __init__(self) -> None:
        self._sizes: _Sizes | None = None

    def join(self, p: ParallelismSpec) -> None:
        """Create groups of the sizes of ``p``, without pipeline or data parallelism."""
        tp, cp, ep, etp = sizes = (
            p.tensor_model_parallel_size, p.context_parallel_size, p.expert_model_parallel_size, p.expert_tensor_size,
        )  # fmt: skip
        if sizes == self._sizes:
            return
        if self._sizes:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        self._sizes = sizes
        dist.init_process_group("fake", rank=0, world_size=world_size(p), store=FakeStore())
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )


def stage_config(spec: ExperimentSpec) -> TransformerConfig:
    """Build megatron-core's configuration of a stage spec. A trace offloads all layers or none."""
    offloads_layers = spec.offload.cpu_offloading_num_layers > 0
    config = transformer_config(spec.model_copy(update={"offload": OffloadSpec()}) if offloads_layers else spec)
    config.cpu_offloading = offloads_layers
    config.cpu_offloading_num_layers = spec.offload.cpu_offloading_num_layers
    config.perform_initialization = PLACE.is_real
    config.use_cpu_initialization = False  # the master weights would be made and cut on the host
    return config


def build(case: TraceCase, spec: ExperimentSpec, config: TransformerConfig) -> Chunk:
    """Build the chunk of ``case``; ``spec`` and ``config`` are its stage's."""
    # Parameters are made on the traced device, but the forward pass runs outside: host integers stay on the host.
    with nullcontext() if PLACE.is_real else PLACE.device:
        model = gpt_model(spec, config, None, pre_process=case.pre, post_process=case.post)
    if not case.num_layers:
        model.decoder.layers = torch.nn.ModuleList()
        model.decoder.num_layers_per_pipeline_rank = 0
    if not case.post:
        model.decoder.final_layernorm = None  # a stage in the middle has none
    if config.bf16:
        model = Float16Module(config, model)
    reduced = torch.float32 if spec.ddp.grad_reduce_in_fp32 else config.params_dtype
    return Chunk(model, _batch(spec, config), reduced, pre=case.pre, post=case.post)


def _batch(spec: ExperimentSpec, config) -> Batch:
    p, b = spec.parallelism, spec.batch
    length = b.seq_length // p.context_parallel_size
    rows = length // p.tensor_model_parallel_size if p.sequence_parallel else length
    return Batch(
        size=b.micro_batch_size,
        length=length,
        hidden_shape=(rows, b.micro_batch_size, spec.model.hidden_size),
        hidden_dtype=config.params_dtype,
        needs_mask=spec.kernels.attention_backend == "unfused" and spec.kernels.transformer_impl == "local",
    )
