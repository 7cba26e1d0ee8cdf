"""Counts the parameters of classes of transformers, for tests/data/hf_parameters.json.

`python -m tests.foreign.hf_parameters [CLASS...]` needs torch and `pip install -r tests/foreign/requirements.txt`. The class
of Ling 2 is in Megatron-Bridge 0.6.2, whose environment scripts/check-bridge makes. The models stay on the meta device, so
that none takes memory.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

KEPT = Path(__file__).parents[1] / "data" / "hf_parameters.json"
OF_OTHERS = {"MiMoForCausalLM": "qwen2"}
"""Classes that transformers lacks, and the type of the class that they extend."""


def counted(name: str, model_type: str, config: dict[str, object]) -> int:
    """Return the parameters of the class with its defaults and the values of ``config``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if name == "BailingMoeV2ForCausalLM":
        import_module("megatron.bridge")  # registers the class
    given = {key: value for key, value in config.items() if key != "architectures"}
    made = AutoConfig.for_model(OF_OTHERS.get(name, model_type), **given)
    with torch.device("meta"):
        return sum(each.numel() for each in AutoModelForCausalLM.from_config(made).parameters())


if __name__ == "__main__":
    from harness.foreign.hf import ARCHITECTURES

    kept = json.loads(KEPT.read_text())
    for name in sys.argv[1:] or kept:
        row = kept[name]
        row["parameters"] = counted(name, str(ARCHITECTURES[name]["defaults"]["model_type"]), row["config"])
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
