"""An exception becomes a recorded failure: its kind, and the allocation that failed."""

import pytest

from harness.engine.rank_log import MAX_TEXT, NonFiniteLossError, failure_of
from harness.failures.classify import classify
from tests.engine.conftest import answer_of

MIB, GIB = 1024**2, 1024**3
TAIL_2_4 = "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

# What torch 2.0 to 2.15 and the libraries beside its allocator say, and the bytes that were asked for.
OUT_OF_MEMORY = {
    "2.0": ("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity; 77.01 GiB already allocated; "
            "12.31 MiB free; 77.33 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
            "max_split_size_mb to avoid fragmentation.", 20 * MIB),
    "2.1": ("CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has a total capacty of 79.11 GiB of which 1.94 GiB is "
            "free. Including non-PyTorch memory, this process has 77.16 GiB memory in use.", 3.91 * GIB),
    "fragmented": ("CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.07 GiB "
                   "is free. Including non-PyTorch memory, this process has 78.03 GiB memory in use. Of the allocated memory "
                   f"54.02 GiB is allocated by PyTorch, and 20.41 GiB is reserved by PyTorch but unallocated. {TAIL_2_4}",
                   2.31 * GIB),
    "graph pools": ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 588.00 "
                    "MiB is free. Of the allocated memory 75.60 GiB is allocated by PyTorch, with 11.84 GiB allocated in "
                    "private pools (e.g., CUDA Graphs), and 402.11 MiB is reserved by PyTorch but unallocated.", 1.5 * GIB),
    "small": ("CUDA out of memory. Tried to allocate 896.00 KiB. GPU 0 has a total capacity of 79.11 GiB.", 896 * 1024),
    "bytes": ("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 79.11 GiB.", 512),
    "absurd": ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
    "fraction": ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 40.00 GiB is "
                 "free. 39.55 GiB allowed; Of the allocated memory 38.00 GiB is allocated by PyTorch", 2 * GIB),
    "rejected": ("Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested "
                 "size: 2.00 GiB", 2 * GIB),
    "driver": ("CUDA driver error: out of memory", None),
    "runtime": ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", None),
    "cublas": ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
    "cudnn 8": ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None),
    "cudnn 9": ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", None),
    "nccl": ("NCCL error in: ProcessGroupNCCL.cpp:1234, unhandled cuda error, ncclUnhandledCudaError: Call to CUDA function "
             "failed. Last error:\nFailed to CUDA calloc async 2097152 bytes", 2097152),
    "host": ("[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
             "17179869184 bytes. Error code 12 (Cannot allocate memory)", 16 * GIB),
}  # fmt: skip


@pytest.mark.parametrize(("text", "request_bytes"), OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_out_of_memory_is_known_in_all_its_words(text, request_bytes):
    failure = failure_of(RuntimeError(text), phase="forward_backward", step=3)
    assert (failure.kind, failure.phase, failure.step) == ("oom", "forward_backward", 3)
    assert failure.request_bytes == (None if request_bytes is None else round(request_bytes))
    assert failure.message == f"RuntimeError: {text}"
    verdict = classify(failure.message)
    assert (verdict.is_oom, verdict.request_bytes) == (True, failure.request_bytes)


def test_an_exception_may_say_what_it_is_by_its_type():
    assert failure_of(MemoryError(), phase="build_model", step=None).kind == "oom"
    assert failure_of(NonFiniteLossError("loss is nan at step 4"), phase="step", step=4).kind == "non_finite_loss"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "Connection closed by peer [127.0.0.1]:43210",
        "NCCL communicator was aborted on rank 1",
        "Tried to allocate 3 tickets",
        "CUBLAS_STATUS_NOT_INITIALIZED",
    ],
)
def test_other_errors_are_not_out_of_memory(text):
    failure = failure_of(RuntimeError(text), phase="step", step=1)
    assert (failure.kind, failure.request_bytes) == ("error", None)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return failure_of(caught, phase="start", step=None)


def test_the_traceback_is_kept_without_secrets():
    failure = raised(ValueError("HF_TOKEN=hf_canarycanarycanary is wrong"))
    assert failure.message == "ValueError: HF_TOKEN=*** is wrong"
    assert "in raised" in failure.traceback
    assert "canary" not in failure.message + failure.traceback


def test_endless_texts_are_cut_and_the_end_of_the_traceback_stays():
    failure = raised(ValueError("x" * 100_000 + " the end"))
    assert len(failure.message) == MAX_TEXT
    assert len(failure.traceback) == MAX_TEXT
    assert failure.traceback.endswith("the end\n")


def test_failures_can_be_classified_when_torch_itself_cannot_be_imported():
    script = "import sys; sys.modules.update(torch=None, megatron=None); import harness.engine.rank_log"
    answer_of("-c", script)
