from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import SeveralMatchError
from harness.resolve.points import choose_point, only_gpu_point, weak_scaled
from harness.resolve.recipe import Recipe, Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve_recipe
from tests.commands import refused

HEAD = """\
name: many
family: mine
title: Many points
model: {num_layers: 4, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4, vocab_size: 512}
points:
"""


def point(gpu="h100", dtype="bf16", gpus=8, extra="", tp=2, gbs=32, task="pretrain") -> str:
    return f"""\
  - task: {task}
    gpu: {gpu}
    compute_dtype: {dtype}
    num_gpus: {gpus}
    parallelism: {{tensor_model_parallel_size: {tp}}}
    batch: {{micro_batch_size: 1, global_batch_size: {gbs}, seq_length: 128}}
    source: a test
{extra}"""


BROKEN = "    inconsistent: [world 64 not divisible by 512]\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Recipe]:
    def _recipe(*points: str) -> Recipe:
        path = tmp_path / "many.yaml"
        path.write_text(HEAD + "".join(points), encoding="utf-8")
        return load_recipe(path, "many.yaml")

    return _recipe


def ask(**options: object) -> Request:
    return Request(**{"model_recipe_name": "many", "gpu": "h100", **options})


def test_the_first_listed_count_that_can_run_is_the_default(recipe):
    assert choose_point(recipe(point(gpus=16), point(gpus=8)), ask()).point.key.num_gpus == 16
    points = recipe(point(gpus=64, extra=BROKEN), point(gpus=128))
    choice = choose_point(points, ask())
    assert choice.point.key.num_gpus == 128
    [note] = choice.notes
    assert note.startswith("pretrain h100 bf16 128 GPUs") and note.endswith("world 64 not divisible by 512")
    for options in ({}, {"tensor_model_parallel_size": 1}):
        asked = ask(num_gpus=64, **options)
        refused(lambda asked=asked: choose_point(points, asked), "world 64 not divisible by 512")


@pytest.mark.parametrize(("asked", "start", "scaled"), [(4, 8, 16), (12, 16, 48), (64, 16, 256), (8, 8, None)])
def test_another_count_starts_from_the_next_larger_point_else_the_largest(recipe, asked, start, scaled):
    resolved = resolve_recipe(recipe(point(gpus=8, gbs=32), point(gpus=16, gbs=64)), ask(num_gpus=asked))
    assert resolved.spec.num_gpus == asked
    assert resolved.spec.batch.global_batch_size == (scaled or 32)
    named = [f" {asked} GPUs" in n for n in resolved.notes if n.endswith(f" pretrain h100 bf16 {start} GPUs")]
    assert named == ([True] if scaled else [])


def test_a_batch_that_stays_the_same_is_no_note(recipe):
    of_one_copy = recipe(point(gpus=8, gbs=32))
    resolved = resolve_recipe(of_one_copy, ask(num_gpus=16, tensor_model_parallel_size=4))
    assert resolved.spec.batch.global_batch_size == 32
    assert resolved.sources["batch.global_batch_size"] != "--num_gpus"
    assert not any("scaled" in note for note in resolved.notes)
    assert any("32 scaled to 64" in note for note in resolve_recipe(of_one_copy, ask(num_gpus=16)).notes)


def test_a_global_batch_scales_with_the_copies_of_the_model_unless_it_was_asked_for(recipe):
    resolved = resolve_recipe(recipe(point()), ask(num_gpus=4, global_batch_size=6))
    assert resolved.spec.batch.global_batch_size == 6
    assert resolved.sources["batch.global_batch_size"] == "--global_batch_size"
    of_tp_1 = resolve_recipe(recipe(point()), ask(num_gpus=4, tensor_model_parallel_size=1))
    assert of_tp_1.spec.batch.global_batch_size == 32
    refused(lambda: resolve_recipe(recipe(point()), ask(num_gpus=3)), "--num_gpus 3 ", "2 x 1 x 1 = 2")
    refused(lambda: weak_scaled(32, 3, 2), "32")


CP_2 = "    env: {CUDA_DEVICE_MAX_CONNECTIONS: 1}\n"


@pytest.mark.parametrize(
    ("options", "tp", "cp", "queues"),
    [
        ({"num_gpus": 1}, 1, 1, None),
        ({"num_gpus": 4}, 1, 4, "1"),
        ({"num_gpus": 6}, 1, 2, "1"),
        ({"context_parallel_size": 1}, 1, 1, None),
        ({"num_gpus": 1, "set_values": ("env.CUDA_DEVICE_MAX_CONNECTIONS=1",)}, 1, 1, "1"),
        ({"num_gpus": 2, "tensor_model_parallel_size": 2}, 2, 1, "1"),
    ],
)
def test_context_parallelism_and_its_single_queue_follow_the_number_of_gpus(recipe, options, tp, cp, queues):
    of_cp_4 = point(tp=1, extra=CP_2).replace("{tensor_model", "{context_parallel_size: 4, tensor_model")
    spec = resolve_recipe(recipe(of_cp_4), ask(**options)).spec
    parallelism = spec.parallelism
    assert (parallelism.tensor_model_parallel_size, parallelism.context_parallel_size) == (tp, cp)
    assert spec.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == queues
    scaled = 16 * spec.data_parallel_size if "num_gpus" in options else 32
    assert spec.batch.global_batch_size == scaled


