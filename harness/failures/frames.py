"""Reads tracebacks: the phase of training, what to do in it, and the name of the error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.records.rank import Phase

_ERROR = re.compile(
    r"(?:E {2,8})?(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99}(?:Error|Exception|Failure|Interrupt|Exit|Iteration)"
    r"|Exception)(?::(?!:)\s{0,4}|$| (?=assert ))"
)
# Below a traceback, also names such as triton.runtime.errors.OutOfResources.
_RAISED = re.compile(r"(?:[a-z_]\w{0,99}\.){1,9}([A-Z]\w{0,99})(?::\s{1,4}|$)")
_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,100})')
_PINS = re.compile(r"_?pin_memory")
# File or function of a frame -> phase, in the names of Megatron-LM and Megatron-Bridge. The innermost frame counts.
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"(?:dist_checkpointing|distributed/checkpoint)/\S+ (?:\w*_)?load\w*$"
                r"| (?:_?load_\w*checkpoint\w*|load_state_dict|load_parameter_state\w*|load_model_state_dict)$"
                r"|checkpoint_connector\.py restore_\w*$"),
     "load_checkpoint"),
    (re.compile(r"init_process_group|initialize_megatron|initialize_model_parallel|_initialize_distributed"),
     "init_process_group"),
    (re.compile(r"get_megatron_optimizer|optimizer/__init__\.py| _?setup_optimizer"), "build_optimizer"),
    (re.compile(r"optimizer\S{0,200}\.py (?:step|step_with_ready_grads)$"), "optimizer_step"),
    (re.compile(r" (?:get_model|setup_model\w*|provide_distributed_model|model_provider|provide)$"), "build_model"),
    (re.compile(r"schedules\.py | (?:forward_step|forward_backward\w*|backward_step|custom_backward|backward)$"),
     "forward_backward"),
)  # fmt: skip
_NO_ACTIVATIONS = "Recompute frees no memory here: there are no activations yet."
_SHARD = (
    "shard the model and its optimizer over more GPUs (TP, PP, EP, --use-distributed-optimizer), or keep less "
    "optimizer state on the GPU (--use-precision-aware-optimizer, --optimizer-cpu-offload)"
)
_BUILT = f"{_NO_ACTIVATIONS} If no other process holds memory (nvidia-smi), {_SHARD}."
# By phase before the first training step: what the program did, and what to do if the GPU was full then.
SETUP: Mapping[Phase, tuple[str, str]] = {
    "init_process_group": (
        "initialized the process groups",
        "The model is not on the GPU yet: see nvidia-smi for other processes on that GPU, and check that each process "
        "of the node selects its own GPU (LOCAL_RANK).",
    ),
    "build_model": ("built the model", _BUILT),
    "build_optimizer": ("built the optimizer", _BUILT),
    "load_checkpoint": (
        "loaded a checkpoint",
        f"{_NO_ACTIVATIONS} The loaded tensors need room beside the model and its optimizer. To confirm: load no "
        "optimizer state (--no-load-optim --no-load-rng). Then load to host memory (map_location='cpu'), and leave out "
        f"--ckpt-fully-parallel-load. Otherwise {_SHARD}.",
    ),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback. ``phase``: None where it shows none. ``pins``: it locks host memory for the GPU."""

    phase: Phase | None
    pins: bool


def error_line(text: str, *, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that names an error of Python: group 1 is the name, and the message follows the match."""
    return _ERROR.match(text) or (_RAISED.match(text) if in_traceback else None)


def frame_of(text: str) -> Frame | None:
    """Return what a frame of a traceback shows; None for another line."""
    match = _FRAME.search(text) if "File " in text else None
    if match is None:
        return None
    frame = f"{match[1]} {match[2]}"
    phase = next((phase for pattern, phase in _PHASES if pattern.search(frame)), None)
    return Frame(phase, _PINS.fullmatch(match[2]) is not None)
