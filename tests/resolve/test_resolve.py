import pytest

from harness.errors import ManyProblemsError
from harness.resolve.recipe import NO_EFFECT, Request
from harness.resolve.resolve import resolve, resolve_recipe
from tests.commands import refused


def ask(**options: object) -> Request:
    return Request(**{"model_recipe_name": "tiny", "gpu": "h100", **options})


def test_default_recipe_point_and_option_win_in_that_order(load):
    resolved = resolve_recipe(load(), ask(global_batch_size=64, env=("OWN=x=y",)))
    assert resolved.spec.batch.global_batch_size == 64
    assert resolved.spec.env == {"COMMON": "2", "OWN": "x=y"}
    assert {path: resolved.sources[path] for path in (
        "optimizer.lr", "ddp.overlap_grad_reduce", "env.COMMON", "kernels.tp_comm_overlap", "batch.seq_length",
        "batch.global_batch_size", "env.OWN", "model.moe", "num_gpus", "gpu")} == {
        "optimizer.lr": "default",
        "ddp.overlap_grad_reduce": "tiny.yaml:11",
        "env.COMMON": "tiny.yaml:15",
        "kernels.tp_comm_overlap": "tiny.yaml:16",
        "batch.seq_length": "tiny.yaml:24",
        "batch.global_batch_size": "--global_batch_size",
        "env.OWN": "--env",
        "model.moe": "default",
        "num_gpus": "tiny.yaml:21",
        "gpu": "--gpu",
    }  # fmt: skip


@pytest.mark.parametrize("given", [("PYTORCH_ALLOC_CONF",), ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")])
def test_one_name_of_the_allocators_settings_replaces_what_a_recipe_gives_under_the_other(given):
    names = {"model_recipe_name": "llama3_70b", "compute_dtype": "bf16", "num_gpus": 64}
    assert resolve(ask(**names)).spec.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    spec = resolve(ask(**names, env=tuple(f"{name}=max_split_size_mb:64" for name in given))).spec
    assert {name for name in spec.env if name.endswith("ALLOC_CONF")} == set(given)


def test_every_leaf_of_the_spec_has_a_source(load):
    resolved = resolve_recipe(load(), ask())
    leaves: set[str] = set()

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict) and path not in ("recompute",):
            for key, nested in value.items():
                walk(nested, f"{path}.{key}" if path else key)
        else:
            leaves.add(path)

    walk(resolved.spec.model_dump(), "")
    assert leaves == set(resolved.sources)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, set()),
        ({"task": "pretrain"}, {"task"}),
        ({"micro_batch_size": 2}, {"batch.micro_batch_size"}),
        ({"recompute_modules": "mlp"}, {"recompute"}),
        ({"cuda_graph_impl": "local"}, {"cuda_graph.impl"}),
        (
            {"tensor_model_parallel_size": 4},
            {"parallelism.tensor_model_parallel_size", "parallelism.sequence_parallel"},
        ),
        ({"env": ("A=1",)}, {"env.A"}),
        ({"set_values": ("optimizer.lr=0.5",)}, {"optimizer.lr"}),
    ],
)
def test_an_absent_flag_does_not_wipe_the_recipe(load, options, changed):
    recipe = load()
    alone, asked = resolve_recipe(recipe, ask()), resolve_recipe(recipe, ask(**options))
    assert alone.spec.recompute.text == "full:block:2"
    assert {path for path in asked.sources if asked.sources[path] != alone.sources.get(path)} == changed
    assert asked.sources.keys() >= alone.sources.keys()


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        ({"tensor_model_parallel_size": 4}, "sequence_parallel", True),
        ({"tensor_model_parallel_size": 1}, "sequence_parallel", False),
        ({"tensor_model_parallel_size": 4, "set_values": ("parallelism.sequence_parallel=false",)}, "sequence_parallel", False),
    ],
)  # fmt: skip
def test_parallel_options_mean_what_they_mean_in_megatron_bridge(load, options, path, value):
    recipe = load(
        ("{tensor_model_parallel_size: 2}", "{tensor_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}")
    )
    assert getattr(resolve_recipe(recipe, ask(**options)).spec.parallelism, path) == value


def test_graphs_none_clears_the_scope_of_the_recipe(load):
    recipe = load(("    source:", "    cuda_graph: {impl: transformer_engine, scope: [attn]}\n    source:"))
    assert resolve_recipe(recipe, ask()).spec.cuda_graph.scope == ("attn",)
    assert resolve_recipe(recipe, ask(cuda_graph_impl="none")).spec.cuda_graph.scope == ()
    assert resolve_recipe(recipe, ask(cuda_graph_scope="attn, mlp")).spec.cuda_graph.scope == ("attn", "mlp")


