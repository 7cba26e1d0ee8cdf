"""Settings that the rules refuse: they cannot be the settings of a job that ran, and no command contains them."""

from dataclasses import replace

import pytest

from harness.diagnose.judge import diagnose
from harness.diagnose.plan import Outlook, rulings_on
from harness.diagnose.values import Change, Rulings
from harness.launch.environment import this_host
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED, FULL

# Recomputing mlp inside a captured mlp fails at capture before transformer-engine 2.12.
CAPTURED = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}, "recompute": "mlp",
            "kernels": {"transformer_impl": "transformer_engine"}}  # fmt: skip
UNREGISTERED = {"ddp": {"nccl_ub": True}, "kernels": {"transformer_impl": "transformer_engine"}}


@pytest.fixture(name="answer")
def _answer():
    """The diagnosis by the rules, as the command makes it."""

    def build(case, outlook=None):
        return diagnose(case, outlook=outlook, rulings=rulings_on(case, this_host()))

    return build


def test_a_job_that_ran_out_of_memory_cannot_have_settings_that_the_rules_refuse(case, answer):
    first, *others = answer(case(FULL, CAPTURED, has_given_settings=True, paths=("job.log",))).fixes
    assert first.text.startswith("The job cannot have run with the settings as given: G22: mlp: the capture fails")
    assert first.command.startswith("mbr-perf diagnose job.log -mr llama3_70b")
    assert first.command.endswith("--cuda_graph_impl none --recompute mlp")
    assert not [fix for fix in others if fix.command.startswith("mbr-perf")]


def test_the_line_that_the_rules_accept_keeps_all_that_was_given(case, answer):
    options = ("--results_dir", "r", "--no_plan")
    job = case(FULL, CAPTURED, has_given_settings=True, paths=("job.log",), asked_with=options)
    assert answer(job).fixes[0].command.endswith("--recompute mlp --results_dir r --no_plan")


def test_refused_settings_of_a_job_that_ended_well_are_noted(case, answer):
    diagnosis = answer(case("", CAPTURED, has_given_settings=True, paths=("job.log",)))
    assert diagnosis.fixes == ()
    assert diagnosis.evidence[0].startswith("The rules refuse the settings as given: G22: ")
    assert "so it had another release of the software, another graph scope or other settings" in diagnosis.evidence[0]


def test_such_settings_show_no_symptoms(case, answer):
    assert answer(case(FULL, CAPTURED, has_given_settings=True)).symptoms == ()


def test_a_job_that_failed_by_its_settings_is_shown_the_rule(case, answer):
    job = case("ValueError: no", CAPTURED, has_given_settings=True)
    assert answer(job).evidence[0].startswith("The rules refuse the job's settings: G22: ")
    assert any(fix.text.startswith("G22: use transformer-engine 2.12") for fix in answer(job).fixes)


def test_no_trial_that_the_rules_refuse_is_printed(case, answer):
    with_user_buffers = answer(case(FRAGMENTED, UNREGISTERED, expandable_segments=False)).fixes[0]
    assert "The rules refuse it here" in with_user_buffers.text
    assert "V07: nccl_ub does not work with expandable segments" in with_user_buffers.text
    assert with_user_buffers.command == ""
    plain = {"kernels": {"transformer_impl": "transformer_engine"}}
    assert "--ab" in answer(case(FRAGMENTED, plain, expandable_segments=False)).fixes[0].command


def test_no_change_that_the_rules_refuse_is_printed(case, answer):
    change = Change("mlp", (("recompute", "mlp"),), 60 * GIB, 0.16)
    graphs = CAPTURED | {"recompute": "core_attn"}
    fix = answer(case(FULL, graphs), Outlook(change, budget_bytes=74 * GIB)).fixes[0]
    assert (fix.command, "The rules refuse it here: G22: " in fix.text) == ("", True)


def test_more_stages_are_planned_only_where_they_are_legal(case, answer):
    te = {"kernels": {"transformer_impl": "transformer_engine"}}
    doubled = answer(case(FULL, te), Outlook(budget_bytes=74 * GIB)).fixes[0]
    assert doubled.command.endswith("--over pp=4,8")
    alone = {"parallelism": {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4,
                             "sequence_parallel": True}} | te  # fmt: skip
    none = answer(case(FULL, alone), Outlook(budget_bytes=74 * GIB)).fixes[0]
    assert (none.command, "PP 8 is not legal" in none.text) == ("", True)


def test_the_command_overrides_the_same_rules_as_the_run(case, answer):
    forced = replace(case(FRAGMENTED, CAPTURED, expandable_segments=False), forced=("G22",))
    assert "--force G22" in answer(forced).fixes[0].command
    assert rulings_on(forced, this_host()).job == ()


def test_without_settings_nothing_is_refused(case):
    assert rulings_on(case(FULL, spec=None), this_host()).job == Rulings().job


@pytest.mark.parametrize("gpu", [(), ("-g", "h1000")])
def test_a_typo_of_the_recipe_is_named_with_all_other_problems(mbr_perf, gpu):
    answer = mbr_perf("diagnose", "gone.log", "-mr", "llama3_8bb", "--recompute_modules", "mpl", *gpu)
    assert answer.code == 2
    for problem in (gpu[1] if gpu else "the GPU type of the job is missing", "unknown recipe 'llama3_8bb'", "unknown recompute module 'mpl'", "gone.log: no such file"):  # fmt: skip
        assert problem in answer.err
