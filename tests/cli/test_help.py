"""Help: the five tasks, groups by purpose, examples that hold, and options that act."""

import re
import shlex

import pytest
import typer

from harness.app import app, spelled
from harness.cli.help import TASKS, examples

ROOT = typer.main.get_command(app)


def leaves(group=ROOT, words=""):
    for name, command in group.commands.items():
        full = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from leaves(command, full)
        else:
            yield full


COMMANDS = tuple(leaves())
LINES = [line for lines in examples().values() for line in lines]


def parsed(line):
    """The innermost context of a command line, after the options were read; a wrong one raises."""
    context = ROOT.make_context("mbr-perf", spelled(shlex.split(line)))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return context


def test_every_command_has_two_examples_or_three_none_of_them_for_an_option_that_all_have():
    assert {command: len(lines) in (2, 3) for command, lines in examples().items()} == dict.fromkeys(COMMANDS, True)
    assert not [lines[2] for lines in examples().values() if lines[2:] and lines[2].endswith(" --json")]


@pytest.mark.parametrize("line", [*LINES, *(line for _, line in TASKS)])
def test_an_example_is_a_command_line_that_mbr_perf_takes_with_recipes_that_exist(line):
    from harness.resolve.find import find_recipe_file

    given = parsed(line).params
    if given.get("model_recipe_name"):
        find_recipe_file(given["model_recipe_name"])


def test_the_program_alone_shows_five_tasks_with_commands_to_copy(mbr_perf):
    answer = mbr_perf()
    assert answer.code == 2
    assert [line for line in answer.out.splitlines() if line.startswith("    ")] == [
        f"    mbr-perf {line}" for _, line in TASKS
    ]
    assert [line.split()[0] for _, line in TASKS] == ["plan", "diagnose", "compare", "sweep", "nightly"]
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize("words", ["", "run", "golden", "golden promote", "history"])
def test_help_of_a_command_equals_its_option(mbr_perf, words):
    asked = mbr_perf("help", *words.split())
    assert asked == mbr_perf(*words.split(), "--help")
    assert (asked.code, asked.out.splitlines()[0][:15]) == (0, "Usage: mbr-perf")


def test_help_groups_options_by_purpose_and_ends_with_the_examples(mbr_perf):
    help_of_run = mbr_perf("help", "run", "--all").out
    titles = re.findall(r"^(\S.*):$", help_of_run, re.MULTILINE)
    assert titles == ["Model and GPUs", "Your own job (instead of -mr)", "Sizes and batch", "Parallelism", "Memory",
                      "Recompute, offloading, CUDA graphs", "Engine", "Judging", "Launching", "Several nodes",
                      "Jobs (with --launcher slurm or kubeflow)", "Slurm (with --launcher slurm)",
                      "Kubernetes (with --launcher kubeflow)", "Output", "As in Megatron-Bridge",
                      "Options", "Examples"]  # fmt: skip
    assert help_of_run.endswith("".join(f"  mbr-perf {line}\n" for line in examples()["run"]))
    only_whole = ("--recompute_method", "--use_megatron_fsdp")  # a twin in spelling, and what only --set needs
    assert [name in mbr_perf("run", "--help").out for name in only_whole] == [False, False]
    assert [name in help_of_run for name in only_whole] == [True, True]


@pytest.mark.parametrize("command", ["run", "check", "sweep", "plan", "nightly", "diagnose", "compare", "import"])
def test_short_help_has_the_options_that_people_use_on_40_lines(mbr_perf, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    short, long, whole = (
        mbr_perf(*words).out for words in ((command, "-h"), (command, "--help"), ("help", command, "--all"))
    )
    options = [set(re.findall(r"^  (?:-\w+, )*(--\w+)", text, re.MULTILINE)) for text in (short, long, whole)]
    assert len(short.splitlines()) <= 40
    assert 9 <= len(options[0]) <= 15
    assert options[0] <= options[1] <= options[2]
    assert short.endswith("".join(f"  mbr-perf {line}\n" for line in examples()[command]))


def test_help_lists_every_command_with_a_whole_sentence_and_breaks_no_word(mbr_perf):
    listed = mbr_perf("--help").out
    assert {command.split()[0] for command in COMMANDS} - set(re.findall(r"^  (\w+)  ", listed, re.MULTILINE)) == set()
    assert "..." not in listed.replace("[ARGS]...", "")
    assert "megatron-core=0.19.2,transformer-engine=2.11,torch=2.9,gpu=h100" in mbr_perf("check", "--help").out


def test_options_that_change_nothing_are_taken_but_not_shown(mbr_perf):
    assert "--timing_threshold" not in mbr_perf("check", "--help").out
    assert parsed("check -mr llama3_8b --timing_threshold 0.1").params["timing_threshold"] == 0.1
    assert "--timing_threshold" in mbr_perf("run", "--help").out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pln", "'plan'"),
        ("promote", "'golden promote'"),
        ("help pln", "'plan'"),
    ],
)
def test_an_unknown_command_names_the_nearest_of_all(mbr_perf, typed, meant):
    answer = mbr_perf(*typed.split())
    assert f"'{typed.split()[-1]}'" in answer.err and f" {meant}?" in answer.err
    assert answer.code == 2


def test_an_unknown_short_option_is_named_as_it_was_typed(mbr_perf):
    for words in (("nightly", "cpu_smoke", "-ms", "4"), ("results", "list", "-ms", "4")):
        answer = mbr_perf(*words)
        assert (answer.code, " -ms " in answer.err) == (2, True)


def test_commands_that_show_a_page_have_both_amounts():
    every = {words: parsed_command(words) for words in COMMANDS}
    for words, command in every.items():
        names = {name for each in command.params for name in each.opts}
        assert ("-v" in names) == ("-q" in names), words
    assert {"import", "compare", "nightly", "run", "diagnose"} <= {
        words for words, command in every.items() if any("-v" in each.opts for each in command.params)
    }


def parsed_command(words):
    command = ROOT
    for word in words.split():
        command = command.commands[word]
    return command
