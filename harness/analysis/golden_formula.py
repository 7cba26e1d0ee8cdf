"""A golden under today's formula: its TFLOP/s are worked out again from its step time, not trusted."""

from dataclasses import replace

from harness.planning import flops
from harness.planning.flops import FORMULA_VERSION
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenSearch
from harness.spec.experiment import ExperimentSpec


def in_todays_formula(search: GoldenSearch, spec: ExperimentSpec) -> GoldenSearch:
    """The golden with TFLOP/s by :data:`FORMULA_VERSION` and a caveat that says so.

    ``spec``: what is compared with it. As it is where it has that version already, is of other settings than ``spec``, or
    says no step time.
    """
    golden = search.golden
    if golden is None or not _can_be_reckoned(golden, spec):
        return search
    seconds_s = golden.metrics["step_time_s"].value
    value = flops.achieved_tflops(flops.model_flops_per_step(spec), seconds_s, spec.num_gpus)
    reckoned = golden.metrics["tflops_per_gpu"].model_copy(update={"value": value})
    told = f"TFLOP/s by {FORMULA_VERSION} from the golden's step time; it was stored by {golden.formula_version}"
    changed = golden.model_copy(
        update={
            "metrics": {**golden.metrics, "tflops_per_gpu": reckoned},
            "formula_version": FORMULA_VERSION,
            "caveats": (*golden.caveats, told),
        }
    )
    return replace(search, golden=changed)


def _can_be_reckoned(golden: GoldenRecord, spec: ExperimentSpec) -> bool:
    return (
        golden.formula_version not in (None, FORMULA_VERSION)
        and golden.fingerprint == spec.fingerprint
        and "step_time_s" in golden.metrics
        and "tflops_per_gpu" in golden.metrics
    )
