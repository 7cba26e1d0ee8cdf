"""Builds the model of `pretrain_gpt.py` and gives it to the hook of `planned.py`, as Megatron-Bridge does."""

import json
import sys
from functools import partial

from megatron.training import build, recomputed
from planned import pre_wrap_hook
from pretrain_gpt import gpt_builder, model_provider

if __name__ == "__main__":
    chunks = pre_wrap_hook(build(partial(model_provider, gpt_builder)))
    sys.stdout.write(json.dumps([recomputed(chunk) for chunk in chunks]))
