"""Where a job that confirms runs: on other nodes than the first runs, if Slurm has others."""

from pathlib import Path

import pytest

from harness.cluster.commands import Slurm
from harness.cluster.rounds import elsewhere
from harness.cluster.submission import JobRequest
from harness.launch.environment import this_host
from harness.records.batches import BatchLaunch
from harness.records.job import SlurmOptions

REFUSED = "allocation failure: Requested node configuration is not available"


@pytest.mark.parametrize(("script", "nodes"), [("exit 0", "n[1-2]"), (f"echo '{REFUSED}' >&2; exit 1", None)])
def test_a_confirming_job_leaves_out_the_first_nodes_where_slurm_has_others(slurm, make_spec, script, nodes):
    slurm.answers("sbatch", script)
    asked = request(make_spec, SlurmOptions(time_limit_minutes=5))
    found = elsewhere(asked, "n[1-2]", Slurm(this_host().shell), this_host())
    assert found.options.exclude == nodes
    assert "--exclude=n[1-2]" in slurm.calls("sbatch")[0]
    assert ("#SBATCH --exclude=n[1-2]\n" in found.checked(this_host()).render()) == (nodes is not None)


def request(make_spec, options):
    return JobRequest(
        what="nightly", label="case", specs=(make_spec(gpu="cpu"),), launch=BatchLaunch(), options=options,
        results=Path("/results"),
    )  # fmt: skip
