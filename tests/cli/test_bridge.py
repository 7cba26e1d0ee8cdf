"""Options of Megatron-Bridge's `scripts/performance` keep their meaning, or are refused with what to use instead."""

import json
import re
from pathlib import Path

import pytest
import typer

from harness.app import app, spelled
from harness.cli import bridge
from harness.cli.options import ExperimentOptions
from harness.cli.requests import experiment_request
from tests.commands import refused

ROOT = Path(__file__).parents[2]
PROGRAM = typer.main.get_command(app)
RUN = PROGRAM.commands["run"]
OURS = {text for parameter in RUN.params for text in (*parameter.opts, *parameter.secondary_opts)}
THEIRS = tuple(dict.fromkeys(bridge.spellings().values()))
REQUIRED = ["-m", "llama", "-mr", "llama3_8b", "-g", "h100", "-ng", "8"]


def given(*words, command="run"):
    """The options that a command received."""
    return PROGRAM.commands[command].make_context(command, spelled([*REQUIRED, *words])).params


def request(*words):
    """The request of a command line, as `run` makes it."""
    params = given(*words)
    return experiment_request(ExperimentOptions(**{name: params[name] for name in vars(ExperimentOptions)
                                                   ["__dataclass_fields__"]}))  # fmt: skip


def test_every_option_of_bridge_is_ours_or_has_a_meaning():
    assert len(THEIRS) == 134
    meant = {*bridge.TAKEN, *bridge.refused()}
    assert [each.name for each in THEIRS if each.name not in OURS and each.name not in meant] == []
    assert meant - {each.name for each in THEIRS} == bridge.TAKEN.keys() & bridge.refused().keys() == set()


def test_an_option_that_both_have_keeps_its_short_name():
    shared = [each for each in THEIRS if each.name in OURS and each.name not in bridge.TAKEN]
    assert len(shared) > 35
    assert [each.alias for each in shared if each.alias and each.alias not in OURS] == []


def test_no_short_name_of_ours_means_something_else_to_bridge():
    long_of = {text: parameter.opts[0] for parameter in RUN.params for text in parameter.opts}
    clashes = {
        each.alias: (each.name, long_of[each.alias])
        for each in THEIRS
        if each.alias in long_of and each.name not in (long_of[each.alias], "--config_variant")
    }
    assert clashes == {}


def test_the_guide_has_the_table_of_all_options():
    guide = (ROOT / "harness" / "cli" / "README.md").read_text()
    facts = json.loads((ROOT / "harness" / "cli" / "bridge_options.json").read_text())
    assert _guide_table() in guide
    assert facts["commit"][:7] in guide


