"""Ends that are not of memory: each has a class and an advice of its own."""

import pytest

from harness.failures.classify import Ending, classify
from harness.failures.known_ends import KNOWN_ENDS

MEDIUM = ("CUDA could not be used in this process", "data loader worker crashed", "does not divide evenly", "does not fit the function", "the sizes of two tensors do not fit", "different number formats", "an access to another GPU's memory over NVLink failed",
          "transformer-engine refused an FP8 or FP4 tensor")  # fmt: skip
TRACEBACK = "Traceback (most recent call last):"
WATCHDOG = (
    "[rank5]:[E821 14:09:00.1 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600032 milliseconds before timing out."
)
LOST_GPU = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("text", "oom_class", "reason", "advice"),
    [
        (WATCHDOG, "not_oom", "ranks waited in a collective", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:30711", "not_oom", "connection to another rank broke", "logs of all"),
        (LOST_GPU, "not_oom", "a GPU failed or was lost", "another node"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "not_oom", "a GPU failed", "another node"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711", "not_oom", "memory outside its buffers", "compute-sanitizer"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "not_oom", "outside its buffers", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: CUDA error: device-side assert triggered", "not_oom", "index out of range", "vocabulary"),
        ("Fatal Python error: Segmentation fault", "not_oom", "SIGSEGV", "PYTHONFAULTHANDLER"),
        ("OSError: [Errno 28] No space left on device", "not_oom", "a disk is full", "df -h"),
        ("Slurm: TIMEOUT after 30 min on n[1-4]", "time_limit", "Slurm: TIMEOUT after 30 min on n[1-4]", "--time_limit"),
        ("Slurm: REQUEUED 2 times, then NODE_FAIL (NodeDown) on n3", "node_failure", "Slurm: REQUEUED", "--exclude"),
        ("Slurm: STEP ENDED, and not the job: its task on another node ended badly, see the job's log", "not_oom",
         "Slurm: STEP ENDED, and not the job", "logs of its ranks"),
        ("ModuleNotFoundError: No module named 'transformer_engine'", "not_oom", "transformer-engine is not installed", "local"),
        ("ModuleNotFoundError: No module named 'megatron.core'", "not_oom", "megatron-core is not installed", "PYTHONPATH"),
        ("ModuleNotFoundError: No module named 'apex'", "not_oom", "apex is not installed", "--no-gradient-accumulation-fusion"),
        ("AssertionError: Rank 7: found Inf in local grad norm for bucket #0 in backward pass", "not_oom",
         "a gradient was not finite (Inf) on rank 7", "-c bf16"),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Segmentation fault.", "not_oom", "data loader worker crashed", "--num-workers 0"),
        ("ValueError: Size mismatch between saved torch.Size([4, 2]) and current: torch.Size([8]) for model.weight", "not_oom",
         "the checkpoint does not fit", "--no-load-optim"),
        ("KeyError: MetadataIndex(fqn='decoder.weight', offset=torch.Size([1]), index=3)", "not_oom", "the checkpoint does not fit", "checkpoint format"),
        ("ModuleNotFoundError: No module named 'fused_weight_gradient_mlp_cuda'", "not_oom", "a compiled extension is missing", "APEX_CUDA_EXT"),
        ("ModuleNotFoundError: No module named 'cudatools'", "not_oom", "a Python module is not installed", "PYTHONPATH"),
        ("RuntimeError: The size of tensor a (96) must match the size of tensor b (24) at non-singleton dimension 0", "not_oom",
         "the sizes of two tensors do not fit", "compare TP, EP"),
        ("RuntimeError: shape '[7, 2, -1]' is invalid for input of size 77", "not_oom", "the sizes of two tensors do not fit", "compare TP, EP"),
        ("AssertionError assert metadata is not None", "not_oom", "the checkpoint is incomplete", "load an older step"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/iter_7/.metadata'", "not_oom", "the checkpoint is incomplete", "load an older step"),
        ("Detected inf/nan during batch_number=7", "not_oom", "a result was not finite", "-c bf16"),
        ("RuntimeError: CUDA Error: out of memory at /x/csrc/cumem_allocator.cpp:77", "outside_allocator", "vLLM found too little free GPU memory", "offload the trainer's"),
        ("AssertionError: (num_gpus / pp_size) / tp_size [(8 / 4) / 4] must be a whole number", "not_oom", "does not divide evenly", "mbr-perf check"),
        ("RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "not_oom", "the job sees no GPU", "CUDA_VISIBLE_DEVICES"),
        ("ValueError: Total available GPUs 8.0 is less than total desired GPUs 16", "not_oom", "Ray's cluster has fewer free GPUs", "ray status"),
        ("Warning  Evicted  7s  kubelet  The node was low on resource: ephemeral-storage. Container job was using 7Ki", "not_oom",
         "Kubernetes evicted the pod, because its node ran out of a resource: ephemeral-storage", "kubectl describe pod"),
        ("Warning  Evicted  7s  kubelet  The node was low on resource: memory.", "host_memory", "the memory of its node ran out", "resources.requests.memory"),
        ("pyarrow.lib.ArrowInvalid: JSON parse error: Column(/text) changed from string to array in row 7", "not_oom",
         "a file of the training data could not be read", "HF_DATASETS_CACHE"),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16", "not_oom", "different number formats", "--bf16"),
        ("RuntimeError: Expected query dtype to match key dtype, but got torch.float32", "not_oom", "different number formats", "--bf16"),
        ("RuntimeError: GEMM with Float8BlockwiseQTensor needs another format", "not_oom", "transformer-engine refused an FP8 or FP4 tensor", "--fp8-recipe"),
        ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error", "not_oom", "an access to another GPU's memory over NVLink failed", "Xid 137"),
        ("RuntimeError: CUDA error: hardware stack error", "not_oom", "memory outside its buffers", "compute-sanitizer"),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 137, pid=4711, NVLink privilege error", "not_oom", "memory outside its buffers", "compute-sanitizer"),
        ("[n1-7:77] PMIX ERROR: ERROR in file gds.c at line 7", "not_oom", "a call of MPI failed", "--mpi=pmix"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 77 : CUDA error 401", "not_oom", "NVLink SHARP (NVLS)", "NCCL_NVLS_ENABLE=0"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 77 : CUDA error 2 'out of memory'.", "not_oom", "NVLink SHARP (NVLS)", "NCCL_NVLS_ENABLE=0"),
        ("RuntimeError: CUDA error: initialization error", "not_oom", "CUDA could not be used in this process", "spawn"),
        ("RuntimeError: PassManager::run failed", "not_oom", "could not compile a kernel", "TORCHDYNAMO_DISABLE"),
        ("AssertionError assert args.num_rows % world == 0", "not_oom", "does not divide evenly", "the two sizes in the assert"),
        ("FloatingPointError: Loss became infinite or NaN at iteration=77!", "not_oom", "the loss was not finite (NaN) at iteration 77", "-c bf16"),
        ("ValueError: the result of step 3 is not finite", "not_oom", "a result was not finite (not finite)", "-c bf16"),
        ("python3: /src/permute.cu:7: void launcher(Args) [with T = float]: Assertion `args.tokens != nullptr' failed.", "not_oom",
         "a check inside native code failed", "dispatcher alltoall"),
        ("init.cc:7 NCCL WARN Mismatched collective detected, please check your calls around rank 3", "not_oom", "ranks called different collectives", "branches"),
        ("nccl_net_ofi_domain:7 NCCL WARN NET/OFI Creating endpoint failed: Invalid argument", "not_oom", "libfabric (EFA) failed", "fi_info"),
        ("RuntimeError: DDP expects same model across all ranks, but Rank 1 has 3 params, while rank 0 has 4", "not_oom", "different models", "the two ranks"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "not_oom", "too old for a kernel", "--attention-backend"),
        ("AssertionError: FlashAttention maximum version 2.7 is supported.", "not_oom", "refuses the version of another", "install that one"),
        ("ImportError: this module requires transformers>=4.50", "not_oom", "refuses the version of another", "install that one"),
        ("TypeError: norm() got an unexpected keyword argument 'eps'", "not_oom", "does not fit the function", "the last frames"),
        ("TypeError: norm() missing 1 required positional argument: 'eps'", "not_oom", "does not fit the function", "the last frames"),
        ("Slurm: CANCELLED by 1000", "not_oom", "Slurm: CANCELLED by 1000", "scancel"),
        ("Slurm: OUT_OF_MEMORY of a node's host memory", "host_memory", "memory of a node", "memory of the node, not of the GPU"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-21T16:00:00 DUE TO TIME LIMIT ***", "time_limit", "time limit",
         "fewer steps"),
    ],
)  # fmt: skip
def test_every_end_has_its_own_advice(text, oom_class, reason, advice):
    verdict = classify(text)
    sure = "medium" if reason in MEDIUM else "high"
    assert (verdict.oom_class, verdict.confidence) == (oom_class, sure)
    assert reason in verdict.reason
    assert advice in verdict.next_experiment


@pytest.mark.parametrize(
    ("exit_code", "oom_class", "reason", "advice"),
    [
        (-11, "not_oom", "SIGSEGV", "built for another torch"),
        (139, "not_oom", "SIGSEGV", "built for another torch"),
        (-7, "not_oom", "SIGBUS", "/dev/shm"),
        (-6, "not_oom", "SIGABRT", "C++ exception"),
        (-15, "not_oom", "ended from outside", "who ended it"),
        (-9, "killed", "SIGKILL", "dmesg"),
    ],
)
def test_a_signal_is_recognised_by_its_number(exit_code, oom_class, reason, advice):
    verdict = classify("failed", Ending(exit_code=exit_code))
    assert verdict.oom_class == oom_class
    assert reason in verdict.reason
    assert advice in verdict.next_experiment


TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "=" * 60, "pretrain.py FAILED", "-" * 60, "Failures:",
    "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):", "[0]:", "  time      : 2026-08-21_14:03:30",
    "  host      : node07", "  rank      : 6 (local_rank: 6)", "  exitcode  : 1 (pid: 906)", "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", "=" * 60,
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "who", "rank"),
    [
        (TABLE, "rank 6 on node07", 6),
        (("E0821 14:03:30.0 77 torch/distributed/elastic/api.py:882] failed (exitcode: 1) local_rank: 3 (pid: 5) of "
                           "binary: /usr/bin/python",), "local rank 3", None),
        (("subprocess.CalledProcessError: Command '['python', 'pretrain.py']' returned non-zero exit status 1.",),
         "the process that failed", None),
        (("srun: error: node07: task 3: Exited with exit code 1",), "task 3", 3),
    ],
)  # fmt: skip
def test_the_report_of_a_launcher_alone_names_the_log_with_the_reason(first, lines, who, rank):
    """An exit code of 1 says nothing about the cause, so no cause is claimed."""
    found = first(*lines)
    assert (found.verdict.oom_class, found.verdict.confidence, found.failure.rank) == ("unknown", "low", rank)
    assert f"only that {who} ended with exit code 1" in found.verdict.reason
    assert f"the log of {who.partition(' on ')[0]} has the reason" in found.verdict.reason
    assert "--redirects 3" in found.verdict.next_experiment


