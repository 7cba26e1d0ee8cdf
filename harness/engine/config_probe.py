"""Asks the installed megatron-core what it says of a request: its real `TransformerConfig`, in a process of its own.

Reads an ExperimentSpec (JSON) from stdin and prints one JSON object on the last line: ``{"accepted": true, ...}`` or the
exception's type, text and place. Building the configuration mutates it and sets environment variables, which is why it
is not done in the process that judges. An exception that megatron-core did not raise ends the process: it says nothing
about the request.
"""

import json
import sys
import traceback
import warnings
from importlib.util import find_spec
from typing import Any

from harness.engine import cpu_backend
from harness.spec.experiment import ExperimentSpec

# Texts of no help to a person -> what they mean: exception type, start of its text (None: no text at all), meaning.
TRANSLATIONS = (
    ("KeyError", "'", "it knows no setting of this name; most likely one in cuda_graph_scope"),
    ("AssertionError", None,
     "a setting that must not be empty is, most likely offload_modules; or EP does not divide the experts"),
    ("TypeError", "'>=' not supported between instances of 'NoneType'",
     "this setting (such as moe_act or layernorm recompute under fp8) needs transformer-engine, which is not installed"),
)  # fmt: skip


def translation(kind: str, text: str) -> str | None:
    """What a bare KeyError, an empty AssertionError or the version TypeError mean; None for texts that speak."""
    for known_kind, start, meaning in TRANSLATIONS:
        if kind == known_kind and (not text.strip() if start is None else text.startswith(start)):
            return meaning
    return None


def without_transformer_engine(spec: ExperimentSpec) -> ExperimentSpec:
    """``spec`` as a megatron-core without transformer-engine can be asked about it: none of its fused kernels.

    Their checks would refuse any request before recompute, parallelism or graphs are looked at.
    """
    kernels = spec.kernels.model_copy(update={"transformer_impl": "local", "moe_permute_fusion": False})
    return spec.model_copy(update={"kernels": kernels})


def place_in_megatron(error: BaseException) -> str | None:
    """The innermost line of megatron-core that ``error`` went through; None when it is none of megatron-core's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "megatron/core/" in f.filename]
    return f"{frames[-1].filename.rpartition('megatron/core/')[2]}:{frames[-1].lineno}" if frames else None


def answer(spec: ExperimentSpec) -> dict[str, Any]:
    """What the installed megatron-core says; raises what it did not raise itself."""
    from harness.engine.config import UnknownFieldError, transformer_config

    try:
        transformer_config(spec)
    except UnknownFieldError as error:
        return {"accepted": False, "kind": "UnknownField", "text": str(error)}
    except Exception as error:  # whatever megatron-core raises is the answer
        place = place_in_megatron(error)
        if place is None:
            raise
        kind, text = type(error).__name__, str(error)
        return {"accepted": False, "kind": kind, "text": text, "meaning": translation(kind, text), "place": place}
    return {"accepted": True}


def main() -> None:
    """Build the configuration and say how that went; exits 0 whether it is accepted or not."""
    spec = ExperimentSpec.model_validate_json(sys.stdin.read())
    warnings.simplefilter("ignore")
    lacking = spec.kernels.transformer_impl == "transformer_engine" and find_spec("transformer_engine") is None
    if spec.gpu_type.is_cpu:
        cpu_backend.block_transformer_engine()
    said = answer(without_transformer_engine(spec) if lacking else spec)
    sys.stdout.write(json.dumps(said | {"without_transformer_engine": lacking}) + "\n")


if __name__ == "__main__":
    main()