SET_VALUES = [
    ("optimizer.lr=0.001", lambda s: s.optimizer.lr, 0.001),
    ("recompute=full:uniform:1", lambda s: s.recompute.text, "full:uniform:1"),
    ("env.NAME=0", lambda s: s.env["NAME"], "0"),
    ("env.EMPTY=", lambda s: s.env["EMPTY"], ""),
    ("cuda_graph.scope=[attn, mlp]", lambda s: s.cuda_graph.scope, ("attn", "mlp")),
    ("parallelism.virtual_pipeline_model_parallel_size=null", lambda s: s.parallelism.num_virtual_stages, 1),
    ("model.qk_layernorm=true", lambda s: s.model.qk_layernorm, True),
]


@pytest.mark.parametrize(("assignment", "read", "value"), SET_VALUES, ids=[c[0] for c in SET_VALUES])
def test_set_reaches_any_field(load, assignment, read, value):
    resolved = resolve_recipe(load(), ask(set_values=(assignment,)))
    assert read(resolved.spec) == value
    path = assignment.partition("=")[0]
    assert resolved.sources.get(path, f"--set {path}") == f"--set {path}"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"set_values": ("model.num_layer=3",)}, ["--set model.num_layer: ", "'model.num_layers'"]),
        ({"set_values": ("hidden_size=3",)}, ["--set hidden_size: ", "'model.hidden_size'"]),
        ({"set_values": ("model=3",)}, ["--set model: ", "section"]),
        ({"set_values": ("kernels.tp_comm_overlap_cfg.qkv_dgrad.num_sm=4",)},
         ["--set kernels.tp_comm_overlap_cfg.qkv_dgrad.num_sm: ",
          "--set 'kernels.tp_comm_overlap_cfg={qkv_dgrad: {method: bulk, num_sm: 4}}'"]),
        ({"set_values": ("recompute.granularity=full",)}, ["--set recompute.granularity: ", "--set 'recompute=full:block:4'"]),
        ({"set_values": ("model.num_layers",)}, ["--set model.num_layers: no '='"]),
        ({"set_values": ("optimizer.lr=1e-3",)}, ["--set optimizer.lr: '1e-3' ", "1.0e-3"]),
        ({"set_values": ("model.num_layers=four",)}, ["--set model.num_layers: ", "'four'"]),
        ({"set_values": ("optimizer.lr=0.1", "optimizer.lr=0.2")}, ["--set optimizer.lr ", "0.1, 0.2"]),
        ({"tensor_model_parallel_size": 4, "set_values": ("parallelism.tensor_model_parallel_size=2",)},
         ["--tensor_model_parallel_size ", "--set parallelism.tensor_model_parallel_size"]),
        ({"env": ("1A=2",)}, ["--env 1A: "]),
        ({"env": ("A",)}, ["--env A: no '='"]),
        ({"cuda_graph_scope": "atn"}, ["--cuda_graph_scope[0]: ", "'atn'", "'attn'"]),
        ({"cuda_graph_impl": "none", "cuda_graph_scope": "attn"}, ["--cuda_graph_impl none", "--cuda_graph_scope attn"]),
        ({"seq_length": 1}, ["--seq_length: ", " 2, ", " 1"]),
        ({"hidden_size": 66}, ["hidden_size 66 ", "num_attention_heads 4", "--hidden_size)"]),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(load, options, parts):
    refused(lambda: resolve_recipe(load(), ask(**options)), *parts)


def test_problems_of_the_point_and_of_the_options_are_reported_together(load):
    with pytest.raises(ManyProblemsError) as caught:
        resolve_recipe(load(), ask(compute_dtype="fp8_cs", recompute_modules="mpl", env=("A",)))
    assert len(caught.value.problems) == 3


def test_an_unknown_setting_hides_no_wrong_value_of_the_others(load):
    wrong = ("ddp.bucket_size=0", "parallelism.wgrad_deferral_limit=-1", "train.manual_gc_interval=1.5",
             "train.manual_gcc=true", "kernels.tp_comm_overlap_cfg=5")  # fmt: skip
    with pytest.raises(ManyProblemsError) as caught:
        resolve_recipe(load(), ask(set_values=wrong, env=("A", "B=1")))
    named = [str(problem).partition(":")[0] for problem in caught.value.problems]
    assert sorted(named) == sorted(["--env A", *(f"--set {text.partition('=')[0]}" for text in wrong)])


def test_what_is_wrong_beside_an_unknown_recipe_is_reported_with_it():
    asked = Request(model_recipe_name="lama3_8b", gpu="nonsense", recompute_modules="nonsense")
    refused(lambda: resolve(asked), "'lama3_8b'", "'llama3_8b'", "--gpu: ", "module 'nonsense'", num=3)


