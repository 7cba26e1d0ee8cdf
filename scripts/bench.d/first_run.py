"""The first command of the README, after set-up: wall seconds from Enter to verdict."""

import json
import tempfile
from pathlib import Path

from processes import timed
from result import Result

COMMAND = ("scripts/mbr-perf", "run", "-m", "llama", "-mr", "llama3_8b", "--recompute_modules", "core_attn,layernorm")
GOAL_S = 60.0


def first_run() -> Result:
    """Once; where its seconds go is in the details."""
    with tempfile.TemporaryDirectory() as folder:
        done = timed((*COMMAND, "--json", "--results_dir", folder))
        document = json.loads(done.stdout)
        outcome = json.loads((Path(document["run_dir"]) / "ranks" / "outcome.json").read_text())
    slowest = max(document["ranks"], key=lambda rank: sum(rank["seconds"].values()))
    details = {
        "cpu_s": round(done.cpu_s, 1),
        "launch_s": outcome["seconds"],
        "slowest_rank_s": {phase: round(s, 2) for phase, s in slowest["seconds"].items()},
        "num_steps": len(slowest["steps"]),
    }
    return Result("first_run", " ".join(COMMAND), round(done.wall_s, 1), GOAL_S, "s", details)
