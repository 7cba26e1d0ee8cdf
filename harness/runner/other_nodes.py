"""The first node waits for the others before it reads what all of them left in the shared run folder."""

import time
from pathlib import Path

from harness.launch.rendezvous import Nodes

PATIENCE_S = 60.0
_POLL_S = 0.2


def wait_for_other_nodes(run_dir: Path, nodes: Nodes, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """Return once every other node has written its outcome, which it does last; notes name those that did not.

    A shared file system may show files late, and samplers of other nodes write for some seconds after their ranks.
    """
    others = [rank for rank in range(nodes.nnodes) if rank != nodes.node_rank]
    outcomes = {rank: run_dir / "ranks" / f"outcome_node_{rank:03d}.json" for rank in others}
    deadline = time.monotonic() + patience_s
    while (missing := [rank for rank, path in outcomes.items() if not path.exists()]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return tuple(
        f"node {rank} left no outcome within {patience_s:g} s; its ranks may be incomplete" for rank in missing
    )
