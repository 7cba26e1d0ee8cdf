"""Asks the installed megatron-core what it says of a request: its real `TransformerConfig`, in a process of its own.

Reads an ExperimentSpec (JSON) from stdin and prints one JSON object: ``{"accepted": true}`` or the exception's type,
text and place. Building the configuration mutates it and sets environment variables, which is why it is not done in
the process that judges.
"""

import json
import sys
import traceback
import warnings

from harness.engine import cpu_backend
from harness.spec.experiment import ExperimentSpec

# Texts of no help to a person -> what they mean. Keys: exception type and the start of its text.
TRANSLATIONS = (
    ("KeyError", "'", "an unknown name, most likely in cuda_graph_scope"),
    ("AssertionError", "", "a setting that must not be empty, most likely offload_modules, or experts not divisible by EP"),
    ("TypeError", "'>=' not supported between instances of 'NoneType'",
     "moe_act and layernorm recompute under fp8 need transformer-engine, which is not installed"),
)  # fmt: skip


def translation(kind: str, text: str) -> str | None:
    """What a bare KeyError, an empty AssertionError or the version TypeError mean; None for texts that speak."""
    for known_kind, start, meaning in TRANSLATIONS:
        if kind == known_kind and (text.startswith(start) if start else not text.strip()):
            return meaning
    return None


def main() -> None:
    """Build the configuration and say how that went; exits 0 either way."""
    spec = ExperimentSpec.model_validate_json(sys.stdin.read())
    warnings.simplefilter("ignore")
    if spec.gpu_type.is_cpu:
        cpu_backend.block_transformer_engine()
    from harness.engine.config import transformer_config

    answer: dict[str, object] = {"accepted": True}
    try:
        transformer_config(spec)
    except Exception as error:  # noqa: BLE001 (whatever megatron-core raises is the answer)
        kind, text = type(error).__name__, str(error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        answer = {
            "accepted": False,
            "kind": kind,
            "text": text,
            "meaning": translation(kind, text),
            "place": f"{place.filename.rpartition('megatron/core/')[2]}:{place.lineno}",
        }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
