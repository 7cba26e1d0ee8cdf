"""Python interface: functions that return the documents of the commands' ``--json``, frozen and with ``to_dict()``.

Importing it loads no torch; nothing is printed or trained. BadRequestError has the message and the remedy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import ExperimentOptions as Experiment
from harness.cli.options import JudgeOptions as Judging
from harness.errors import BadRequestError
from harness.experiment.gpu import SPARE

if TYPE_CHECKING:
    from harness.check.show import CheckDocument
    from harness.measure.values import CompareDocument, RecordedRun
    from harness.plan.rows import PlanDocument

__all__ = ["BadRequestError", "Experiment", "Judging", "check", "compare", "load_run", "plan"]


def _require_experiment(given: object) -> None:
    if not isinstance(given, Experiment):
        raise BadRequestError(
            f"{given!r} is no Experiment", remedy='Experiment(model_recipe_name="llama3_8b", gpu="h100")'
        )


def plan(
    experiment: Experiment,
    *,
    margin: float = SPARE,
    fit_into_gib: float | None = None,
    max_overhead: float | None = None,
    over: Mapping[str, Sequence[int | None]] | None = None,
    only: Sequence[str] = (),
    assume: str | None = None,
) -> "PlanDocument":
    """Predict peak bytes and seconds of a step for every recompute setting; needs torch and megatron-core, but no GPU.

    ``margin`` and ``max_overhead`` are fractions. ``over`` plans several sizes, e.g. ``{"tp": (2, 4), "vp": (None,
    5)}``; ``only`` limits the settings, e.g. ``("mlp", "full:uniform:1")``. A row of the frame is one setting of one
    layout.
    """
    from harness.cli.requests import experiment_request, require_job
    from harness.launch.environment import this_host
    from harness.plan.request import PlanRequest
    from harness.plan.rows import planned_document
    from harness.plan.run import plan_request

    _require_experiment(experiment)
    asked = experiment_request(experiment)
    require_job(asked)
    request = PlanRequest(
        asked=asked,
        margin=margin,
        fit_into_gib=fit_into_gib,
        max_overhead=max_overhead,
        over=tuple((name, tuple(values)) for name, values in (over or {}).items()),
        only=tuple(only),
        assume=assume,
    )
    return planned_document(plan_request(request, this_host()))


def check(experiment: Experiment, *, assume: str | None = None, ask_megatron: bool = True) -> "CheckDocument":
    """Judge a request by every rule and by the installed megatron-core; an illegal one has ``exit_code`` 2.

    ``assume``: versions to judge for, e.g. ``"megatron-core=0.19.2,gpu=h100"``. A row of the frame is one finding.
    """
    from harness.check.show import CheckDocument
    from harness.cli.options import LaunchOptions
    from harness.cli.requests import run_request
    from harness.launch.environment import this_host
    from harness.measure.checking import check_request

    _require_experiment(experiment)
    request = run_request(experiment, Judging(), LaunchOptions())
    return CheckDocument.of(
        check_request(request, this_host(), assume=assume, ask_megatron=ask_megatron, gpu_point=True)
    )


def compare(
    run: str | Path,
    golden: str | Path | None = None,
    *,
    repeats: Sequence[str | Path] = (),
    judging: Judging | None = None,
    results_dir: Path | None = None,
) -> "CompareDocument":
    """Judge a measured run, with its repeats, against a golden file, another run, or the stored golden of its settings.

    ``run``: a folder, or the start of a run's id. A row of the frame is one metric.
    """
    from harness.cli.requests import read
    from harness.judge.compare import WindowOptions, compare_stored
    from harness.measure.values import compare_document
    from harness.records.gating import GateOptions

    how = judging or Judging()
    reference = None if golden is None else str(golden)
    runs = tuple(str(each) for each in (run, *repeats))
    return compare_document(
        *compare_stored(runs, reference, read(GateOptions, how), read(WindowOptions, how), results_dir)
    )


def load_run(run: str | Path, *, results_dir: Path | None = None) -> "RecordedRun":
    """Return a measured run: what was asked, what every rank recorded, and the figures derived from it.

    ``run``: a folder, or the start of a run's id. A row of the frame is one step of one rank.
    """
    from harness.judge.derive import derive
    from harness.judge.plausible import doubts_of
    from harness.measure.values import RecordedRun
    from harness.records.store import read_run

    record = read_run(str(run), results_dir)
    metrics = derive(record)
    return RecordedRun.of(record, metrics=metrics, suspect=doubts_of(record, metrics))
