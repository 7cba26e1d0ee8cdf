"""The application: what every command shares, and what a full or closed stream does to it."""

import json
import signal
import subprocess
import sys
import time

import pytest
import typer

from harness import __version__
from harness.app import app, readers_may_leave, spelled

# The options that scripts rely on, as in Megatron-Bridge's performance scripts.
CONTRACT = """
-m --model_family_name -mr --model_recipe_name --task -g --gpu -c --compute_dtype -ng --num_gpus -gn --gpus_per_node
-ms --max_steps -gb --global_batch_size -mb --micro_batch_size -sl --seq_length
-tp --tensor_model_parallel_size -pp --pipeline_model_parallel_size -cp --context_parallel_size
-vp --virtual_pipeline_model_parallel_size -ep --expert_model_parallel_size -et --expert_tensor_parallel_size
--recompute_modules -rl --recompute_num_layers --recompute_granularity --recompute_method
-ol --activation_offload_layers --cuda_graph_impl --cuda_graph_scope --num_layers --hidden_size -E --env --set
""".split()  # noqa: SIM905 (a table)
JUDGE = """
--golden_values_path --timing_threshold --memory_threshold --skip_first_percent_time --eval_time_start_step
--eval_time_end_step --fail_on_improvement --require_golden
""".split()  # noqa: SIM905 (a table)


def commands(group=None, path=()):
    """Every command that does something, by its words."""
    found = {}
    for name, command in (group or typer.main.get_command(app)).commands.items():
        inner = getattr(command, "commands", None)
        found |= commands(command, (*path, name)) if inner else {(*path, name): command}
    return found


COMMANDS = commands()
EXPERIMENTS = [words for words, c in COMMANDS.items() if any(p.name == "model_recipe_name" for p in c.params)]


def options_of(words):
    """Option names without the second spelling that some declare themselves."""
    names = {name for parameter in COMMANDS[words].params for name in parameter.opts if name.startswith("-")}
    return {name for name in names if "-" not in name[2:]}


@pytest.mark.parametrize("words", sorted({("run",), ("check",), *EXPERIMENTS}), ids=" ".join)
def test_every_command_about_an_experiment_takes_the_options_of_the_contract(words):
    assert set(CONTRACT) - options_of(words) == set()


@pytest.mark.parametrize("words", [("run",), ("compare",)], ids=" ".join)
def test_commands_that_judge_take_the_thresholds_and_the_window(words):
    assert set(JUDGE) - options_of(words) == set()


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != ("help",)], ids=" ".join)
def test_every_command_answers_in_json_when_asked(words):
    assert "--json" in options_of(words)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_names_every_option_and_says_what_it_does(mbr_perf, words):
    answer = mbr_perf("help", *words, "--all")
    shown = set(answer.out.replace(",", " ").split())
    assert (answer.code, answer.err) == (0, "")
    hidden = {
        name for parameter in COMMANDS[words].params if getattr(parameter, "hidden", False) for name in parameter.opts
    }
    assert {name for name in options_of(words) - hidden if name not in shown} == set()
    assert [p.name for p in COMMANDS[words].params if p.param_type_name == "option" and not p.help] == []


def test_the_version_is_that_of_the_package(mbr_perf):
    assert mbr_perf("--version").out == f"mbr-perf {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--recompute-modules", "mlp"], ["--recompute_modules", "mlp"]),
        (["--recompute-modules=a-b"], ["--recompute_modules=a-b"]),
        (["-mr", "my-recipe"], ["-mr", "my-recipe"]),
        (["--set", "env.A-B=c-d"], ["--set", "env.A-B=c-d"]),
        (["--dry-run", "--", "--not-ours"], ["--dry_run", "--", "--not-ours"]),
    ],
)
def test_options_may_be_spelled_with_a_dash_and_values_stay(typed, read):
    assert spelled(typed) == read


def test_a_wrong_request_is_a_json_document_when_json_is_asked_for(mbr_perf):
    answer = mbr_perf("recipes", "show", "llama3_8bb", "--json")
    document = json.loads(answer.out)
    assert answer.code == document["exit_code"] == 2
    assert list(document) == ["schema_version", "error", "remedy", "errors", "legal_with", "exit_code"]
    assert document["errors"] == [{name: document[name] for name in ("error", "remedy")}]
    assert "'llama3_8bb'" in document["error"] and "'llama3_8b'" in document["remedy"]
    assert answer.err == f"error: {document['error']}\n  {document['remedy']}\n"


