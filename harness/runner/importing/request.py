"""All that one `mbr-perf import` asks for."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.analysis.compare import GateOptions
from harness.recipes.request import Request


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, what it trained, when it ``started_at`` if that is told, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    started_at: datetime | None = None
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
    started_at: datetime | None = None
    results_dir: Path | None = None
