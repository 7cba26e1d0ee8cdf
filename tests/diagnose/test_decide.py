"""From facts to the answer: class, evidence, and fixes in order."""

import shlex
from dataclasses import replace

import pytest

from harness.diagnose.judge import diagnose
from harness.diagnose.plan import Outlook
from harness.diagnose.stages import needed_bytes
from harness.diagnose.values import Change, FailedRank, Rulings
from harness.experiment.rules.rule import Finding
from harness.failures.verdict import OomVerdict
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED, FULL

A_B = "--ab env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
MLP = Outlook(Change("mlp", (("recompute", "mlp"),), 60 * GIB, 0.16), budget_bytes=74 * GIB)


def test_for_fragmentation_the_first_fix_is_an_a_b(case):
    answer = diagnose(case(FRAGMENTED, expandable_segments=False), outlook=MLP)
    assert (answer.verdict.oom_class, answer.verdict.confidence) == ("fragmentation", "high")
    first, second = answer.fixes[:2]
    assert first.command.endswith(f"--recompute core_attn {A_B}")
    assert second.text.startswith(
        "Cheapest change predicted to fit into 74.00 GiB: recompute mlp, peak 60.00 GiB, +16.0 %"
    )
    assert second.command.endswith("--recompute mlp")


def test_the_recommended_change_is_also_given_in_words_of_other_programs(case):
    graphs = {"cuda_graph": {"impl": "transformer_engine", "scope": ("attn",)}}
    change = Change("mlp", (("recompute", "mlp"), ("cuda_graph_impl", "none")), 60 * GIB, 0.16)
    (fix,) = [
        fix for fix in diagnose(case(FULL, graphs), outlook=Outlook(change, budget_bytes=74 * GIB)).fixes if fix.setting
    ]
    assert fix.text.startswith("Cheapest change")
    assert {
        "model.recompute_granularity=selective",
        "model.recompute_modules=[mlp]",
        "model.cuda_graph_impl=none",
    } <= set(shlex.split(fix.setting.bridge))
    assert fix.setting.lines[1] == (
        "Megatron-LM (without --cuda-graph-impl, --cuda-graph-scope): --recompute-granularity selective --recompute-modules mlp"
    )


@pytest.mark.parametrize(
    ("settings", "changes", "symptom", "argument"),
    [
        ({"recompute": "core_attn,layernorm"}, {"has_nan": True}, "core_attn only", "--recompute-modules core_attn"),
        ({"recompute": "core_attn,mlp"}, {}, "Recompute mlp alone", "--recompute-modules mlp"),
        ({"recompute": "mlp"}, {"flops": 22}, "Drop mlp",
         ": without --recompute-granularity, --recompute-modules"),
        ({"recompute": "full:uniform:1:distributed"}, {"text": "Can distribute recomputed activations only"},
         "Drop --distribute_saved_activations", "(without --distribute-saved-activations): --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
        ({"recompute": "none", "offload": {"cpu_offloading_num_layers": 2}}, {}, "Use no offloading",
         ": without --cpu-offloading-num-layers"),
    ],
    ids=["nan", "core_attn", "mlp", "distributed", "offload"],
)  # fmt: skip
def test_a_fix_of_a_symptom_that_names_a_setting_can_be_pasted(case, predicted, settings, changes, symptom, argument):
    if "flops" in changes:
        changes = {"prediction": predicted(60, recompute_flops=changes["flops"])}
    job = case(changes.get("text", ""), settings, **{name: value for name, value in changes.items() if name != "text"})
    (fix,) = [fix for fix in diagnose(job).fixes if symptom in fix.text]
    assert fix.setting.lines[1].endswith(argument)
    refused = Rulings((), lambda _: (Finding(id="G22", severity="error", message="no", fix="leave it"),))
    (fix,) = [fix for fix in diagnose(job, rulings=refused).fixes if symptom in fix.text]
    assert fix.setting is None


def test_with_cuda_graphs_the_a_b_also_unregisters_them_with_nccl(case):
    graphs = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}}
    answer = diagnose(case(FRAGMENTED, graphs, expandable_segments=False))
    assert "-E NCCL_GRAPH_REGISTER=0 --ab" in answer.fixes[0].command


