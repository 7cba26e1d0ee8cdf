"""Exports measured runs to MLflow or Weights & Biases: settings, metrics, and the series of steps, without secrets."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.errors import BadRequestError, closest
from harness.judge.derive import derive
from harness.judge.metrics import METRICS
from harness.records.inventory import Stored, runs_of
from harness.records.redact import Places, shareable
from harness.records.run import RunRecord
from harness.units import counted

_ID = "mbr_perf.run_id"
_MOST_PARAMS, _MOST_METRICS, _LONGEST = 100, 1000, 6000  # MLflow's limits per request, and characters of a value


@dataclass(frozen=True)
class ExportedRun:
    """A run for a tracker. ``series``: (step, value) by name. ``started_ms``, ``ended_ms``: since 1970, in UTC."""

    run_id: str
    name: str
    is_ok: bool
    params: Mapping[str, str]
    figures: Mapping[str, float]
    series: Mapping[str, Sequence[tuple[int, float]]]
    tags: Mapping[str, str]
    started_ms: int
    ended_ms: int


@dataclass(frozen=True)
class Sent:
    """``tracker_id``: the tracker's id of the run; ``is_new`` is False if the run was already there and stays as it was."""

    run_id: str
    tracker_id: str
    is_new: bool


def exported_runs(entry: Stored, places: Places) -> tuple[ExportedRun, ...]:
    """Return every committed run of a run folder, a sweep or a night. BadRequestError: there is none."""
    runs = tuple(_exported(record, part, entry, places) for part, record in runs_of(entry))
    if not runs:
        raise BadRequestError(f"{entry.path}: contains no finished run", remedy=f"mbr-perf results show {entry.path}")
    return runs


def _exported(record: RunRecord, part: str, entry: Stored, places: Places) -> ExportedRun:
    known = json.loads(shareable("record.json", record.model_dump_json(include={"spec", "provenance"}), places))
    where, metrics = known["provenance"], derive(record)
    versions = {f"version.{name}": version for name, version in where.pop("versions").items() if version}
    facts = {name: str(where[name]) for name in _FACTS if where.get(name)}
    figures = {metric.name: metric.read(metrics) for metric in METRICS}
    belongs = {"mbr_perf.of": entry.id, "mbr_perf.part": part} if part else {}
    return ExportedRun(
        run_id=record.run_id,
        name=f"{record.spec.recipe} {part}".strip(),
        is_ok=record.status == "ok",
        params=dict(_flat(known["spec"])),
        figures={name: float(value) for name, value in figures.items() if value is not None},
        series={name: values for name, values in _series(record).items() if values},
        tags={_ID: record.run_id, "mbr_perf.status": record.status, "mbr_perf.fingerprint": record.fingerprint,
              **belongs, **facts, **versions},
        started_ms=_milliseconds(record.provenance.started_at),
        ended_ms=_milliseconds(record.provenance.finished_at),
    )  # fmt: skip


_FACTS = ("hostname", "device_name", "driver_version", "git_commit", "git_branch", "container", "job_id", "mbr_perf")


