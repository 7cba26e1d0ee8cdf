"""Reads tracebacks: what the program did, with the phase of training and advice, and the name of the error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.records.rank import Phase

_ERROR = re.compile(
    r"(?:E {2,8})?(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99}(?:Error|Exception|Failure|Interrupt|Exit|Iteration)|Exception)"
    r"(?::(?!:)\s{0,4}|$| (?=assert ))"
)
# Below a traceback, also names such as triton.runtime.errors.OutOfResources.
_RAISED = re.compile(r"(?:[a-z_]\w{0,99}\.){1,9}([A-Z]\w{0,99})(?::\s{1,4}|$)")
_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,100})')
_LOADING = re.compile(
    r"(?:dist_checkpointing|distributed/checkpoint)/\S+ (?:\w*_)?load\w*$| (?:_?load_\w*checkpoint\w*|load_state_dict|load_parameter_state\w*|load_model_state_dict)$|checkpoint_connector\.py restore_\w*$"
)
# File or function of a frame -> phase, in the names of Megatron-LM and Megatron-Bridge. The innermost frame counts.
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (_LOADING, "load_checkpoint"),
    (re.compile(r"init_process_group|initialize_megatron|initialize_model_parallel|_initialize_distributed"),
     "init_process_group"),
    (re.compile(r"get_megatron_optimizer|optimizer/__init__\.py| _?setup_optimizer"), "build_optimizer"),
    (re.compile(r"optimizer\S{0,200}\.py (?:step|step_with_ready_grads)$"), "optimizer_step"),
    (re.compile(r" (?:get_model|setup_model\w*|provide_distributed_model|model_provider|provide)$"), "build_model"),
    (re.compile(r"schedules\.py | (?:forward_step|forward_backward\w*|backward_step|custom_backward|backward)$"),
     "forward_backward"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A row. ``text``: what the program did when it failed. ``advice``: what to check if its error says nothing more."""

    pattern: re.Pattern[str]
    text: str
    advice: str


COMPARE_CHECKPOINT = (
    "Compare the settings of the model with those of the checkpoint: layers, sizes, experts, layer implementation, "
    "optimizer, checkpoint format. To load weights only, leave out the optimizer (--no-load-optim --no-load-rng, --finetune)."
)
COMPILER_ADVICE = (
    "Install the triton that this torch was released with (pip show torch triton), and delete old kernels (~/.triton/cache, TRITON_CACHE_DIR, "
    "TORCHINDUCTOR_CACHE_DIR). To confirm: run it with TORCHDYNAMO_DISABLE=1, or without the layer that has the kernel."
)
PINNING = Task(
    re.compile(r" _?pin_memory$"), "pinned host memory",
    "Pin less: smaller buffers, fewer data loader workers, no pin_memory. Raise the limit of locked memory (ulimit -l unlimited, also in the container), and see free -g: "
    "WSL and some containers allow only a part of the memory.",
)  # fmt: skip
# The innermost frame that matches a row counts.
_TASKS: tuple[Task, ...] = (
    PINNING,
    Task(_LOADING, "loaded a checkpoint", COMPARE_CHECKPOINT),
    Task(re.compile(r"(?:dist_checkpointing|distributed/checkpoint)/\S+ \w*(?:save|write)\w*$| save_\w*checkpoint\w*$|torch/serialization\.py _?save$"),
         "saved a checkpoint", "Check the space, the quota and the mount of the checkpoint's folder (df -h, df -i, dmesg). Then try another checkpoint format, or a synchronous "
         "save (without --async-save)."),
    Task(re.compile(r"(?:indexed_dataset|blended_\w*|gpt_dataset|bert_dataset|t5_dataset|\w*_dataset_builder)\.py | build_train_valid_test_data\w+$|torch/utils/data/"),
         "read the training data", "Check that every node sees the same complete files (.bin and .idx), and delete the index files that Megatron built from older ones (--data-cache-path). "
         "Without workers (--num-workers 0) the traceback shows where the data fail."),
    Task(re.compile(r"triton/(?:compiler|backends)/|torch/_inductor/|torch/_dynamo/output_graph"), "compiled a kernel", COMPILER_ADVICE),
    Task(re.compile(r"training/arguments\.py | (?:validate_args|parse_and_validate_args)$"), "checked its options",
         "Run `mbr-perf check` with the job's settings, which needs no GPU, and read the code line above the error: it names the options."),
)  # fmt: skip


_NO_ACTIVATIONS = "Recompute frees no memory here: there are no activations yet."
_SHARD = (
    "shard the model and its optimizer over more GPUs (TP, PP, EP, --use-distributed-optimizer), or keep less optimizer state on "
    "the GPU (--use-precision-aware-optimizer, --optimizer-cpu-offload)"
)
SETUP: Mapping[Phase, tuple[str, str]] = {
    "init_process_group": (
        "initialized the process groups",
        "The model is not on the GPU yet: see nvidia-smi for other processes on that GPU, such as those of an earlier job, and check that each process "
        "of the node selects its own GPU (LOCAL_RANK).",
    ),
    "build_model": ("built the model", f"{_NO_ACTIVATIONS} If no other process holds memory (nvidia-smi), {_SHARD}."),
    "build_optimizer": ("built the optimizer", f"{_NO_ACTIVATIONS} If no other process holds memory (nvidia-smi), {_SHARD}."),
    "load_checkpoint": (
        "loaded a checkpoint",
        f"{_NO_ACTIVATIONS} The loaded tensors need room beside the model and its optimizer, so a job that trains from scratch can fail when it resumes. "
        "To confirm: load no optimizer state (--no-load-optim --no-load-rng). Then load to host memory (map_location='cpu' in torch.load), and leave out "
        f"--ckpt-fully-parallel-load, which exchanges tensors on the GPU. Otherwise {_SHARD}.",
    ),
}  # fmt: skip
"""By phase before the first training step: what the program did, and what to do if it ran out of device memory then."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback. ``phase`` and ``task`` are None where it shows none."""

    phase: Phase | None
    task: Task | None


def error_line(text: str, *, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that names an error of Python: group 1 is the name, and the message follows the match."""
    return _ERROR.match(text) or (_RAISED.match(text) if in_traceback else None)


def frame_of(text: str) -> Frame | None:
    """Return what a frame of a traceback shows; None for another line."""
    match = _FRAME.search(text) if "File " in text else None
    if match is None:
        return None
    frame = f"{match[1]} {match[2]}"
    return Frame(
        next((phase for pattern, phase in _PHASES if pattern.search(frame)), None),
        next((task for task in _TASKS if task.pattern.search(frame)), None),
    )