def test_fragmentation_beside_private_pools_is_also_tried_without_graphs(case):
    text = FRAGMENTED.replace(
        "by PyTorch, and", "by PyTorch, with 20.57 GiB allocated in private pools (e.g., CUDA Graphs), and"
    )
    graphs = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}}
    answer = diagnose(case(text, graphs, expandable_segments=False))
    assert "20.57 GiB" in answer.verdict.reason
    assert answer.fixes[1].text.startswith("Private pools hold 20.57 GiB (26% of the device). The same job without")
    assert answer.fixes[1].command.endswith("--cuda_graph_impl none --recompute core_attn")


def test_without_settings_the_fix_is_a_variable_to_set(case):
    answer = diagnose(case(FRAGMENTED, spec=None, paths=("a.log", "b.log")))
    assert answer.fixes[0].command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_where_expandable_segments_were_on_a_snapshot_is_the_next_experiment(case):
    answer = diagnose(case(FRAGMENTED, expandable_segments=True))
    assert (answer.verdict.oom_class, answer.verdict.confidence) == ("fragmentation", "low")
    assert answer.fixes[0].command.endswith("--snapshot_on_oom")


def test_where_nothing_fits_more_stages_are_planned(case):
    answer = diagnose(case(FULL), outlook=Outlook(budget_bytes=74 * GIB))
    assert answer.verdict.oom_class == "capacity"
    assert answer.fixes[0].text.startswith("No recompute setting is predicted to fit into 74.00 GiB")
    assert answer.fixes[0].command.endswith("--over pp=4,8")
    assert "--fit_into" in answer.fixes[0].command


def test_a_problem_of_the_planner_is_shown(case):
    answer = diagnose(case(FULL), outlook=Outlook(problem="megatron-core is not installed"))
    assert answer.fixes[0].text == "No change was planned: megatron-core is not installed"


def test_the_evidence_is_the_prediction_then_the_memory_needed_then_the_stages(case, predicted, figures):
    failed = FailedRank(0, "oom", "out of memory", "in forward_backward of step 2", "ranks/rank_000.json")
    full = case(FULL, failed=failed, ranks=figures((0, 70, True)), prediction=predicted(63, 50, 50, 52))
    evidence = diagnose(full).evidence
    assert evidence[0].startswith(
        "Predicted for pipeline stage 0: 63.00 GiB (activations 47.00 GiB, optimizer 8.00 GiB"
    )
    assert evidence[1] == "The rank needed 77.39 GiB: 14.39 GiB more than predicted."
    assert evidence[2] == "Stages are uneven: predicted 63.00 GiB on stage 0, 50.00 GiB on stage 1 (-20.6 %)."


def test_a_job_that_ended_well_is_compared_at_its_fullest_rank(case, predicted, figures):
    fine = case("", status="ok", ranks=figures((0, 20, False), (2, 30, False)), prediction=predicted(63, 50, 28, 20))
    evidence = diagnose(fine).evidence
    assert evidence[0].startswith("Predicted for pipeline stage 2: 28.00 GiB")
    assert evidence[1] == "The fullest rank held 30.00 GiB: 2.00 GiB more than predicted."


def test_a_rank_that_failed_before_its_peak_needed_less_than_predicted(case, predicted):
    early = case(FRAGMENTED, prediction=predicted(63))
    assert (
        diagnose(early).evidence[1]
        == "The rank needed 56.33 GiB, 6.67 GiB less than predicted (it failed before its peak)."
    )


def test_memory_of_others_is_answered_by_its_own_experiment(case):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 2 has a total capacity of 79.11 GiB of "
        "which 4.20 GiB is free. Process 375949 has 20.04 GiB memory in use. Including non-PyTorch memory, this process has "
        "54.87 GiB memory in use. Of the allocated memory 53.02 GiB is allocated by PyTorch, and 623.31 MiB is reserved by "
        "PyTorch but unallocated."
    )
    answer = diagnose(case(text), outlook=MLP)
    assert answer.verdict.oom_class == "other_process"
    assert [fix.text for fix in answer.fixes] == [case(text).verdict.next_experiment]


