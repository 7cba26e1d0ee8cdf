"""Names commands of trainers whose words are not Megatron-LM's, with the options that describe their jobs."""

import re
import shlex
from collections.abc import Iterator, Mapping

from harness.errors import BadRequestError
from harness.foreign.shell_script import Script, Word

_TRAINERS: Mapping[str, re.Pattern[str]] = {
    "ms-swift": re.compile(r"(?:^|[\s/])(?:megatron|swift) (?:sft|pt|rlhf)\s|swift/cli/_megatron"),
    "verl": re.compile(r"\bverl\.trainer\b|actor_rollout_ref\."),
    "slime": re.compile(r"(?:^|[\s/])train(?:_async)?\.py\s(?=.*--(?:rollout-|actor-num-|hf-checkpoint))", re.S),
    "NeMo RL": re.compile(r"\bpolicy\.megatron_cfg\.|\brun_(?:grpo|sft|dpo)\w*\.py\b"),
    "Primus": re.compile(r"\bprimus(?:/train\.py|/cli/main\.py|-cli\b|\.train\b)"),
}
"""By trainer, what one of its commands contains."""
_OPTIONS: Mapping[str, str] = {
    "--hf": "model hf_checkpoint model_name actor_rollout_ref.model.path policy.model_name",
    "-ng": "num_gpus", "-tp": "tensor_model_parallel_size", "-pp": "pipeline_model_parallel_size",
    "-cp": "context_parallel_size", "-ep": "expert_model_parallel_size", "-et": "expert_tensor_parallel_size",
    "-mb": "micro_batch_size train_micro_batch_size ppo_micro_batch_size_per_gpu",
    "-gb": "global_batch_size train_global_batch_size ppo_mini_batch_size",
    "-sl": "max_length seq_length max_total_sequence_length", "--num_layers": "num_layers",
    "--recompute_granularity": "recompute_granularity", "--recompute_method": "recompute_method",
    "--recompute_num_layers": "recompute_num_layers", "--recompute_modules": "recompute_modules",
}  # fmt: skip
"""Options of mbr-perf, and how the trainers write them, with _ and without what stands before the last dot."""
_OPTION_OF = {name: option for option, names in _OPTIONS.items() for name in names.split()}


def refuse_others(script: Script) -> None:
    """Raise BadRequestError for a command of another trainer, with the equivalent options."""
    for words in script.commands:
        text = " ".join(word.text for word in words)
        whose = next((name for name, pattern in _TRAINERS.items() if pattern.search(f"{text} ")), None)
        if whose is None:
            continue
        options = dict(_options(words))
        model = [] if "--hf" in options else ["--hf", "MODEL"]
        line = shlex.join([*model, *(word for pair in options.items() for word in pair), "-g", "h100"])
        raise BadRequestError(
            f"{script.label}:{words[0].line}: a command of {whose}, whose words mbr-perf does not read",
            remedy=f"describe the job by options: mbr-perf plan {line}",
        )


def _options(words: list[Word]) -> Iterator[tuple[str, str]]:
    for word, after in zip(words, [*words[1:], Word("", 0)], strict=True):
        name, equals, value = word.text.lstrip("+").partition("=")
        if not equals and (not name.startswith("--") or after.text.startswith("--")):
            continue
        name = name.lstrip("-").replace("-", "_")
        option = _OPTION_OF.get(name) or _OPTION_OF.get(name.rpartition(".")[2] if "." in name else "")
        if option and "$" not in (value or after.text):
            yield option, value or after.text
