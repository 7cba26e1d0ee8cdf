"""`mbr-perf plan` from options to table and JSON, with the real tracer."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.plan.ask import _over
from harness.plan.run import plan_request
from harness.show.page import LONGEST_ANSWER
from harness.units import format_bytes
from tests.commands import refused

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
LLAMA = ("-m", "llama", "-mr", "llama3_8b", "-g", "h100", "--num_layers", "4", "--cuda_graph_impl", "none")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answers():
    """What was planned for each request, however it is shown."""
    return {}


@pytest.fixture
def plan(cache, answers, mbr_perf, monkeypatch):
    def plan_once(request, *others):
        if (key := repr(request)) not in answers:
            answers[key] = plan_request(request, *others)
        return answers[key]

    monkeypatch.setattr("harness.plan.run.plan_request", plan_once)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def run(*options: str, columns: int = 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        return mbr_perf("plan", *options)

    return run


def test_json_recommends_a_setting_and_the_parts_of_a_stage_add_up(plan):
    done = plan(*LLAMA, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["recommended"] == "none"
    stage = document["settings"][0]["stages"][0]
    assert sum(stage[name] for name in PARTS) == stage["total"]


def test_the_table_has_a_row_per_setting_and_is_not_cut_when_piped(plan):
    done = plan(*LLAMA, "--all", columns=40)
    assert done.code == 0, done.err
    first, *_ = done.out.splitlines()
    rows = [line for line in done.out.splitlines() if " FITS " in line]
    assert [row.split()[0] for row in rows][:2] == ["none", "core_attn"]
    assert " +0.0 % " in rows[0] and re.search(r" \+[1-9][\d.]* % ", rows[1])
    assert first.startswith("Use none: ") and len(first) <= LONGEST_ANSWER
    assert "full:uniform:4" in done.out
    assert "…" not in done.out
    assert ": layernorm" in plan(*LLAMA, "-v").out


def test_a_small_memory_changes_the_answer_and_gives_the_ladder(plan):
    plenty = json.loads(plan(*LLAMA, "--json").out)["settings"]
    row = next(setting for setting in plenty if setting["recompute"] == "full:block:1")
    enough = (row["fits_range_bytes"][1] + row["device_bytes"] - row["reserved_bytes"]) / 1024**3 + 0.001
    document = json.loads(plan(*LLAMA, "--json", "--fit_into", f"{enough:.3f}", "--margin", "0").out)
    assert document["recommended"] == "full:block:1"
    assert [step["step"] for step in document["layouts"][0]["steps_to_fit"]] == ["allocator", "modules", "layers"]


def test_several_layouts_are_compared_and_illegal_ones_say_why(plan):
    document = json.loads(plan(*LLAMA, "--json", "--over", "tp=1,3", "pp=1,2").out)
    layouts = {layout["layout"]: layout["problem"] for layout in document["layouts"]}
    assert layouts["tp=1 pp=1"] is None
    assert layouts["tp=3 pp=2"].startswith("P03")
    assert document["recommended_layout"] in layouts


def test_a_processor_is_planned_without_seconds(plan):
    cpu = ("-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "--json")
    document = json.loads(plan(*cpu).out)
    control = document["settings"][0]
    assert (control["recompute"], control["step_time_s"], control["verdict"]) == ("none", None, None)
    assert control["peak_bytes"] > 10_000_000
    assert document["settings"][-1]["recompute_overhead"] > 0
    assert json.loads(plan(*cpu, "--fit_into", "0.5").out)["settings"][0]["verdict"] == "FITS"


def test_a_plan_by_layer_is_shown_to_copy_where_it_is_faster(plan):
    limits = [(*LLAMA, "--fit_into", gib, "--optimal") for gib in ("17.5", "40")]
    gains = [json.loads(plan(*job, "--json").out)["optimal"]["gain"] for job in limits]
    assert gains[0] > 0 == gains[1]
    assert ["--plan_file " in plan(*job).out for job in limits] == [True, False]


@pytest.mark.train
@pytest.mark.slow
def test_a_chosen_setting_is_traced_whole_and_agrees_with_what_was_composed(plan):
    done = plan(*LLAMA, "--json", "--exact", "core_attn")
    assert done.code == 0, done.err
    exact = json.loads(done.out)["exact"]
    assert [setting["recompute"] for setting in exact] == ["core_attn"]
    (stage,) = exact[0]["stages"]
    assert (stage["problem"], stage["error"]) == (None, pytest.approx(0, abs=0.01))
    assert stage["exact_bytes"] == pytest.approx(stage["composed_bytes"], rel=0.01)


def test_only_the_settings_asked_for_are_planned_beside_that_without_recompute(plan):
    document = json.loads(plan(*LLAMA, "--json", "--only", "full:block:2", "mlp").out)
    assert [row["recompute"] for row in document["settings"]] == ["none", "mlp", "full:block:2"]
    assert document["settings"][1]["recompute_overhead"] > 0
    for option in ("--only", "--exact"):
        wrong = plan(*LLAMA, option, "moe", "full:block:9")
        named = [f"{option} {text}: " in wrong.err for text in ("moe", "full:block:9")]
        assert (wrong.code, named) == (2, [True, True])
        assert " full:block:1 " in wrong.err


def test_runs_are_calibrated_on_without_a_recipe_and_only_then(plan, tmp_path):
    no_runs = plan("--calibrate", str(tmp_path))
    assert (no_runs.code, "no record.json" in no_runs.err) == (2, True)
    both = plan(*LLAMA, "--calibrate", str(tmp_path))
    assert (both.code, "--calibrate" in both.err) == (2, True)
    neither = plan("--json")
    assert (neither.code, "or --calibrate RUN" in neither.err) == (2, True)
    stray = plan(*LLAMA, "--out", str(tmp_path / "x.json"))
    assert (stray.code, "--out needs --calibrate" in stray.err) == (2, True)


def test_varied_sizes_are_counts_of_known_sizes_each_named_once():
    over = ("dp=2", "tp=two", "tp=0", "mb=1,2", "mbs=4", "pp=1,none")
    refused(lambda: _over(over), *(f"--over {each}: " for each in over if each != "mb=1,2"), num=5)
    assert [(name, values) for name, values in _over(["tp=1,2", "vp=none,2"])] == [("tp", (1, 2)), ("vp", (None, 2))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--margin", "1.5"), "--margin 1.5 "),
        (("--fit_into", "60GB"), "'60GB' is not a"),
        (("--fit_into", "-1"), "--fit_into -1 "),
        (("--max_overhead", "-0.1"), "--max_overhead -0.1 "),
        (("--only", "layernorm"), "--only layernorm: "),
        (("-tp", "3"), "P03: "),
        (("--assume", "torch"), "--assume 'torch': "),
    ],
)
def test_a_wrong_request_exits_2_before_anything_is_traced(plan, options, message):
    done = plan(*LLAMA, *options)
    assert done.code == 2
    assert message in done.err


def test_where_cuda_graphs_forbid_what_would_fit_the_plan_without_them_is_named(plan):
    graphs = (*LLAMA[:-1], "transformer_engine")
    document = json.loads(plan(*graphs, "--json", "--fit_into", "8").out)
    assert "graphs" in [step["step"] for step in document["layouts"][0]["steps_to_fit"]]
    eager = json.loads(plan(*LLAMA, "--json", "--fit_into", "8").out)
    assert "graphs" not in [step["step"] for step in eager["layouts"][0]["steps_to_fit"]]


def test_without_a_gpu_several_points_are_commands_also_for_several_layouts(plan):
    asked = ("-mr", "llama3_70b", "--task", "sft", "-c", "fp8_cs", "--over", "tp=2,4", "pp=4", "--fit_into", "70")
    done = plan(*asked)
    commands = [shlex.split(line) for line in done.err.splitlines()[2:]]
    assert (done.code, done.out) == (2, "")
    assert [command[: len(asked) + 2] for command in commands] == [["mbr-perf", "plan", *asked]] * 3
    assert [command[-4:] for command in commands] == [["-g", gpu, "-ng", "32"] for gpu in ("h100", "gb200", "gb300")]


@pytest.mark.train
def test_a_terminal_counts_stages_and_a_pipe_stays_silent(cache):
    recipe = "tests/data/replay/replayed.yaml"
    command = (sys.executable, "-m", "harness.app", "plan", "-mr", recipe, "--over", "mb=1,2", "--json")
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    with (
        ThreadPoolExecutor(1) as reader,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as planning,
    ):
        os.close(theirs)
        shown = reader.submit(_all_of, ours)  # a terminal that nobody reads holds its writer up
        document = json.loads(planning.stdout.read())
    os.close(ours)
    said = shown.result().decode()
    assert "Stages traced" in said
    assert "pretrain h100 bf16 2 GPUs (tests/data/replay/replayed.yaml:" in document["notes"][0]
    piped = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert piped.stderr == ""
    assert json.loads(piped.stdout) == document


def _all_of(terminal):
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # Linux: the other end is closed
        pass
    return shown


POINT = ("-mr", "llama3_8b", "-g", "h100", "--num_gpus", "8", "--compute_dtype", "bf16", "--only", "none")
SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments"
EXPANDABLE = "expandable_segments:True"


def settings(plan, *options):
    done = plan(*POINT, "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)["settings"][0]


def test_settings_of_the_allocator_change_what_is_reserved_and_what_fits(plan):
    as_launched, with_them, without = (
        settings(plan, *more) for more in ((), ("-E", f"{SEGMENTS}:True"), ("-E", f"{SEGMENTS}:False"))
    )
    assert as_launched["reserved_bytes"] == with_them["reserved_bytes"] < without["reserved_bytes"]
    assert as_launched["fits_bytes"] < without["fits_bytes"] <= without["reserved_bytes"]
    assert {row["reserved_source"] for row in (as_launched, without)} == {"replayed"}
    assert without["fits_range_bytes"][0] <= without["fits_bytes"] <= without["fits_range_bytes"][1]
    assert without["stages"][0]["reserved_bytes"] == without["reserved_bytes"]
    assert without["device_bytes"] > without["reserved_bytes"]


@pytest.mark.slow
def test_the_allocator_decides_where_memory_lies_between_both_needs(plan):
    needs = [settings(plan, "-E", f"{SEGMENTS}:{value}", "--margin", "0") for value in ("True", "False")]
    outside = needs[0]["device_bytes"] - needs[0]["reserved_bytes"]
    most, least = needs[0]["fits_range_bytes"][1], needs[1]["fits_bytes"]
    between = (max(most, least) + 10_000_000 + outside) / 2**30
    fit = ("--fit_into", f"{between:.4f}", "--margin", "0")
    judged = [settings(plan, *fit, "-E", f"{SEGMENTS}:{value}") for value in ("True", "False")]
    assert judged[0]["verdict"] == "FITS"
    assert judged[1]["verdict"] in ("TIGHT", "OOM")
    more = format_bytes(judged[1]["fits_bytes"] - judged[0]["fits_bytes"])
    assert f"(+{more})" in " ".join(plan(*POINT, *fit, "-E", f"{SEGMENTS}:True").out.split())


SFT = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-ng", "32", "--fit_into", "71.5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute_dtype", "conf", "own"),
    [
        ("bf16", "max_split_size_mb:128", "TIGHT"),
        pytest.param("bf16", "expandable_segments:True,roundup_power2_divisions:4", "OOM", marks=pytest.mark.long),
        ("fp8_cs", "expandable_segments:False", "TIGHT"),
    ],
)
def test_a_setting_of_the_allocator_is_advised_before_recompute(plan, compute_dtype, conf, own):
    """The advised row is what the same command predicts with the options to copy."""
    job = (*SFT, "-c", compute_dtype, "--cuda_graph_impl", "none", "--only", "none", "full:block:1")
    found = json.loads(plan(*job, "-E", f"PYTORCH_CUDA_ALLOC_CONF={conf}", "--json").out)
    (layout,) = found["layouts"]
    cure, use, settled = layout["cure"], layout["to_paste"][0], layout["steps_to_fit"][0]
    assert (found["recommended"], cure["recompute"], cure["verdict"]) == ("full:block:1", "none", "FITS")
    assert (use["recompute"], use["environment"]) == ("none", f"-E PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}")
    assert (settled["step"], settled["settles"]) == ("allocator", True)
    rows = {row["recompute"]: row for row in found["settings"]}
    assert rows["none"]["verdict"] == own
    (line, *shown) = plan(*job, "-E", f"PYTORCH_CUDA_ALLOC_CONF={conf}").out.splitlines()
    assert line.startswith(f"Use none with {EXPANDABLE}: needs ~{cure['fits_bytes'] / 2**30:.1f} GiB of ")
    dearer = rows["full:block:1"]["step_time_s"] / cure["step_time_s"] - 1
    assert f", {cure['step_time_s']:.3f} s a step" in line
    assert f"; without it use full:block:1 at {100 * dearer:+.1f} %." in line
    assert [row.partition(" *")[0] for row in shown if " * " in row] == ["none, expandable"]
    again = json.loads(plan(*job, *use["environment"].split(), "--json").out)
    (same,) = (row for row in again["settings"] if row["recompute"] == "none")
    assert {key: same[key] for key in cure if key != "stages"} == {key: cure[key] for key in cure if key != "stages"}
    assert (again["recommended"], again["layouts"][0]["cure"], cure["reserved_source"]) == ("none", None, "replayed")


@pytest.mark.slow
def test_without_graphs_the_allocator_is_advised_too(plan):
    """With CUDA graphs expandable segments are not enough: a capture gives no cached memory back."""
    job = (*SFT, "-c", "fp8_cs", "--only", "none")
    found = json.loads(plan(*job, "-E", f"{SEGMENTS}:False", "--json").out)["layouts"][0]
    (line, *_) = plan(*job, "-E", f"{SEGMENTS}:False").out.splitlines()
    assert (found["recommended"], found["cure"]) == (None, None)
    assert "--cuda_graph_impl none" in line and f" none with {EXPANDABLE} " in line
    assert [(use["recompute"], use["environment"]) for use in found["to_paste"]] == [("none", f"-E {SEGMENTS}:True")]
    assert "model.cuda_graph_impl=none" in found["to_paste"][0]["bridge"]
    steps = {step["step"]: step for step in found["steps_to_fit"]}
    assert (steps["allocator"]["settles"], steps["graphs"]["settles"]) == (False, True)


@pytest.mark.slow
def test_expandable_segments_are_not_advised_where_a_rule_forbids_them(plan):
    pools = ("--set", "ddp.nccl_ub=true", "-E", f"{SEGMENTS}:False")
    found = json.loads(plan(*SFT, "-c", "bf16", *pools, "--only", "none", "--json").out)["layouts"][0]
    assert found["cure"] is None
    assert {use["environment"] for use in found["to_paste"]} <= {None}


GRAPHS = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "peak", "answer"),
    [
        (("--fit_into", "75", "-E", f"{SEGMENTS}:False"), "57.1", " is not"),
        (("--fit_into", "70"), "57.1", " (already set) "),
    ],
)
def test_where_graphs_decide_the_answer_says_what_is_needed_beside_the_peak(plan, options, peak, answer):
    document = json.loads(plan(*GRAPHS, *options, "--only", "none", "--json").out)
    (none,), (step, *_) = document["settings"], document["layouts"][0]["steps_to_fit"]
    lines = plan(*GRAPHS, *options).out.splitlines()
    assert f"none needs ~{none['fits_bytes'] / 2**30:.1f} GiB (peak ~{peak})" in lines[0]
    assert (step["text"].startswith(f"{SEGMENTS}:True{answer}"), step["helps"]) == (True, False)


def test_where_graphs_decide_the_picture_shows_what_is_needed(plan, tmp_path):
    (done, page) = plan(*GRAPHS, "--html", str(tmp_path / "a.html"), "--json"), (tmp_path / "a.html").read_text()
    none = next(row for row in json.loads(done.out)["settings"] if row["recompute"] == "none")
    assert f"none: {format_bytes(none['fits_bytes'])}, " in page


@pytest.mark.parametrize("value", ["expandable_segments:maybe", "no_such_setting:1", "max_split_size_mb:1"])
def test_a_setting_that_torch_refuses_is_refused_before_anything_is_traced(plan, value):
    done = plan(*POINT, "-E", f"PYTORCH_CUDA_ALLOC_CONF={value}")
    assert (done.code, done.out) == (2, "")
    assert f"PYTORCH_CUDA_ALLOC_CONF={value}" in done.err


def test_a_setting_without_effect_is_named(plan):
    done = plan(*POINT, "-E", "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8")
    assert done.code == 0
    assert "No effect: PYTORCH_CUDA_ALLOC_CONF: garbage_collection_threshold " in " ".join(done.out.split())


@pytest.mark.slow
def test_fp8_copies_lie_beside_weights_that_stay_in_bf16(mbr_perf, tmp_path):
    """Megatron-LM's default for FP8 needs more memory than BF16."""
    model = {"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 8192}
    (tmp_path / "config.json").write_text(json.dumps(model))

    def peak(dtype):
        job = ("--hf", str(tmp_path), "-g", "h100", "-ng", "8", "-gb", "8", "-sl", "128", "-c", dtype)
        return json.loads(mbr_perf("plan", *job, "--only", "none", "--json").out)["settings"][0]["peak_bytes"]

    bf16, copied, gathered = (peak(dtype) for dtype in ("bf16", "fp8_ds_bf16_weights", "fp8_ds"))
    assert copied > max(bf16, gathered)


def test_a_memory_fraction_limits_what_may_be_used_and_not_what_is_needed(plan):
    confs = (f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}{more}" for more in ("", ",per_process_memory_fraction:0.5"))
    whole, half = (settings(plan, "-E", conf) for conf in confs)
    assert (whole["verdict"], half["verdict"], half["fits_bytes"]) == ("FITS", "OOM", whole["fits_bytes"])
