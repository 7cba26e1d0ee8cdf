"""Every chunk of a request, composed of traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from harness.experiment.effective import NO_SOFTWARE, Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.layout_text import Chunk, Stages
from harness.experiment.model import LayerKind, has_experts
from harness.experiment.recompute import (
    FullRecompute,
    NoRecompute,
    RecomputePolicy,
    SelectiveRecompute,
    policy_of_layer,
)
from harness.experiment.recompute_plan import PlannedRecompute
from harness.experiment.software import Software
from harness.predict.compose import (
    ChunkCost,
    Ends,
    Piece,
    Work,
    added_piece,
    compose,
    frame_piece,
    layer_piece,
    modules_piece,
    offloaded_piece,
    unit_piece,
)
from harness.predict.ledger import tokens_of_rank
from harness.predict.trace_book import AROUND_LAYERS, Book, Shared, work_around_checkpoints
from harness.predict.trace_cases import CaseMaker, in_effect, kind_of, single
from harness.records.trace import ChunkTrace, TraceCase

Settings = tuple[RecomputePolicy, ...]
"""The settings of the layers of a chunk, MTP layers last."""

_Name = tuple[frozenset[LayerKind], tuple[LayerKind, ...], tuple[bool, bool, int], Settings, RecomputePolicy]

_FEW_TOKENS, _TOKENS_PER_SUM = 3072, 10  # of torch's embedding kernel


@dataclass(frozen=True)
class Composer:
    """One request and the means to compose it. Without ``traces`` it only lists the needed traces.

    Traces have Apex, whose kernel adds the output layer's weight gradient in place and keeps a dummy of its size.
    ``as_traced``: without what kernels allocate and no trace shows, to compare with a traced step.
    """

    spec: ExperimentSpec
    implementation: Implementation
    software: Software = NO_SOFTWARE
    as_traced: bool = False
    shared: Shared = field(default_factory=Shared, repr=False, compare=False)

    def with_recompute(self, policy: RecomputePolicy) -> "Composer":
        """Return the same request with another setting. Both share their cases and layers."""
        return replace(self, spec=self.spec.model_copy(update={"recompute": policy}))

    @cached_property
    def make(self) -> CaseMaker:
        return CaseMaker(self.spec, self.implementation, self.software, self.shared.cases)

    @cached_property
    def policy(self) -> RecomputePolicy:
        """The recompute without modules that do nothing: traces are eager; CUDA graphs keep some modules from it."""
        return in_effect(self.spec, self.spec.recompute, self.implementation, self.software)

    @cached_property
    def stages(self) -> Stages:
        """Return the layers of every chunk; LayoutError where the model cannot be cut as asked."""
        return chunks(self.spec.model, self.spec.parallelism)

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        return self.spec.model.layer_kinds

    def cases(self) -> tuple[TraceCase, ...]:
        """Return all traces that :meth:`chunk_costs` reads."""
        listed, found = self.shared.listed, dict[str, TraceCase]()
        for name, chunk in dict(chain(*self._named)).items():
            if name not in listed:
                self._cost(chunk, self.settings(chunk), name[0], recorder := Book())
                listed[name] = recorder.cases
            found |= {case.key: case for case in listed[name]}
        return tuple(found.values())

    def chunk_costs(self, traces: Mapping[str, ChunkTrace]) -> tuple[tuple[ChunkCost, ...], ...]:
        """Return ``costs[pp_rank][vp_stage]``; MissingTraceError for a missing trace."""
        book = self._book(traces)
        for name, chunk in dict(chain(*self._named)).items():
            if name not in book.costs:
                book.costs[name] = self._cost(chunk, self.settings(chunk), name[0], book)
        return tuple(tuple(book.costs[name] for name, _ in stage) for stage in self._named)

    @cached_property
    def _named(self) -> list[list[tuple[_Name, Chunk]]]:
        """Return the chunks of each stage with names, which are equal for chunks of equal cost."""

        def name(chunk: Chunk, of_stage: frozenset[LayerKind]) -> _Name:
            layers = tuple(self.layer_kinds[i] for i in chunk.layers)
            ends = chunk.has_embedding, chunk.has_loss, chunk.mtp_layers
            return of_stage, layers, ends, self.settings(chunk), self.policy

        return [[(name(chunk, self.kinds(stage)), chunk) for chunk in stage] for stage in self.stages]

    def chunk_cost(
        self, chunk: Chunk, settings: Settings, of_stage: frozenset[LayerKind], traces: Mapping[str, ChunkTrace]
    ) -> ChunkCost:
        """Return one chunk with these settings. ``of_stage``: the kinds of layers of its stage."""
        return self._cost(chunk, settings, of_stage, self._book(traces))

    def _book(self, traces: Mapping[str, ChunkTrace]) -> Book:
        return self.shared.books.setdefault(id(traces), Book(traces))

    def kinds(self, stage: tuple[Chunk, ...]) -> frozenset[LayerKind]:
        """Return the kinds of the decoder layers of a stage."""
        return frozenset(self.layer_kinds[i] for chunk in stage for i in chunk.layers)

    def _cost(self, chunk: Chunk, settings: Settings, of_stage: frozenset[LayerKind], book: Book) -> ChunkCost:
        kind = kind_of(self.layer_kinds, chunk, 0)
        single, frame = self._frame(kind, book)
        if len({*map(has_experts, of_stage)}) > 1:  # one dummy per shape of a weight
            sparse = kind if has_experts(kind) else min(filter(has_experts, of_stage))
            shared = self._frame(sparse, book)[1].persistent + self._dense_dummies
            frame = replace(frame, persistent=max(frame.persistent, shared))
        units = self._units(chunk, settings[: len(chunk.layers)], book)
        return compose(frame, units, self._ends(chunk, settings, book), single.hidden_bytes, self._window(len(units)))

    def _frame(self, kind: LayerKind, book: Book) -> tuple[ChunkTrace, Piece]:
        single = book[self.make.layers(kind, NoRecompute(), 1)]
        return single, book.once(("frame", kind), lambda: frame_piece(single, self._layer(kind, NoRecompute(), book)))

    @property
    def _dense_dummies(self) -> int:
        """Return the bytes of transformer-engine's dummies for weight gradients of a dense layer's MLP."""
        model, tp = self.spec.model, self.spec.parallelism.tensor_model_parallel_size
        has_any = self.implementation == "transformer_engine" and self.spec.kernels.gradient_accumulation_fusion
        products = 3 if model.gated_linear_unit else 2
        return has_any * products * model.hidden_size * model.ffn_hidden_size // tp * self.spec.precision.params_bytes

    def _window(self, num_units: int) -> int | None:
        """Return how many layers layer-wise offloading leaves on the device at once; None without it."""
        num_offloaded = self.spec.offload.cpu_offloading_num_layers
        return max(1, num_units - num_offloaded) if num_offloaded else None

    def _layer(self, kind: LayerKind, policy: RecomputePolicy, book: Book) -> Piece:
        def made() -> Piece:
            single, double = (book[self.make.layers(kind, policy, n)] for n in (1, 2))
            piece = layer_piece(single, double, runs_again=_runs_dispatcher_again(policy))
            return replace(piece, latest=self._latest(kind, runs_again=piece.runs_again))

        return book.once(("layer", kind, policy.text), made)

    def _latest(self, kind: LayerKind, *, runs_again: bool) -> int:
        """Return the bytes of routing that the all-to-all dispatcher keeps, and autograd does not.

        For each token and expert a probability and a flag; where the dispatcher runs again also the row maps of the
        fused permutation, two int32 (transformer-engine 2.11 `triton/permutation.py`), which autograd keeps otherwise.
        """
        moe, kernels, p = self.spec.model.moe, self.spec.kernels, self.spec.parallelism
        if moe is None or not has_experts(kind) or kernels.has_flex_dispatcher or self.spec.gpu_type.is_cpu:
            return 0
        tokens = tokens_of_rank(self.spec) // (p.tensor_model_parallel_size if p.sequence_parallel else 1)
        probability = {None: self.spec.precision.params_bytes, "fp32": 4, "fp64": 8}[moe.moe_router_dtype]
        return tokens * moe.num_moe_experts * (probability + 1 + 8 * (runs_again and kernels.moe_permute_fusion))

    def _offloaded(self, kind: LayerKind, policy: RecomputePolicy, kept: Piece, book: Book) -> Piece:
        single, double = (book[self.make.offloaded(kind, policy, n)] for n in (1, 2))
        return offloaded_piece(kept, single, double)

    def _without_modules(self, kind: LayerKind, policy: RecomputePolicy, kept: Piece, book: Book) -> Piece:
        single, double, triple = (book[self.make.offloaded(kind, policy, n)] for n in (1, 2, 3))
        plain = self.make.layers(kind, NoRecompute(), 1)
        frame = frame_piece(book[plain], self._layer(kind, NoRecompute(), book))
        return modules_piece(kept, single.saved_bytes - frame.saved, single, double, triple)

    def _captured(self, kind: LayerKind, policy: RecomputePolicy, piece: Piece, book: Book) -> Piece:
        """The layer with its captured parts in private pools, outputs included (megatron-core 0.16 `cuda_graphs.py`).

        A static input stands for the hidden state that these parts read. With attention goes a mask, and with the
        router the norm before it, whose output the router saves. Tokens for the all-to-all dispatcher are an output.
        """
        single, scope = book[self.make.layers(kind, policy, 1)], self.spec.cuda_graph.scope
        hidden, is_moe, has_attention = single.hidden_bytes, has_experts(kind), not scope or "attn" in scope
        pool = single.attention_bytes * has_attention
        if not scope or ("moe" if is_moe else "mlp") in scope:
            pool += single.mlp_bytes
        elif is_moe and "moe_router" in scope:
            pool += hidden
        if not pool:
            return piece
        captured, batch = min(piece.saved, pool + hidden), self.spec.batch
        mask = batch.micro_batch_size * batch.seq_length**2 // self.spec.parallelism.context_parallel_size
        pool, static = pool + self._handed_on(kind, hidden), hidden + mask * has_attention
        return replace(piece, saved=piece.saved - captured, captured=captured, pool=pool, static=static)

    def _handed_on(self, kind: LayerKind, hidden: int) -> int:
        """Return the bytes of dispatched tokens that a graph hands to the all-to-all dispatcher."""
        moe = self.spec.model.moe
        if moe is None or "moe_preprocess" not in self.spec.cuda_graph.scope or self.spec.kernels.has_flex_dispatcher:
            return 0
        return hidden * moe.moe_router_topk * has_experts(kind)

    def _overlapped(self, kind: LayerKind, policy: RecomputePolicy, piece: Piece, book: Book) -> Piece:
        """The layer as nodes that overlap with another micro-batch (megatron-core 0.16 `fine_grained_callables.py`).

        A node detaches what it hands on: the output of shared experts lives until the backward pass. Backward, the
        gradients of the dispatched tokens and of that output live on beside attention, also those of the layer that ran
        before. Tokens that a graph hands to the all-to-all dispatcher stay, in eager steps too (`should_free_input`).
        """
        moe = self.spec.model.moe
        if moe is None or not has_experts(kind):
            return piece
        hidden = book[self.make.layers(kind, policy, 1)].hidden_bytes
        shared = hidden * (moe.moe_shared_expert_intermediate_size is not None)
        dispatched = hidden * (1 if self.spec.kernels.has_flex_dispatcher else moe.moe_router_topk)
        over = piece.backward_over + 2 * (dispatched + shared)
        captured = piece.captured + self._handed_on(kind, hidden) * bool(piece.pool)
        return replace(piece, saved=piece.saved + shared, backward_over=over, captured=captured)

    def _unit(self, kind: LayerKind, policy: RecomputePolicy, book: Book) -> Piece:
        """Return the layer as it runs: with what offloading, CUDA graphs and overlapped communication change."""
        changes = {
            self._offloaded: self.spec.offload.cpu_offloading_num_layers > 0,
            self._without_modules: bool(self.spec.offload.offload_modules),
            self._captured: self.spec.cuda_graph.impl == "transformer_engine",
            self._overlapped: self.spec.kernels.overlap_moe_expert_parallel_comm,
        }

        def made() -> Piece:
            piece = self._layer(kind, policy, book)
            for change in (change for change, holds in changes.items() if holds):
                piece = change(kind, policy, piece, book)
            around = work_around_checkpoints(self.make.layers(kind, policy, 1).spec)
            return replace(piece, work=Work.total((piece.work, around)))

        return book.once(("unit", kind, policy.text), made)

    @cached_property
    def _planned(self) -> dict[Chunk, Settings]:
        plan = self.policy
        if not isinstance(plan, PlannedRecompute):
            return {}
        return {
            chunk: tuple(map(self.policy_of, plan.settings(pp_rank, vp_stage)))
            for pp_rank, stage in enumerate(self.stages)
            for vp_stage, chunk in enumerate(stage)
        }

    def policy_of(self, setting: str) -> RecomputePolicy:
        """Return the policy of a layer with this setting of a plan."""
        return in_effect(self.spec, policy_of_layer(setting), self.implementation, self.software)

    def settings(self, chunk: Chunk) -> Settings:
        """Return the setting of each layer; block recompute leaves MTP layers out, uniform takes each separately."""
        policy, n, num_mtp = self.policy, len(chunk.layers), chunk.mtp_layers
        if isinstance(policy, PlannedRecompute):
            return self._planned[chunk]
        if not isinstance(policy, FullRecompute):
            return (policy,) * (n + num_mtp)
        num = min(n, policy.num_layers) if policy.method == "block" else n + num_mtp
        return tuple(single(policy) if i < num else NoRecompute() for i in range(n + num_mtp))

    def _units(self, chunk: Chunk, settings: Settings, book: Book) -> list[Piece]:
        policy, kinds = self.policy, [self.layer_kinds[i] for i in chunk.layers]
        again = [self._unit(kind, each, book) for kind, each in zip(kinds, settings, strict=True)]
        if not any(isinstance(each, FullRecompute) for each in settings):
            return _in_place(again, chunk)
        if not isinstance(policy, FullRecompute) or policy.method == "block" or policy.num_layers == 1:
            return again
        kept, n = [self._unit(kind, NoRecompute(), book) for kind in kinds], policy.num_layers
        hidden = book[self.make.layers(kinds[0], NoRecompute(), 1)].hidden_bytes if kinds else 0
        ways = self.spec.parallelism.tensor_model_parallel_size if policy.distribute_saved_activations else 1
        both = [(again[i : i + n], kept[i : i + n]) for i in range(0, len(kinds), n)]
        units = [(unit_piece(*pair, hidden // ways), Work.total([AROUND_LAYERS] * (len(pair[0]) - 1))) for pair in both]
        return [replace(unit, work=unit.work - less) for unit, less in units]

    def _ends(self, chunk: Chunk, settings: Settings, book: Book) -> Ends:
        first = self._first(chunk, settings, book) if chunk.has_embedding else None
        return Ends(first, self._last(chunk, settings, book) if chunk.has_loss or chunk.mtp_layers else None)

    def _first(self, chunk: Chunk, settings: Settings, book: Book) -> Piece:
        """Return the embedding's piece: the less memory a layer kept, the more the embedding's gradient adds."""
        policy = settings[0] if chunk.layers else NoRecompute()
        kind = kind_of(self.layer_kinds, chunk, 0)

        def made() -> Piece:
            piece = added_piece(book[self.make.first(kind, policy)], book[self.make.layers(kind, policy, 1)])
            return replace(piece, backward_over=piece.backward_over + self.embedding_sums)

        return book.once(("first", kind, policy.text), made)

    def _last(self, chunk: Chunk, settings: Settings, book: Book) -> Piece:
        """Output layer and loss run before any recompute. An embedding in the same chunk may share their weights."""
        mtp = bool(chunk.mtp_layers)
        kind, policy = kind_of(self.layer_kinds, chunk, -1), settings[-1] if mtp else NoRecompute()

        def made() -> Piece:
            layer = self.make.layers(kind, policy, 1)
            last = added_piece(book[self.make.last(kind, policy, pre=False, mtp=mtp)], book[layer])
            if chunk.has_embedding:
                both = book[self.make.last(kind, policy, pre=True, mtp=mtp)]
                both_ends = added_piece(both, book[self.make.first(kind, policy)])
                last = replace(both_ends, forward_over=last.forward_over, backward_over=last.backward_over)
            scratch, over = self._beside_logits(last.backward_over, has_mtp=mtp)
            return replace(
                last,
                work=Work.total((last.work, *[work_around_checkpoints(layer.spec)] * chunk.mtp_layers)),
                persistent=last.persistent - self.own_weight_gradient,
                backward_over=over,
                forward_over=last.forward_over + scratch,
            )

        return book.once(("last", kind, policy.text, mtp, chunk.has_embedding, self.software.apex), made)

    def _beside_logits(self, over: int, *, has_mtp: bool) -> tuple[int, int]:
        """Return what the loss adds to the forward peak, and the backward peak if it is ``over`` without own gradients.

        The product that makes an own weight gradient has the gradient of logits beside it, and no fp32 logits any more;
        transformer-engine turns logits into their gradient in place. Under MTP the first gradient waits for the second.
        """
        p, own, scratch = self.spec.parallelism, self.own_weight_gradient, self.loss_scratch
        if not own:
            return scratch, over
        tp, stored = p.tensor_model_parallel_size, self.spec.precision.params_bytes
        saved = self.logits_bytes if self.fused_loss == "te" else 4 * self.logits_bytes // stored
        hidden = tokens_of_rank(self.spec) * self.spec.model.hidden_size * stored
        first = hidden + hidden // tp * p.sequence_parallel + self.logits_bytes - saved + own
        return scratch, max(over, first, (first - saved + own) * has_mtp)

    @property
    def logits_bytes(self) -> int:
        """Return the bytes of a micro-batch's logits on one rank, and of their gradient."""
        tp = self.spec.parallelism.tensor_model_parallel_size
        return (
            tokens_of_rank(self.spec) * self.spec.model.padded_vocab_size(tp) // tp * self.spec.precision.params_bytes
        )

    @property
    def fused_loss(self) -> str | None:
        """Return whose fused cross entropy runs, if one does."""
        kernels = self.spec.kernels
        impl = kernels.cross_entropy_fusion_impl if self.implementation == "transformer_engine" else "native"
        return impl if kernels.cross_entropy_loss_fusion else None

    @property
    def loss_scratch(self) -> int:
        """Return the bytes of the exponentials that Inductor writes beside fp32 logits in megatron-core's loss."""
        is_there = self.fused_loss == "native" and not self.spec.gpu_type.is_cpu and not self.as_traced
        return 4 * self.logits_bytes // self.spec.precision.params_bytes * is_there

    @property
    def embedding_sums(self) -> int:
        """Return the bytes of the fp32 sums that the embedding's backward kernel makes for more than 3,072 tokens.

        One per ten tokens and one per token or row of the table (torch 2.6 to 2.13, `EmbeddingBackwardKernel.cu`):
        4,096 tokens over 32,064 rows of 8,192 take (409 + 4,096) * 8,192 * 4 = 147,619,840.
        """
        tp, tokens = self.spec.parallelism.tensor_model_parallel_size, tokens_of_rank(self.spec)
        if tokens <= _FEW_TOKENS or self.spec.gpu_type.is_cpu or self.spec.peft or self.as_traced:
            return 0
        own = min(tokens, self.spec.model.padded_vocab_size(tp) // tp)
        return (tokens // _TOKENS_PER_SUM + own) * self.spec.model.hidden_size * 4

    @property
    def own_weight_gradient(self) -> int:
        """Return the bytes of the output layer's weight gradient if fusion is on and Apex is missing, else 0."""
        fuses = self.implementation == "transformer_engine" and self.spec.kernels.gradient_accumulation_fusion
        if self.software.apex is not False or not fuses or self.spec.peft:  # with adapters, that weight is frozen
            return 0
        tp = self.spec.parallelism.tensor_model_parallel_size
        elements = self.spec.model.padded_vocab_size(tp) // tp * self.spec.model.hidden_size
        return elements * self.spec.precision.params_bytes


def _in_place(units: list[Piece], chunk: Chunk) -> list[Piece]:
    """Return the layers with offloaded modules, adjusted to the chunk's place in the pipeline.

    An earlier stage sent what the first layer would offload. Before the loss, another micro-batch runs backward next,
    whose last layer is on the device while all of these go.
    """
    if not chunk.has_embedding:
        units = [replace(unit, saved=unit.saved + unit.received) for unit in units[:1]] + units[1:]
    return units if chunk.has_loss else [replace(unit, forward_over=unit.forward_over + unit.leaving) for unit in units]


def _runs_dispatcher_again(policy: RecomputePolicy) -> bool:
    """Return whether the token dispatcher, which leaves memory behind, runs again in the backward pass."""
    return isinstance(policy, FullRecompute) or (isinstance(policy, SelectiveRecompute) and "moe" in policy.modules)
