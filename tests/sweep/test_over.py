"""What `--over` says: axes by any of their names, values of the right kind, every problem at once."""

import pytest

from harness.errors import BadRequestError
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from harness.resolve.sweep_file import read_sweep_file
from harness.sweep.request import read_axes, read_control, same_axis, split_over
from tests.commands import refused

ASKED = Request(model_recipe_name="llama3_70b", gpu="h100", task="sft", compute_dtype="fp8_cs", num_gpus=32)


def axis(text):
    return read_axes([split_over(text)])[0]


def test_recompute_settings_are_separated_by_semicolons_because_they_hold_commas():
    found = axis("recompute=none; core_attn, layernorm ;full:uniform:1")
    assert found.values == ("none", "core_attn,layernorm", "full:uniform:1")


def test_a_semicolon_at_the_end_makes_one_value_of_what_holds_commas():
    assert axis("env.X=a,b;").values == ("a,b",)
    assert axis("env.X=a,b").values == ("a", "b")
    assert axis("cuda_graph_scope=attn,mlp;moe").values == ("attn,mlp", "moe")


@pytest.mark.parametrize(
    ("text", "value", "before", "after"),
    [
        ("tp=8", "8", "4", "8"),
        ("vp=none", "none", "5", "none"),
        ("activation_offload_layers=2", "2", "0", "2"),
        ("recompute=mlp,core_attn", "mlp,core_attn", None, "mlp,core_attn"),
        ("env.MY_SETTING=1", "1", "unset", "1"),
        ("kernels.attention_backend=unfused", "unfused", "auto", "unfused"),
        ("memory_limit=40.5", "40.5", "none", "40.5"),
        ("ms=7", "7", "50", "7"),
    ],
)
def test_a_value_that_is_asked_for_is_read_back(text, value, before, after):
    found = axis(text)
    spec = resolve(ASKED).spec
    assert before in (None, found.read(spec))
    assert found.read(resolve(found.ask(ASKED, value)).spec) == after


def test_a_varied_setting_replaces_that_of_the_request():
    asked = Request(model_recipe_name="llama3_70b", gpu="h100", task="sft", compute_dtype="fp8_cs", num_gpus=32,
                    recompute_modules="mlp", env=("A=1", "B=2"), set_values=("ddp.nccl_ub=true",))  # fmt: skip
    for text, value in (
        ("recompute=full:uniform:1", "full:uniform:1"),
        ("env.A=3", "3"),
        ("ddp.nccl_ub=false", "false"),
    ):
        asked = read_axes([split_over(text)])[0].ask(asked, value)
    spec = resolve(asked).spec
    assert (spec.recompute.text, spec.env["A"], spec.env["B"], spec.ddp.nccl_ub) == ("full:uniform:1", "3", "2", False)


def test_every_problem_of_every_axis_is_reported_at_once():
    over = ("tp=2,x,2", "recompute=mlq", "recomptue=mlp", "kernels.attention_backnd=flash")
    problems = refused(lambda: read_axes(map(split_over, over)), num=5)
    for said, names in zip(problems, ("tp: 'x'", "tp: 2 ", "recompute: 'mlq' 'mlp'", "recomptue: 'recompute'",
                                      "kernels.attention_backnd: 'kernels.attention_backend'"), strict=True):  # fmt: skip
        assert all(name in str(said) for name in names.split()), said


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("model_recipe_name=a", "--over model_recipe_name: "),
        ("recompute_modules=mlp", "--over recompute="),
        ("gpu=h100", "--over gpu: "),
        ("nonsense=1", "recompute, python, tp, pp"),
    ],
)
def test_what_is_no_axis_names_the_way_there(text, remedy):
    refused(lambda: axis(text), remedy)


def test_one_leaf_is_varied_once():
    refused(lambda: read_axes(map(split_over, ("mb=1,2", "batch.micro_batch_size=4"))), "micro_batch_size", "mb ")


@pytest.mark.parametrize("text", ["tp", "tp=", "recompute=none;;mlp"])
def test_a_missing_value_is_reported(text):
    with pytest.raises(BadRequestError, match=r"no '='|empty value|empty module"):
        axis(text)


def test_a_control_is_chosen_by_values_of_the_axes():
    axes = read_axes(map(split_over, ("tp=2,4", "recompute=none;mlp")))
    assert read_control("recompute=mlp --tensor_model_parallel_size=4", axes) == {"recompute": "mlp", "tp": "4"}
    with pytest.raises(BadRequestError, match=r"--control pp=2: not AXIS=VALUE.*\n.*tp, recompute"):
        read_control("pp=2", axes)


def test_every_spelling_of_a_size_is_one_axis():
    for spellings in (
        ("mb", "mbs", "-mb", "micro_batch_size"), ("gb", "gbs", "global_batch_size"), ("vp", "vpp"),
        ("tp", "-tp", "tensor_model_parallel_size", "--tensor-model-parallel-size"),
    ):  # fmt: skip
        found = [axis(f"{name}=2,4") for name in spellings]
        assert {(each.name, each.values) for each in found} == {(spellings[0], ("2", "4"))}
        assert all(same_axis(spellings[0], other) for other in spellings)
    axes = read_axes(map(split_over, ("mbs=1,2",)))
    assert read_control("micro_batch_size=2", axes) == {"mb": "2"}


def test_a_quoted_value_of_the_control_may_hold_blanks():
    axes = read_axes(map(split_over, ("env.X=a b;c",)))
    assert read_control("'env.X=a b'", axes) == {"env.X": "a b"}
    with pytest.raises(BadRequestError, match="No closing quotation"):
        read_control("'env.X=a b", axes)


@pytest.mark.parametrize("text", ["recompute=none,mlp", "recompute=mlp,full:uniform:1", "recompute=auto,mlp;core_attn"])
def test_settings_that_commas_separate_are_refused_with_the_semicolon_as_remedy(text):
    refused(lambda: axis(text), "--over recompute", "';': recompute='")


def test_an_axis_of_a_file_is_read_as_one_of_the_command_line_with_its_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: x\nrequest: {model_recipe_name: llama3_8b}\nover:\n  mbx: [1]\n  env.1A: [1]\n  tp: [1, 1]\n  mb: [1]\n"
        "  micro_batch_size: [2]\n  recompute: [core_atn]\n  gpu: h100\n"
    )
    with pytest.raises(BadRequestError) as caught:
        read_axes(read_sweep_file(str(path)).axes)
    places = [problem.message.partition(f"{path}:")[2].partition(": ")[0] for problem in caught.value.problems]
    assert places == ["4", "5", "6", "8", "9", "10"]
