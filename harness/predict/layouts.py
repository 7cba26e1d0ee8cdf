"""Lists every way to divide a model, a number of GPUs and a global batch size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import NamedTuple, Self

from harness.experiment.balanced_layout import balanced_layout
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import model_flops_per_step
from harness.experiment.layout import num_virtual_stages

# A search tries no larger sizes: they only divide work that is already small.
MOST_CP, MOST_MB, MOST_PP = 16, 8, 64
_UNEVEN_VP = (2, 4)


class Sizes(NamedTuple):
    """One layout. ``vp`` None: no interleaving. ``ep`` and ``et`` None: the model has no experts."""

    tp: int
    pp: int
    vp: int | None
    cp: int
    ep: int | None
    et: int | None
    mb: int

    @classmethod
    def of(cls, spec: ExperimentSpec) -> Self:
        """Return the layout of a request."""
        p, has_experts = spec.parallelism, spec.model.moe is not None
        return cls(
            p.tensor_model_parallel_size,
            p.pipeline_model_parallel_size,
            p.virtual_pipeline_model_parallel_size,
            p.context_parallel_size,
            p.expert_model_parallel_size if has_experts else None,
            p.expert_tensor_size if has_experts else None,
            spec.batch.micro_batch_size,
        )

    @property
    def name(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._asdict().items() if value is not None)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return the sizes beside those of the pipeline: layouts of one shape share all traces."""
        return self.tp, self.cp, self.ep, self.et, self.mb

    def halves(self) -> Iterator[Self]:
        """Yield layouts with half the TP or CP: fewer messages and launches, so a step computes no longer."""
        if self.tp > 1:
            yield self._replace(tp=self.tp // 2, et=self.et if self.et in (None, 1) else self.tp // 2)
        if self.cp > 1:
            yield self._replace(cp=self.cp // 2)


@dataclass(frozen=True)
class Space:
    """The layouts that a search may try. ``pinned``: sizes that the request names, by field of :class:`Sizes`."""

    spec: ExperimentSpec
    pinned: Mapping[str, int | None]

    def sizes(self) -> Iterator[Sizes]:
        """Yield layouts that divide GPUs, layers and batch evenly, small micro-batches first; rules may forbid one."""
        found = (self._with_experts(tp, pp, vp, cp) for tp, pp, vp, cp in self._dense())
        yield from sorted((each for group in found for each in group), key=lambda each: (each.mb, each.cp, each.tp))

    def spec_of(self, sizes: Sizes) -> ExperimentSpec:
        """Return the request with these sizes, for bounds: rules and recipes have not looked at it."""
        sized = {
            "tensor_model_parallel_size": sizes.tp,
            "pipeline_model_parallel_size": sizes.pp,
            "virtual_pipeline_model_parallel_size": sizes.vp,
            "context_parallel_size": sizes.cp,
            "expert_model_parallel_size": sizes.ep or 1,
            "expert_tensor_parallel_size": sizes.et,
        }
        parallelism = self.spec.parallelism.model_copy(update=sized)
        batch = self.spec.batch.model_copy(update={"micro_batch_size": sizes.mb})
        return self.spec.model_copy(update={"parallelism": parallelism, "batch": batch})

    def settings(self, sizes: Sizes) -> tuple[str, ...]:
        """What a request must set beside the sizes: a layout of stages, and settings that these sizes cannot use."""
        wanted: dict[str, str | bool | None] = {
            "parallelism.pipeline_model_parallel_layout": balanced_layout(self.spec_of(sizes)),
            "parallelism.num_layers_in_first_pipeline_stage": None,
            "parallelism.num_layers_in_last_pipeline_stage": None,
            "parallelism.account_for_embedding_in_pipeline_split": False,
            "parallelism.account_for_loss_in_pipeline_split": False,
        }
        if 1 in (self.spec.parallelism.tensor_model_parallel_size, sizes.tp):  # else the request's own choice
            wanted["parallelism.sequence_parallel"] = sizes.tp > 1
        if sizes.tp == 1:
            wanted["kernels.tp_comm_overlap"] = False
        if sizes.vp is None:
            wanted["ddp.align_param_gather"] = False
        if sizes.pp == 1:
            wanted["parallelism.defer_embedding_wgrad_compute"] = False
        differ = {name: value for name, value in wanted.items() if attrgetter(name)(self.spec) != value}
        return tuple(f"{name}={v if isinstance(v, str) else json.dumps(v)}" for name, v in differ.items())

    def _dense(self) -> Iterator[tuple[int, int, int | None, int]]:
        spec = self.spec
        tps = [n for n in self._powers("tp", spec.gpus_per_node) if spec.model.num_attention_heads % n == 0]
        cps = [n for n in self._powers("cp", MOST_CP) if n == 1 or spec.batch.seq_length % (2 * n) == 0]
        for tp, cp, pp in product(tps, cps, self._pipelines()):
            if spec.num_gpus % (tp * cp * pp) == 0:
                yield from ((tp, pp, vp, cp) for vp in self._interleavings(pp))

    def _with_experts(self, tp: int, pp: int, vp: int | None, cp: int) -> Iterator[Sizes]:
        batch = self.spec.batch.global_batch_size
        copies = self.spec.num_gpus // (tp * pp * cp)
        for mb in self._powers("mb", MOST_MB):
            if batch % (mb * copies) == 0:
                yield from (Sizes(tp, pp, vp, cp, ep, et, mb) for ep, et in self._experts(tp, pp))

    def _experts(self, tp: int, pp: int) -> Iterator[tuple[int | None, int | None]]:
        moe = self.spec.model.moe
        if moe is None:
            yield None, None
            return
        for ep, et in product(self._powers("ep", moe.num_moe_experts), self._pinned("et", sorted({1, tp}))):
            if et and moe.num_moe_experts % ep == 0 and self.spec.num_gpus % (pp * ep * et) == 0:
                yield ep, et

    def _pipelines(self) -> list[int]:
        """Return divisors of the number of layers; if there are few, also powers of two, with stages of two lengths."""
        layers, most = self.spec.model.num_layers, min(MOST_PP, self.spec.model.num_layers)
        divisors = [n for n in range(1, most + 1) if layers % n == 0]
        if len(divisors) < 4 or self.spec.model.mtp_num_layers:
            divisors = sorted({*divisors, *_powers(most)})
        return [n for n in self._pinned("pp", divisors) if n is not None]

    def _interleavings(self, pp: int) -> list[int | None]:
        layers = self.spec.model.num_layers
        if pp == 1:
            return self._pinned("vp", [None])
        if layers % pp == 0:
            each = layers // pp
            return self._pinned("vp", [None, *(n for n in range(2, each + 1) if each % n == 0)])
        return self._pinned("vp", [None, *(n for n in _UNEVEN_VP if pp * n <= layers)])

    def _powers(self, name: str, most: int) -> list[int]:
        return [n for n in self._pinned(name, list(_powers(most))) if n is not None]

    def _pinned(self, name: str, values: Sequence[int | None]) -> list[int | None]:
        return [self.pinned[name]] if name in self.pinned else list(values)


def _powers(most: int) -> Iterator[int]:
    n = 1
    while n <= most:
        yield n
        n *= 2


def least_seconds(spec: ExperimentSpec) -> float:
    """Return seconds that no step can beat: model FLOPs at the GPU's peak, and the pipeline's bubble."""
    peak = spec.gpu_type.peak_flops.get(spec.precision.peak)
    if not peak or not spec.num_microbatches:
        return 0.0
    p = spec.parallelism
    bubble = (p.pipeline_model_parallel_size - 1) / (num_virtual_stages(p) * spec.num_microbatches)
    done = model_flops_per_step(spec) * (2 / 3 if spec.peft else 1)  # frozen weights have no gradients
    return done / (spec.num_gpus * peak) * (1 + bubble)
