"""What scripts/accuracy reads from published runs, how far predictions are from them, and what it writes about it."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest

from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

ROOT = Path(__file__).parents[2]
FOLDERS = ("accuracy.d",)
KEPT = ROOT / "results" / "accuracy"
INPUTS = KEPT / "inputs"
PLAIN = {
    "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024, "micro-batch-size": 4,
    "global-batch-size": 32, "bf16": True, "transformer-impl": "transformer_engine", "merge-file": "bpe/merges.txt",
}  # fmt: skip
DETERMINISTIC = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}


@pytest.fixture
def read(module):
    """A row of eight H100 as a spec."""

    def reading(changes=None, **row):
        plain = {"arguments": PLAIN | (changes or {}), "hardware": "H100", "world_size": 8, "environment": {},
                 "software": "dev", "date": "2026-06-01", "path": "gpt/case/golden_values.json"}  # fmt: skip
        return module("arguments").read(plain | row)

    return reading


def test_what_megatron_lm_takes_for_granted_is_filled_in(read):
    model = read().spec.model
    assert (model.ffn_hidden_size, model.attention_dropout, model.position_embedding_type) == (
        2048, 0.1, "learned_absolute",
    )  # fmt: skip
    assert model.share_embeddings_and_output_weights
    assert model.add_bias_linear
    assert model.vocab_size == 50257  # of the only tokenizer that has a file of merges


def test_what_megatron_lm_derives_is_derived(read):
    model = read({"swiglu": True}).spec.model
    assert (model.ffn_hidden_size, model.gated_linear_unit) == (1344, True)  # a multiple of 64
    sizes = {"pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 1}
    assert read(sizes).spec.parallelism.virtual_pipeline_model_parallel_size == 3


def test_a_layer_pattern_is_read_without_being_run(read, module):
    experts = {"num-experts": 8, "moe-layer-freq": "([0]*3+[1]*9)", "moe-router-topk": 2}
    assert read(experts).spec.model.moe.moe_layer_freq == (0,) * 3 + (1,) * 9
    with pytest.raises(module("arguments").InexpressibleError, match="layer pattern"):
        read(experts | {"moe-layer-freq": "open('x')"})


@pytest.mark.parametrize(
    ("changes", "row", "reason"),
    [
        ({"optimizer": "muon"}, {}, "Adam"),
        ({"use-megatron-fsdp": True}, {}, "FSDP"),
        ({"global-batch-size": 3}, {}, " 8 GPUs"),
        ({"merge-file": None}, {}, "--vocab-size"),
        ({"merge-file": None, "tokenizer-type": "HuggingFaceTokenizer", "tokenizer-model": "mistralai/Mixtral-8x7B-v0.1"}, {}, "--vocab-size"),
        ({"not-yet-invented": True}, {}, "--not-yet-invented"),
        ({"moe-latent-size": 64}, {}, "--moe-latent-size"),
        ({}, {"arguments": {name: value for name, value in PLAIN.items() if name != "global-batch-size"}},
         "no --global-batch-size"),
        # Their arguments have a GPT's names, and would be predicted as one.
        ({}, {"path": "bert/case/golden_values_dev_dgx_h100.json"}, "BERT"),
        ({}, {"path": "tests/functional_tests/test_cases/multimodal-llava/case/golden_values.json"}, "LLaVA"),
    ],
)  # fmt: skip
def test_what_a_spec_cannot_say_is_left_out_with_the_reason(read, module, changes, row, reason):
    with pytest.raises(module("arguments").InexpressibleError, match=reason):
        read(changes, **row)


def test_what_is_taken_for_something_alike_is_reported(read):
    reading = read({"fp16": True, "bf16": False}, hardware="A100?")
    assert reading.taken_as == (
        "FP16 as BF16 with gradients of 16 bits",
        "the GPU, which the row does not name, as an A100",
    )
    assert (reading.spec.gpu, reading.spec.ddp.grad_reduce_in_fp32) == ("a100", False)
    assert read().taken_as == ()


def test_every_argument_of_a_row_is_accounted_for(read):
    treated = {
        "num-layers": "read",
        "fp16": "taken for something alike",
        "deterministic-mode": "of small effect, predicted without",
        "lr": "no influence on memory or time of a step",
        "distributed-backend": "at Megatron-LM's default",
    }
    asked = {"fp16": True, "bf16": False, "deterministic-mode": True, "lr": 1e-4, "distributed-backend": "nccl"}
    found = read(asked).treatments
    assert {name: found[name] for name in treated} == treated
    assert len(found) == len(PLAIN) + 4


def test_instances_of_the_optimizer_shard_over_their_share_of_the_gpus(read):
    reading = read({"num-distributed-optimizer-instances": 2})
    spec = reading.spec
    assert reading.taken_as == (
        "n instances of the distributed optimizer as a job of 1/n of the GPUs, which shards over as many ranks",
    )
    assert (spec.num_gpus, spec.batch.global_batch_size, spec.num_microbatches) == (4, 16, 1)


@pytest.mark.parametrize(
    ("row", "kernel"),
    [
        ({"hardware": "H100", "environment": DETERMINISTIC}, "auto"),
        ({"hardware": "A100", "environment": {}}, "flash"),
        ({"hardware": "A100", "environment": DETERMINISTIC, "software": "lts", "date": "2025-10-12"}, "unfused"),
        ({"hardware": "A100", "environment": {}, "software": "lts", "date": "2025-10-12"}, "flash"),
        ({"hardware": "A100", "environment": DETERMINISTIC, "software": "lts", "date": "2026-04-16"}, "flash"),
        ({"hardware": "GB200", "environment": DETERMINISTIC}, "flash"),
        ({"hardware": "GB200", "environment": {}}, "auto"),
        ({"hardware": "GB200", "environment": DETERMINISTIC, "arguments": PLAIN | {"attention-dropout": 0.0}}, "auto"),
    ],
)
def test_auto_attention_is_settled_as_transformer_engine_settles_it(read, row, kernel):
    assert read(**row).spec.kernels.attention_backend == kernel


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron_lm_goldens", "other_published"])
def test_every_published_row_is_compared_or_left_out(module, name):
    path = INPUTS / f"{name}.json"
    cases, left_out = module("published").read_cases(path)
    assert sum(len(case.paths) for case in cases) + len(left_out) == len(json.loads(path.read_text())["rows"])
    assert len(cases) > 20


def asked(case):
    """A recorded request; the recipe of Mixtral has an operating point of another GPU only."""
    request = Request(
        model_recipe_name=case["model"], gpu="h100", point_gpu="a100" if case["model"] == "mixtral_8x7b" else None, task="pretrain",
        compute_dtype="bf16", num_gpus=case["gpus"], seq_length=case["seq"], micro_batch_size=case["mbs"],
        global_batch_size=case["mbs"] * case["dp"] * case["num_microbatches"], tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"], virtual_pipeline_model_parallel_size=case["vp"] or "none",
        context_parallel_size=case["cp"], expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=case["etp"],
        recompute="core_attn", set_values=(f"parallelism.sequence_parallel={str(case['sequence_parallel']).lower()}",),
    )  # fmt: skip
    return resolve(request).spec


def test_the_rival_formula_gives_its_recorded_activations(module):
    recorded = json.loads((INPUTS / "estimators.json").read_text())["cases"]
    known = [case for case in recorded if case["model"] != "moonlight_16b"]  # no recipe here
    assert len(known) == 6
    for case in known:
        found = module("rivals").activation_bytes(asked(case))
        assert found == pytest.approx(case["bridge"]["activation_bytes"], rel=1e-4)


def test_a_class_counts_predictions_that_are_too_low(module):
    rows = [
        SimpleNamespace(error=error, is_in_range=abs(error) < 0.03, case=SimpleNamespace(paths=["a", "b"]))
        for error in (-0.04, 0.01, -0.01)
    ]
    found = module("tables").class_error("dense", rows)
    assert (found.num_cases, found.num_runs, found.num_under, found.num_in_range) == (3, 6, 2, 2)
    assert (found.worst, found.median_absolute) == (-0.04, 0.01)
    assert found.mean == pytest.approx(-0.04 / 3)


def points_of(svg):
    """Published and predicted GiB of every point, as its tooltip shows them."""
    read = re.findall(r"published ([\d.]+) GiB, predicted ([\d.]+) GiB", svg)
    return sorted((float(published), float(predicted)) for published, predicted in read)


def kept_h100_peaks():
    read = {name: json.loads((KEPT / f"{name}.json").read_text()) for name in ("megatron_lm", "other_published")}
    rows = [case for document in read.values() for case in document["cases"] if case["gpu"] == "h100"]
    rows += json.loads((KEPT / "llama3_70b_sft.json").read_text())["rows"]
    return sorted((row["measured_bytes"] / 2**30, row["predicted_bytes"] / 2**30) for row in rows)


def text_of(svg):
    return html.unescape(re.sub("<[^>]*>", "", svg.read_text())).replace("\xa0", " ")


def test_the_terminal_of_the_readme_shows_its_command_and_fetches_nothing(module):
    drawn = ROOT / "results" / "examples" / "plan.svg"
    assert module("terminal_picture").readme_command() in text_of(drawn)
    assert "url(http" not in drawn.read_text()


def approximately(points):
    return [pytest.approx(point, rel=1e-4) for point in points]


def test_the_picture_of_the_readme_shows_the_kept_h100_peaks():
    shown = (ROOT / "results" / "examples" / "h100_peaks.svg").read_text()
    assert points_of(shown) == approximately(kept_h100_peaks())
    assert f"({len(kept_h100_peaks())} cases, " in shown
    assert "](results/examples/h100_peaks.svg)" in (ROOT / "README.md").read_text()


def test_the_readme_cites_the_ranks_on_scripted_gpus_as_they_are_kept():
    kept = json.loads((KEPT / "scripted_gpu.json").read_text())["headline"]
    cited = re.search(
        r"\[(\d+) ranks of (\d+) H100 points\].* by ([\d.]+) % \(median\), ([\d.]+) % \(worst\)",
        (ROOT / "README.md").read_text(),
    )
    assert cited is not None
    assert list(cited.groups()) == re.findall(r"[\d.]+(?= ranks| H100| % \(m| % \(w)", kept)


def test_the_table_of_the_readme_is_what_is_kept():
    functional = json.loads((KEPT / "megatron_lm.json").read_text())["cases"]
    others = json.loads((KEPT / "other_published.json").read_text())["cases"]
    experts = json.loads((KEPT / "experts.json").read_text())["cases"]
    eager = [case for case in functional if not case["bounded"]]
    kept = [
        [case for case in eager if case["model"] == "dense"],
        [case for case in eager if case["model"] != "dense"],
        [case for case in experts if case["model"] != "dense" and not case["bounded"]],
        [case for case in functional + experts if case["bounded"]],
        others + [case for case in experts if case["model"] == "dense"],
        json.loads((KEPT / "llama3_70b_sft.json").read_text())["rows"],
    ]
    expected = [
        [
            str(len(cases)),
            f"{mean(abs(case['error']) for case in cases) * 100:.1f} %",
            f"{max((case['error'] for case in cases), key=abs) * 100:+.1f} %",
            f"{sum(case['in_range'] for case in cases)} of {len(cases)}",
        ]
        for cases in kept
    ]
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("| peak memory | cases |")[2].split("\n\n")[0].splitlines()[2:]
    assert [[cell.strip() for cell in row.split("|")[2:-1]] for row in table] == expected
    times = json.loads((KEPT / "time.json").read_text())["headline"]
    costs = (
        readme.partition("On average the predicted cost")[2].partition("##")[0].replace("percentage points", "points")
    )
    assert re.findall(r"[\d.]+ points|[\d.]+ %", costs) == [
        *re.findall(r"by ([\d.]+ points) on average", times), *re.findall(r"by ([\d.]+ %) on average", times)
    ]  # fmt: skip


def test_the_readme_says_that_no_gpu_has_measured_anything_while_that_is_so():
    has_evidence = any((ROOT / "results" / "gpu").glob("*/*.json"))
    assert ("**Nothing has been measured on a GPU yet**" in (ROOT / "README.md").read_text()) is not has_evidence


@pytest.mark.slow
def test_the_command_draws_that_picture_anew(tmp_path):
    environment = os.environ | {"MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable}
    command = [ROOT / "scripts" / "accuracy", "--picture", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == [str(tmp_path / "h100_peaks.svg"), str(tmp_path / "plan.svg")]
    terminal = text_of(tmp_path / "plan.svg")
    command, answer = re.search(
        r"^\$ (mbr-perf plan .*)\n(.*)$", (ROOT / "README.md").read_text(), re.MULTILINE
    ).groups()
    assert (command in terminal, answer[:60] in terminal) == (True, True)
    assert points_of((tmp_path / "h100_peaks.svg").read_text()) == approximately(kept_h100_peaks())


@pytest.mark.parametrize("change", [{"measured_bytes": 4 * 2**30}, {"range_bytes": [1, 2 * 2**30]}])
def test_a_changed_figure_changes_the_picture(module, tmp_path, change):
    for name in ("megatron_lm", "other_published", "llama3_70b_sft"):
        document = json.loads((KEPT / f"{name}.json").read_text())
        if name == "megatron_lm":
            next(case for case in document["cases"] if case["gpu"] == "h100").update(change)
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    before, after = (module("peaks_picture").rows(folder) for folder in (KEPT, tmp_path))
    assert [old for old in before if old not in after] == before[:1]


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_dense_runs_are_predicted_within_three_percent(module):
    from harness.launch.environment import this_host

    published = module("published")
    cases, _ = published.read_cases(INPUTS / "megatron_lm_goldens.json")
    cases += published.read_cases(INPUTS / "other_published.json")[0]
    chosen = [case for case in cases if case.model == "dense" and case.is_exact and case.spec.gpu == "h100"]
    compared, left_out = published.compare(chosen, this_host())
    assert not left_out
    assert len(compared) >= 25
    assert {row.case.name: row.error for row in compared if abs(row.error) > 0.03} == {}


def test_the_ranges_of_the_planner_are_what_the_kept_comparisons_give(module):
    ranges, kept = module("ranges"), json.loads((KEPT / "ranges.json").read_text())["classes"]
    rows = ranges.residuals(KEPT)
    for kind in ranges.CLASSES:
        found, planned = vars(ranges.spread(kind, rows)), vars(module("harness.predict.ranges").spreads()[kind.name])
        assert found == planned, kind.name
        assert found | {"tenths": [*found["tenths"]]} == {name: kept[kind.name][name] for name in found}, kind.name
    assert ranges.costs(KEPT) == module("harness.predict.ranges").cost_error()


def test_a_range_is_checked_on_models_that_it_does_not_know(module):
    ranges = module("ranges")
    dense = next(kind for kind in ranges.CLASSES if kind.name == "dense models")
    known = [ranges.Residual(dense.name, f"model {n % 5}", n / 1000, n / 1000, routed=False) for n in range(50)]
    odd = [ranges.Residual(dense.name, "another", 0.5, 0.5, routed=False)] * 50
    assert ranges.coverage(dense, known) >= ranges.SHARE
    assert ranges.coverage(dense, [*known, *odd]) < ranges.SHARE


def test_a_class_whose_models_no_width_holds_takes_its_widest_errors_half_as_wide_again(module):
    ranges = module("ranges")
    graphs = next(kind for kind in ranges.CLASSES if kind.name == "CUDA graphs")
    odd = [ranges.Residual(graphs.name, "odd", -0.1, -0.1, routed=False)] * 8
    others = [ranges.Residual(graphs.name, f"model {n}", 0.01, 0.01, routed=False) for n in range(4)]
    assert ranges.spread(graphs, [*odd, *others]).lower == pytest.approx(-0.15)


def test_tiny_models_give_a_range_in_bytes_only_where_enough_were_measured(module):
    ranges = module("ranges")
    dense = next(kind for kind in ranges.CLASSES if kind.name == "dense models")
    tiny = [ranges.Residual(dense.name, "tiny", n / 1000, n / 1000, False, 400_000_000) for n in range(-10, 10)]
    large = [ranges.Residual(dense.name, f"model {n % 5}", 0.001, 0.001, routed=False) for n in range(100)]
    assert ranges.spread(dense, [*large, *tiny[:9]]).least_bytes == 0
    found = ranges.spread(dense, [*large, *tiny])
    assert found.least_bytes == 9 * 400_000  # nine of ten of 0 to 10 thousandths
    assert all(ranges.is_inside(row, found) for row in tiny[1:])


def test_a_golden_copied_from_another_test_is_not_compared(module):
    cases, left_out = module("published").read_cases(INPUTS / "experts.json")
    (copied,) = (path for path, why in left_out.items() if "not measured" in why)
    assert "gpt3_mr_mcore_te_tp2_pp2_ep4_etp1_fine_grained_offloading" in copied
    assert not any(copied in case.paths for case in cases)


def _row(settings, *runs):
    return SimpleNamespace(step=SimpleNamespace(spec=SimpleNamespace(fingerprint=settings), runs=runs))


def test_noise_is_the_error_of_a_geometric_mean_of_equal_settings(module):
    floor = module("times_page").noise_floor([_row("a", 1.0, 4.0 / 2.25), _row("b", 5.0), _row("a", 40.0)])
    assert (floor.num_runs, floor.num_repeated, floor.slow) == (3, 2, 1)
    assert floor.repeated_error == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert floor.error == pytest.approx((1 / 3 + 1 / 4) / 3)


def test_a_class_of_few_models_may_err_either_way_and_with_experts_at_least_as_far_as_dense_models(module):
    def rows(kind, ratios, *models):
        specs = [SimpleNamespace(model=name) for name in models or ("one",) * len(ratios)]
        return [
            SimpleNamespace(kind=kind, ratio=r, step=SimpleNamespace(model=s.model, spec=s))
            for r, s in zip(ratios, specs, strict=True)
        ]

    found = module("times_fit").spreads(
        [*rows("9.x dense", (0.8, 1.1)), *rows("9.x experts", (1.0, 1.05)), *rows("8.x dense", (1.3,))]
    )
    assert found["9.x experts"][:2] == found["9.x dense"][:2]
    for low, high, _ in found.values():
        assert low < 1 and high == pytest.approx(1 / low)
    enough = module("times_fit").spreads(rows("9.x dense", (1.0, 1.0, 1.0, 1.2), *"abcd"))
    assert enough["9.x dense"][:2] == (1.0, pytest.approx(1 + 1.25 * 0.17))
