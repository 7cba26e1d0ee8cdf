"""The one crossing from command-line options to the values that the logic takes."""

import math
from collections.abc import Container
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Literal

from harness.asking.options import ExperimentOptions, JudgeOptions, LaunchOptions, LocalLaunchOptions, SweepNodes
from harness.asking.slurm_options import SlurmLaunchOptions, slurm_request
from harness.errors import BadRequestError, raise_all
from harness.judging.compare import WindowOptions
from harness.launch.rendezvous import Nodes
from harness.recipes.recipe import Request
from harness.records.batches import BatchLaunch, LaunchSettings
from harness.records.goldens import GateOptions
from harness.records.job import SlurmRequest
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