def _guide_table():
    """Return the guide's table, options with one meaning in one row."""
    rows = {}
    for spelling in THEIRS:
        text = "the same option"
        if spelling.name in bridge.TAKEN:
            text = bridge.meaning(spelling.name)
        elif spelling.name in bridge.refused():
            text = f"refused: {bridge.refused()[spelling.name]}"
        names = f"`{spelling.name}`" + (f" `{spelling.alias}`" if spelling.alias else "")
        rows.setdefault(text.replace("|", "\\|"), []).append(names)
    lines = [f"| {', '.join(names)} | {text} |" for text, names in rows.items()]
    return "\n".join(["| Megatron-Bridge | mbr-perf |", "|---|---|", *lines]) + "\n"


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--use_megatron_fsdp yes", "--set ddp.use_megatron_fsdp=true --set ddp.average_in_collective=false"),
        ("--use_megatron_fsdp=F", "--set ddp.use_megatron_fsdp=false"),
        ("--nccl_ub 1", "--set ddp.nccl_ub=true --set ddp.average_in_collective=false -E NCCL_NVLS_ENABLE=1 -E NCCL_CTA_POLICY=1"),
        ("--moe_a2a_overlap T", "--set kernels.overlap_moe_expert_parallel_comm=true --set kernels.moe_shared_expert_overlap=false"),
        ("--moe_flex_dispatcher_backend deepep", "--set kernels.moe_token_dispatcher_type=flex"
         " --set kernels.moe_flex_dispatcher_backend=deepep --set kernels.moe_shared_expert_overlap=false"),
        ("--moe_flex_dispatcher_backend None", "--set kernels.moe_token_dispatcher_type=alltoall"
         " --set kernels.moe_flex_dispatcher_backend=null"),
        ("--use_tokendrop false", "--set kernels.moe_expert_capacity_factor=null"
         " --set kernels.moe_pad_expert_input_to_capacity=false --set model.moe.moe_router_force_load_balancing=true"),
        ("--pipeline_model_parallel_layout Et|t|L", "--set parallelism.pipeline_model_parallel_layout=Et|t|L"),
        ("--num-moe-experts 64 --lr 1e-4", "--set model.moe.num_moe_experts=64 --set optimizer.lr=0.0001"),
        ("--optimizer_type adam", ""),
        ("--optimizer_type muon", "--set optimizer.optimizer=dist_muon --set optimizer.use_distributed_optimizer=false"
         " --set optimizer.use_precision_aware_optimizer=false --set optimizer.main_grads_dtype=fp32"
         " --set optimizer.exp_avg_dtype=fp32 --set optimizer.exp_avg_sq_dtype=fp32"
         " --set ddp.overlap_param_gather=false --set ddp.grad_reduce_in_fp32=true"),
        ("--lr 2e-10", "--set optimizer.lr=2.0e-10"),
        ("--use_recipes", "--variant library"),
        ("-ce A=1,B=2", "-E A=1 -E B=2"),
        ("-cm /a:/a,/b", "--container_mounts /a:/a --container_mounts /b"),
        ("--additional_slurm_params reservation=my_res;exclusive", "--reservation my_res"),
        ("--detach true --domain LLM --data mock --offline --packager none", "--detach"),
        ("--detach false -et", ""),
        ("-et -tp 2", "-tp 2"),
        ("-a me -p gpu -t 00:30:00 -i nemo:dev", "--account me --partition gpu --time_limit 00:30:00 --container_image nemo:dev"),
    ],
)  # fmt: skip
def test_an_option_of_bridge_is_the_same_as_our_words(typed, ours):
    assert given(*typed.split()) == given(*ours.split())


@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize(
    "typed",
    [
        "-a me -p gpu -t 00:30:00 -i nemo:dev", "-cm /a:/a,/b", "--detach true",
        "--additional_slurm_params qos=high;reservation=mine", "--account=me",
    ],
)  # fmt: skip
def test_options_of_slurm_do_nothing_where_nothing_starts(command, typed):
    assert given(*typed.split(), command=command) == given(command=command)


@pytest.mark.parametrize(
    "row",
    [
        ("--use_megatron_fsdp maybe", "--use_megatron_fsdp: 'maybe' ", "true or false"),
        (
            "--moe_flex_dispatcher_backend alltoall",
            "--moe_flex_dispatcher_backend: ",
            "'alltoall'",
            "deepep or hybridep",
        ),
        ("--data c4", "'c4'", "mock"),
        ("--additional_slurm_params nodelist=a,b", "'nodelist'", "--reservation"),
        ("-hf abc123", "-hf: "),
        ("--wandb_key abc123", "--wandb_key: ", "harness/results/README.md"),
        ("--num_moe_experts", "--num_moe_experts: ", "--set model.moe.num_moe_experts=VALUE"),
        ("--lr fast", "--lr: 'fast' ", "e.g. 3e-4"),
        ("-cb one two", "-cb: ", "image"),
        ("model.num_layers=2", "model.num_layers=2: ", "--set model.num_layers=2"),
        ("++env_vars.FOO=1", "++env_vars.FOO=1: ", "-E FOO=1"),
        ("kernels.moe_router_fusion=true", "kernels.moe_router_fusion=true: ", "--set kernels.moe_router_fusion=true"),
        ("--max_retries 3", "--max_retries: ", "nightly"),
    ],
)
def test_what_mbr_perf_does_not_take_is_refused_with_what_to_use_instead(row):
    typed, *names = row
    [problem] = refused(lambda: given(*typed.split()), *names)
    assert problem.remedy and "abc123" not in str(problem)


