"""The one crossing from command-line options to the values that the logic takes."""

import math
import re
from collections.abc import Container, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Literal, get_args

from harness.asking.options import (
    ExperimentOptions,
    JudgeOptions,
    LaunchOptions,
    LocalLaunchOptions,
    SlurmArrayOptions,
    SlurmLaunchOptions,
    SweepNodes,
)
from harness.errors import BadRequestError, raise_all
from harness.judging.compare import WindowOptions
from harness.launch.plan import Nodes
from harness.recipes.recipe import Request
from harness.records.batches import BatchLaunch, LaunchSettings
from harness.records.goldens import GateOptions
from harness.records.job import SlurmOptions, SlurmRequest
from harness.run.understanding import RunRequest

_SPELLED = {
    "set_values": "set", "replay_from": "from", "as_json": "json", "foreign_golden": "golden", "form": "format",
}  # fmt: skip
_ARGUMENTS = {"suite": "SUITE"}
_NOT_OF_THE_REQUEST = {"force", "set_values", "env", "gpu", "virtual_pipeline_model_parallel_size"}


def experiment_request(options: ExperimentOptions, judge: JudgeOptions | None = None) -> Request:
    """Options as the request that recipes resolve; ``gpu`` is empty when it was not given and is settled later."""
    plain = {name: value for name, value in vars(options).items() if name not in _NOT_OF_THE_REQUEST}
    window = {} if judge is None else vars(window_options(judge))
    return Request(
        **plain,
        **window,
        gpu=options.gpu or "",
        env=tuple(options.env or ()),
        set_values=tuple(options.set_values or ()),
        virtual_pipeline_model_parallel_size=_chunks(options.virtual_pipeline_model_parallel_size),
    )


def _chunks(text: str | None) -> int | Literal["none"] | None:
    if text is None:
        return None
    if text.lower() == "none":
        return "none"
    if not text.isdecimal():
        raise BadRequestError(
            f"--virtual_pipeline_model_parallel_size {text!r} is neither a count nor none", remedy="e.g. -vp 5"
        )
    return int(text)


def window_options(judge: JudgeOptions) -> WindowOptions:
    """Which steps count."""
    return WindowOptions(judge.skip_first_percent_time, judge.eval_time_start_step, judge.eval_time_end_step)


def gate_options(judge: JudgeOptions) -> GateOptions:
    """How to judge."""
    return GateOptions(
        golden_values_path=judge.golden_values_path,
        timing_threshold=judge.timing_threshold,
        memory_threshold=judge.memory_threshold,
        accept_differences=tuple(judge.accept_difference or ()),
        fail_on_improvement=judge.fail_on_improvement,
        require_golden=judge.require_golden,
    )


def run_request(asked: ExperimentOptions, judge: JudgeOptions, launch: LaunchOptions) -> RunRequest:
    """All of `mbr-perf run` as one value. BadRequestError for options that contradict each other."""
    if launch.repeats < 1:
        raise BadRequestError(f"--repeats {launch.repeats} must be at least 1")
    return RunRequest(
        asked=experiment_request(asked, judge),
        force=frozenset(asked.force or ()),
        gate=gate_options(judge),
        repeats=launch.repeats,
        launch=_settings(launch),
        nodes=Nodes(launch.nnodes, launch.node_rank, launch.master_addr, launch.master_port),
        run_dir=launch.run_dir,
        results_dir=launch.results_dir,
    )


def slurm_run_request(launch: LaunchOptions, given: SlurmLaunchOptions) -> SlurmRequest | None:
    """What `--launcher slurm` asks for; None for another launcher. BadRequestError, all at once."""
    return slurm_request(launch.launcher, given, nodes_said(launch, launch.replay_from))


def nodes_said(nodes: LaunchOptions | SweepNodes, replay_from: Path | None) -> dict[str, object]:
    """Options that say which nodes take part, by name; None where they are as they are by default."""
    return {
        "nnodes": None if nodes.nnodes == 1 else nodes.nnodes,
        "node_rank": None if nodes.node_rank == 0 else nodes.node_rank,
        "master_addr": nodes.master_addr,
        "from": replay_from,
    }


def batch_launch(launch: LocalLaunchOptions) -> BatchLaunch:
    """How runs are launched on this node, as plans on disk say it. BadRequestError for limits that plans cannot hold."""
    settings = _settings(launch)
    if not all(math.isfinite(limit) for limit in (launch.timeout, launch.hang_timeout) if limit is not None):
        raise_all(settings.problems)
    source = settings.replay_from
    return BatchLaunch(**settings.model_dump() | {"replay_from": source.absolute() if source else None})


def _settings(launch: LocalLaunchOptions) -> LaunchSettings:
    return LaunchSettings(
        launcher=launch.launcher,
        replay_from=launch.replay_from,
        timeout_s=launch.timeout,
        hang_timeout_s=launch.hang_timeout,
        sample_interval_ms=launch.sample_interval_ms,
        pass_env=tuple(launch.pass_env or ()),
    )


