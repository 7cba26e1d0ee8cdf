"""Other nodes of a launch: one that ended badly ends it here too, long before communication gives up waiting for it."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.plan import LaunchPlan
from harness.records.launch import LaunchOutcome
from harness.records.strict_json import read_document

# What this node's ranks get to find out for themselves and leave their own words; NCCL would wait ten minutes.
GRACE_S = 10.0


@dataclass
class Peers:
    """The other nodes of ``plan``, which share its run folder; none where there is one node."""

    plan: LaunchPlan
    grace_s: float = GRACE_S
    _fallen: dict[int, float] = field(default_factory=dict)

    def reason_to_stop(self, now: float | None = None) -> str:
        """One sentence once a node has been gone for longer than the grace; else empty. ``now``: monotonic seconds."""
        now = time.monotonic() if now is None else now
        for node, path in _outcomes(self.plan):
            outcome = _ended_badly(path)
            if outcome is not None and now - self._fallen.setdefault(node, now) >= self.grace_s:
                return f"node {node} ended {self.grace_s:g} s before: {outcome.reason or outcome.status}"
        return ""


def _outcomes(plan: LaunchPlan) -> tuple[tuple[int, Path], ...]:
    meet = plan.rendezvous
    others = (node for node in range(meet.nnodes) if node != meet.node_rank)
    return tuple((node, plan.outcome_file_of(node)) for node in others)


def _ended_badly(path: Path) -> LaunchOutcome | None:
    """None while it runs, where it ended well, and where its file cannot be read: the ranks will tell then."""
    if not path.is_file():
        return None
    try:
        outcome = read_document(path, LaunchOutcome)
    except BadRequestError:
        return None
    return None if outcome.status == "ok" else outcome
