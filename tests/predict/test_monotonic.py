"""What more of a setting must never do to a prediction, over shipped points whose traces mbr-perf brings."""

import re
from itertools import pairwise

import pytest

from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.experiment.software import Software
from harness.predict.limits import Limits
from harness.predict.prediction import predict
from harness.predict.search import Candidates, Traces, candidates, plan, required_cases
from harness.predict.shipped_traces import find_shipped
from harness.predict.stages import Composer
from tests.real_te.shipped_points import IMPLEMENTATION, SOFTWARE, shipped_points

POINTS = {
    f"{p.name}.{p.spec.compute_dtype}.{p.spec.num_gpus}": p.spec
    for p in shipped_points()
    if p.spec and not p.refused and p.gpu == "h100" and p.spec.cuda_graph.impl == "none"
}


def traces_of(cases) -> Traces:
    shipped, why = find_shipped("0.16.1", Software())
    assert shipped, why
    found = {case.key: shipped.read(case, 1.0) for case in cases}
    return Traces({key: row.chunk for key, row in found.items() if row and row.chunk}, None, {})


# Of each kind of model one: the first points of the others are read by the slow tests.
_FAST = ("llama3_8b.bf16.8", "llama3_70b.bf16.32", "qwen3_30b_a3b.bf16.16")
_SLOW = {name.partition(".")[0]: name for name in sorted(POINTS, reverse=True)}


@pytest.fixture(
    name="spec",
    scope="module",
    params=[*_FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted({*_SLOW.values()} - {*_FAST}))],
)
def _spec(request):
    return POINTS[request.param]


@pytest.fixture(name="found", scope="module")
def _found(spec):
    return candidates(spec, SOFTWARE, IMPLEMENTATION)


@pytest.fixture(name="traces", scope="module")
def _traces(found):
    """The traces that all settings of the request take."""
    return traces_of(required_cases(found, IMPLEMENTATION, SOFTWARE))


@pytest.fixture(name="planned", scope="module")
def _planned(spec, found, traces):
    """Every setting of the request, predicted where it is legal."""
    return plan(spec, found, traces, Limits(None), IMPLEMENTATION, SOFTWARE)


@pytest.fixture(name="costs", scope="module")
def _costs(spec, planned, traces):
    """The composed chunks of every setting that is predicted."""
    composer = Composer(spec, IMPLEMENTATION)
    return {
        row.candidate.spec.recompute: composer.with_recompute(row.candidate.spec.recompute).chunk_costs(traces.even)
        for row in planned.rows
        if row.prediction
    }


def saved(costs) -> list[int]:
    return [chunk.sizes.saved for stage in costs for chunk in stage]


def test_recompute_of_more_layers_never_keeps_more_activations(spec, planned, costs):
    blocks = sorted((p.num_layers, p) for p in costs if isinstance(p, FullRecompute) and p.method == "block")
    order = [NoRecompute(), *(policy for _, policy in blocks)]
    if not blocks and sum(map(len, next(iter(costs.values())))) < spec.model.num_layers:  # else a chunk has one layer
        refused = [row.reason for row in planned.rows if row.text.startswith("full:block:")]
        assert refused  # only a rule keeps a setting of whole layers from being predicted
        assert all(re.match(r"[A-Z]\d\d: ", reason) for reason in refused)
    for fewer, more in pairwise(order):
        assert all(b <= a for a, b in zip(saved(costs[fewer]), saved(costs[more]), strict=True)), more.text


def test_recompute_of_more_modules_never_keeps_more_activations(costs):
    """All but `core_attn`: flash attention keeps little, and its checkpoint keeps the inputs and the output as well."""
    selective = [p for p in costs if isinstance(p, SelectiveRecompute)]
    wrong = [
        f"{fewer.text} < {more.text}"
        for more in selective
        for fewer in [NoRecompute(), *selective]
        if set(getattr(fewer, "modules", ())) < set(more.modules)
        and "core_attn" not in set(more.modules) - set(getattr(fewer, "modules", ()))
        and any(b > a for a, b in zip(saved(costs[fewer]), saved(costs[more]), strict=True))
    ]
    assert selective
    assert wrong == []


def test_recompute_never_makes_a_step_faster_or_changes_the_weights(planned):
    assert planned.control
    for row in planned.rows:
        if row.prediction:
            assert row.overhead >= 0, row.text
            assert [s.weights for s in row.prediction.stages] == [s.weights for s in planned.control.prediction.stages]


def test_more_copies_never_need_more_memory_on_a_rank(spec, traces):
    spec = spec.model_copy(update={"recompute": NoRecompute()})
    batch = spec.batch.model_copy(update={"global_batch_size": 2 * spec.batch.global_batch_size})
    twice = spec.model_copy(update={"num_gpus": 2 * spec.num_gpus, "batch": batch})
    one, two = (predict(each, IMPLEMENTATION, traces.even, None, SOFTWARE) for each in (spec, twice))
    for few, many in zip(one.stages, two.stages, strict=True):
        assert many.optimizer <= few.optimizer
        assert (many.weights, many.gradients) <= (few.weights, few.gradients)
        assert many.total <= few.total
        assert not spec.optimizer.use_distributed_optimizer or many.optimizer < few.optimizer


def test_verdicts_change_where_the_device_is_full_to_the_byte(spec, found, traces):
    """FITS ends where the allocator's need at its upper end, and all that is outside it, fill the device; TIGHT at the point."""
    spec = spec.model_copy(update={"recompute": NoRecompute()})
    control = Candidates(tuple(row for row in found.rows if row.text == "none"), {})

    def judged(capacity):
        made = plan(spec, control, traces, Limits(capacity, 0.0), IMPLEMENTATION, SOFTWARE)
        return made.rows[0].verdict, made.rows[0].prediction, made.limits.needs

    _, prediction, needs = judged(None)
    assert prediction.range_bytes[0] <= prediction.peak_bytes <= prediction.uneven_bytes
    assert prediction.peak_bytes <= prediction.fits[1] < prediction.fits[2]
    full, tight = (size + needs.outside_bytes for size in (prediction.fits[2], prediction.fits[1]))
    verdicts = [judged(size)[0] for size in (full + 2, full - 2, tight + 2, tight - 2)]
    assert verdicts == ["FITS", "TIGHT", "TIGHT", "OOM"]
