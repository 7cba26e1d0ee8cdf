"""A small recipe that tests write, change and read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.resolve.recipe import Recipe
from harness.resolve.recipe_file import load_recipe

RECIPE = """\
name: tiny
family: mine
title: Tiny
model:
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: 128
  num_attention_heads: 4
  vocab_size: 512
defaults:
  ddp: {overlap_grad_reduce: true}
  env: {COMMON: 1}
profiles:
  fast:
    env: {COMMON: 2, FAST: "yes"}
    kernels: {tp_comm_overlap: true}
points:
  - task: pretrain
    gpu: h100
    compute_dtype: bf16
    num_gpus: 8
    profile: fast
    parallelism: {tensor_model_parallel_size: 2}
    batch: {micro_batch_size: 1, global_batch_size: 32, seq_length: 128}
    recompute: full:block:2
    env: {FAST: null, OWN: text}
    source: a test
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a recipe file: RECIPE with (old, new) replaced, or the given text."""

    def _write(*changes: tuple[str, str], text: str = RECIPE, name: str = "tiny.yaml") -> Path:
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture
def load(write: Write) -> Callable[..., Recipe]:
    def _load(*changes: tuple[str, str]) -> Recipe:
        return load_recipe(write(*changes), "tiny.yaml")

    return _load
