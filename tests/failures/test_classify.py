"""Texts of torch 2.1 to 2.15 and of the libraries beside it: what they say, and what kind of failure that is, in any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.failures.allocator import EIB, allocator_figures, size_bytes
from harness.failures.classify import Ending, classify, expandable_segments
from harness.failures.of_run import oom_of_run
from harness.failures.verdict import ProcessMemory, table
from harness.records.rank import Failure

MIB, GIB = 1024**2, 1024**3
HINT_2_0 = (" If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
            "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF")  # fmt: skip
HINT_2_4 = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html)"
)
HINT_2_10 = HINT_2_4.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def since_2_1(
    tried, total, free, allocated, unallocated, processes="", *, pools="", allowed="", hint=HINT_2_4, spelt="capacity"
):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total {spelt} of {total} of "
        f"which {free} is free. {processes}{allowed}Of the allocated memory {allocated} is allocated by PyTorch, "
        f"{pools}and {unallocated} is reserved by PyTorch but unallocated.{hint}"
    )  # fmt: skip


def mine(size):
    return f"Including non-PyTorch memory, this process has {size} memory in use. "


def pools(size):
    return f"with {size} allocated in private pools (e.g., CUDA Graphs), "


def in_2_0(device):
    return (
        f"RuntimeError: {device} out of memory. Tried to allocate 2.00 GiB ({device} 0; 60.97 GiB total capacity; 56.17 GiB "
        f"already allocated; 1.20 GiB free; 57.20 GiB reserved in total by PyTorch){HINT_2_0}"
    )


# What the text is like -> the text, its class, and how sure that is.
VARIANTS = {
    "2.1 misspelt": (since_2_1("2.31 GiB", "79.11 GiB", "1.07 GiB", "54.02 GiB", "20.41 GiB", mine("78.03 GiB"),
                               hint=HINT_2_0, spelt="capacty"), "fragmentation", "high"),
    "2.4 fragmented": (since_2_1("2.31 GiB", "79.11 GiB", "1.07 GiB", "54.02 GiB", "20.41 GiB", mine("78.03 GiB")),
                       "fragmentation", "high"),
    "2.4 full": (since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "812.44 MiB", mine("77.16 GiB")),
                 "capacity", "high"),
    "2.10 hint": (since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "812.44 MiB", mine("77.16 GiB"), hint=HINT_2_10),
                  "capacity", "high"),
    "no hint": (since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "812.44 MiB", mine("77.16 GiB"), hint=""),
                "capacity", "high"),
    "graph pools": (since_2_1("1.50 GiB", "79.11 GiB", "588.00 MiB", "75.60 GiB", "402.11 MiB", mine("78.53 GiB"),
                              pools=pools("11.84 GiB")), "cuda_graph_pools", "high"),
    "small graph pools": (since_2_1("1.50 GiB", "79.11 GiB", "588.00 MiB", "75.60 GiB", "402.11 MiB", mine("78.53 GiB"),
                                    pools=pools("5.00 GiB")), "cuda_graph_pools", "medium"),
    "pools too small to matter": (since_2_1("1.50 GiB", "79.11 GiB", "588.00 MiB", "75.60 GiB", "402.11 MiB",
                                            mine("78.53 GiB"), pools=pools("1.60 GiB")), "capacity", "high"),
    "neighbour": (since_2_1("6.00 GiB", "79.11 GiB", "4.20 GiB", "53.02 GiB", "623.31 MiB",
                            "Process 375949 has 20.04 GiB memory in use. " + mine("54.87 GiB")), "other_process", "high"),
    "unlisted neighbour": (since_2_1("6.00 GiB", "79.11 GiB", "4.20 GiB", "53.02 GiB", "623.31 MiB", mine("54.87 GiB")),
                           "other_process", "medium"),
    "neighbour too small": (since_2_1("6.00 GiB", "79.11 GiB", "1.20 GiB", "75.02 GiB", "623.31 MiB",
                                      "Process 7 has 520.00 MiB memory in use. " + mine("77.37 GiB")), "capacity", "high"),
    "neighbour too small to be a job": (since_2_1("1.60 GiB", "79.11 GiB", "1.20 GiB", "75.02 GiB", "623.31 MiB",
                                                  "Process 7 has 520.00 MiB memory in use. " + mine("77.37 GiB")),
                                        "capacity", "high"),
    "neighbour, and remainders that would do": (since_2_1("2.00 GiB", "79.11 GiB", "1.00 GiB", "60.00 GiB", "9.00 GiB",
                                                          "Process 7 has 8.00 GiB memory in use. " + mine("70.10 GiB")),
                                                "other_process", "medium"),
    "container": (since_2_1("2.00 GiB", "79.11 GiB", "896.00 KiB", "77.00 GiB", "149.10 MiB",
                            "Process 1686436 has 79.10 GiB memory in use. "), "capacity", "high"),
    "container, fragmented": (since_2_1("2.00 GiB", "79.11 GiB", "1.00 GiB", "60.00 GiB", "16.00 GiB",
                                        "Process 1686436 has 78.10 GiB memory in use. "), "fragmentation", "high"),
    "container with a neighbour": (since_2_1("4.00 GiB", "79.11 GiB", "1.00 GiB", "40.00 GiB", "500.00 MiB",
                                             "Process 11 has 36.00 GiB memory in use. Process 12 has 42.00 GiB memory in use. "),
                                   "other_process", "high"),
    "size not available": (since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "812.44 MiB",
                                     "Process 88 has 17179869184.00 GiB memory in use. "), "capacity", "high"),
    "beside the allocator": (since_2_1("2.00 GiB", "79.11 GiB", "600.00 MiB", "64.00 GiB", "1.00 GiB", mine("78.50 GiB")),
                             "outside_allocator", "medium"),
    "limited": (since_2_1("2.00 GiB", "79.11 GiB", "39.80 GiB", "38.00 GiB", "500.00 MiB", mine("39.20 GiB"),
                          allowed="39.55 GiB allowed; "), "self_imposed_limit", "high"),
    "a limit with room": (since_2_1("2.00 GiB", "79.11 GiB", "1.00 GiB", "20.00 GiB", "500.00 MiB",
                                    "Process 5 has 56.00 GiB memory in use. " + mine("22.10 GiB"),
                                    allowed="75.15 GiB allowed; "), "other_process", "high"),
    "2.12 rejected": ("torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                      "per_process_memory_fraction limit. Requested size: 2.00 GiB", "self_imposed_limit", "high"),
    "2.12 rejected, bare": ("Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. "
                            "Requested size: 512 bytes", "self_imposed_limit", "high"),
    "beyond counting": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", "bad_size", "high"),
    "larger than the device": (since_2_1("512.00 GiB", "79.11 GiB", "60.00 GiB", "18.00 GiB", "50.00 MiB", mine("19.00 GiB")),
                               "bad_size", "high"),
    "a pebibyte, as torch writes it": ("CUDA out of memory. Tried to allocate 1048576.00 GiB.", "bad_size", "high"),
    "a negative size without its sign": ("CUDA out of memory. Tried to allocate 17179869184.00 GiB.", "bad_size", "high"),
    "a request that the largest GPU would hold": ("CUDA out of memory. Tried to allocate 200.00 GiB.", "capacity", "low"),
    "HIP": (since_2_1("3.91 GiB", "191.98 GiB", "1.94 GiB", "180.48 GiB", "812.44 MiB", mine("189.16 GiB"))
            .replace("CUDA out", "HIP out"), "capacity", "high"),
    "2.0": (in_2_0("CUDA"), "capacity", "high"),
    "NPU": (in_2_0("NPU"), "capacity", "high"),
    "a device of any name": (in_2_0("Newpu2"), "capacity", "low"),
    "XPU, since 2.1": (since_2_1("2.00 GiB", "64.00 GiB", "1.94 GiB", "50.00 GiB", "10.00 GiB").replace("CUDA out", "XPU out"),
                       "capacity", "low"),
    "MPS": ("RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB). Tried to allocate 2.00 GB "
            "on private pool.", "capacity", "low"),
    "cut short": ("torch.OutOfMemoryError: CUDA out of mem", "capacity", "low"),
    "only the request": ("CUDA out of memory. Tried to allocate 20.00 MiB.", "capacity", "low"),
    "NCCL": ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, "
             "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 2097152 bytes",
             "outside_allocator", "high"),
    "host": ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you "
             "tried to allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)", "host_memory", "high"),
    "host, absurd": ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 18446744056529682432 bytes.",
                     "bad_size", "high"),
    "our own ranks": ("MemoryLimitError: out of memory under --memory_limit. Tried to allocate 1835008 bytes (1.75 MiB) in "
                      "aten.silu.default; 131.93 MiB of the limit of 133.12 MiB are in use", "self_imposed_limit", "high"),
}  # fmt: skip

# Whole failures as they come in: H100 and others, nearly all figures given, labelled by the rules' reasoning.


def test_a_request_is_held_against_the_gpus_of_the_job_where_the_text_names_none():
    text = "CUDA out of memory. Tried to allocate 200.00 GiB."
    assert classify(text, Ending(device_bytes=80 * GIB)).oom_class == "bad_size"
    assert classify(text, Ending(device_bytes=270 * GIB)).oom_class == "capacity"


@pytest.mark.parametrize(("text", "oom_class", "confidence"), VARIANTS.values(), ids=VARIANTS)
def test_every_way_of_saying_it_has_a_class(text, oom_class, confidence):
    verdict = classify(text)
    assert (verdict.oom_class, verdict.confidence) == (oom_class, confidence), verdict.reason


def test_all_figures_and_processes_are_read_in_bytes():
    figures = allocator_figures(VARIANTS["graph pools"][0])
    assert (figures.tried_bytes, figures.total_bytes) == (round(1.5 * GIB), round(79.11 * GIB))
    assert (figures.free_bytes, figures.this_process_bytes) == (588 * MIB, round(78.53 * GIB))
    assert (figures.allocated_bytes, figures.private_pool_bytes) == (round(75.6 * GIB), round(11.84 * GIB))
    assert (figures.unallocated_bytes, figures.device) == (round(402.11 * MIB), 0)
    listed = allocator_figures(VARIANTS["container with a neighbour"][0]).processes
    assert listed == (ProcessMemory(11, 36 * GIB), ProcessMemory(12, 42 * GIB))


@pytest.mark.parametrize("own", ["0 bytes", "17179869184.00 GiB"])
def test_a_process_that_the_driver_cannot_see_is_not_taken_for_an_empty_one(own):
    """In a container NVML does not find the process. The rest of the memory in use is then that of others."""
    alone = classify(since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "812.44 MiB", mine(own)))
    assert (alone.oom_class, alone.confidence) == ("capacity", "high")
    beside = classify(since_2_1("3.91 GiB", "79.11 GiB", "1.94 GiB", "30.00 GiB", "812.44 MiB", mine(own)))
    assert (beside.oom_class, beside.confidence) == ("other_process", "medium")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (since_2_1("1.00 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "12.44 GiB", mine("77.16 GiB")), "allocated_bytes"),
        (since_2_1("1.00 GiB", "79.11 GiB", "91.94 GiB", "73.48 GiB", "2.44 GiB", mine("77.16 GiB")), "free_bytes"),
        (since_2_1("1.00 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "2.44 GiB", mine("97.16 GiB")), "this_process_bytes"),
        (since_2_1("1.00 GiB", "79.11 GiB", "1.94 GiB", "73.48 GiB", "2.44 GiB", mine("77.16 GiB"), pools=pools("75.00 GiB")),
         "private_pool_bytes"),
    ],
)  # fmt: skip
def test_a_figure_that_no_device_can_have_is_unknown(text, name):
    assert getattr(allocator_figures(text), name) is None


def test_the_refused_request_is_reported_for_every_allocator():
    assert classify(VARIANTS["2.12 rejected"][0]).request_bytes == 2 * GIB
    assert classify(VARIANTS["NCCL"][0]).request_bytes == 2097152
    assert classify(VARIANTS["host"][0]).request_bytes == 17179869184


@pytest.mark.parametrize(
    "text", ["RuntimeError: CPU out of memory", "ValueError: host out of memory", "a cell ran out of memory"]
)
def test_out_of_memory_of_the_host_and_in_prose_is_not_the_devices(text):
    assert classify(text).oom_class != "capacity"


def test_of_two_messages_on_one_line_the_first_counts_and_lends_nothing_from_the_second():
    verdict = classify("CUDA out of memory. Tried to allocate 20.00 MiB. " + VARIANTS["2.4 fragmented"][0])
    assert (verdict.oom_class, verdict.confidence, verdict.request_bytes) == ("capacity", "low", 20 * MIB)


@pytest.mark.parametrize(
    ("free", "allocated", "spare"), [("3.00 GiB", "0.75 GiB", "0.50 GiB"), ("2.50 GiB", "0 bytes", "0 bytes")]
)
def test_a_request_that_the_free_memory_would_have_held_is_neither_fragmentation_nor_capacity(free, allocated, spare):
    verdict = classify(since_2_1("2.00 GiB", "6.00 GiB", free, allocated, spare))
    assert (verdict.oom_class, verdict.confidence) == ("other_process", "low")


def test_fragmentation_with_expandable_segments_on_is_doubted():
    verdict = classify(VARIANTS["2.4 fragmented"][0], Ending(expandable_segments=True))
    assert (verdict.oom_class, verdict.confidence) == ("fragmentation", "low")


@pytest.mark.parametrize(
    ("ending", "oom_class", "confidence"),
    [
        (Ending(exit_code=-9), "killed", "low"),
        (Ending(exit_code=137), "killed", "low"),
        (Ending(exit_code=1), "unknown", "low"),
        (Ending(), "not_oom", "medium"),
    ],
)
def test_where_no_text_tells_the_ending_does(ending, oom_class, confidence):
    verdict = classify("ChildFailedError", ending)
    assert (verdict.oom_class, verdict.confidence) == (oom_class, confidence)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512 bytes", 512), ("896.00 KiB", 896 * 1024), ("2.31 GiB", round(2.31 * GIB)), ("1.5 TiB", 1536 * GIB),
     ("17179869184.00 GiB", None), ("1.00 EiB", None), ("nothing", None), (None, None)],
)  # fmt: skip
def test_a_size_is_read_as_torch_writes_it(text, expected):
    assert size_bytes(text) == expected


FRAGMENTED = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.07 "
    "GiB is free. Including non-PyTorch memory, this process has 78.03 GiB memory in use. Of the allocated memory 54.02 GiB is "
    "allocated by PyTorch, and 20.41 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(name="failed")
def _failed(make_spec, make_rank, make_record):
    """A run whose ranks failed as given, in a recorded environment."""

    def build(*failures, environment=None):
        spec = make_spec()
        ranks = tuple(make_rank(spec, rank, 1.0, failure=failure) for rank, failure in enumerate(failures))
        return make_record(spec, ranks=ranks, status="oom", provenance={"environment": environment or {}})

    return build


def test_the_lowest_rank_that_ran_out_of_memory_tells_the_class_which_expandable_segments_make_doubtful(failed):
    full = Failure(kind="oom", message=FRAGMENTED)
    record = failed(Failure(kind="error", message="NCCL"), full)
    oom = oom_of_run(record)
    assert (record.first_oom.rank, oom.oom_class, oom.confidence) == (1, "fragmentation", "high")
    expandable = failed(full, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert oom_of_run(expandable).confidence == "low"
    assert oom_of_run(failed(Failure(kind="error", message="CUDA error: device-side assert"))) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native, expandable_segments: true"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}, False),
    ],
)
def test_the_name_that_torch_prefers_says_whether_segments_are_expandable(failed, environment, expected):
    assert expandable_segments(failed(environment=environment).provenance.environment) == expected


SIZES = st.sampled_from(
    ["0 bytes", "512 bytes", "896.00 KiB", "2.31 GiB", "79.11 GiB", "17179869184.00 GiB", "9" * 25 + " GiB", "-1 GiB"]
)
WORDS = st.sampled_from([
    "CUDA out of memory. ", "Tried to allocate ", "more than 1EB memory.", "GPU 0 has a total capacity of ", "capacty of ",
    " of which ", " is free. ", "Process 42 has ", " memory in use. ", "Including non-PyTorch memory, this process has ",
    " allowed; ", "Of the allocated memory ", " is allocated by PyTorch, ", "with ", " allocated in private pools (e.g., CUDA Graphs), ",
    "and ", " is reserved by PyTorch but unallocated.", " already allocated; ", " reserved in total by PyTorch", "(GPU 1; ",
    "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: ",
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", "Failed to CUDA calloc async ", "MemoryError", "\n",
    "Traceback (most recent call last):", 'File "a/schedules.py", line 3, in forward_step', "ValueError: x", "exitcode  : -9 (pid: 7)",
    "rank      : 3 (local_rank: 3)", "time      : 2026-08-21_14:03:30", "Root Cause (first observed failure):", "=====",
    "Connection closed by peer", "srun: error: task 1: Killed", "iteration 7/ 9 |", "[E0821 14:03:30.1 x]",
])  # fmt: skip
TEXTS = st.lists(st.one_of(WORDS, SIZES, st.text(max_size=12)), max_size=40).map("".join)
ENDINGS = st.builds(
    Ending,
    exit_code=st.none() | st.integers(-70, 260),
    expandable_segments=st.none() | st.booleans(),
)  # fmt: skip


def judged_whole(text, ending):
    verdict = classify(text, ending)
    assert verdict.oom_class in table()["advice"]
    assert verdict.confidence in ("high", "medium", "low")
    assert verdict.reason
    figures = allocator_figures(text)
    numbers = [] if figures is None else [figures.tried_bytes, figures.total_bytes, figures.free_bytes, figures.allocated_bytes,
                                         figures.unallocated_bytes, figures.private_pool_bytes]  # fmt: skip
    assert all(number is None or 0 <= number < EIB for number in numbers)


@pytest.mark.slow
@settings(max_examples=300)
@given(TEXTS, ENDINGS)
def test_every_text_has_a_verdict(text, ending):
    judged_whole(text, ending)
