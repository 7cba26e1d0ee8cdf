"""What crash loops did and saw, added up and as a document."""

import platform
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harness.launch.machine import installed_software
from harness.measure.provenance import git_commit


@dataclass
class Tally:
    """What was done and seen in one kind of sweeps."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    unplanned: int = 0
    sittings: int = 0
    files_read: int = 0
    records_compared: int = 0
    longest_until_gone_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """For the file."""
        return {
            "sweeps": self.sweeps,
            "sittings": self.sittings,
            "killed_before_the_plan_was_written": self.unplanned,
            "kills": dict(sorted(self.kills.items())),
            "runs": dict(sorted(self.ends.items())),
            "files_read": self.files_read,
            "records_of_finished_runs_compared": self.records_compared,
            "longest_until_nothing_was_left_s": self.longest_until_gone_s,
        }

    def add(self, figures: dict[str, Any]) -> None:
        """Those of another loop."""
        self.sweeps += figures["sweeps"]
        self.sittings += figures["sittings"]
        self.unplanned += figures["killed_before_the_plan_was_written"]
        self.files_read += figures["files_read"]
        self.records_compared += figures["records_of_finished_runs_compared"]
        self.kills.update(figures["kills"])
        self.ends.update(figures["runs"])
        self.longest_until_gone_s = max(self.longest_until_gone_s, figures["longest_until_nothing_was_left_s"])


def document(seed: int, seconds: float, tallies: dict[str, Tally]) -> dict[str, object]:
    """The figures of loops in which everything held: the first file that is corrupt, finished run that is lost, changed or
    run again, or process that is left, ends a loop without figures.
    """
    total = sum((tally.kills for tally in tallies.values()), Counter[str]())
    return {
        "schema_version": 2,
        "title": "Processes of running sweeps killed at random moments with SIGKILL, each sweep resumed to its end",
        "seed": seed,
        "kills": total.total(),
        "kills_by_process": dict(sorted(total.items())),
        "files_read_and_whole": sum(tally.files_read for tally in tallies.values()),
        "records_of_finished_runs_compared_and_equal": sum(tally.records_compared for tally in tallies.values()),
        "sittings_after_which_no_process_was_left": sum(tally.sittings for tally in tallies.values()),
        "sweeps": {scene: tally.figures() for scene, tally in tallies.items()},
        "seconds": round(seconds),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "versions": installed_software().model_dump(exclude={"gpu"}),
        "git_commit": git_commit(),
    }