def test_a_parent_that_reports_a_signal_reports_how_its_child_ended(first):
    found = first("subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>.")
    assert (found.verdict.oom_class, found.failure.exit_code) == ("killed", -9)


def test_the_report_of_a_launcher_beside_the_error_of_its_rank_hides_nothing(first):
    found = first(f"[rank6]: {TRACEBACK}", "[rank6]: KeyError: 'lm_loss'", *TABLE)
    assert (found.verdict.oom_class, found.verdict.confidence, found.failure.rank) == ("not_oom", "high", 6)


def test_an_error_of_python_with_its_traceback_is_surely_not_memory(first):
    verdict = first(TRACEBACK, '  File "/job/train.py", line 7, in main', "KeyError: 'lm_loss'").verdict
    assert (verdict.oom_class, verdict.confidence) == ("not_oom", "high")
    assert verdict.reason == "the program raised KeyError: 'lm_loss'"
    assert "traceback" in verdict.next_experiment


def test_an_error_without_a_traceback_is_less_sure(first):
    assert first("ValueError: something").verdict.confidence == "medium"


def test_a_lost_gpu_explains_the_errors_of_the_ranks(first):
    found = first(f"[rank0]: {TRACEBACK}", "[rank0]: RuntimeError: NCCL communicator was aborted on rank 0.", LOST_GPU)
    assert found.verdict.reason == "a GPU failed or was lost"
    assert [victim.rank for victim in found.victims] == [0]