def test_every_refused_option_is_refused_in_one_line_of_advice():
    for each in THEIRS:
        instead = bridge.refused().get(each.name)
        words = (each.alias or each.name, *["x"][: int(each.values != 0)])
        if instead:
            assert [problem.remedy for problem in refused(lambda words=words: given(*words))] == [instead]


def test_all_refusals_come_at_once(mbr_perf):
    answer = mbr_perf("check", *REQUIRED, "--csp", "aws", "--save_dir", "x", "model.bf16=true", "--use_tokendrop", "?")
    assert answer.code == 2
    assert re.findall("^error: (.*?): ", answer.err, re.MULTILINE) == [
        "--csp", "--save_dir", "model.bf16=true", "--use_tokendrop",
    ]  # fmt: skip


def test_a_value_that_looks_like_an_option_of_bridge_stays_a_value():
    assert given("--variant", "--csp")["variant"] == "--csp"
    assert given("--", command="check")["num_gpus"] == 8


def test_help_shows_the_options_that_set_something(mbr_perf):
    shown = mbr_perf("help", "plan", "--all").out.partition("\nAs in Megatron-Bridge:\n")[2].partition("\n\n")[0]
    assert "ddp.use_megatron_fsdp" in shown
    assert len(shown.splitlines()) <= 40
    assert "--use_megatron_fsdp" not in mbr_perf("help", "compare", "--all").out


# The parse cases recorded with Megatron-Bridge's parser: what it takes, we take with the same value.
SAME = {
    "": {},
    "-c bf16": {"compute_dtype": "bf16"},
    "--task pretrain": {"task": "pretrain"},
    "-g H100": {"gpu": "H100"},
    "-rl 0": {"recompute_num_layers": 0},
    "-ol 4": {"activation_offload_layers": 4},
    "-vp 5": {"virtual_pipeline_model_parallel_size": 5},
    "-vp None": {"virtual_pipeline_model_parallel_size": "none"},
    "-et": {"expert_tensor_parallel_size": None},
    "--cuda_graph_impl none": {"cuda_graph_impl": "none"},
    "--cuda_graph_impl local --cuda_graph_scope full_iteration": {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"},
    "-E A=1 -E B=x=y": {"env": ("A=1", "B=x=y")},
    "-cv large_scale": {"variant": "large_scale"},
}  # fmt: skip


@pytest.mark.parametrize(("typed", "values"), SAME.items())
def test_what_bridge_reads_we_read_with_the_same_value(typed, values):
    asked = request(*typed.split())
    assert {name: getattr(asked, name) for name in values} == values


# What both refuse, and where we differ on purpose: Bridge trains on with a slip of the finger, or cannot say "nothing".


def test_spaces_in_a_list_of_modules_do_not_make_another_module(mbr_perf):
    spaced, plain = (
        json.loads(mbr_perf("check", *REQUIRED, "--recompute_modules", text, "--no_megatron", "--json").out)
        for text in ("core_attn, layernorm", "core_attn,layernorm")
    )
    assert spaced["spec"]["recompute"] == plain["spec"]["recompute"]


def test_no_module_at_all_is_refused_and_none_is_the_control(mbr_perf):
    assert mbr_perf("check", *REQUIRED, "--recompute_modules", "", "--no_megatron").code == 2
    assert mbr_perf("check", *REQUIRED, "--recompute_modules", "none", "--no_megatron").code == 0
