"""A job in words of other programs comes back as the same job: all shipped points, by the readers of those words."""

import copy
import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest
import yaml

from harness.foreign.bridge import Container
from harness.foreign.container_fields import other_effects
from harness.foreign.exporting import exported, to_paste
from harness.foreign.settings import rows_of, settings_in
from harness.foreign.writing import ELSEWHERE, WRITERS, as_bridge, as_megatron, left_out
from harness.records.strict_yaml import parse_yaml
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import ForeignSource, Request, Setting, build_spec, merge
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve, resolve_point
from tests.commands import refused
from tests.conftest import build_spec as small_spec

CONTAINERS = Path(__file__).parents[1] / "data" / "bridge" / "containers_067f987.tar.xz"
OURS = ("recipe", "family", "task", "gpu", "gpus_per_node", "num_gpus")


@pytest.fixture(scope="module")
def points():
    """Every shipped point that can run, by name."""
    found = {}
    for file in all_recipe_files(recipes_dir()):
        recipe = load_recipe(file.path, file.label)
        for point in recipe.points:
            if not point.key.inconsistent:
                found[f"{recipe.header.name} {point.title}"] = resolve_point(recipe, point)
    assert len(found) > 250
    return found


@pytest.fixture(scope="module")
def base():
    """A configuration of Llama 3 8B that Megatron-Bridge completed, reduced to the settings that the table reads."""
    with tarfile.open(CONTAINERS) as archive:
        document = yaml.safe_load(archive.extractfile("llama3_8b_pretrain_8gpu_h100_bf16.yaml").read())
    kept = {"_target_": document["_target_"], "env_vars": {}}
    for row in rows_of("bridge"):
        for name in row.names:
            section, _, leaf = name.partition(".")
            if leaf in (document.get(section) or {}):
                kept.setdefault(section, {})[leaf] = document[section][leaf]
    return kept


def overridden(base, words):
    """The container after Hydra's ``path=value``, ``++`` adding what is not there."""
    document = copy.deepcopy(base)
    for word in words:
        path, _, text = word.partition("=")
        value = None if text == "null" else parse_yaml(text, word, with_lines=False).value
        *sections, leaf = path.lstrip("+").split(".")
        at = document
        for name in sections:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        at[leaf] = list(value) if isinstance(value, tuple) else value
    return Container("job.yaml", file=parse_yaml(yaml.safe_dump(document), "job.yaml", by_pyyaml=True))


def pasted(text):
    """The words that a shell makes of the text."""
    return shlex.split(text.replace("\\\n", ""), comments=True)


def read_back(spec, container):
    own = {name: Setting(getattr(spec, name), "option") for name in OURS}
    measure = {f"measure.{name}": Setting(value, "option") for name, value in spec.measure if value is not None}
    layer = settings_in(container, rows_of("bridge"))
    assert not container.problems.found
    return build_spec(merge(layer, own, measure), "job.yaml")


@pytest.mark.slow
def test_every_point_comes_back_from_its_overrides_of_bridge(points, base):
    elsewhere = {
        "model.activation_func",
        "optimizer.main_grads_dtype",
        "optimizer.exp_avg_dtype",
        "optimizer.exp_avg_sq_dtype",
    }
    for name, spec in points.items():
        words, remarks = as_bridge(spec)
        differing = other_effects(spec, read_back(spec, overridden(base, words)))
        assert differing.keys() <= elsewhere, name
        for path, (ours, _) in differing.items():  # each of them is said
            assert any(path.partition(".")[2] in remark and str(ours) in remark for remark in remarks), name


@pytest.mark.slow
def test_every_point_comes_back_from_its_recipe_file(points, tmp_path):
    path = tmp_path / "job.yaml"
    for name, spec in points.items():
        path.write_text(exported(spec, "yaml").text)
        recipe = load_recipe(path, "job.yaml")
        assert resolve_point(recipe, recipe.points[0]) == spec, name


def test_the_communication_of_context_parallelism_is_written():
    cut = {"context_parallel_size": 2, "cp_comm_type": "a2a"}
    spec = small_spec(num_gpus=2, parallelism=cut)
    path = ("parallelism.cp_comm_type",)
    assert as_megatron(spec, path)[0] == ("--cp-comm-type", "a2a")
    assert as_bridge(spec, path)[0] == ("model.cp_comm_type=a2a",)
    assert as_megatron(small_spec(num_gpus=2, parallelism={"context_parallel_size": 2}), path)[0] == ()


