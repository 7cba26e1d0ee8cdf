"""All that one `mbr-perf run` asks for."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis.compare import GateOptions
from harness.launch.rendezvous import Nodes
from harness.launch.request import HANG_TIMEOUT_S, SAMPLE_INTERVAL_MS
from harness.recipes.request import Request


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The experiment, how to launch it, and how to judge it. ``asked.gpu`` is empty until the machine has settled it."""

    asked: Request
    force: frozenset[str] = frozenset()
    gate: GateOptions = field(default_factory=GateOptions)
    repeats: int = 1
    launcher: str = "torchrun"
    replay_from: Path | None = None
    nodes: Nodes = field(default_factory=Nodes)
    run_dir: Path | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = HANG_TIMEOUT_S
    sample_interval_ms: int = SAMPLE_INTERVAL_MS
    pass_env: tuple[str, ...] = ()
    results_dir: Path | None = None
