"""From facts to the answer: class, evidence, and fixes in order."""

import shlex
from dataclasses import replace

import pytest

from harness.diagnose.commands import NO_GRAPHS
from harness.diagnose.diagnosis import diagnose
from harness.diagnose.show import diagnosis_page
from harness.diagnose.stages import needed_bytes
from harness.diagnose.values import Change, FailedRank, Outlook, Rulings
from harness.experiment.rules.rule import Finding
from harness.failures.verdict import OomVerdict
from harness.show.page import plain
from harness.units import GIB, format_bytes
from tests.diagnose.conftest import FRAGMENTED, FULL, SETTING

GRAPHS = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}}
MLP = Outlook((Change("mlp", 60 * GIB, 0.16),), budget_bytes=74 * GIB)
NOTHING_FITS = Outlook(budget_bytes=74 * GIB, capacity_bytes=round(79.2 * GIB))


def of(answer):
    return answer.verdict.oom_class, answer.verdict.confidence


def test_for_fragmentation_the_first_fix_is_the_allocators_and_the_second_the_planners(case):
    answer = diagnose(case(FRAGMENTED, expandable_segments=False), MLP)
    assert of(answer) == ("fragmentation", "high")
    first, second = answer.fixes[:2]
    assert shlex.split(first.command)[-2:] == ["-E", SETTING]
    assert "74.00 GiB: recompute mlp, peak 60.00 GiB, +16.0 %" in second.text
    assert "--recompute mlp" in second.command


def test_the_recommended_change_is_also_given_in_words_of_other_programs(case):
    outlook = Outlook((Change("mlp", 60 * GIB, 0.16, settings=NO_GRAPHS),), budget_bytes=74 * GIB)
    (fix,) = [fix for fix in diagnose(case(FULL, GRAPHS), outlook).fixes if fix.setting]
    expected = {"granularity=selective", "modules=[mlp]"}
    assert {f"model.recompute_{each}" for each in expected} | {"model.cuda_graph_impl=none"} <= {
        *shlex.split(fix.bridge)
    }
    assert fix.megatron_lm == "--recompute-granularity selective --recompute-modules mlp"
    assert fix.without == ("--recompute-activations", "--cuda-graph-impl", "--cuda-graph-scope")


def test_a_fix_of_a_symptom_that_names_a_setting_can_be_pasted(case):
    job = case("", {"recompute": "core_attn,layernorm"}, has_nan=True)
    (fix,) = [fix for fix in diagnose(job).fixes if fix.setting]
    assert fix.megatron_lm == "--recompute-granularity selective --recompute-modules core_attn"
    refused = Rulings((), lambda _: (Finding(id="G22", severity="error", message="no", fix="leave it"),))
    assert all(fix.setting is None for fix in diagnose(job, rulings=refused).fixes)


def test_with_cuda_graphs_the_line_also_unregisters_them_with_nccl(case):
    answer = diagnose(case(FRAGMENTED, GRAPHS, expandable_segments=False))
    assert shlex.split(answer.fixes[0].command)[-4:] == ["-E", SETTING, "-E", "NCCL_GRAPH_REGISTER=0"]


def test_without_settings_the_fix_is_a_variable_to_set(case):
    assert diagnose(case(FRAGMENTED, spec=None, paths=("a.log", "b.log"))).fixes[0].command == f"export {SETTING}"


def test_where_expandable_segments_were_on_a_snapshot_is_the_next_experiment(case):
    answer = diagnose(case(FRAGMENTED, expandable_segments=True))
    assert of(answer) == ("fragmentation", "low")
    assert answer.fixes[0].command.endswith("--snapshot_on_oom")


def test_where_nothing_fits_all_layouts_are_searched(case):
    answer = diagnose(case(FULL), NOTHING_FITS)
    assert answer.verdict.oom_class == "capacity"
    assert answer.fixes[0].command.endswith("--fit_into 79.2 --search")