NAN_IN_GRADIENTS = (
    "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #12 invocation #1 "
    "(message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')"
)
NAN_IN_LOSS = (
    "[rank0]: RuntimeError: Rank 3, node n1, device 3, iteration 12: Unexpected result nan "
    "(message='found NaN in local forward loss calculation')"
)


@pytest.mark.parametrize(("line", "what", "rank"), [(NAN_IN_GRADIENTS, "a gradient", 3), (NAN_IN_LOSS, "the loss", 0)])
def test_a_result_that_is_not_finite_is_reported_with_its_rank_and_iteration(first, line, what, rank):
    found = first(line, "[rank5]: RuntimeError: Connection closed by peer [10.0.0.2]:30711")
    assert found.verdict.reason == f"{what} was not finite (nan) on rank 3 at iteration 12"
    assert (found.verdict.oom_class, found.verdict.confidence) == ("not_oom", "high")
    assert found.failure.rank == rank  # as the line's prefix says, where it has one
    assert [victim.rank for victim in found.victims] == [5]


def test_a_large_result_and_the_code_of_the_check_are_no_nan(first):
    assert first("Unexpected result 9.3 on rank 3 at iteration #12 invocation #1 (message='Spiky loss')") is None
    code = '    message=f"found NaN in local grad norm for bucket #{i} "'
    found = first(TRACEBACK, '  File "/job/buffer.py", line 7, in check_grads', code, "KeyError: 'lm_loss'")
    assert found.verdict.reason.startswith("the program raised KeyError")