def require_nothing_else(what: str, may: str, groups: tuple[object, ...], but: Container[str]) -> None:
    """BadRequestError naming every option that says again what a resumed ``what`` has decided already.

    ``may``: the options that go with `--resume`, in words; ``but``: their names.
    """
    given = given_options(*groups, but=but)
    if given:
        raise BadRequestError(
            f"--resume takes everything from the {what}; {', '.join(given)} would change it",
            remedy=f"only {may} go with it; or start a new {what}",
        )


def given_options(*groups: object, but: Container[str]) -> list[str]:
    """``--name`` of every option, and ``NAME`` of every argument, of ``groups`` that is not as it is by default, without those in ``but``."""
    return [
        _ARGUMENTS.get(field.name) or f"--{_SPELLED.get(field.name, field.name)}"
        for group in groups
        for field in fields(group)  # type: ignore[arg-type]
        if field.name not in but and field.default is not MISSING
        if getattr(group, field.name) not in (field.default, ())
    ]


_TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_MINUTES = re.compile(r"\d{1,7}")
_Gpus = Literal["gpus-per-node", "gres", "none"]


def slurm_request(launcher: str, given: SlurmLaunchOptions, local: Mapping[str, object]) -> SlurmRequest | None:
    """The options as one value; None for another launcher.

    ``local``: options that say which nodes take part, by name, where they are not as they are by default. BadRequestError,
    all at once, for options that contradict each other or the launcher.
    """
    if launcher != "slurm":
        said = _said(given)
        if said:
            raise BadRequestError(f"{', '.join(said)}: only with --launcher slurm", remedy="add it, or leave them out")
        return None
    problems = [*_local_problems(local), *_value_problems(given)]
    minutes = 1
    try:
        minutes = limit_minutes(given.time_limit)
    except BadRequestError as error:
        problems.append(error)
    raise_all(problems)
    return _request(given, minutes)


def limit_minutes(text: str | None) -> int:
    """``30``, ``01:30:00`` or ``1-12:00:00`` in whole minutes, rounded up. BadRequestError for what is none of these."""
    remedy = "--time_limit 30 (minutes) or 01:30:00"
    if text is None:
        raise BadRequestError(
            "--launcher slurm needs a time limit: a job without one may hold its nodes for ever", remedy=remedy
        )
    match = _TIME.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = days * 1440 + hours * 60 + minutes + (seconds > 0)
    else:
        total = int(text) if _MINUTES.fullmatch(text) else 0
    if total < 1:
        raise BadRequestError(f"--time_limit {text!r} is no time of a minute or more", remedy=remedy)
    return total


def _request(given: SlurmLaunchOptions, minutes: int) -> SlurmRequest:
    options = SlurmOptions(
        time_limit_minutes=minutes,
        partition=given.partition,
        account=given.account,
        qos=given.qos,
        reservation=given.reservation,
        constraint=given.constraint,
        gpus=_gpus(given.slurm_gpus) or "gpus-per-node",
        exclusive=not given.no_exclusive,
        segment=given.segment,
        container_image=given.container_image,
        container_mounts=tuple(given.container_mounts or ()),
        python=given.slurm_python,
        pending_timeout_minutes=given.pending_timeout,
    )
    array = isinstance(given, SlurmArrayOptions) and given.array
    return SlurmRequest(options=options, submit=not given.no_submit, detach=given.detach, array=array)


def _said(given: SlurmLaunchOptions) -> list[str]:
    return [f"--{field.name}" for field in fields(given) if getattr(given, field.name) not in (None, False)]


def _local_problems(local: Mapping[str, object]) -> list[BadRequestError]:
    said = [f"--{name}" for name, value in local.items() if value is not None]
    if not said:
        return []
    remedy = "leave them out: Slurm gives the nodes, as many as --num_gpus and --gpus_per_node need"
    return [BadRequestError(f"{', '.join(said)} cannot be said with --launcher slurm", remedy=remedy)]


def _gpus(text: str | None) -> _Gpus | None:
    return next((word for word in get_args(_Gpus) if word == text), None)


def _value_problems(given: SlurmLaunchOptions) -> list[BadRequestError]:
    problems = [
        BadRequestError(f"--{name} {value} must be at least 1")
        for name, value in (("segment", given.segment), ("pending_timeout", given.pending_timeout))
        if value is not None and value < 1
    ]
    if given.slurm_gpus is not None and _gpus(given.slurm_gpus) is None:
        known = ", ".join(get_args(_Gpus))
        problems.append(BadRequestError(f"--slurm_gpus {given.slurm_gpus!r}: no such way", remedy=f"one of {known}"))
    if given.detach and given.no_submit:
        problems.append(BadRequestError("--detach and --no_submit exclude each other", remedy="leave one of them out"))
    return problems