def test_the_evidence_is_the_prediction_then_the_memory_needed(case, predicted, figures):
    failed = FailedRank(0, "oom", "memory", "in forward_backward of step 2", "ranks/rank_000.json")
    answer = diagnose(case(FULL, failed=failed, ranks=figures((0, 70)), prediction=predicted(63, 50, 50, 52)))
    assert "stage 0: 63.00 GiB (activations 47.00 GiB, optimizer 8.00 GiB" in answer.evidence[0]
    assert "needed 77.39 GiB: 14.39 GiB more" in answer.evidence[1]
    assert (answer.expected.stage.pp_rank, answer.expected.needed_bytes) == (0, needed_bytes(answer.case))
    assert answer.expected.unexplained_bytes == answer.expected.needed_bytes - 63 * GIB


def test_a_job_that_ended_well_is_compared_at_its_fullest_rank(case, predicted, figures):
    fine = case("", status="ok", ranks=figures((0, 20), (2, 30)), prediction=predicted(63, 50, 28, 20))
    assert diagnose(fine).expected.stage.pp_rank == 2
    assert "30.00 GiB: 2.00 GiB more" in diagnose(fine).evidence[1]


def test_memory_of_others_is_answered_by_its_own_experiment(case):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 2 has a total capacity of 79.11 GiB "
        "of which 4.20 GiB is free. Process 375949 has 20.04 GiB memory in use. Including non-PyTorch memory, this process "
        "has 54.87 GiB memory in use. Of the allocated memory 53.02 GiB is allocated by PyTorch, and 623.31 MiB is "
        "reserved by PyTorch but unallocated."
    )
    answer = diagnose(case(text), MLP)
    assert answer.verdict.oom_class == "other_process"
    assert [fix.text for fix in answer.fixes] == [case(text).verdict.next_experiment]


def test_a_refused_setting_is_no_out_of_memory_and_says_why(case):
    words = "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"
    answer = diagnose(case(words, failed=FailedRank(0, "error", words, where="rank.log:1")))
    assert of(answer) == ("not_oom", "high")
    assert [row.id for row in answer.symptoms] == ["R18"]
    assert answer.verdict.reason == answer.symptoms[0].cause


def test_a_job_without_evidence_is_inconclusive(case):
    unknown = diagnose(replace(case("", spec=None), status="unknown"))
    assert (unknown.is_conclusive, unknown.exit_code, *of(unknown)) == (False, 6, None, None)
    assert diagnose(case("")).exit_code == 0


def test_a_cause_in_the_message_of_the_failure_is_certain(case):
    words = "AssertionError: full recompute is only supported with full iteration CUDA graph."
    failed = FailedRank(0, "error", words, where="rank.log:1")
    assert of(diagnose(case(words, failed=failed))) == ("not_oom", "high")


def test_without_settings_the_fix_is_the_same_command_with_capitals_in_their_place(case):
    answer = diagnose(case(FULL, spec=None, paths=("a.log",)))
    assert [fix.command for fix in answer.fixes] == [
        "mbr-perf diagnose a.log -mr RECIPE -g GPU -c DTYPE -ng GPUS --recompute SETTING"
    ]


def test_the_first_fix_is_to_raise_the_jobs_own_limit(case):
    verdict = OomVerdict("self_imposed_limit", "high", "--memory_limit")
    answer = diagnose(case("no", {"measure": {"memory_limit_bytes": 40 * GIB}}, verdict=verdict), MLP)
    assert [fix.command.split()[1] for fix in answer.fixes[:2]] == ["plan", "run"]
    assert answer.fixes[0].command.endswith("--recompute core_attn --fit_into 40")
    assert plain(diagnosis_page(answer).answer.words).endswith(" Next: raise --memory_limit 40.")


@pytest.mark.parametrize(("total", "place"), [(70.0, 0), (20.0, 1)])
def test_settings_that_explain_too_little_are_checked_before_any_change(case, predicted, total, place):
    job = case(FULL, prediction=predicted(total))
    fixes = diagnose(job, MLP).fixes
    more = format_bytes(round(needed_bytes(job) - total * GIB))
    assert [f" - {more} " in fix.text for fix in fixes].index(True) == place
    assert [bool(fix.command) for fix in fixes].index(True) == place