UNSAYABLE = ("parallelism.deallocate_pipeline_outputs", "kernels.tp_comm_overlap_cfg", "model.position_embedding_type", "model.yarn.")  # fmt: skip
"""Leaves for which Megatron-LM has no argument."""


@pytest.mark.slow
def test_every_point_comes_back_from_its_arguments_of_megatron_lm(points, tmp_path):
    path = tmp_path / "train.sh"
    for name, spec in points.items():
        if spec.task == "peft":
            refused(lambda spec=spec: exported(spec, "megatron-lm"), "LoRA")
            continue
        written = exported(spec, "megatron-lm")
        path.write_text(f"torchrun pretrain_gpt.py {written.text}")
        request = Request(
            model_recipe_name="", source=ForeignSource("megatron_args", str(path)),
            gpu=spec.gpu, num_gpus=spec.num_gpus, gpus_per_node=spec.gpus_per_node, task=spec.task,
        )  # fmt: skip
        for leaf, (ours, theirs) in other_effects(spec, resolve(request, starts=True).spec).items():
            if leaf.startswith("env."):  # exported in the shell
                assert f"{leaf.removeprefix('env.')}={ours}" in written.text, name
            elif spec.gpu == "cpu" and leaf == "kernels.attention_backend":
                assert theirs == "auto"  # a foreign job on a CPU takes what the CPU has
            elif spec.model.moe or not leaf.startswith("kernels.moe_"):  # a dense model has no dispatcher
                assert leaf.startswith(UNSAYABLE), (name, leaf)
                is_file = leaf == "kernels.tp_comm_overlap_cfg"
                assert ("--tp-comm-overlap-cfg takes" if is_file else f" for {leaf}: {ours} here") in written.text, name


UNUSUAL = {
    "model": {"softmax_type": "off-by-one", "window_size": (-1, 0), "window_attn_skip_freq": (1, 0, 1), "num_layers": 3,
              "normalization": "LayerNorm", "add_bias_linear": True, "share_embeddings_and_output_weights": True,
              "activation_func": "gelu", "gated_linear_unit": False, "rope_scaling_factor": 4.0, "rotary_percent": 0.5,
              "hidden_dropout": 0.2, "layernorm_zero_centered_gamma": True, "make_vocab_size_divisible_by": 64},
    "parallelism": {"num_layers_in_first_pipeline_stage": 1, "pipeline_model_parallel_size": 2, "context_parallel_size": 2},
    "optimizer": {"use_precision_aware_optimizer": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "bf16",
                  "main_grads_dtype": "bf16", "clip_grad": 0.5},
    "ddp": {"overlap_grad_reduce": True, "align_grad_reduce": False, "grad_reduce_in_fp32": False, "nccl_ub": True},
    "offload": {"offload_modules": ("core_attn", "attn_norm")},
    "cuda_graph": {"impl": "transformer_engine", "scope": ("attn", "mlp"), "warmup_steps": 5},
    "kernels": {"attention_backend": "flash", "gradient_accumulation_fusion": False, "cross_entropy_loss_fusion": False},
}  # fmt: skip