def _flat(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{name}.")
        else:
            text = inner if isinstance(inner, str) else json.dumps(inner)
            yield f"{above}{name}", text[:_LONGEST]


def _series(record: RunRecord) -> dict[str, list[tuple[int, float]]]:
    """Return the seconds of the slowest rank, for which the others wait, and the loss and gradient norm."""
    slowest: dict[int, float] = {}
    losses: dict[int, float] = {}
    norms: dict[int, float] = {}
    for step in (step for rank in record.ranks for step in rank.steps):
        slowest[step.step] = max(step.seconds, slowest.get(step.step, 0.0))
        if step.loss is not None:
            losses[step.step] = step.loss
        if step.grad_norm is not None:
            norms[step.step] = step.grad_norm
    found = {"step_seconds": slowest, "loss": losses, "grad_norm": norms}
    return {name: sorted(values.items()) for name, values in found.items()}


def _milliseconds(when: str) -> int:
    return int(datetime.fromisoformat(when).timestamp() * 1000)


def export(runs: Sequence[ExportedRun], to: str, *, project: str, uri: str | None) -> tuple[Sent, ...]:
    """Send the runs. ``uri``: that of MLflow's tracking server; None: MLflow's own setting.

    BadRequestError: the tracker is unknown, not installed, or refuses the runs.
    """
    if to not in _TRACKERS:
        near = closest(to, list(_TRACKERS))
        raise BadRequestError(
            f"--to {to!r}: no such tracker",
            remedy=f"did you mean {near[0]}?" if near else f"name one of: {', '.join(_TRACKERS)}",
        )
    if to == "wandb" and uri is not None:
        raise BadRequestError("--uri is for mlflow", remedy="Weights & Biases reads WANDB_BASE_URL and WANDB_MODE")
    try:
        return tuple(_TRACKERS[to](runs, project, uri))
    except ModuleNotFoundError as error:
        raise BadRequestError(f"--to {to} needs {error.name}", remedy="pip install 'mbr-perf[export]'") from error


def _to_mlflow(runs: Sequence[ExportedRun], project: str, uri: str | None) -> Iterable[Sent]:
    from mlflow.entities import Metric, Param, RunTag, ViewType
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else client.create_experiment(project)
        for run in runs:
            there = client.search_runs(
                [experiment], f"tags.`{_ID}` = '{run.run_id}'", run_view_type=ViewType.ACTIVE_ONLY
            )
            if there:
                yield Sent(run.run_id, there[0].info.run_id, is_new=False)
                continue
            made = client.create_run(experiment, start_time=run.started_ms, run_name=run.name)
            metrics = [Metric(name, value, run.ended_ms, 0) for name, value in run.figures.items()]
            metrics += [
                Metric(name, value, run.started_ms, step) for name, each in run.series.items() for step, value in each
            ]
            params = [Param(name, value) for name, value in run.params.items()]
            tags = [RunTag(name, value) for name, value in run.tags.items()]
            for at in range(0, len(metrics), _MOST_METRICS):
                client.log_batch(made.info.run_id, metrics=metrics[at : at + _MOST_METRICS])
            for at in range(0, len(params), _MOST_PARAMS):
                client.log_batch(made.info.run_id, params=params[at : at + _MOST_PARAMS])
            client.log_batch(made.info.run_id, tags=tags)  # last: a run with this tag is complete
            client.set_terminated(made.info.run_id, "FINISHED" if run.is_ok else "FAILED", end_time=run.ended_ms)
            yield Sent(run.run_id, made.info.run_id, is_new=True)
    except MlflowException as error:
        raise BadRequestError(
            f"mlflow: {error.message}", remedy="--uri URI, or MLFLOW_TRACKING_URI, names the tracking server"
        ) from error


def _to_wandb(runs: Sequence[ExportedRun], project: str, _uri: str | None) -> Iterable[Sent]:
    """Send runs under their own ids, so that a second export of a run replaces the first."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    for run in runs:
        try:
            tracked = wandb.init(
                project=project, id=run.run_id, name=run.name, group=run.tags.get("mbr_perf.of"), resume="allow",
                config={**run.params, **{f"tag.{name}": value for name, value in run.tags.items()}}, settings=settings,
            )  # fmt: skip
        except wandb.errors.Error as error:
            raise BadRequestError(
                f"wandb: {error}", remedy="wandb login, or WANDB_MODE=offline and wandb sync"
            ) from error
        steps = sorted({step for each in run.series.values() for step, _ in each})
        by_name = {name: dict(each) for name, each in run.series.items()}
        for step in steps:
            tracked.log({name: each[step] for name, each in by_name.items() if step in each}, step=step)
        tracked.summary.update(dict(run.figures))
        tracked.finish(exit_code=0 if run.is_ok else 1)
        yield Sent(run.run_id, run.run_id, is_new=True)
    wandb.teardown()  # its service writes files in the background until it ends


_TRACKERS: dict[str, Callable[[Sequence[ExportedRun], str, str | None], Iterable[Sent]]] = {
    "mlflow": _to_mlflow, "wandb": _to_wandb,
}  # fmt: skip


def summary(sent: Sequence[Sent], to: str, project: str) -> str:
    """Return in one line how many runs were sent."""
    new = sum(run.is_new for run in sent)
    there = f"; {counted(len(sent) - new, 'run')} already there" if new < len(sent) else ""
    return f"{counted(new, 'run')} sent to {to}, project {project}{there}"
