"""All that one `mbr-perf import` asks for."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.compare import GateOptions
from harness.recipes.request import Request


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, what it trained, and how to judge it. ``run_dir`` None makes a new one under ``results_dir``."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    results_dir: Path | None = None


@dataclass(frozen=True)
class LabelledLogs:
    """The logs of one job of several, under the setting that it ran with: ``mlp,core_attn pp=8``."""

    label: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImportSweepRequest:
    """Jobs that differ in their settings, and what they have in common. ``control``: a label; empty for the default."""

    jobs: tuple[LabelledLogs, ...]
    asked: Request
    gate: GateOptions
    title: str = ""
    control: str = ""
    margin: float = 0.06
    results_dir: Path | None = None
