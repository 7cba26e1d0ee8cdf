"""Reading Megatron-Bridge's `ConfigContainer` files: values, lines, and what is refused."""

import tarfile
from pathlib import Path

import pytest

from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.foreign.bridge import Container, read_container
from harness.foreign.container_fields import NOT_IN_CONTAINERS, other_effects
from harness.foreign.settings import rows_of, settings_in
from harness.records.strict_yaml import parse_yaml
from harness.resolve.recipe import LEAVES, Setting, build_spec, merge
from tests.commands import refused

RESOLVED = Path(__file__).parents[1] / "data" / "bridge" / "containers_067f987.tar.xz"
HEAD = "_target_: megatron.bridge.training.config.ConfigContainer\n"
IDENTITY = {
    "recipe": Setting("mine", ""), "family": Setting("mine", ""), "gpu": Setting("h100", ""),
    "gpus_per_node": Setting(8, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def text():
    """The text of a recorded file by its name."""
    with tarfile.open(RESOLVED) as archive:
        return {each.name: archive.extractfile(each).read().decode() for each in archive if each.name.endswith(".yaml")}


def container_layer(container):
    layer = settings_in(container, rows_of("bridge"))
    container.problems.raise_if_any()
    return layer


def parse_container(text, label="f.yaml"):
    return Container(label, file=parse_yaml(text, label, by_pyyaml=True))


def layer_of(body):
    return {path: setting.value for path, setting in container_layer(parse_container(HEAD + body)).items()}


def test_every_leaf_of_a_spec_has_a_row_or_a_reason_why_not():
    rows = [row.path for row in rows_of("bridge")]
    assert len(rows) == len(set(rows))
    assert set(rows) | set(NOT_IN_CONTAINERS) == set(LEAVES)
    assert set(rows) & set(NOT_IN_CONTAINERS) == set()


def test_an_experiment_agrees_with_itself_and_a_changed_field_is_named(text):
    layer = container_layer(parse_container(text["llama3_8b_pretrain_8gpu_h100_bf16.yaml"]))
    ours = build_spec(merge(IDENTITY, layer), "f")
    assert other_effects(ours, ours) == {}
    other = ours.model_copy(update={"ddp": ours.ddp.model_copy(update={"grad_reduce_in_fp32": True})})
    assert other_effects(ours, other) == {"ddp.grad_reduce_in_fp32": (False, True)}


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        ("model: {recompute_granularity: null, recompute_modules: [core_attn]}\n", NoRecompute()),
        ("model: {recompute_granularity: selective, recompute_modules: null}\n", SelectiveRecompute(modules=("core_attn",))),
        ("model: {recompute_granularity: selective, recompute_modules: []}\n", NoRecompute()),
        ("model: {recompute_granularity: full, recompute_method: block, recompute_num_layers: 2}\n",
         FullRecompute(method="block", num_layers=2)),
        ("model: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1,"
         " distribute_saved_activations: true}\n",
         FullRecompute(method="uniform", num_layers=1, distribute_saved_activations=True)),
    ],
)  # fmt: skip
def test_recompute_is_one_policy(body, policy):
    assert layer_of(body)["recompute"] == policy


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        ("model: {bf16: true, fp8: hybrid, fp8_recipe: delayed}\n", "compute_dtype", "fp8_ds"),
        ("model: {bf16: true, num_moe_experts: 8, moe_router_dtype: bf16}\n", "model.moe.moe_router_dtype", None),
        ("model: {num_moe_experts: 8, moe_router_dtype: {_target_: torch.float32, _call_: false}}\n",
         "model.moe.moe_router_dtype", "fp32"),
        ("model: {wgrad_deferral_limit: -1}\n", "parallelism.wgrad_deferral_limit", 0),
        ("model: {cpu_offloading: false, cpu_offloading_num_layers: 3}\n", "offload.cpu_offloading_num_layers", 0),
        ("model:\n  cuda_graph_modules:\n  - {_call_: true, _args_: [1], _name_: attn, _target_: m.CudaGraphModule}\n",
         "cuda_graph.scope", ("attn",)),
        ("model:\n  cuda_graph_scope:\n  - {_call_: true, _args_: [2], _target_: megatron.core.transformer.enums.CudaGraphScope}\n",
         "cuda_graph.scope", ("attn",)),
        ("model:\n  attention_backend: {_call_: true, _args_: [2], _target_: megatron.core.transformer.enums.AttnBackend}\n",
         "kernels.attention_backend", "fused"),
        ("model: {cuda_graph_modules: full, cuda_graph_scope: [moe_router]}\n", "cuda_graph.scope", ("moe_router",)),
        ("model: {vocab_size: null}\ntokenizer: {vocab_size: 32000}\n", "model.vocab_size", 32000),
        ("env_vars: {A: 1, B: x}\n", "env.A", "1"),
        ("model:\n  pipeline_model_parallel_layout: {_target_: megatron.core.Layout, layout: Ett|ttL, pipeline_model_parallel_size: 2}\n",
         "parallelism.pipeline_model_parallel_layout", "Ett|ttL"),
        ("model: {bf16: false, fp16: true}\noptimizer: {loss_scale: 1024}\n", "optimizer.loss_scale", 1024.0),
        ("model: {bf16: true}\noptimizer: {loss_scale: 1024}\n", "optimizer.loss_scale", None),
        ("model: {bf16: false, fp16: true}\n", "compute_dtype", "fp16"),
        ("model: {activation_func: megatron.core.activations.squared_relu}\n", "model.activation_func", "squared_relu"),
        ("optimizer: {optimizer: muon, use_layer_wise_distributed_optimizer: true}\n", "optimizer.optimizer", "dist_muon"),
        ("optimizer: {optimizer_cpu_offload: false, optimizer_offload_fraction: 0.0}\n",
         "optimizer.optimizer_offload_fraction", None),
        ("model: {tp_comm_overlap: false}\ncomm_overlap: {tp_comm_overlap_cfg: {qkv_fprop: {method: bulk}}}\n",
         "kernels.tp_comm_overlap_cfg", None),
    ],
)  # fmt: skip
def test_values_that_are_spelled_otherwise(body, path, value):
    assert layer_of(body).get(path) == value


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("model: {bf16: true, fp8: hybrid, fp8_recipe: custom}\n", ("f.yaml:2: model.fp8_recipe: ", "'custom'")),
        ("model: {fp16: true, fp8: hybrid, fp8_recipe: delayed}\n", ("f.yaml:2: model.fp16: ", "FP8")),
        ("model:\n  pipeline_model_parallel_layout: {_call_: true, _target_: megatron.core.Layout}\n",
         ("f.yaml:3: model.pipeline_model_parallel_layout: ",)),
        ("model:\n  pipeline_model_parallel_layout: [[embedding], [decodr]]\n", ("'decodr'",)),
        ("model: {recompute_granularity: full, recompute_method: diagonal, recompute_num_layers: 1}\n",
         ("f.yaml:2: model.recompute_method: ", "'uniform'", "'block'", "'diagonal'")),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_at_its_line(body, names):
    refused(lambda: layer_of(body), *names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: {}\n", "ConfigContainer"),
        (HEAD + "a: !!python/object:os.system {}\n", "f.yaml:2: "),
        (HEAD + "a: 1\na: 2\n", "f.yaml:3: duplicate key 'a'"),
        (HEAD + "a: &x [1]\nb: &y [*x]\nc: *y\n", "f.yaml:4: alias y "),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "f.yaml"
    path.write_text(content)
    refused(lambda: read_container(path, "f.yaml"), message)


def test_what_pyyaml_writes_is_read_as_it_meant_it():
    container = parse_container(HEAD + 'a: .inf\nb: 1e-5\nc: !!set {x: null}\nd: &i [1]\ne: *i\nf: "two\\nlines"\n')
    assert [container.value(key) for key in "abcdef"] == [float("inf"), "1e-5", {"x": None}, (1,), (1,), "two\nlines"]
