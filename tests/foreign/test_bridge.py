"""`--bridge_config`: every field is taken, known not to matter, or refused by name; recorded files resolve as recipes do."""

import gzip
import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from harness.experiment.experiment import PeftSpec
from harness.foreign.bridge import KNOWN, SECTIONS
from harness.foreign.settings import rows_of
from harness.foreign.words import Words
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve
from tests import commands

DATA = Path(__file__).parents[1] / "data" / "bridge"
LLAMA = "llama3_70b_pretrain_64gpu_h100_bf16.yaml"
DEEPSEEK = "deepseek_v3_pretrain_1024gpu_h100_fp8cs.yaml"
QWEN_LIBRARY = "qwen3_30b_a3b_pretrain_8gpu_h100_bf16.yaml"
LORA = "llama3_70b_peft_8gpu_h100_fp8cs.yaml"
QWEN = "qwen3_30b_a3b_pretrain_16gpu_h100_fp8cs.yaml"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with every recorded file."""
    folder = tmp_path_factory.mktemp("containers")
    for name in ("containers_067f987.tar.xz", "other_families_067f987.tar.xz"):
        with tarfile.open(DATA / name) as archive:
            archive.extractall(folder, filter="data")
    return folder


def resolved(path, gpu="h100", **options):
    return resolve(Request(model_recipe_name="", gpu=gpu, source=ForeignSource("bridge_config", str(path)), **options))


def refused(path, *names, num=1, **options):
    """What is said of the problems of a file; each names the file, and together they name ``names``."""
    problems = commands.refused(lambda: resolved(path, **options), *names, num=num)
    assert all(str(path) in each.message for each in problems)
    return "\n".join(map(str, problems))


def changed(files, tmp_path, name, *changes):
    """A copy of a recorded file with other values, at its nesting."""
    text = (files / name).read_text()
    for key, value in changes:
        text, count = re.subn(rf"^( +{key}:) .*$", rf"\1 {value}", text, count=1, flags=re.MULTILINE)
        assert count == 1, key
    path = tmp_path / "run_config.yaml"
    path.write_text(text)
    return path


def test_a_file_resolves_with_its_path_as_the_source_of_every_setting(files):
    found = resolved(files / LLAMA)
    spec, label = found.spec, str(files / LLAMA)
    assert (spec.recipe, spec.family, spec.task) == (LLAMA.removesuffix(".yaml"), "bridge", "pretrain")
    assert (spec.gpu, spec.num_gpus, spec.compute_dtype) == ("h100", 64, "bf16")
    assert found.sources["model.num_layers"] == f"{label}:720: model.num_layers"
    assert found.sources["recompute"] == f"{label}:751: model.recompute_granularity"
    assert found.sources["env.TORCH_NCCL_HIGH_PRIORITY"] == f"{label}:296: env_vars.TORCH_NCCL_HIGH_PRIORITY"
    assert found.sources["bridge_config"] == f"--bridge_config {label}"
    selective = resolved(files / DEEPSEEK)
    assert re.fullmatch(rf"{files / DEEPSEEK}:\d+: model.recompute_modules", selective.sources["recompute"])


def test_options_override_the_file(files):
    found = resolved(files / LLAMA, recompute="mlp", num_gpus=32, tensor_model_parallel_size=8, context_parallel_size=1)
    assert (found.spec.recompute.text, found.sources["recompute"]) == ("mlp", "--recompute")
    assert (found.spec.num_gpus, found.spec.batch.global_batch_size) == (32, 128)
    assert any("256" in note and "128" in note for note in found.notes)


def test_fine_tuning_is_seen_by_its_data_set_and_options_name_what_a_file_lacks(files):
    path = files / "llama3_8b_sft_8gpu_h100_fp8cs.yaml"
    refused(path, "-ng")
    assert resolved(path, num_gpus=8).spec.task == "sft"


def test_settings_whose_effect_nobody_predicts_are_one_note(files):
    for path, setting in ((DEEPSEEK, "optimizer.overlap_param_gather_with_optimizer_step is true"),
                          (f"library/{QWEN_LIBRARY}", "model.apply_rope_fusion is false")):  # fmt: skip
        assert sum(setting in note for note in resolved(files / path, num_gpus=1024).notes) == 1


def test_a_run_on_a_cpu_leaves_out_what_needs_a_gpu_and_names_it(files):
    found = resolved(files / QWEN, "cpu", num_gpus=2, expert_model_parallel_size=2)
    spec = found.spec
    assert (spec.compute_dtype, spec.cuda_graph.impl, spec.kernels.transformer_impl, spec.env) == (
        "fp32",
        "none",
        "auto",
        {},
    )
    assert spec.kernels.moe_token_dispatcher_type == "alltoall"
    assert any("compute_dtype" in note and "cuda_graph.impl" in note for note in found.notes)


@pytest.mark.parametrize(("modules", "recompute"), [("null", "core_attn"), ("[]", "none"), ("[moe_act]", "moe_act")])
def test_selective_recompute_without_a_list_is_core_attn_and_with_an_empty_one_none(
    files, tmp_path, modules, recompute
):
    text = re.sub(r"(recompute_granularity:) .*", r"\1 selective", (files / QWEN).read_text(), count=1)
    path = tmp_path / "job.yaml"
    path.write_text(re.sub(r"recompute_modules:\n(?: +- .*\n)+", f"recompute_modules: {modules}\n", text, count=1))
    found = resolved(path, num_gpus=16)
    assert found.spec.recompute.text == recompute
    assert any("#6003" in note for note in found.notes) == (recompute == "core_attn")


def test_the_adapters_of_a_file_are_those_of_the_job(files):
    spec = resolved(files / LORA, num_gpus=8).spec
    assert (spec.task, spec.peft) == ("peft", PeftSpec(dim=16, alpha=32, target_modules=("linear_qkv",)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("megatron.bridge.peft.lora.LoRA", "megatron.bridge.peft.dora.DoRA"), "DoRA"),
        (("dropout: 0.0", "dropout: 0.1"), "peft.dropout is 0.1"),
        (("share_expert_adapters: true", "share_expert_adapters: false"), "peft.share_expert_adapters is false"),
        (("- linear_qkv", "- '*.layers.0.*.linear_qkv'"), "peft.target_modules"),
    ],
)
def test_adapters_of_another_form_are_refused(files, tmp_path, change, why):
    text = (files / LORA).read_text()
    assert change[0] in text
    path = tmp_path / "job.yaml"
    path.write_text(text.replace(*change))
    refused(path, why, num_gpus=8)


@pytest.mark.slow
def test_every_recorded_file_resolves_or_is_refused_for_its_reason(files):
    reasons = {
        "nemotron": "Mamba",
        "wan_": "diffusion",
        "_hsdp": "(HSDP)",
        "deepseek_v3_pretrain_256gpu_gb.00_fp8mx_partial_cg_dev|deepep_dev": "scheduler.lr_decay_steps",
    }
    read = 0
    for path in sorted(files.rglob("*.yaml")):
        gpu, num_gpus = re.search(r"_(\d+)gpu_([a-z]+\d+)_", path.name).groups()[::-1]
        why = next((why for name, why in reasons.items() if re.search(name, path.name)), None)
        if why is None and "moe_paged_stash: true" in path.read_text():
            why = "model.moe_paged_stash is true"
        if why:
            refused(path, why, num=None, gpu=gpu, num_gpus=int(num_gpus))
        else:
            assert resolved(path, gpu, num_gpus=int(num_gpus)).spec.num_gpus == int(num_gpus)
            read += 1
    assert read > 200


def test_every_field_of_every_version_is_known():
    read = {name for row in rows_of("bridge") for name in row.names}
    with gzip.open(DATA / "container_defaults.json.gz") as packed:
        versions = json.load(packed)
    assert list(versions) == ["0.3.1", "0.4.2", "0.5.1", "0.6.0", "067f987"]
    everything = {path for fields in versions.values() for path in fields}
    assert [
        p for p in sorted(everything) if p not in read and p not in KNOWN and p.partition(".")[0] not in SECTIONS
    ] == []
    assert len(everything) > 500


def test_the_default_of_every_version_is_accepted_but_for_one_with_a_reason():
    with gzip.open(DATA / "container_defaults.json.gz") as packed:
        versions = json.load(packed)
    found = set()
    for fields in versions.values():
        for path, defaults in fields.items():
            for row in KNOWN.get(path, ()):
                for each in defaults if row.values is not None and not row.where.startswith("!") else ():
                    value = tuple(each) if isinstance(each, list) else each
                    if not isinstance(value, dict) and not Words("").fits(value, row.values):
                        found.add(path)
    conditional = {"model.overlap_p2p_comm", "model.apply_rope_fusion", "model.bf16"}  # judged in some jobs only
    assert found - conditional == {"ddp.data_parallel_sharding_strategy"}  # of FSDP, and Bridge's recipes change it


@pytest.mark.parametrize(
    ("name", "changes", "messages"),
    [
        (LLAMA, [("fp32_residual_connection", "true"), ("qk_clip", "true"), ("rampup_batch_size", "[16, 16, 100]")],
         ["model.fp32_residual_connection is true", "model.qk_clip is true", "train.rampup_batch_size is (16, 16, 100)"]),
        (LLAMA, [("optimizer", "lion"), ("use_layer_wise_distributed_optimizer", "true")],
         ["is 'lion'", "dist_muon", "optimizer.use_layer_wise_distributed_optimizer is true"]),
        (LLAMA, [("cp_comm_type", "all_gather")], ["model.cp_comm_type: all_gather", "p2p or a2a"]),
        (LLAMA, [("moe_paged_stash", "false\\n    new_field_of_2027: 3")], ["model.new_field_of_2027 is 3"]),
        (LLAMA, [("overlap_p2p_comm", "null"), ("enable_cuda_graph", "true")],
         ["model.enable_cuda_graph is true", "model.cuda_graph_impl=local"]),
        (LLAMA, [("experimental_attention_variant", "dsa")], ["model.experimental_attention_variant is dsa"]),
        (LLAMA, [("experimental_attention_variant", "gated_delta_net"), ("deterministic_mode", "true")], ["model.deterministic_mode is true"]),
        (LLAMA, [("num_layers", "null"), ("num_attention_heads", "null")],
         ["model.num_layers: missing", "model.num_attention_heads: missing"]),
        (LLAMA, [("num_layers", "true")], ["model.num_layers: ", "True"]),
        (LLAMA, [("data_parallel_size", "9" * 60)], ["comm_overlap.data_parallel_size: ", "1048576"]),
        (QWEN, [("moe_latent_size", "64"), ("moe_router_score_function", "tanh"), ("fp16", "true")],
         ["model.moe_latent_size is 64", "model.moe_router_score_function: ", "'softmax'", "'sigmoid'", "'tanh'"]),
        (LLAMA, [("restore_modelopt_state", "false\\n  hidden_size: 64")], ["model.hidden_size is 8192", " 64"]),
        (QWEN, [("seq_length", "2048")], ["dataset.seq_length is 2048", "model.seq_length"]),
        (DEEPSEEK, [("lr_decay_steps", "null")], ["scheduler.lr_decay_steps: "]),
        (DEEPSEEK, [("moe_enable_deepep", "true"), ("moe_flex_dispatcher_backend", "hybridep")],
         ["model.moe_enable_deepep is true", "model.moe_flex_dispatcher_backend=deepep"]),
    ],
)  # fmt: skip
def test_what_cannot_be_said_here_is_refused_by_name_and_line(files, tmp_path, name, changes, messages):
    refused(changed(files, tmp_path, name, *changes), *messages, num=None)


def test_a_wrong_type_is_named_at_its_line_with_what_to_do(files, tmp_path):
    path = changed(files, tmp_path, LLAMA, ("num_layers", "many"))
    refused(path, f"{path}:720: model.num_layers: ", "'many'", "--set")
    assert resolved(path, set_values=("model.num_layers=40",)).spec.model.num_layers == 40
    path.write_text(re.sub(r"(?m)^  optimizer: adam", "  optimizer: lion", (files / LLAMA).read_text()))
    refused(path, "is 'lion'")
    assert resolved(path, set_values=("optimizer.optimizer=sgd",)).spec.optimizer.optimizer == "sgd"


def test_weights_are_of_the_precision_that_the_file_trains_in(files, tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text((files / QWEN).read_text().replace(" bf16: true", " bf16: false"))
    refused(path, "model.bf16 is false", "model.params_dtype is torch.bfloat16", num=2)


def test_fields_of_parts_that_the_model_lacks_do_not_matter(files, tmp_path):
    path = changed(
        files, tmp_path, LLAMA, ("moe_latent_size", "64"), ("tp_comm_split_ag", "false"), ("mtp_standalone", "true")
    )
    assert resolved(path).spec == resolved(files / LLAMA, set_values=()).spec.model_copy(
        update={"recipe": resolved(path).spec.recipe}
    )


@pytest.mark.parametrize("part", ["train", "optimizer", "ddp", "model"])
def test_a_section_that_is_missing_is_named(files, tmp_path, part):
    lines = (files / LLAMA).read_text().splitlines(keepends=True)
    start = lines.index(f"{part}:\n")
    end = next(at for at in range(start + 1, len(lines)) if not lines[at].startswith((" ", "-")))
    path = tmp_path / "cut.yaml"
    path.write_text("".join(lines[:start] + lines[end:]))
    refused(path, f"{path}: {part}: ", num=None)


@pytest.mark.parametrize(
    "model",
    ["qwen_vl.qwen3_vl_provider.Qwen3VLMoEModelProvider", "mamba.mamba_provider.MambaModelProvider",
     "gemma.gemma2_provider.Gemma2ModelProvider", "llama.llama_provider.Llama4ModelProvider"],
)  # fmt: skip
def test_other_kinds_of_models_are_refused_by_their_class(files, tmp_path, model):
    name = f"megatron.bridge.models.{model}"
    path = tmp_path / "other.yaml"
    own = "megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig"
    path.write_text((files / LLAMA).read_text().replace(own, name))
    refused(path, name)


def test_a_precision_that_differs_from_ours_is_noted(files, tmp_path):
    path = changed(files, tmp_path, QWEN, ("fp8_param", "false"))
    text = (
        path.read_text()
        .replace("    fp8_param: true", "    fp8_param: false")
        .replace("  fp8_param: true", "  fp8_param: false")
    )
    path.write_text(text)
    assert sum("model.fp8_param is false (fp8_cs here has true)" in note for note in resolved(path).notes) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "_target_: megatron.bridge.training.config.ConfigContainer\n",
        "_target_: megatron.bridge.training.config.ConfigContainer\nmodel: 3\ntrain: []\noptimizer: x\nddp: null\n",
        "_target_: megatron.bridge.training.config.ConfigContainer\nmodel: {transformer: 3, num_layers: [1]}\n"
        "train: {micro_batch_size: {a: 1}}\noptimizer: {}\nddp: {bucket_size: -1}\nenv_vars: [1]\npeft: {}\n",
        "a: &a [1,1]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
        "_target_: !!python/object/apply:os.system [id]\n",
        "\0",
        "[" * 200,
    ],
)  # fmt: skip
def test_hostile_files_are_refused_with_a_message(tmp_path, content):
    path = tmp_path / "hostile.yaml"
    path.write_text(content)
    refused(path, num=None)


@pytest.mark.parametrize("version", ["0.3.1", "0.4.2", "0.5.1", "0.6.0"])
@pytest.mark.parametrize("name", [LLAMA, QWEN, DEEPSEEK])
def test_the_same_job_under_the_names_of_an_older_version_is_the_same_experiment(files, tmp_path, version, name):
    """The fields are those of the version, in one flat model; their values are recorded, else the version's defaults."""
    with gzip.open(DATA / "container_defaults.json.gz") as packed:
        fields = json.load(packed)[version]
    recorded = yaml.safe_load((files / name).read_text())
    model = recorded["model"] | recorded["model"].get("transformer", {})
    model["_target_"] = "megatron.bridge.models.mla_provider.MLAModelProvider"
    if version < "0.5":
        model["cuda_graph_scope"] = model["cuda_graph_modules"]
    older = recorded | {"model": {"_target_": model["_target_"]}}
    for path, (default, *_) in fields.items():
        section, key = path.split(".")
        values = model if section == "model" else recorded[section]
        if key in values or not isinstance(default, dict):
            older[section] = older[section] | {key: values.get(key, default)}
    older["model"] = {
        key: value for key, value in older["model"].items() if key == "_target_" or f"model.{key}" in fields
    }
    path = tmp_path / name
    path.write_text(yaml.safe_dump(older))
    assert resolved(path).spec == resolved(files / name).spec


def test_set_repairs_what_the_file_cannot_say(files, tmp_path):
    lost = ("pipeline_model_parallel_layout", "{_call_: true, _target_: megatron.core.PipelineParallelLayerLayout}")
    path = changed(files, tmp_path, DEEPSEEK, lost, ("moe_router_score_function", "tanh"))
    refused(path, "model.pipeline_model_parallel_layout: ", "moe_router_score_function: ", num=2, num_gpus=1024)
    layout = resolved(files / DEEPSEEK, num_gpus=1024).spec.parallelism.pipeline_model_parallel_layout
    given = (f"parallelism.pipeline_model_parallel_layout={layout}", "model.moe.moe_router_score_function=sigmoid")
    assert (
        resolved(path, num_gpus=1024, set_values=given).spec.model
        == resolved(files / DEEPSEEK, num_gpus=1024).spec.model
    )
    assert lost[0] not in refused(path, "moe_router_score_function", num_gpus=1024, set_values=given[:1])
