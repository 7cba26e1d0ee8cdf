"""`mbr-perf check`: a verdict for people and programs, with the options of `run`."""

import json
import shlex

import pytest

FAST = ("--no_megatron", "-g", "cpu")


def test_the_answer_of_the_documentation(mbr_perf):
    done = mbr_perf(
        "check", "-m", "llama", "-mr", "llama3_8b", "--recompute_modules", "core_attn,layernorm", *FAST, "-v"
    )
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert "Recompute    core_attn,layernorm" in lines
    assert "Recomputed   layernorm: 8 of 8 layers" in lines
    assert lines[0].startswith("LEGAL: 1 warning. R10: ")


def test_an_illegal_request_exits_2_with_the_fix(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "--recompute_modules", "mla_up_proj", *FAST)
    assert done.code == 2
    first, *lines = done.out.splitlines()
    assert first.startswith("ILLEGAL: 2 errors. EFF01: ")
    assert any(line.startswith("error R09: mla_up_proj ") for line in lines)


@pytest.mark.train
def test_megatron_cores_own_refusal_stands_beside_the_rule(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "-g", "cpu", "--recompute_modules", "mla_up_proj", "--json")
    document = json.loads(done.out)
    found = {finding["id"]: finding for finding in document["findings"]}
    assert (done.code, document["exit_code"], found["MCORE"]["severity"]) == (2, 2, "note")
    assert found["MCORE"]["mcore_text"].startswith(f"ValueError: {found['R09']['mcore_text']}")


def test_force_overrides_the_named_rules_and_says_so(mbr_perf):
    asked = ("check", "-mr", "llama3_8b", "--recompute_modules", "mla_up_proj", *FAST, "--force", "R09")
    assert mbr_perf(*asked).code == 2
    done = mbr_perf(*asked, "--force", "EFF01", "--json")
    overridden = {finding["id"] for finding in json.loads(done.out)["findings"] if finding["overridden"]}
    assert (done.code, overridden) == (0, {"R09", "EFF01"})


def test_force_of_an_unknown_rule_exits_2_with_the_nearest(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "--force", "r09", *FAST)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: --force r09: ") and "did you mean R09" in done.err


def test_explain_names_the_source_of_every_setting(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "--recompute_modules", "core_attn", "--explain", *FAST)
    rows = [line.split() for line in done.out.splitlines()]
    assert ["recompute", "--recompute_modules", "core_attn"] in rows
    assert ["gpu", "--gpu", "cpu"] in rows
    assert any(row[:1] == ["model.num_layers"] and row[1].startswith("recipes/llama/llama3_8b.yaml:") for row in rows)


@pytest.mark.parametrize(("version", "code"), [("0.16.1", 2), ("0.17.0", 0)])
def test_other_software_is_assumed_by_name(mbr_perf, version, code):
    asked = ("check", "-mr", "llama3_8b", "-g", "cpu", "--recompute", "full:uniform:3", "--num_layers", "8")
    done = mbr_perf(*asked, "--assume", f"megatron-core={version}", "-v")
    assert (done.code, "T08" in done.out) == (code, code == 2)
    assert f"judged for megatron-core={version} (--assume)" in done.out


def test_a_job_for_another_machine_is_judged_for_what_is_assumed_there(mbr_perf):
    asked = ("check", "-mr", "llama3_8b", "--assume", "megatron-core=0.19.2,transformer-engine=2.11,gpu=h100", "--json")
    document = json.loads(mbr_perf(*asked).out)
    assert (document["spec"]["gpu"], document["sources"]["gpu"]) == ("h100", "--assume")
    assert document["spec"]["kernels"]["transformer_impl"] == "transformer_engine"


def test_what_cannot_be_assumed_exits_2(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "--assume", "megatron=0.17,gpu=h900", *FAST)
    assert (done.code, "'megatron'" in done.err, "'h900'" in done.err) == (2, True, True)


def test_without_a_gpu_the_only_gpu_point_of_the_recipe_is_checked_and_named(mbr_perf):
    document = json.loads(mbr_perf("check", "-mr", "mixtral_8x7b", "--no_megatron", "--json").out)
    assert (document["spec"]["gpu"], document["spec"]["num_gpus"]) == ("a100", 64)
    assert "only" in document["sources"]["gpu"]
    assert "pretrain a100 bf16 64 GPUs (recipes/mixtral/mixtral_8x7b.yaml:" in document["notes"][0]
    shown = mbr_perf("check", "-mr", "mixtral_8x7b", "--no_megatron", "-v")
    assert (shown.code, document["notes"][0].lower() in " ".join(shown.out.lower().split())) == (0, True)


def test_of_many_points_the_first_of_each_gpu_is_a_command_to_copy(mbr_perf):
    said, _, *commands = mbr_perf("check", "-mr", "llama3_8b", "--no_megatron").err.splitlines()
    gpus = [line.split(" -g ")[1].split()[0] for line in commands]
    assert gpus == ["h100", "b200", "b300", "gb200", "gb300"] and "recipes show llama3_8b" in said


def test_without_a_gpu_each_of_several_points_is_a_command_to_copy(mbr_perf):
    asked = ("check", "-mr", "llama3_70b", "--task", "sft", "-c", "fp8_cs", "-E", "A=b c", "--no_megatron")
    answer = mbr_perf(*asked)
    said, head, *commands = answer.err.splitlines()
    assert (answer.code, answer.out, head.endswith(":")) == (2, "", True)
    assert "'llama3_70b'" in said and " 3 GPU " in said
    assert [shlex.split(line)[:-4] for line in commands] == [["mbr-perf", *asked]] * 3
    assert {tuple(shlex.split(line)[-4:]) for line in commands} == {
        ("-g", gpu, "-ng", "32") for gpu in ("h100", "gb200", "gb300")
    }
    spec = json.loads(mbr_perf(*shlex.split(commands[0])[1:], "--json").out)["spec"]
    assert (spec["gpu"], spec["env"]["A"]) == ("h100", "b c")
    wrong = mbr_perf("check", "-mr", "llama3_70b", "--set", "kernels.nothing=1", "-c", "bf61").err
    assert [text in wrong for text in ("kernels.nothing", "bf61", "mbr-perf check")] == [True, True, False]
