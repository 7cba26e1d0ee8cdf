"""Messages of libraries, launchers and the system: each names its cause, and what to do about it."""

import pytest

TRACEBACK = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in main', "    run()")
# Lines that programs print by themselves.
SPOKEN = [
    ("[rank2]:[E1 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 300 seconds without making progress",
     "watchdog thread hung", "py-spy dump --native"),
    ("DeepEP combine NVL receiver timeout, channel: 1, RDMA: 0, nvl: 2", "exchange of tokens between experts", "dispatcher alltoall"),
    ("n1:7:9 [1] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address", "registered with the network card", "nvidia_peermem"),
    ("n1:7:9 [1] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "registered with the network card", "DMA-BUF"),
    ("[17.3] [n1:8:0]  ib_md.c:9  UCX  ERROR ibv_reg_mr(address=0x7f, length=8, access=0xf) failed: Bad address", "registered with the network card", "peermem"),
    ("n1:7:9 [1] misc/socket.cc:9 NCCL WARN Call to bind failed : Cannot assign requested address", "no usable address", "NCCL_SOCKET_IFNAME"),
    ("n1:7:9 [1] bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found", "no usable address", "NCCL_SOCKET_IFNAME"),
    ("n1:7:9 [1] misc/nvmlwrap.cc:9 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found", "look up a GPU", "nvidia-smi -L"),
    ("n1:7:9 [1] misc/shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a1 (size 9637888)", "/dev/shm", "--shm-size"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "/dev/shm", "--ipc=host"),
    ("[n1:7 :0:9] Caught signal 7 (Bus error: nonexistent physical address)", "SIGBUS", "--shm-size"),
    ("kernel: NVRM: fallen off the bus and is not responding to commands.", "a GPU failed or was lost", "another node"),
    ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "a GPU failed or was lost", "another node"),
    ("e!         Error: CUDNN_STATUS_EXECUTION_FAILED; Reason: finalize_internal()", "no attention that works", "NVTE_DEBUG_LEVEL=2"),
    ("pretrain_gpt.py: error: unrecognized arguments: --no-such-option", "an option that the program refuses", "--help"),
    ("slurmstepd: error: pyxis: failed to import docker image", "could not start the container", "enroot"),
    ("srun: error: Unable to create step for job 7: Requested node configuration is not available", "never started the job step", "scontrol"),
    ("srun: error: Node failure on n7", "lost a node", "--exclude"),
    ("    reason: OOMKilled", "Kubernetes ended the container", "resources.limits.memory"),
    ("[E socket.cpp:9] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500).", "reach the rendezvous", "MASTER_ADDR"),
]  # fmt: skip
RAISED = [
    ("RuntimeError: DeepEP error: timeout (dispatch CPU)", "exchange of tokens between experts", "NVSHMEM"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.", "reach the rendezvous", "--rdzv_endpoint"),
    ("RuntimeError: Error(s) in loading state_dict for GPTModel:", "does not fit the model", "--no-load-optim"),
    ("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.", "does not fit the model", "--no-load-optim"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "damaged or cut short", "older checkpoint"),
    ("ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "do not fit together", "mbr-perf doctor"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "do not fit together", "mbr-perf doctor"),
    ("AttributeError: module 'transformer_engine' has no attribute 'pytorch'", "do not fit together", "mbr-perf doctor"),
    ("ModuleNotFoundError: No module named 'einops'", "module is not installed", "PYTHONPATH"),
    ("RuntimeError: Error building extension 'share_storage_ext'", "could not be compiled", "torch_extensions"),
    ("RuntimeError: fused_attn.cu:9 in function operator(): cuDNN Error: No execution plans support the graph.", "no attention that works", "NVTE_FUSED_ATTN=0"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", "cuBLAS failed", "CUDA_LAUNCH_BLOCKING"),
    ("RuntimeError: CUDA error: operation not permitted when stream is capturing", "could not be captured", "cuda_graph_impl=none"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "this type of GPU", "TORCH_CUDA_ARCH_LIST"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "GPU driver does not fit", "nvidia-smi"),
    ("RuntimeError: CUDA error: system not yet initialized", "Fabric Manager", "nvidia-fabricmanager"),
    ("RuntimeError: No CUDA GPUs are available", "the job sees no GPU", "CUDA_VISIBLE_DEVICES"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "another process holds the GPU", "COMPUTE"),
    ("AssertionError: Number of layers should be divisible by the pipeline-model-parallel size", "does not divide evenly", "mbr-perf check"),
    ("OSError: [Errno 122] Disk quota exceeded: 'ckpt'", "a disk is full", "quota"),
    ("OSError: [Errno 116] Stale file handle", "a file system failed", "mount"),
    ("OSError: [Errno 24] Too many open files", "too many files open", "ulimit -n"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load this file", "Hugging Face", "HF_HUB_OFFLINE"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1", "terminal of the job was closed", "tmux"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "cause", "advice"),
    [
        *(((text,), cause, advice) for text, cause, advice in SPOKEN),
        *(((*TRACEBACK, text), cause, advice) for text, cause, advice in RAISED),
    ],
)
def test_a_message_names_its_cause(first, lines, cause, advice):
    found = first("step 1", *lines)
    assert (found.verdict.confidence, cause in found.verdict.reason) == ("high", True)
    assert advice in found.verdict.next_experiment
    assert found.failure.evidence[0].number == 1 + len(lines)


def test_an_error_without_its_traceback_is_named_and_less_certain(first):
    verdict = first("KeyError: 'tokens'").verdict
    assert (verdict.oom_class, verdict.confidence, verdict.reason) == (
        "not_oom",
        "medium",
        "the program reported KeyError",
    )


def test_a_traceback_whose_head_is_cut_off_is_a_traceback(first):
    verdict = first(*TRACEBACK[1:], "KeyError: 'tokens'").verdict
    assert (verdict.confidence, verdict.reason) == ("high", "the program raised KeyError; memory is not the cause")


SYSTEM = "RuntimeError: NCCL error in: x.cpp:9, unhandled system error, NCCL version 2.21.5"
FAILED = "failed (exitcode: 1) local_rank: 0 (pid: 8) of binary: /usr/bin/python"


def test_the_report_of_a_launcher_hides_no_cause_that_a_rank_named(first):
    assert "the network failed" in first(SYSTEM, FAILED).verdict.reason


def test_the_report_on_another_rank_shows_where_the_cause_is(first):
    """The rank that lost its peer says nothing about why, so the report names the log to read."""
    found = first("[rank1]: RuntimeError: Connection closed by peer [10.0.0.2]:7", FAILED)
    assert found.verdict.oom_class == "unknown"


def test_mpiruns_report_names_the_first_process(first):
    found = first(
        "mpirun detected that one or more processes exited with non-zero status",
        "  Process name: [[11,1],8]",
        "  Exit code:    3",
    )
    assert (found.verdict.oom_class, found.failure.rank, found.failure.exit_code) == ("unknown", 8, 3)