ON_HOST = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.25, "overlap_cpu_optimizer_d2h_h2d": True}
LOCAL = {"transformer_impl": "local", "attention_backend": "unfused", "gradient_accumulation_fusion": False}
CHANGES = {
    "many": UNUSUAL,
    "fsdp": {"compute_dtype": "fp8_sc", "recompute": "full:block:3", "ddp": {"use_megatron_fsdp": True}},
    "whole step": {"compute_dtype": "nvfp4", "cuda_graph": {"impl": "local", "scope": ("full_iteration",)}},
    "layers offloaded": {"compute_dtype": "fp8_ds", "offload": {"cpu_offloading_num_layers": 2}},
    "local": {"kernels": LOCAL},
    "fp16": {"compute_dtype": "fp16", "optimizer": {"loss_scale": 4096.0}},
    "squared relu": {"compute_dtype": "fp16", "ddp": {"grad_reduce_in_fp32": False},
                     "model": {"gated_linear_unit": False, "activation_func": "squared_relu"}},
    "sgd": {"optimizer": {"optimizer": "sgd", "sgd_momentum": 0.0, "use_distributed_optimizer": False}},
    "muon": {"optimizer": {"optimizer": "dist_muon", "use_distributed_optimizer": False}},
    "on the host": {"optimizer": {"use_precision_aware_optimizer": True} | ON_HOST},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_settings_that_no_point_has_come_back_from_arguments_too(name):
    changes = CHANGES[name]
    model = small_spec().model.model_dump() | changes.get("model", {})
    spec = small_spec(**changes | {"model": model})
    words, _ = as_megatron(spec)
    assert left_out(spec, words) == {}


def test_what_the_arguments_lose_is_found_by_reading_them_back():
    spec = small_spec()
    words = [word for word in as_megatron(spec)[0] if word != "--swiglu"]
    assert [*left_out(spec, words)] == ["model.gated_linear_unit", "model.activation_func"]


def test_the_fused_loss_that_newer_megatron_lm_refuses_is_named():
    def remarks(**kernels):
        words, said = as_megatron(small_spec(kernels=kernels))
        assert "te" in words or kernels
        return "\n".join(said)

    assert re.search("--cross-entropy-fusion-impl te: .*core_v0.19.0.*native", remarks())
    assert "refuses" not in remarks(cross_entropy_fusion_impl="native")
    assert "refuses" not in remarks(cross_entropy_loss_fusion=False)


def test_a_value_of_every_row_is_written_or_named():
    """A reader with a conversion of its own needs an inverse, or a remark on where the setting is set."""
    plain_readers = {"as_written", "router_dtype", "layout_of_lists", "environment"}
    converting = {row.conversion for row in rows_of("bridge")} - {*WRITERS, *ELSEWHERE}
    assert converting <= plain_readers


def test_chosen_settings_are_written_alone():
    spec = small_spec(recompute="full:block:3", env={"A": "1", "B": "x y"})
    assert as_bridge(spec, ["recompute"]) == (
        ("model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=3",
         "model.recompute_modules=[]", "model.distribute_saved_activations=false"),
        (),
    )  # fmt: skip
    assert as_bridge(spec, ["env.B"])[0] == ('++env_vars.B="x y"',)


@pytest.mark.parametrize(
    ("now", "before", "arguments"),
    [
        ("mlp", "none", ": --recompute-granularity selective --recompute-modules mlp"),
        ("mlp", "full:uniform:1", " (leave out --recompute-method, --recompute-num-layers): --recompute-granularity selective"
         " --recompute-modules mlp"),
        ("none", "mlp", ": leave out --recompute-granularity, --recompute-modules"),
        ("none", "none", ": no argument of recompute"),
    ],
)  # fmt: skip
def test_a_recommendation_names_the_arguments_to_add_and_those_that_must_go(now, before, arguments):
    pasted_now = to_paste(small_spec(recompute=now), small_spec(recompute=before))
    assert pasted_now.lines == (f"Megatron-Bridge: {pasted_now.bridge}", f"Megatron-LM{arguments}")
    assert shlex.split(pasted_now.bridge) == list(as_bridge(small_spec(recompute=now), ["recompute"])[0])


def test_a_recommendation_has_every_setting_that_differs_and_the_sizes_of_a_layout():
    base = small_spec(recompute="mlp", cuda_graph={"impl": "transformer_engine", "scope": ("attn",)})
    found = to_paste(small_spec(recompute="mlp"), base)
    assert "model.cuda_graph_impl=none" in found.bridge.split()
    assert found.megatron_lm.endswith("--recompute-modules mlp")
    assert found.without == ("--cuda-graph-impl", "--cuda-graph-scope")
    own = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
    small = to_paste(small_spec(parallelism=own), small_spec(parallelism=own), with_sizes=True)
    assert small.megatron_lm.startswith("--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 ")
    assert {"--sequence-parallel", "--num-virtual-stages-per-pipeline-rank"} <= set(small.without)
    sizes = to_paste(small_spec(), small_spec(), with_sizes=True)
    assert "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4" in sizes.megatron_lm
    assert {"model.tensor_model_parallel_size=4", "model.context_parallel_size=1"} <= set(sizes.bridge.split())


@pytest.mark.parametrize(("cp", "kind", "is_said"), [(2, "a2a", True), (2, "p2p", False), (1, "a2a", False)])
def test_lines_to_paste_name_how_context_parallelism_shares_attention(cp, kind, is_said):
    job = small_spec(parallelism={"context_parallel_size": cp, "cp_comm_type": kind})
    for found in (to_paste(job, job), to_paste(job, job, with_sizes=True)):
        assert ("--cp-comm-type a2a" in found.megatron_lm) == ("model.cp_comm_type=a2a" in found.bridge) == is_said


@pytest.mark.parametrize("form", ["bridge", "megatron-lm", "yaml"])
def test_what_the_reader_of_a_job_noted_is_a_comment_of_its_export(mbr_perf, tmp_path, form):
    """Here: an argument that no setting stands for."""
    sizes = (
        "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99"
    )
    (tmp_path / "train.sh").write_text(f"{sizes} --bf16 --rotary-interleaved")
    job = ("--megatron_args", str(tmp_path / "train.sh"), "-g", "h100", "-ng", "8")
    answer = mbr_perf("recipes", "export", *job, "--as", form)
    (line,) = [line for line in answer.out.splitlines() if "--rotary-interleaved" in line]
    assert (answer.code, line.startswith("# ")) == (0, True)


@pytest.mark.parametrize(("form", "option"), [("bridge", "optimizer.lr="), ("megatron-lm", "--lr ")])
def test_an_export_has_the_learning_rate_of_the_job_or_none(mbr_perf, tmp_path, form, option):
    script = tmp_path / "train.sh"
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1"
    found = {}
    for rate in ("", "--lr 3e-5"):
        own = f"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather {rate}"
        script.write_text(f'SIZES="{sizes} \\\n --vocab-size 99"\npretrain_gpt.py $SIZES --bf16 {own}\n')
        text = mbr_perf("recipes", "export", script, "-g", "h100", "-ng", "8", "--as", form).out
        assert "align-param-gather" not in text  # without chunks it has no effect
        found[rate] = [float(word) for word in re.findall(rf"^ *{option}(\S+)", text, re.MULTILINE)]
    assert found == {"": [], "--lr 3e-5": [3e-5]}


def test_a_line_break_in_a_variable_does_not_end_its_comment():
    text = exported(small_spec(env={"A": "1\nrm -r x"}), "megatron-lm").text
    assert "rm -r x" not in [line.strip() for line in text.splitlines()]
    assert pasted(text) == list(as_megatron(small_spec())[0])


SFT = ("--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32")


def test_the_command_prints_what_can_be_pasted(mbr_perf):
    setting = ("--recompute", "mlp", "--cuda_graph_impl", "none")
    answer = mbr_perf("recipes", "export", "llama3_70b", *SFT, "--as", "bridge", *setting)
    assert answer.code == 0
    assert "model.recompute_modules=[mlp]" in pasted(answer.out)
    chosen = mbr_perf(
        "recipes", "export", "llama3_8b", "-g", "h100", "-c", "bf16", "-ng", "8", "--as", "yaml", "--json"
    )
    assert json.loads(chosen.out)["text"].startswith("name: llama3_8b\n")


@pytest.mark.parametrize("form", ["bridge", "megatron-lm", "yaml"])
def test_a_job_that_a_rule_refuses_is_exported_by_force_alone_with_a_warning(mbr_perf, form):
    job = ("recipes", "export", "deepseek_v3", "-g", "h100", "-pp", "16", "--as", form)
    refused = mbr_perf(*job)
    assert (refused.code, refused.out, "--force P08" in refused.err) == (2, "", True)
    answer = mbr_perf(*job, "--force", "P08")
    first = [line for line in answer.out.splitlines()[:2] if line.startswith("# ") and "P08" in line]
    assert (answer.code, "P08" in answer.err, len(first)) == (0, True, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3_8b", "--as", "yml", "-g", "cpu"], "'yaml'"),
        (["llama3_8b", "-g", "cpu", "--as", "megatron"], "'megatron-lm'"),
        (["llama3_9b", "--as", "megatron-lm"], "'llama3_8b'"),
        (["llama3_70b", "--task", "peft", "-g", "h100", "-c", "bf16", "--as", "megatron-lm"], "LoRA"),
        (["--as", "yaml"], "job"),
        (["llama3_8b", "-g", "cpu", "--as", "python"], "none"),
    ],
)
def test_what_cannot_be_exported_is_refused(mbr_perf, words, message):
    answer = mbr_perf("recipes", "export", *words)
    assert (answer.code, message in answer.err) == (2, True)


@pytest.mark.parametrize("form", ["bridge", "megatron-lm"])
def test_a_plan_by_layer_is_exported_without_recompute_and_names_its_file(mbr_perf, form):
    job = ("-mr", "llama3_8b", "-g", "cpu", "-ng", "2", "-pp", "2", "--num_layers", "4")
    written = mbr_perf("recipes", "export", *job, "--recompute", "plan:2xmlp;2xnone", "--as", form, "--json")
    document = json.loads(written.out)
    assert not any("mlp" in word for word in document["words"])
    assert sum("--as python" in remark for remark in document["remarks"]) == 1
