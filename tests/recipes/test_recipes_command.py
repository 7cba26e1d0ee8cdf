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
    assert llama["gpus"]["cpu"] == {"tasks": ["pretrain", "sft", "peft"], "compute_dtypes": ["fp32"], "num_gpus": [2]}


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