def test_a_refused_setting_is_no_out_of_memory_and_says_why(case):
    words = "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"
    answer = diagnose(case(words, failed=FailedRank(0, "error", words, where="rank.log:1")))
    assert (answer.verdict.oom_class, answer.verdict.confidence) == ("not_oom", "high")
    assert answer.verdict.reason == "activations of whole layers are offloaded to the host while PP is above 1"
    assert answer.fixes[0].text == "Use no offloading (--activation_offload_layers 0), or one pipeline stage (-pp 1)."


def test_settings_explain_no_crash(case):
    answer = diagnose(case("Fatal Python error: Segmentation fault", {"recompute": "mlp,core_attn"}))
    assert (answer.verdict.oom_class, answer.verdict.reason) == ("not_oom", "native code crashed (SIGSEGV)")
    assert "PYTHONFAULTHANDLER" in answer.fixes[0].text


def test_a_job_without_evidence_is_inconclusive(case):
    unknown = replace(case("", spec=None), status="unknown")
    assert not diagnose(unknown).is_conclusive
    assert diagnose(case("")).is_conclusive


def test_a_loss_that_is_not_finite_is_a_failure_also_without_settings(case):
    answer = diagnose(replace(case("", spec=None, has_nan=True), status="unknown"))
    assert (answer.is_conclusive, answer.verdict.reason) == (True, "the loss is not finite")
    assert answer.fixes[0].text.startswith("With FP8 and recompute: recompute core_attn only")


def test_a_cause_suggested_by_settings_is_less_certain_than_a_cause_in_the_message(case):
    words = "AssertionError: full recompute is only supported with full iteration CUDA graph."
    failed = FailedRank(0, "error", words, where="rank.log:1")
    assert diagnose(case(words, failed=failed)).verdict.confidence == "high"
    assert diagnose(case("", has_nan=True, status="unknown")).verdict.confidence == "medium"


@pytest.mark.parametrize("settings", [{}, {"recompute": "layernorm"}])
def test_recompute_is_not_recommended_if_no_setting_is_predicted_to_fit(case, settings):
    answer = diagnose(case(FULL, settings), outlook=Outlook(budget_bytes=74 * GIB))
    assert answer.symptoms
    assert len(answer.fixes) == 1
    assert any("Recompute more" in fix.text for fix in diagnose(case(FULL)).fixes)


def test_without_settings_the_fix_is_the_same_command_with_capitals_in_their_place(case):
    answer = diagnose(case(FULL, spec=None, paths=("a.log",), asked_with=("--no_plan",)))
    assert [fix.command for fix in answer.fixes] == [
        "mbr-perf diagnose a.log -mr RECIPE -g GPU -c DTYPE -ng GPUS --recompute SETTING --no_plan"
    ]


def test_the_first_fix_is_to_raise_the_jobs_own_limit(case):
    words = "harness.MemoryLimitError: out of memory under --memory_limit. Tried to allocate 1024 bytes"
    verdict = OomVerdict("self_imposed_limit", "high", words)
    first, second = diagnose(
        case(words, {"measure": {"memory_limit_bytes": 40 * GIB}}, verdict=verdict), outlook=MLP
    ).fixes[:2]
    assert first.text.startswith("The limit is the job's own (--memory_limit 40): raise it")
    assert first.command.endswith("--recompute core_attn --fit_into 40")
    assert second.text.startswith("Cheapest change")


@pytest.mark.parametrize(
    ("totals", "sentence"),
    [((), ""), ((77.4,), ""), ((70.0,), "The prediction does not account for 7.39 GiB.")],
    ids=["no prediction", "more", "less"],
)
def test_only_bytes_beyond_a_prediction_are_called_unexplained(case, predicted, totals, sentence):
    prediction = predicted(*totals) if totals else None
    answer = diagnose(case(FULL, prediction=prediction), outlook=Outlook(fits_already=True))
    assert "The settings are predicted to fit as they are." in answer.evidence
    assert [text for text in answer.evidence if "does not account" in text] == ([sentence] if sentence else [])


def test_a_prediction_of_exactly_what_was_needed_leaves_nothing_unexplained(case, predicted):
    exact = predicted(needed_bytes(case(FULL)) / GIB)
    answer = diagnose(case(FULL, prediction=exact), outlook=Outlook(fits_already=True))
    assert "The settings are predicted to fit as they are." in answer.evidence
    assert not any("does not account" in text for text in answer.evidence)
