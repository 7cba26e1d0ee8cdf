"""Messages of libraries, launchers and the system: each names its cause, and what to do about it."""

import pytest

TRACEBACK = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in main', "    run()")
# Lines that programs print by themselves.
SPOKEN = [
    ("[rank2]:[E1 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 300 seconds without making progress",
     "watchdog thread hung", "py-spy dump --native"),
    ("DeepEP combine NVL receiver timeout, channel: 1, RDMA: 0, nvl: 2", "exchange of tokens between experts", "dispatcher alltoall"),
    ("Global rank: 9, num_recv_tokens: -1, num_rdma_recv_tokens: -1", "exchange of tokens between experts", "dispatcher alltoall"),
    ("Unable to load optimizer from checkpoint ckpt/7, exiting. Specify --no-load-optim or --finetune to prevent this.", "does not fit the model", "--no-load-rng"),
    ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "could not be compiled", "stubs"),
    ("n1:7:9 [1] transport/shm.cc:9 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'", "cannot read each other's memory", "NCCL_P2P_DISABLE=1"),
    ("Warning: NCCL EP timeout for dispatch receive, rank 2, local_expert_idx 7, src_rank 3", "exchange of tokens between experts", "dispatcher alltoall"),
    ("Could not load symbol cublasGetSmCountTarget from libcublas.so.7.", "do not fit together", "mbr-perf doctor"),
    ("void make_queue(int): Assertion `depth > 0 && depth < 7' failed.", "check inside native code", "dispatcher alltoall"),
    ("n1:7:9 [1] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address", "registered with the network card", "nvidia_peermem"),
    ("n1:7:9 [1] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "registered with the network card", "DMA-BUF"),
    ("[17.3] [n1:8:0]  ib_md.c:9  UCX  ERROR ibv_reg_mr(address=0x7f, length=8, access=0xf) failed: Bad address", "registered with the network card", "peermem"),
    ("n1:7:9 [1] misc/socket.cc:9 NCCL WARN Call to bind failed : Cannot assign requested address", "no usable address", "NCCL_SOCKET_IFNAME"),
    ("n1:7:9 [1] bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found", "no usable address", "NCCL_SOCKET_IFNAME"),
    ("n1:7:9 [1] misc/nvmlwrap.cc:9 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found", "look up a GPU", "nvidia-smi -L"),
    ("n1:7:9 [1] misc/shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a1 (size 9637888)", "/dev/shm", "--shm-size"),
    ("n1:7:9 [1] include/shm.h:9 NCCL WARN Call to posix_fallocate failed : No space left on device", "/dev/shm", "--shm-size"),
    ("n1:7:9 [1] misc/shmutils.cc:9 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a1 (size 7), error: No such file or directory (2)",
     "did not find the shared memory", "NCCL_SHM_DISABLE=1"),
    ("/src/host/mem/mem_heap.cpp:7: non-zero status: 2 cuMemCreate failed", "NVSHMEM could not allocate", "NVSHMEM_SYMMETRIC_SIZE"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "/dev/shm", "--ipc=host"),
    ("[n1:7 :0:9] Caught signal 7 (Bus error: nonexistent physical address)", "SIGBUS", "--shm-size"),
    ("kernel: NVRM: fallen off the bus and is not responding to commands.", "a GPU failed or was lost", "another node"),
    ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "a GPU failed or was lost", "another node"),
    ("e!         Error: CUDNN_STATUS_EXECUTION_FAILED; Reason: finalize_internal()", "no attention that works", "NVTE_DEBUG_LEVEL=2"),
    ("pretrain_gpt.py: error: unrecognized arguments: --no-such-option", "an option that the program refuses", "--help"),
    ("slurmstepd: error: pyxis: failed to import docker image", "could not start the container", "enroot"),
    ("srun: error: Unable to create step for job 7: Requested node configuration is not available", "never started the job step", "scontrol"),
    ("srun: error: Node failure on n7", "lost a node", "--exclude"),
    ("Error CUDA driver version is insufficient for CUDA runtime version at line 7 in file ops.cu", "GPU driver does not fit", "nvidia-smi"),
    ("    reason: OOMKilled", "Kubernetes ended the container", "resources.limits.memory"),
    ("csrc/Embed.cu:9: gather: block: [3,0,0], thread: [7,0,0] Assertion `i < n` failed.", "check inside a GPU kernel", "vocabulary size"),
    ("[rank4]:[E5 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0 Rank 4] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
     "outside its buffers", "compute-sanitizer"),
    ("n1:7:9 [1] transport/nvls.cc:9 NCCL WARN Cuda failure 999 'unknown error'", "NVLink SHARP", "NCCL_NVLS_ENABLE=0"),
    ("n1:7:9 [1] enqueue.cc:9 NCCL WARN Cuda failure 'invalid argument'", "call of CUDA failed inside NCCL", "dmesg"),
    ("wandb.errors.CommError: Run initialization has timed out after 9.0 sec.", "Weights & Biases", "WANDB_MODE=offline"),
    ("/x/flash_attn_3_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "do not fit together", "mbr-perf doctor"),
    ("W1 09:00:00.1 7 torch/distributed/elastic/agent/server/api.py:9] Received 15 death signal, shutting down workers", "ended from outside", "the scheduler"),
    ("W1 09:00:00.1 7 torch/distributed/elastic/agent/server/api.py:9] Received 1 death signal, shutting down workers", "SIGHUP", "tmux"),
    ("submitit WARNING (2026-01-02 03:04:05,678) - Caught signal SIGUSR2 on n1: this job is preempted.", "preempted the job", "QOS"),
    ("submitit WARNING (2026-01-02 03:04:05,678) - Caught signal SIGUSR2 on n1: this job is timed-out.", "time limit", "--time"),
    ("[2026-01-02 03:04:05,678 E 7 7] logging.cc:9: Unhandled exception: St12system_error. what(): Resource temporarily unavailable", "processes and threads", "ulimit -u"),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid 145", "a GPU failed or was lost", "another node"),
    ("[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address.", "could not be opened", "--master_port"),
    ("[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:77 (errno: 13 - Permission denied).", "may not listen on the port", "above 1023"),
    ("[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 99 - Cannot assign requested address).", "does not belong to this node", "hostname -I"),
    ("[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "was in use", "--master_port"),
    ("srun: error: Task launch for StepId=7.0 failed on node n1: Job credential expired", "never started the job step", "the clocks"),
    ("srun: error: n1: task 3: Terminated", "was ended from outside", "the scheduler"),
    ("W1 09:00:00.1 7 torch/distributed/elastic/agent/server/api.py:9] Received Signals.SIGINT death signal, shutting down workers", "as Ctrl-C does", "where the program was"),
    ("Memory access fault by GPU node-4 (Agent handle: 0x7f) on address 0x7e. Reason: Unknown.", "outside its buffers", "compute-sanitizer"),
    ("n1:7:9 [0] misc/ibvwrap.cc:7 NCCL WARN Call to ibv_create_qp failed", "network adapter (InfiniBand, RoCE) of a node", "IPC_LOCK"),
    ("n1:7:9 [0] transport/net_ib.cc:7 NCCL WARN NET/IB : mlx5_0:1 Got async event : local catastrophic error", "network adapter", "out of use"),
    ("*** An error occurred in MPI_Init_thread", "a call of MPI failed", "--mpi=pmix"),
    ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:7)", "a GPU failed or was lost", "another node"),
    ("n1:7:9 [2] proxy.cc:7 NCCL WARN Socket recv failed while polling for opId=0x7f", "connection to another rank broke", "logs of all"),
    ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "could not get the GPUs", "toolkit"),
    ("[E socket.cpp:9] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500).", "reach the rendezvous", "MASTER_ADDR"),
]  # fmt: skip
RAISED = [
    ("RuntimeError: Failed: Assertion error /src/csrc/node.cu:7 'state()->num_rc == num_channels'", "check inside native code", "dispatcher alltoall"),
    ("torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture", "could not be captured", "cuda_graph_impl=none"),
    ("AssertionError: Index file doesn't match expected format.", "another format", ".idx"),
    ("RuntimeError: Split sizes doesn't match total dim 0 size", "do not add up", "routing"),
    ("RuntimeError: split_with_sizes expects split_sizes to sum exactly to 7 (input tensor's size at dimension 0)", "do not add up", "padding"),
    ("AssertionError: bad header, cannot read: data/7.idx", "another format", ".idx"),
    ("AssertionError: Tensor dimensions are not compatible for FP8 execution: (7 % 8 != 0, 9 % 16 != 0)", "does not fit FP8", "--moe-router-padding-for-fp8"),
    ("AssertionError: MXFP8 needs a last dimension that is a multiple of 32", "does not fit FP8", "Pad"),
    ("ModuleNotFoundError: A newer resiliency package is needed for this strategy.", "module is not installed", "PYTHONPATH"),
    ("ImportError: The tokenizer needs tiktoken. Please install it.", "module is not installed", "PYTHONPATH"),
    ("RuntimeError: DeepEP error: timeout (dispatch CPU)", "exchange of tokens between experts", "NVSHMEM"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.", "reach the rendezvous", "--rdzv_endpoint"),
    ("RuntimeError: Error(s) in loading state_dict for GPTModel:", "does not fit the model", "--no-load-optim"),
    ("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.", "does not fit the model", "--no-load-optim"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "damaged or cut short", "older checkpoint"),
    ("ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "do not fit together", "mbr-perf doctor"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "a shared library is missing", "LD_LIBRARY_PATH"),
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
    ("RuntimeError: [enforce fail at inline_container.cc:9] . PytorchStreamWriter failed writing file data/7: file write failed", "could not be written", "df -h"),
    ("RuntimeError: write(): fd 7 failed with Input/output error", "a file system failed", "mount"),
    ("PermissionError: [Errno 13] Permission denied: '/.cache'", "may not read or write", "TRITON_CACHE_DIR"),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "a GPU failed or was lost", "another node"),
    ("OSError: You are trying to access a gated repo.", "Hugging Face", "HF_TOKEN"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'text_document.idx'", "is not there", "--data-cache-path"),
    ("RuntimeError: NCCL error in: x.cpp:9, unhandled cuda error, NCCL version 2.21.5", "call of CUDA failed inside NCCL", "NCCL_DEBUG=WARN"),
    ("RuntimeError: gemm.cu:9 in function cublas_gemm: cuBLAS Error: an unsupported value or parameter was passed to the function", "has no kernel for a matrix product", "multiples of 16"),
    ("RuntimeError: fused_attn.cu:9 in function operator(): cuDNN Error: [cudnn_frontend] Error: No valid execution plans built.", "no attention that works", "NVTE_FUSED_ATTN=0"),
    ("RuntimeError: FlashAttention forward only supports head dimension at most 256", "flash attention does not have a kernel", "NVTE_FLASH_ATTN=0"),
    ("RuntimeError: Cannot re-initialize CUDA in forked subprocess.", "a forked process used CUDA", "spawn"),
    ("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set", "not started by a launcher", "torchrun"),
    ("OSError: CUDA_HOME environment variable is not set.", "the CUDA toolkit", "nvcc"),
    ("torch.utils.checkpoint.CheckpointError: Recomputed values for the following tensors have different metadata than during the forward pass.", "recompute gave other tensors", "determinism_check"),
    ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.", "a parameter got no gradient", "DETAIL"),
    ("RuntimeError: Timed out initializing process group in store based barrier on rank: 3", "not all ranks joined", "MASTER_PORT"),
    ("BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')", "a lock on a file", "HDF5_USE_FILE_LOCKING"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", "damaged or cut short", "older checkpoint"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "had been closed", "--rdzv_id"),
    ("_pickle.UnpicklingError: invalid load key, 'v'.", "another format", "older checkpoint"),
    ("RuntimeError: File ckpt/7.pt cannot be opened.", "could not be opened for writing", "ls -ld"),
    ("RuntimeError: Parent directory ckpt does not exist.", "could not be opened for writing", "ls -ld"),
    ("ModuleNotFoundError: No module named 'torch._six'", "has no such module", "__version__"),
    ("ModuleNotFoundError: No module named 'megatron.model'", "has no such module", "__version__"),
    ("RuntimeError: received 0 items of ancdata", "too many files open", "ulimit -n"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination", "GPU driver does not fit", "nvidia-smi"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 999: unknown error", "CUDA could not start: unknown error", "dmesg"),
    ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/seven", "Hugging Face", "HF_TOKEN"),
    ("RuntimeError: can't start new thread", "processes and threads", "OMP_NUM_THREADS"),
    ("AssertionError: Device compute capability 8.9 or higher required for FP8 execution.", "does not have the FP8 format", "bf16"),
    ("ValueError: type fp8e4nv not supported in this architecture.", "does not have the FP8 format", "bf16"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 99, Hardware limit: 9.", "Triton kernel", "num_stages"),
    ("megatron.core.dist_checkpointing.core.CheckpointingException: x is not a distributed checkpoint", "does not fit the model", "--no-load-optim"),
    ("AssertionError: Check batch related parameters. train_batch_size is not equal to", "contradict each other", "data-parallel"),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "loss scale of FP16", "learning rate"),
    ("AssertionError: tensor model parallel group is not initialized", "before it was initialized", "torchrun"),
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


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("ValueError: 7 is not a multiple of 3", "does not divide evenly"),
        ("KeyError: 'Missing key tokens'", "a key is missing from another file"),
        ("ImportError: cannot import name 'packed' from 'data'", "the name of a library"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM", "a call of cuDNN failed"),
        (
            "RuntimeError: /src/common/engine.cpp:7 in function Allocate: Too many tensors: 70849",
            "refused a call: Too many tensors: 70849",
        ),
        ("AttributeError: type object 'Router' has no attribute 'seed'", "a class lacks"),
        ("FileExistsError: [Errno 17] File exists: 'cache/7'", "several ranks made it"),
        (
            'RuntimeError: !block->x_ INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":7',
            "check inside torch's allocator",
        ),
        (
            "RuntimeError: /src/common/norm.cpp:7 in function CheckInput: Assertion failed: x.ptr != nullptr. x is empty",
            "refused a call: x.ptr != nullptr. x is empty",
        ),
        ("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", "ended without a message"),
    ],
)
def test_a_message_with_several_possible_causes_is_less_certain(first, text, cause):
    verdict = first(*TRACEBACK, text).verdict
    assert (verdict.confidence, cause in verdict.reason) == ("medium", True)


@pytest.mark.parametrize(
    ("line", "oom_class"),
    [
        ("[saver.cpp] CUresult error: 2 (out of memory) func=cu_mem_create", "outside_allocator"),
        (
            "[17.3] [n1:8:0]  cuda_md.c:9  UCX  ERROR   cuMemAlloc_v2(&h->ptr, h->length) failed: out of memory",
            "outside_allocator",
        ),
        (
            'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":7',
            "capacity",
        ),
    ],
)
def test_full_device_memory_is_recognised_where_torch_does_not_report_it(first, line, oom_class):
    verdict = first(line).verdict
    assert (verdict.oom_class, verdict.confidence) == (oom_class, "medium")


def test_a_heap_that_did_not_fit_explains_the_connections_that_then_broke(first):
    found = first(
        "/src/mem_heap.cpp:7: non-zero status: 2 cuMemCreate failed", "socketProgress: Connection closed by remote peer"
    )
    assert (found.verdict.oom_class, len(found.victims)) == ("outside_allocator", 1)


def test_a_launch_that_failed_because_a_kernel_waited_too_long_for_a_rank_is_a_consequence(first):
    waited = "DeepEP timeout check failed: rank = 1, thread = 7"
    trapped = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    assert "exchange of tokens" in first(waited, *TRACEBACK, trapped).verdict.reason
    assert "outside its buffers" in first(*TRACEBACK, trapped).verdict.reason


def test_a_cublas_that_could_not_start_leaves_the_cause_open(first):
    text = "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`"
    assert first(*TRACEBACK, text).verdict.oom_class == "unknown"


def test_an_error_of_the_linker_counts_inside_a_traceback(first):
    frame = '  File "/opt/torch/_inductor/graph.py", line 7, in compile_to_module'
    found = first(*TRACEBACK, "/usr/bin/ld: cannot find -lcuda: No such file or directory", frame)
    assert "could not be compiled" in found.verdict.reason


def test_rays_report_about_a_worker_leaves_the_cause_to_the_workers_own_words(first):
    report = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    assert first(report).verdict.oom_class == "unknown"
    assert "too many files open" in first(report, "OSError: [Errno 24] Too many open files").verdict.reason


def test_rays_memory_monitor_ends_workers_for_lack_of_host_memory(first):
    text = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    assert first(text).verdict.oom_class == "host_memory"


def test_an_assertion_without_a_message_is_judged_by_its_code(first):
    found = first(*TRACEBACK, "    assert args.vocab_file is not None", "AssertionError")
    assert "a file of the tokenizer is missing" in found.verdict.reason
    assert found.failure.text == "AssertionError assert args.vocab_file is not None"


@pytest.mark.parametrize(
    "link",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_of_two_chained_errors_the_known_one_counts(first, link):
    later = (link, *TRACEBACK, "OSError: We couldn't connect to 'https://huggingface.co' to load this file")
    assert "Hugging Face" in first(*TRACEBACK, "gaierror.BadNameError: x", *later).verdict.reason


def test_the_first_of_two_known_chained_errors_counts(first):
    found = first(*TRACEBACK, "OSError: [Errno 24] Too many open files", "During handling of the above exception, another exception occurred:",
                  *TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: 'a'")  # fmt: skip
    assert "too many files open" in found.verdict.reason


def test_a_later_unlinked_error_does_not_replace_the_first(first):
    assert (
        "KeyError"
        in first(*TRACEBACK, "KeyError: 'a'", *TRACEBACK, "OSError: [Errno 24] Too many open files").verdict.reason
    )


@pytest.mark.parametrize(
    "line",
    [
        "healthcheck: XID 79 detected on 0000:3b:00.0",
        "n7 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=7, Contained ECC",
        "Xid 119 on n7",
    ],
)
def test_an_xid_of_the_gpu_explains_the_illegal_access_beside_it(first, line):
    illegal = "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert first("[rank3]: " + TRACEBACK[0], illegal, line).verdict.reason == "a GPU failed or was lost"


def test_a_message_that_begins_below_the_errors_name_belongs_to_it(first):
    found = first("[rank1]: RuntimeError:", "[rank0]: step 1", "[rank1]:     can't start new thread", "[rank1]: later")
    assert found.failure.text == "RuntimeError: can't start new thread"
    assert "processes and threads" in found.verdict.reason
    assert first(*TRACEBACK, "ValueError:", *TRACEBACK, "KeyError: 'a'").failure.text == "ValueError:"


def test_a_shells_word_behind_a_stack_without_its_head_counts(first):
    assert first(*TRACEBACK[1:], "Killed").verdict.oom_class == "killed"


def test_an_error_without_its_traceback_is_named_and_less_certain(first):
    verdict = first("KeyError: 'tokens'").verdict
    assert (verdict.oom_class, verdict.confidence, verdict.reason) == (
        "not_oom",
        "medium",
        "the program reported KeyError: 'tokens'",
    )


def test_a_traceback_whose_head_is_cut_off_is_a_traceback(first):
    verdict = first(*TRACEBACK[1:], "KeyError: 'tokens'").verdict
    assert (verdict.confidence, verdict.reason) == ("high", "the program raised KeyError: 'tokens'")


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
