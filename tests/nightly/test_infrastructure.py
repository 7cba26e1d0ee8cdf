"""Which failures are the machine's, and which never are."""

import pytest

from harness.failures.entries import fault_in
from harness.nightly.outcome import infrastructure_fault
from harness.records.rank import Failure
from harness.records.run import NodeSample


@pytest.fixture(name="ended")
def _ended(make_spec, make_rank, make_record):
    spec = make_spec(num_gpus=1, parallelism={})

    def build(text, kind="error", status="failed", **changes):
        rank = make_rank(spec, 0, failure=Failure(kind=kind, message=text))
        return make_record(spec, ranks=(rank,), status=status, failure=f"rank 0 (stage 0) failed: {text}", **changes)

    return build


@pytest.mark.parametrize(
    ("text", "entry", "retry"),
    [
        ("GPU is lost (NVML 15)", "gpu_lost", "after_repair"),
        ("CUDA error: uncorrectable ECC error encountered", "gpu_lost", "after_repair"),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "gpu_lost", "after_repair"),
        ("torchrun could not start ranks: [Errno 98] EADDRINUSE", "port_in_use", "at_once"),
        ("Slurm: NODE_FAIL (NodeDown) on n2; fallen off the bus", "gpu_lost", "after_repair"),
        ("[Errno 28] No space left on device", "disk_full", "after_repair"),
        ("Slurm: NODE_FAIL (NodeDown) on n2", "slurm_node_lost", "at_once"),
        ("Slurm: BOOT_FAIL on n2", "slurm_node_lost", "at_once"),
        ("Kubernetes: RESTARTED: it ran before", "kubernetes_restarted", "at_once"),
        ("Slurm: REQUEUED 1 time, then LAUNCH_FAILED (JobLaunchFailure)", "slurm_launch_failed", "at_once"),
        ("Slurm could not be reached: Connection refused", "slurm_unreachable", "at_once"),
        ("Slurm refused the job: invalid account", "slurm_refused", "after_repair"),
        ("Slurm: PREEMPTED on n[1-2]", "slurm_preempted", "at_once"),
    ],
)
def test_a_named_fault_is_known_by_its_words(ended, text, entry, retry):
    record = ended(text).model_copy(update={"failure": text})
    fault = infrastructure_fault(record)
    assert (fault.id, fault.retry) == (entry, retry)


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("it broke", "error", "failed"),
        ("CUDA error: an illegal memory access was encountered", "error", "failed"),
        ("CUDA error: an illegal memory access was encountered; GPU is lost", "error", "failed"),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL", "error", "failed"),
        ("Slurm: STEP ENDED, but not the job: its task on another node failed", "error", "failed"),
        ("Slurm: never started: Resources; cancelled by mbr-perf", "error", "failed"),
        ("CUDA out of memory; No space left on device", "oom", "oom"),
        ("rank 0 gave no sign of life for 600 s; EADDRINUSE", "hang", "failed"),
        ("still running after 3600 s; Slurm: NODE_FAIL", "timeout", "failed"),
        ("loss is nan", "non_finite_loss", "failed"),
        ("killed by SIGKILL", "signal", "failed"),
    ],
)
def test_what_the_code_may_have_caused_is_no_fault_of_the_machine(ended, text, kind, status):
    assert infrastructure_fault(ended(text, kind, status)) is None


def test_a_sampler_that_lost_its_gpu_names_the_fault(ended):
    nodes = (NodeSample(hostname="node0", error="GPU is lost (NVML 15)"),)
    assert infrastructure_fault(ended("CUDA error: unknown error", nodes=nodes)).id == "gpu_lost"


def test_a_rank_that_waited_for_a_lost_node_does_not_hide_the_fault(ended):
    text = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL"
    lost = ended(text).model_copy(update={"failure": "Slurm: NODE_FAIL (NodeDown) on n2"})
    assert infrastructure_fault(lost).id == "slurm_node_lost"


def test_a_state_of_slurm_alone_names_the_fault():
    assert fault_in(["Slurm: NODE_FAIL"]).title == "Slurm node lost"
    assert fault_in(["Slurm: TIMEOUT"]) is None
