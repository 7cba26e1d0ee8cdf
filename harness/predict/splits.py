"""Finds the split of layers over pipeline stages with the fastest plan by layer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.layout_text import Chunk, write_layout
from harness.experiment.software import Software
from harness.predict.fastest import Optimal, mixer_of, optimal
from harness.predict.mixes import Made
from harness.predict.optimal import SAME_TIME, Planner
from harness.predict.prediction import Constants
from harness.predict.search import Plan, Traces
from harness.predict.split_bound import Sizes, SplitSearch
from harness.predict.stage_search import Room
from harness.predict.trace_book import MissingTraceError


@dataclass(frozen=True)
class Splits:
    """The splits of one request, searched for about ``most_s``. Embedding, MTP layers and loss stay."""

    made: Plan
    traces: Traces
    implementation: Implementation
    software: Software
    constants: Constants
    most_s: float = 10.0

    def best(self, of_request: Optimal) -> Optimal:
        """Return the fastest plan of all splits, with a bound for those that were not tried."""
        if of_request.room is None or self.made.spec.parallelism.pipeline_model_parallel_size == 1:
            return of_request
        began, best, search = time.monotonic(), of_request, self._search(of_request, of_request.room)
        if search.why_not:
            return replace(of_request, split_reason=f"splits were not searched: {search.why_not}")
        bound, reason = search.best(), ""
        while bound.seconds < best.seconds_or_inf * (1 - SAME_TIME):
            due = [held for held in bound.ranks if not held.is_final]
            if time.monotonic() - began + of_request.solved_in_s > self.most_s:
                reason = "the time limit ended the search of splits"
            if not due or reason:
                break
            search.refine(min(due, key=lambda held: held.search is not None))
            bound = search.best()
        known = search.best(is_exact=True)
        if known.seconds < best.seconds_or_inf * (1 - SAME_TIME):
            of_ranks = zip(*(held.sizes for held in known.ranks), strict=True)
            found = self._solved(sizes := tuple(size for chunk in of_ranks for size in chunk))
            if found.seconds_or_inf < best.seconds_or_inf:
                best = replace(found, layout=layout_text(self._flat, sizes))
        split_bound = min(bound.seconds, best.seconds_or_inf, search.left_out_s)
        return replace(
            best,
            bound=min(best.bound, split_bound),
            split_bound=split_bound,
            split_reason=reason * (split_bound < best.seconds_or_inf * (1 - SAME_TIME)),
            most_settings=min(best.most_settings, search.planner.mixer.most_settings),
            best_uniform=of_request.best_uniform,
            solved_in_s=of_request.solved_in_s + time.monotonic() - began,
        )

    def _search(self, known: Optimal, room: Room) -> SplitSearch:
        rows = self.made.predicted
        assert rows[0].prediction
        mixer = mixer_of(self.made, self.traces, self.implementation, self.software, self.constants, self._mixes)
        planner = Planner(replace(mixer, more_layers=1), room, rows[0].prediction.adam, self.constants.allocator_bytes)
        return SplitSearch(planner, self._flat, known.seconds_or_inf)

    def _solved(self, sizes: Sizes) -> Optimal:
        made = replace(self.made, spec=self._with(sizes))
        try:
            return optimal(made, self.traces, self.implementation, self.software, self.constants, mixes=self._mixes)
        except MissingTraceError as error:
            return Optimal(None, reason=str(error))

    def _with(self, sizes: Sizes) -> ExperimentSpec:
        changes: dict[str, object] = {
            "pipeline_model_parallel_layout": layout_text(self._flat, sizes),
            "num_layers_in_first_pipeline_stage": None,
            "num_layers_in_last_pipeline_stage": None,
            "account_for_embedding_in_pipeline_split": False,
            "account_for_loss_in_pipeline_split": False,
        }
        own = self.made.spec.parallelism.model_copy(update=changes)
        return self.made.spec.model_copy(update={"parallelism": own})

    @cached_property
    def _mixes(self) -> Made:
        return {}

    @cached_property
    def _flat(self) -> tuple[Chunk, ...]:
        stages = chunks(self.made.spec.model, self.made.spec.parallelism)
        return tuple(stage[chunk] for chunk in range(len(stages[0])) for stage in stages)


def layout_text(flat: Sequence[Chunk], sizes: Sizes) -> str:
    """Return the split as `pipeline_model_parallel_layout`."""
    return write_layout(
        "E" * chunk.has_embedding + "t" * size + "m" * chunk.mtp_layers + "L" * chunk.has_loss
        for chunk, size in zip(flat, sizes, strict=True)
    )
