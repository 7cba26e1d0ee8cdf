"""`mbr-perf recipes` and `mbr-perf rules`."""

import json
import os
from pathlib import Path

from typer.testing import CliRunner

from harness.recipes.ask import recipes as app
from tests.commands import refused


def run(*argv: str):
    return CliRunner().invoke(app, argv, catch_exceptions=False)


def test_list_shows_every_recipe_uncut_in_a_pipe():
    lines = run("list").stdout.splitlines()
    row = next(line for line in lines if "deepseek_v3" in line)
    assert row.split()[:5] == ["deepseek_v3", "deepseek", "671.0", "B", "cpu"]
    assert not any("…" in line for line in lines)


def test_list_as_json_is_one_document():
    document = json.loads(run("list", "--json").stdout)
    assert document["schema_version"] == 1
    llama = next(r for r in document["recipes"] if r["recipe"] == "llama3_8b")
    assert llama["parameters_billion"] == 8.03
    whole = {"tasks": ["pretrain", "sft", "peft"], "compute_dtypes": ["fp32"], "num_gpus": [2]}
    assert llama["gpus"]["cpu"] == whole


def test_list_shows_only_the_points_of_one_gpu_type():
    every = json.loads(run("list", "--json").stdout)["recipes"]
    some = json.loads(run("list", "--gpu", "a100", "--json").stdout)["recipes"]
    assert some == [{**row, "gpus": {"a100": row["gpus"]["a100"]}} for row in every if "a100" in row["gpus"]]
    assert 0 < len(some) < len(every)
    lines = run("list", "-g", "a100").stdout.splitlines()
    assert lines[0].split()[:2] == [str(len(some)), "recipes;"]
    assert [line.split()[0] for line in lines[2:]] == ["recipe", *(row["recipe"] for row in some)]


def test_list_names_the_nearest_gpu_type():
    refused(lambda: run("list", "--gpu", "h1000"), "h1000", "'h100'")


def test_show_prints_model_and_points():
    text = run("show", "mixtral_8x7b").stdout
    assert "moe.num_moe_experts" in text
    assert "core_attn,moe_act" in text


def test_show_names_why_a_point_cannot_run():
    document = json.loads(run("show", "deepseek_v3", "--json").stdout)
    broken = [p for p in document["points"] if p["inconsistent"]]
    assert {(p["gpu"], p["num_gpus"]) for p in broken} == {("h100", 64), ("gb200", 256), ("gb300", 256)}
    assert " ETP*EP*PP=512" in run("show", "deepseek_v3").stdout


def test_validate_accepts_all_recipes_and_lists_the_points_that_cannot_run():
    lines = run("validate").stdout.splitlines()
    assert lines[0].startswith("OK: 15 recipe files, ")
    assert any(line.startswith("recipes/deepseek/deepseek_v3.yaml: pretrain h100 bf16 64 GPUs: ") for line in lines)
    assert any("recipes/gpt/gpt3_175b.yaml" in line and "rule K28" in line for line in lines)


def test_validate_shows_all_problems_of_a_file(tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nfamily: mine\ntitle: Bad\nmodle: {}\npoints: []\n", encoding="utf-8")
    problems = refused(lambda: run("validate", str(path)), num=3)
    places = [problem.message.removeprefix(str(path)).rpartition(":")[0] for problem in problems]
    assert places == [":4: modle", ":1: model", ":5: points"]


def test_validate_as_json_exits_with_the_problems(tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: yes\n", encoding="utf-8")
    result = run("validate", str(path), "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["problems"][0]["message"].startswith(f"{path}:1: 'yes' is ambiguous")


def test_a_pipe_is_refused_without_waiting(mbr_perf, tmp_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    answer = mbr_perf("recipes", "validate", pipe)
    assert answer.code == 2
    assert "pipe.yaml: a pipe or a device, not a file" in answer.err


def test_list_has_a_line_for_every_rule_uncut_in_a_pipe(mbr_perf):
    lines = mbr_perf("rules", "list").out.splitlines()
    assert lines[0].split()[:2] == [str(len(lines) - 3), "rules;"]
    assert lines[2].split() == ["Rule", "Severity", "megatron-core", "Message"]
    assert [line for line in lines if "…" in line or "{" in line or line != line.rstrip()] == []


def test_list_picks_a_severity(mbr_perf):
    rows = [line.split() for line in mbr_perf("rules", "list", "--severity", "note").out.splitlines()[3:]]
    assert {row[1] for row in rows} == {"note"}


def test_q_prints_line_1_of_any_answer(mbr_perf):
    for words in (("rules", "show", "A07"), ("recipes", "list"), ("recipes", "validate"), ("golden", "list")):
        whole, brief = mbr_perf(*words).out, mbr_perf(*words, "-q").out
        assert brief.splitlines() == whole.splitlines()[:1] and brief
        assert mbr_perf(*words, "-q", "--json").code == 2


def test_an_unknown_severity_exits_2(mbr_perf):
    done = mbr_perf("rules", "list", "--severity", "fatal")
    assert (done.code, done.out) == (2, "")


def test_show_explains_a_rule_with_its_evidence(mbr_perf):
    said, *lines = mbr_perf("rules", "show", "t08").out.splitlines()
    assert said.startswith("T08: full:uniform:<num_layers> ")
    found = dict(line.strip().split(": ", 1) for line in lines)
    assert list(found) == ["severity", "fix", "megatron-core", "versions", "evidence", "source"]
    assert (found["severity"], found["versions"]) == ("error", "before 0.17")
    assert found["source"] == "transformer_block.py:532; https://github.com/NVIDIA/Megatron-LM/pull/3562"


def test_show_of_an_unknown_rule_exits_2_with_the_nearest(mbr_perf):
    done = mbr_perf("rules", "show", "T8")
    assert (done.code, done.out) == (2, "")
    assert "no rule 'T8'" in done.err
    assert "T08" in done.err


def test_both_answer_in_json(mbr_perf):
    every = json.loads(mbr_perf("rules", "list", "--json").out)
    single = json.loads(mbr_perf("rules", "show", "T08", "--json").out)
    assert every["schema_version"] == single["schema_version"] == 1
    assert [rule for rule in every["rules"] if rule["id"] == "T08"] == single["rules"]
    assert set(single["rules"][0]) == {
        "id", "severity", "message", "fix", "mcore_text", "versions", "evidence", "source",
    }  # fmt: skip
