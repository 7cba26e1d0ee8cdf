"""What srun starts once on every node of a Slurm job that resumes a whole sweep; the other nodes follow the first."""

import sys
from pathlib import Path

from harness.errors import ExitCode
from harness.records.job import JobAttempt
from harness.records.sweeps import read_sweep
from harness.runner.batch.nodes import Follower, Meeting
from harness.runner.batch.slurm.node import NodeOfJob
from harness.runner.batch.slurm.task import main
from harness.runner.sweep.run import Sitting, follow_sweep, resume_sweep
from harness.runner.sweep.showing import SweepDisplay


def resumed(node: NodeOfJob, attempt: JobAttempt) -> ExitCode:
    """Do the part of this node in what is missing of the sweep."""
    sweep_dir = Path(node.job.subject)
    meeting = Meeting(node.master_addr, attempt.master_port) if node.job.nnodes > 1 else Meeting()
    if node.place.node_rank == 0:
        sitting = Sitting(read_sweep(sweep_dir).plan.max_minutes, meeting=meeting)
        return resume_sweep(str(sweep_dir), None, SweepDisplay(), sitting)
    return follow_sweep(Follower(sweep_dir, node.place.node_rank, meeting), SweepDisplay())


if __name__ == "__main__":
    sys.exit(main(part=resumed))