def test_the_usual_precision_is_taken_when_there_else_the_first_with_a_note(recipe):
    assert choose_point(recipe(point(dtype="fp8_cs"), point()), ask()).point.key.compute_dtype == "bf16"
    choice = choose_point(recipe(point(dtype="fp8_cs"), point(dtype="fp8_sc")), ask())
    assert choice.point.key.compute_dtype == "fp8_cs"
    assert [" bf16 " in note and "fp8_cs, fp8_sc" in note for note in choice.notes] == [True]


def test_variants_are_chosen_by_name_only(recipe):
    many = recipe(point(gpus=4, extra="    variant: large\n"), point(gpus=8))
    assert [choose_point(many, asked).point.key.num_gpus for asked in (ask(), ask(variant="large"))] == [8, 4]
    several = recipe(point(extra="    variant: large\n"), point(extra="    variant: small\n"))
    refused(lambda: choose_point(several, ask()), "--variant large or small")
    refused(lambda: only_gpu_point(several, ask(gpu="", variant="larg")), "--variant larg;")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"gpu": "h200"}, ["h200", "--point_gpu h100"]),
        ({"gpu": "h1000"}, ["--gpu: ", "'h1000'", "a100, h100"]),
        ({"compute_dtype": "fp8_cs"}, ["-c fp8_cs", "-c bf16"]),
        ({"compute_dtype": "fp8"}, ["--compute_dtype: ", "'fp8'", "fp8_cs"]),
        ({"task": "peft"}, ["'peft'", "--task pretrain"]),
        ({"task": "finetune"}, ["--task: ", "'finetune'", "pretrain, sft, peft"]),
        ({"variant": "none"}, ["'none'", "leave --variant out"]),
        ({"num_gpus": 0}, ["--num_gpus: ", " 1 ", " 0"]),
    ],
)
def test_what_is_not_there_is_reported_with_what_is(recipe, options, parts):
    refused(lambda: choose_point(recipe(point()), ask(**options)), *parts)


def test_the_only_variant_is_taken_with_and_without_a_gpu_type(recipe):
    large = recipe(point(extra="    variant: large\n"))
    chosen = choose_point(large, ask())
    assert chosen.point.key.variant == "large"
    assert ["h100" in note and "--variant large" in note for note in chosen.notes] == [True]
    assert only_gpu_point(large, ask(gpu="")) is chosen.point


def test_the_point_of_another_gpu_type_is_used_only_when_asked_for(recipe):
    resolved = resolve_recipe(recipe(point(gpu="gb200", gpus=4)), ask(gpu="h200", point_gpu="gb200"))
    assert (resolved.spec.gpu, resolved.spec.num_gpus, resolved.spec.gpus_per_node) == ("h200", 4, 8)
    assert ["gb200" in note and "h200" in note for note in resolved.notes] == [True]


CPU = point(gpu="cpu", dtype="fp32", gpus=2)


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({"num_gpus": 8}, "pretrain a100 bf16 8 GPUs"),
        ({"compute_dtype": "fp8_cs"}, "pretrain h100 fp8_cs 16 GPUs"),
        ({"point_gpu": "a100"}, "pretrain a100 bf16 8 GPUs"),
        ({"task": "sft"}, "sft h100 bf16 8 GPUs"),
        ({"variant": "far"}, "pretrain h100 bf16 64 GPUs (variant far)"),
        ({"compute_dtype": "fp8_cs", "num_gpus": 12}, "pretrain h100 fp8_cs 16 GPUs"),
    ],
)
def test_options_single_out_one_gpu_point_and_never_the_cpu_point(recipe, options, title):
    many = recipe(CPU, point(gpus=16), point(gpu="a100"), point(dtype="fp8_cs", gpus=16), point(task="sft"),
                  point(gpus=64, extra="    variant: far\n"), point(gpus=8, dtype="fp8_cs", extra=BROKEN))  # fmt: skip
    assert only_gpu_point(many, ask(gpu="", **options)).title == title


def test_several_gpu_points_are_each_reported_with_the_options_that_choose_it(recipe):
    several = recipe(
        CPU, point(task="sft", gpus=8), point(task="sft", dtype="fp8_cs", gpus=64, extra="    variant: far\n")
    )
    with pytest.raises(SeveralMatchError, match="2 GPU operating points") as error:
        only_gpu_point(several, ask(gpu=""))
    first, second = error.value.choices
    assert first == ("-g", "h100", "--task", "sft", "-c", "bf16", "-ng", "8")
    assert second == ("-g", "h100", "--task", "sft", "-c", "fp8_cs", "-ng", "64", "-cv", "far")
    with pytest.raises(SeveralMatchError) as error:
        only_gpu_point(several, ask(gpu="", task="sft", num_gpus=32))
    assert error.value.choices == (("-g", "h100", "-c", "bf16"), ("-g", "h100", "-c", "fp8_cs", "-cv", "far"))


def test_a_recipe_without_gpu_points_names_the_cpu_point(recipe):
    refused(lambda: only_gpu_point(recipe(CPU), ask(gpu="")), "-g cpu")
    asked = ask(gpu="", compute_dtype="nvfp4")
    refused(lambda: only_gpu_point(recipe(CPU, point()), asked), "--task pretrain", "--compute_dtype nvfp4")
