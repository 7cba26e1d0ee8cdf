"""What a plan advises a job that ran out of memory: never what is predicted to need more."""

from dataclasses import replace

import pytest

from harness.diagnose.forecasts import asked_row, outlook_of
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.predict.limits import Limits
from harness.predict.search import candidates, plan, required_cases
from tests.predict.conftest import row_of

TE = "transformer_engine"
SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")


@pytest.fixture(name="planned")
def _planned(spec_of, by_hand):
    """A plan for a job with this recompute setting and this much memory; None for plenty."""

    def make(recompute, capacity_bytes=80 * 1024**3):
        spec = spec_of().model_copy(update={"recompute": parse_recompute(recompute)})
        found = candidates(spec, SOFTWARE, TE)
        traces = by_hand(required_cases(found, TE, SOFTWARE))
        return plan(spec, found, traces, Limits(capacity_bytes, margin=0.0), TE, SOFTWARE)

    return make


def test_a_change_is_predicted_to_need_less_than_the_job_as_it_is(planned):
    upper = row_of(planned("none"), "full:block:1").prediction.fits[2]
    made = planned("none")
    (change,) = outlook_of(planned("none", made.limits.needs.outside_bytes + upper)).changes
    assert change.peak_bytes < row_of(planned("none"), "none").prediction.peak_bytes


def test_a_job_that_is_predicted_to_fit_is_advised_no_change(planned):
    assert outlook_of(planned("full:uniform:1")).fits_already


def test_nothing_is_advised_where_the_job_as_it_is_cannot_be_predicted(planned):
    made = planned("mlp")
    asked = asked_row(made)
    rows = tuple(replace(r, prediction=None, verdict=None, reason="G22: no") if r is asked else r for r in made.rows)
    found = outlook_of(replace(made, rows=rows))
    assert found.changes == () and "(G22: no)" in found.problem
