"""Completion of values, as shells ask for it: through the environment, in a process of its own."""

import os
import shutil
import subprocess
import sys
from typing import get_args

import pytest
import typer

from harness.app import app
from harness.cli import completion
from harness.experiment.experiment import Task

ROOT = typer.main.get_command(app)
PROGRAM = [sys.executable, "-c", "from harness.app import main; main()"]


@pytest.fixture
def complete(monkeypatch, capsys, tmp_path):
    """What bash offers for the last word."""

    def ask(line):
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_MBR_PERF_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            app(args=[], prog_name="mbr-perf")
        return capsys.readouterr().out.split()

    for kind in ("runs", "sweeps", "nights", "jobs"):
        for name in ("20260101T000000Z-a-11111111", "20260102T000000Z-b-22222222"):
            (tmp_path / kind / f"{name}-{kind}").mkdir(parents=True)
    return ask


def test_the_tasks_are_those_of_the_experiment():
    assert set(completion.TASKS) == set(get_args(Task))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mbr-perf pl", ["plan"]),
        ("mbr-perf golden pro", ["promote"]),
        ("mbr-perf run -mr llama3_", ["llama3_70b", "llama3_8b"]),
        ("mbr-perf run -m qwen -mr ", ["qwen25_7b", "qwen3_235b_a22b", "qwen3_30b_a3b", "qwen3_next_80b_a3b"]),
        ("mbr-perf check --task s", ["sft"]),
        ("mbr-perf run -g b", ["b200", "b300"]),
        ("mbr-perf sweep -c fp8_d", ["fp8_ds", "fp8_ds_bf16_weights"]),
        ("mbr-perf run --recompute_modules core_attn,ml", ["core_attn,mlp", "core_attn,mla_up_proj"]),
        ("mbr-perf run --recompute full", ["full:uniform:1", "full:block:1"]),
        ("mbr-perf nightly cpu", ["cpu_smoke"]),
        ("mbr-perf sweep --file cpu_d", ["cpu_dense"]),
        ("mbr-perf golden show h", ["h100/llama3_70b.sft.fp8_cs.32gpu.core_attn"]),
        ("mbr-perf check --timing", []),
    ],
)
def test_values_are_completed(complete, line, offered):
    assert complete(line) == offered


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("explain --results_dir {} 20260102", "runs"),
        ("report --results_dir {} 20260102", "sweeps"),
        ("nightly --results_dir {} --resume 20260102", "nights"),
        ("jobs wait --results_dir {} 20260102", "jobs"),
    ],
)
def test_what_lies_in_the_results_folder_is_completed(complete, tmp_path, line, kind):
    assert complete(f"mbr-perf {line.format(tmp_path)}") == [f"20260102T000000Z-b-22222222-{kind}"]


def asked(line, **more):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_MBR_PERF_COMPLETE": "complete_bash"}
    return os.environ | words | more


@pytest.mark.parametrize("line", ["mbr-perf run -mr ", "mbr-perf golden show "])
def test_an_answer_opens_no_stage_of_a_run(line):
    """typer itself may import pydantic, depending on its version; nothing of ours does."""
    script = (
        "import atexit, sys\nfrom harness.app import main\n"
        "mine = lambda: [m for m in sys.modules if m.partition('.')[0] in ('torch', 'rich', 'yaml')"
        " or m.startswith(('harness.experiment.frozen', 'harness.resolve', 'harness.measure.', 'harness.records.run'))]\n"
        "atexit.register(lambda: print(mine(), file=sys.stderr))\nmain([])"
    )
    done = subprocess.run([sys.executable, "-c", script], env=asked(line), capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "[]\n"


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_with_the_script_that_is_shown(tmp_path, program):
    """The script, loaded by bash, answers as at a prompt."""
    program(f'exec {sys.executable} -c "from harness.app import main; main()" "$@"', name="mbr-perf")
    show = os.environ | {"_MBR_PERF_COMPLETE": "source_bash"}
    script = subprocess.run(PROGRAM, env=show, capture_output=True, text=True, check=True).stdout
    prompt = (
        'COMP_WORDS=(mbr-perf run -mr llama3_7); COMP_CWORD=3; _mbr_perf_completion mbr-perf; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{prompt}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "llama3_70b\n"


@pytest.mark.parametrize("dash", ["-", "_"])
def test_completion_is_installed_where_bash_looks_for_it(tmp_path, dash):
    """typer asks the parent process for its shell, here bash."""
    if not shutil.which("bash"):
        pytest.skip("no bash")
    line = f'{sys.executable} -c "from harness.app import main; main()" --install{dash}completion; echo $?'
    done = subprocess.run(
        ["bash", "-c", line], env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("0\n"), done.stdout + done.stderr
    assert "_mbr_perf_completion" in (tmp_path / ".bash_completions" / "mbr-perf.sh").read_text()
    assert "mbr-perf.sh" in (tmp_path / ".bashrc").read_text()
