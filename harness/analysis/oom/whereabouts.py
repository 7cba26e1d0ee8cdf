"""What a log tells beside failures: the last step, the phase by the frames of a traceback, the allocator's settings."""

import re

from harness.records.rank import Phase

_ITERATION = re.compile(r"\biteration\s{1,20}(\d{1,12})/")
_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,100})')
# File or function of a frame -> phase, in the names of Megatron-LM and Megatron-Bridge. Of a traceback the innermost counts.
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"init_process_group|initialize_megatron|initialize_model_parallel|_initialize_distributed"),
     "init_process_group"),
    (re.compile(r"get_megatron_optimizer|optimizer/__init__\.py| _?setup_optimizer"), "build_optimizer"),
    (re.compile(r"optimizer\S{0,200}\.py (?:step|step_with_ready_grads)$"), "optimizer_step"),
    (re.compile(r" (?:get_model|setup_model\w*|provide_distributed_model|model_provider|provide)$"), "build_model"),
    (re.compile(r"schedules\.py | (?:forward_step|forward_backward\w*|backward_step|custom_backward|backward)$"),
     "forward_backward"),
)  # fmt: skip


_EXPANDABLE = re.compile(
    r"(?<!try setting )PYTORCH_(?:CUDA_)?ALLOC_CONF\W{1,8}[^\s\"']{0,200}expandable_segments:\s?(True|False)", re.I
)


def finished_step(text: str) -> int | None:
    """The iteration whose end a training log reports in this line."""
    match = _ITERATION.search(text) if "iteration" in text else None
    return int(match[1]) if match else None


def phase_of_frame(text: str) -> tuple[bool, Phase | None]:
    """Whether the line is a frame of a traceback, and the phase of training that it belongs to, if any."""
    match = _FRAME.search(text) if "File " in text else None
    if match is None:
        return False, None
    frame = f"{match[1]} {match[2]}"
    return True, next((phase for pattern, phase in _PHASES if pattern.search(frame)), None)


def expandable_segments_in(text: str) -> bool | None:
    """What a line says of torch's allocator; its advice to set them, in the message itself, says nothing."""
    match = _EXPANDABLE.search(text) if "expandable_segments:" in text else None
    return match[1].lower() == "true" if match else None
