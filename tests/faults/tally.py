"""What crash loops did and saw, added up and as a document."""

import platform
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harness.runner.machine import installed_software
from harness.runner.provenance import git_commit


@dataclass
class Tally:
    """What was done and seen in one kind of sweeps."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    unplanned: int = 0
    sittings: int = 0
    longest_until_gone_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """For the file."""
        return {
            "sweeps": self.sweeps,
            "sittings": self.sittings,
            "killed_before_the_plan_was_written": self.unplanned,
            "kills": dict(sorted(self.kills.items())),
            "runs": dict(sorted(self.ends.items())),
            "longest_until_nothing_was_left_s": self.longest_until_gone_s,
        }

    def add(self, figures: dict[str, Any]) -> None:
        """Those of another loop."""
        self.sweeps += figures["sweeps"]
        self.sittings += figures["sittings"]
        self.unplanned += figures["killed_before_the_plan_was_written"]
        self.kills.update(figures["kills"])
        self.ends.update(figures["runs"])
        self.longest_until_gone_s = max(self.longest_until_gone_s, figures["longest_until_nothing_was_left_s"])


def document(seed: int, seconds: float, tallies: dict[str, Tally]) -> dict[str, object]:
    """The figures of loops in which everything held."""
    total = sum((tally.kills for tally in tallies.values()), Counter[str]())
    return {
        "schema_version": 1,
        "title": "Processes of running sweeps killed at random moments with SIGKILL, each sweep resumed to its end",
        "seed": seed,
        "kills": total.total(),
        "kills_by_process": dict(sorted(total.items())),
        "corrupt_files": 0,  # the first of any of these three ends the loop without figures
        "finished_runs_lost_changed_or_run_again": 0,
        "processes_left": 0,
        "sweeps": {scene: tally.figures() for scene, tally in tallies.items()},
        "seconds": round(seconds),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "versions": installed_software().model_dump(exclude={"gpu"}),
        "git_commit": git_commit(),
    }