def test_fewer_layers_keep_the_leading_dense_ones_and_drop_the_pipeline_layout():
    resolved = resolve(Request(model_recipe_name="deepseek_v3", gpu="h100", num_layers=8))
    assert resolved.spec.model.moe.moe_layer_freq == (0, 0, 0, 1, 1, 1, 1, 1)
    assert resolved.spec.parallelism.pipeline_model_parallel_layout is None
    assert resolved.sources["model.moe.moe_layer_freq"] == "--num_layers"
    assert any("pipeline layout" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("gpu", "pp", "vp", "is_said"),
    [("b200", 8, 2, True), ("b200", 16, None, False), ("h100", 8, 4, False), ("h100", 1, None, True)],
)
def test_a_job_has_the_virtual_size_of_its_layout_and_none_on_one_stage(gpu, pp, vp, is_said):
    resolved = resolve(Request(model_recipe_name="deepseek_v3", gpu=gpu, pipeline_model_parallel_size=pp))
    assert resolved.spec.parallelism.virtual_pipeline_model_parallel_size == vp
    assert any(f"PP {pp}" in note for note in resolved.notes) == is_said


@pytest.mark.parametrize(
    ("recipe", "options", "layout", "aligned"),
    [
        ("llama3_70b", {"pipeline_model_parallel_size": 8}, "Et*2|", True),
        ("llama3_70b", {"pipeline_model_parallel_size": 8, "virtual_pipeline_model_parallel_size": 5}, "Et*2|", True),
        ("llama3_70b", {"pipeline_model_parallel_size": 4}, None, True),
        (
            "llama3_70b",
            {"pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": "none"},
            None,
            False,
        ),
        (
            "deepseek_v3",
            {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 4},
            "Et*4|(t*4|)*14tmL",
            True,
        ),
        (
            "deepseek_v3",
            {"pipeline_model_parallel_size": 32, "virtual_pipeline_model_parallel_size": "none"},
            "Et|(tt|)*30mL",
            False,
        ),
        ("deepseek_v3", {"num_layers": 40}, "Et|(t|)*20(tt|)*2t|(tt|)*7mL", True),
    ],
)
def test_a_pipeline_layout_of_the_recipe_yields_to_another_number_of_stages(recipe, options, layout, aligned):
    dtype = "fp8_cs" if recipe == "llama3_70b" else None
    spec = resolve(Request(model_recipe_name=recipe, gpu="h100", compute_dtype=dtype, **options)).spec
    found = spec.parallelism.pipeline_model_parallel_layout
    assert (found is None) if layout is None else found.startswith(layout)
    assert spec.ddp.align_param_gather is aligned


def test_a_layout_that_nobody_can_read_stays_for_the_rules(load):
    recipe = load(("tensor_model_parallel_size: 2}", "pipeline_model_parallel_layout: 'E(t|L'}"))
    cut = resolve_recipe(recipe, ask(pipeline_model_parallel_size=4)).spec.parallelism
    assert cut.pipeline_model_parallel_layout == "E(t|L"


def test_what_has_no_effect_any_more_is_dropped_with_a_note():
    wanted = {"virtual_pipeline_model_parallel_size": "none", "set_values": ("parallelism.cp_comm_type=a2a",)}
    found = resolve(ask(model_recipe_name="llama3_70b", compute_dtype="bf16", context_parallel_size=1, **wanted))
    assert (found.spec.ddp.align_param_gather, found.spec.parallelism.cp_comm_type) == (False, "p2p")
    assert len([note for note in found.notes if note.startswith(NO_EFFECT)]) == 2


@pytest.mark.parametrize("depth", [4, 5, 18])
def test_patterns_of_attention_begin_anew_where_they_end(load, depth):
    recipe = load(
        ("vocab_size: 512", "vocab_size: 512\n  window_size: [127, 0]\n  window_attn_skip_freq: [1, 0, 1, 0]")
    )
    spec = resolve_recipe(recipe, ask(num_layers=depth)).spec
    assert spec.model.window_attn_skip_freq == ((1, 0) * 9)[:depth]


def test_fewer_layers_of_a_model_without_a_pattern_change_only_the_depth():
    spec = resolve(Request(model_recipe_name="qwen3_30b_a3b", gpu="h100", num_layers=8)).spec
    assert (spec.model.num_layers, spec.model.moe.moe_layer_freq) == (8, 1)


def test_notes_of_the_chosen_point_reach_the_user(load):
    recipe = load(("recompute: full:block:2", "recompute: core_attn\n    note: mind the gap"))
    assert resolve_recipe(recipe, ask()).notes == ("tiny.yaml:18: points[0]: mind the gap",)


def test_offloading_and_measurement_options_reach_the_spec(load):
    spec = resolve_recipe(load(), ask(activation_offload_layers=2, max_steps=7, eval_time_start_step=2, seed=9)).spec
    assert (spec.offload.cpu_offloading_num_layers, spec.measure.max_steps, spec.measure.seed) == (2, 7, 9)
    assert spec.measure.window == (2, 7)
