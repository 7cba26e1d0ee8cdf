"""Which failures are the machine's, and which never are."""

import pytest

from harness.nightly.outcome import fault_in, infrastructure_fault
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
    ("text", "name", "is_retried"),
    [
        ("GPU is lost (NVML 15)", "GPU lost", False),
        ("CUDA error: uncorrectable ECC error encountered", "GPU memory error", False),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "NVLink error", False),
        ("torchrun could not start ranks: [Errno 98] EADDRINUSE", "port taken", True),
        ("[Errno 28] No space left on device", "disk full", False),
        ("the job ended as NODE_FAIL", "node failed", True),
        ("the job ended as BOOT_FAIL", "job failed to start", True),
        ("the job ended as PREEMPTED", "preempted", True),
    ],
)
def test_a_named_fault_is_known_by_its_words(ended, text, name, is_retried):
    fault = infrastructure_fault(ended(text))
    assert fault is not None
    assert (fault.name, fault.is_retried) == (name, is_retried)


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("it broke", "error", "failed"),
        ("CUDA error: an illegal memory access was encountered", "error", "failed"),
        ("CUDA error: an illegal memory access was encountered; GPU is lost", "error", "failed"),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL", "error", "failed"),
        ("CUDA out of memory; No space left on device", "oom", "oom"),
        ("rank 0 gave no sign of life for 600 s; EADDRINUSE", "hang", "failed"),
        ("still running after 3600 s; NODE_FAIL", "timeout", "failed"),
        ("loss is nan", "non_finite_loss", "failed"),
        ("killed by SIGKILL", "signal", "failed"),
    ],
)
def test_what_the_code_may_have_caused_is_no_fault_of_the_machine(ended, text, kind, status):
    assert infrastructure_fault(ended(text, kind, status)) is None


def test_a_sampler_that_lost_its_gpu_names_the_fault(ended):
    nodes = (NodeSample(hostname="node0", error="GPU is lost (NVML 15)"),)
    fault = infrastructure_fault(ended("CUDA error: unknown error", nodes=nodes))
    assert fault is not None
    assert fault.name == "GPU lost"


def test_a_state_of_slurm_alone_names_the_fault():
    fault = fault_in(["job 17: NODE_FAIL"])
    assert fault is not None
    assert fault.name == "node failed"
    assert fault_in(["job 17: TIMEOUT"]) is None