def test_a_killed_process_of_the_container_is_no_container_that_could_not_start(first):
    cancelled = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-08-21T16:00:00 ***"
    verdict = first(cancelled, "slurmstepd: error: pyxis: child 77 terminated with signal 9").verdict
    assert (verdict.oom_class, "Slurm cancelled" in verdict.reason) == ("unknown", True)


def test_a_check_of_an_extension_above_its_frames_is_the_error(first):
    frame = '  File "/x/module/norm.py", line 7, in forward'
    found = first(
        "/src/common/norm.cpp:7 in function CheckInput: Assertion failed: x.ptr != nullptr.", frame, "    run(x)"
    )
    assert "an extension such as" in found.verdict.reason


def test_no_two_rows_give_the_same_advice_and_none_is_without():
    advice = [row.advice for row in KNOWN_ENDS]
    assert all(advice)
    assert len(set(advice)) == len(advice)


@pytest.mark.parametrize(
    ("name", "exit_code", "reason"),
    [("SIGKILL", -9, "SIGKILL"), ("SIGSEGV", -11, "SIGSEGV"), ("SIGTERM", -15, "ended from outside")],
)
def test_a_process_that_spawn_saw_end_by_a_signal_ended_by_it(first, name, exit_code, reason):
    error = f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal {name}"
    found = first(TRACEBACK, '  File "/x/spawn.py", line 136, in join', error)
    assert (found.failure.exit_code, reason in found.verdict.reason) == (exit_code, True)
    assert found.verdict.oom_class == ("killed" if name == "SIGKILL" else "not_oom")


@pytest.mark.parametrize(
    "line",
    [
        "python3: /src/permute.cu:7: void launcher(Args) [with T = float]: Assertion `args.tokens != nullptr' failed.",
        "node07:123:456 [3] init.cc:7 NCCL WARN Mismatched collective detected, please check your calls around rank 3",
        "[1,23]<stdout>:node07:123:456 [3] nccl_net_ofi_domain:7 NCCL WARN NET/OFI Creating endpoint failed: Invalid argument",
    ],
)
def test_a_line_of_native_code_alone_shows_a_failure(first, line):
    assert (first(line).verdict.oom_class, first(line).verdict.confidence) == ("not_oom", "high")


@pytest.mark.parametrize(
    ("line", "rank", "reason"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", 2, "native code crashed (SIGBUS)"),
        ("Global rank 3 (PID 4711) exited with code 1", 3, "a launcher reports only that rank 3 ended with exit code 1"),
        ("[2026-01-02 03:04:05,678] [ERROR] [launch.py:7:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=7'] exits with return code = 1",
         None, "a launcher reports only that the process that failed ended with exit code 1"),
    ],
)  # fmt: skip
def test_launchers_of_composer_and_deepspeed_report_an_end(first, line, rank, reason):
    found = first("begin", line)
    assert (found.failure.rank, found.verdict.reason[: len(reason)]) == (rank, reason)


def test_ray_names_an_out_of_memory_before_the_traceback_that_it_raises_again(first):
    lines = (
        TRACEBACK,
        '  File "/job/a.py", line 7, in get',
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::W.step() (pid=7)",
        '  File "/job/b.py", line 7, in step',
    )
    assert (first(*lines).verdict.oom_class, first(*lines).verdict.confidence) == ("capacity", "low")
    found = first(
        *lines,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has a total capacity of 8 GiB of which 7 GiB is free.",
    )
    assert found.verdict.oom_class == "bad_size"


def test_an_evicted_pod_is_a_failure_by_itself(first):
    assert first(
        "begin", "  Warning  Evicted  7s  kubelet  The node was low on resource: ephemeral-storage."
    ).verdict.reason.startswith("Kubernetes evicted")