def test_each_of_several_problems_is_marked_as_an_error(mbr_perf):
    answer = mbr_perf("run", "-mr", "llama3_8b", "-g", "h10", "-c", "fp88", "--recompute_modules", "foo")
    assert answer.code == 2
    places = [line.partition(": ")[2].partition(": ")[0] for line in answer.err.splitlines() if line[0] != " "]
    assert places == ["--gpu", "--compute_dtype", "--recompute_modules"]


def test_all_values_that_cannot_be_read_are_reported_at_once(mbr_perf):
    answer = mbr_perf("run", "-tp", "x", "--timeout", "soon", "-gb", "1.5")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines() == [
        "error: --global_batch_size: '1.5' is not a whole number",
        "error: --tensor_model_parallel_size: 'x' is not a whole number",
        "error: --timeout: 'soon' is not a number",
        "  try 'mbr-perf run -h' for help",
    ]


@pytest.mark.parametrize(
    ("typed", "expected", "help_of"),
    [
        (("run", "--recompute_module", "mlp"), "Possible options: --recompute", "mbr-perf run"),
        (("plan", "llama3_8b", "--vocab_sise", "5"), "--vocab_size", "mbr-perf plan"),
        (("doktor",), "'doktor'", "mbr-perf"),
        (("run", "-mr", "llama3_8b", "-tp", "x"), "--tensor_model_parallel_size: 'x' ", "mbr-perf run"),
        (("golden", "show"), "Missing argument 'NAME'", "mbr-perf golden show"),
        (("run", "-mq", "llama"), " -mq ", "mbr-perf run"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_a_wrong_request(mbr_perf, typed, expected, help_of):
    answer = mbr_perf(*typed, "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["exit_code"], document["remedy"]) == (2, 2, f"try '{help_of} -h' for help")
    assert expected in document["error"]
    assert answer.err == f"error: {document['error']}\n  {document['remedy']}\n"


def test_a_group_without_a_command_answers_with_its_help(mbr_perf):
    assert "Commands:\n  promote" in mbr_perf("golden").err


@pytest.fixture(scope="module")
def libraries(cpu_seconds):
    """Seconds that importing the libraries takes that a command is made of: the unit of speed, for machines differ."""
    return cpu_seconds("-c", "import pydantic, rich.console, typer, yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (["--help"], 3),
        (["recipes", "list"], 8),
        (["run", "-mr", "llama3_8bb", "--recompute_modules", "core_atn"], 12),
    ],
)
def test_answers_come_at_once(cpu_seconds, libraries, arguments, limit):
    assert cpu_seconds("-m", "harness.app", *arguments) < limit * libraries


@pytest.mark.train
@pytest.mark.slow
def test_ctrl_c_where_nothing_is_to_keep_answers_in_two_lines(tmp_path):
    """The tracer is a program that never answers, and says when it has begun."""
    begun = tmp_path / "begun"
    script = (
        "import sys; from pathlib import Path;"
        f"python = Path({str(tmp_path / 'python')!r}); python.write_text('#!/bin/sh\\ntouch {begun}; sleep 60');"
        "python.chmod(0o755); sys.executable = str(python); from harness.app import main; main()"
    )
    typed = ["plan", "-mr", "llama3_8b", "-g", "h100", "--no_cache", "-E", "API=1"]
    with subprocess.Popen([sys.executable, "-c", script, *typed], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as planning:  # fmt: skip
        end = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.05)
        planning.send_signal(signal.SIGINT)
        out, err = planning.communicate(timeout=30)
    assert (planning.returncode, out) == (130, "")
    assert err.splitlines() == ["INTERRUPTED (exit 130): no answer", f"Start again: mbr-perf {' '.join(typed)}"]


ANSWER_THEN_REGRESSION = """
import sys
from harness.app import readers_may_leave
with readers_may_leave():
    print("x" * 1_000_000)
    print("y" * 1_000_000, file=sys.stderr)
    sys.exit(5)
"""


@pytest.mark.parametrize("redirection", ["| true", "2>&1 | true"])
def test_the_verdict_survives_a_reader_that_goes_away(redirection):
    command = f'"$0" -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, ANSWER_THEN_REGRESSION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_is_read_arrives_whole():
    script = "from harness.app import readers_may_leave\nwith readers_may_leave():\n    print('é' * 100_000)"
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == "é" * 100_000 + "\n"


def test_streams_of_somebody_else_are_left_alone(capsys):
    before = sys.stdout
    with readers_may_leave():
        assert sys.stdout is before
        sys.stdout.write("here\n")
    assert capsys.readouterr().out == "here\n"
