"""What the main commands print at 80 columns, kept below tests/data/terminal, and what holds at every width.

`python -m tests.test_terminal_widths` writes the files anew; look at the difference before you commit it.
"""

import html
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.judge.compare import compare_runs
from harness.judge.gate import comparison_outcome, run_outcome
from harness.measure.result import compare_page, run_page
from harness.measure.values import compare_document, run_document
from harness.nightly.junit import night_junit
from harness.nightly.reports import night_html
from harness.nightly.show import night_page
from harness.plan.show import plan_page
from harness.plan.show_layouts import layouts_page
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch
from harness.records.sweep import read_sweep
from harness.show.page import LONGEST_ANSWER, Page
from harness.show.terminal import Console, print_page
from harness.sweep.judge import judge_sweep
from harness.sweep.page import sweep_page
from tests.conftest import build_cell, build_golden, build_record, build_runs, build_spec, build_sweep
from tests.nightly.conftest import build_night
from tests.nightly.reported_nights import NIGHTS
from tests.plan.test_plan_terminal import TE, planned
from tests.plan.test_plan_terminal import layouts as several

ROOT = Path(__file__).parents[1]
WRITE = "MBR_PERF_TESTS_WRITE_TERMINAL"
REWRITE = "an output differs from tests/data/terminal: read it, then python -m tests.test_terminal_widths keeps it"
KEPT = ROOT / "tests" / "data" / "terminal"
RESULTS = "--results_dir tests/data/results"
KEPT_WIDTH, WIDTHS = "80", ("60", "80", "200", "pipe")
COMMANDS = {
    "tasks": "",
    "recipes_list": "recipes list",
    "recipes_show": "recipes show llama3_8b",
    "golden_list": "golden list",
    "golden_show": "golden show h100/llama3_70b.sft.fp8_cs.32gpu.core_attn",
    "results_list": f"results list {RESULTS}",
    "results_show": f"results show run-1 {RESULTS}",
    "results_show_sweep": f"results show sweep-1 {RESULTS}",
    "results_show_night": f"results show night-1 {RESULTS}",
    "compare": f"compare run-1 {RESULTS}",
    "explain": f"explain run-1 run-1 {RESULTS}",
    "explain_cells": "explain tests/data/sweeps/cpu_oom/cells/002/0 tests/data/sweeps/cpu_oom/cells/001/0",
    "check_refused": "check -mr llama3_70b -g h100 -c fp8_cs -ng 32 --task sft --recompute_modules mlp,moe_act",
    "diagnose": f"diagnose run-1 --no_plan {RESULTS}",
}
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FIGURE = re.compile(r"[\d.]+ (?:GiB|MiB|KiB|ms|TFLOP/s/GPU|%)")
_TO_COPY = re.compile(r"mbr-perf |Megatron-(?:Bridge: |LM[ :])|(?:[\w.-]+/){3,}|results/runs/|Z-[\w.-]+-[0-9a-f]{8}$")
_PATH = re.compile(r"(?:[\w.-]+/){3,}[\w.,-]+")


GPU_SWEEP = (
    ("none", [1.00, 1.01, 0.99], 70), ("mlp", [1.10, 1.11, 1.09], 60), ("core_attn,layernorm", [1.10, 1.12, 1.10], 66),
    ("full:uniform:1", [1.30, 1.31, 1.30], 31),
)  # fmt: skip


def plan_of(**changes):
    return planned(build_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE}, **changes))


def layouts():
    refused = "A01: tensor_model_parallel_size 3 does not divide 64 attention heads; choose a divisor"
    other = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "sequence_parallel": True}
    return several(**{"tp=4 vp=5": plan_of(), "tp=8 vp=none": plan_of(parallelism=other), "tp=3 vp=5": refused})


def judged(seconds, tflops):
    """A run of a published setting and its comparison with a golden."""
    record = build_record(build_spec(recompute="core_attn,layernorm"), seconds)
    golden = build_golden(record, {"tflops_per_gpu": tflops, "peak_allocated_bytes": 58e9})
    search = GoldenSearch(golden, Path("results/golden/h100/llama3_70b.sft.fp8_cs.32gpu.core_attn,layernorm.json"), "")
    return record, *compare_runs([record], search, GateOptions())


def result(seconds, tflops):
    record, metrics, comparison = judged(seconds, tflops)
    folder = Path("results/runs/20260102T030405Z-llama3_70b-0a1b2c3d")
    verdict = run_outcome(record.status, comparison)
    return run_page(run_document(record, metrics, comparison, verdict, folder, [record.run_id]))


def comparison(seconds, tflops):
    record, metrics, compared = judged(seconds, tflops)
    return compare_page(
        compare_document({Path(record.run_id): record}, metrics, compared, comparison_outcome(compared))
    )


def gpu_sweep():
    return build_sweep([build_cell(name, build_runs(name, *figures)) for name, *figures in GPU_SWEEP])


BY_GOLDENS = GateOptions(golden_values_path=Path("results/golden"))
PAGES: dict[str, Callable[[], Page]] = {
    "plan": lambda: plan_page(plan_of(), ()),
    "plan_layouts": lambda: layouts_page(layouts()),
    "run": lambda: result([2.5] * 50, 800.0),
    "compare_regression": lambda: comparison([2.5] * 50, 800.0),
    "sweep_cpu": lambda: sweep_page(judge_sweep(read_sweep("tests/data/sweeps/cpu_oom"), BY_GOLDENS)),
    "sweep_gpu": lambda: sweep_page(judge_sweep(gpu_sweep())),
    "night": lambda: night_page(build_night()),
}


_OF_TERMINALS = ("COLUMNS", "FORCE_COLOR", "TERM")


@pytest.fixture
def printed(mbr_perf, monkeypatch):
    """Both streams as a terminal of some columns, or a pipe, gets them, without colours.

    A question to another process (NVML, megatron-core) has the same answer at every width. The fixture asks it once.
    """
    ask, answers = subprocess.run, {}

    def ask_once(command, **options):
        environment = (options.get("env") or os.environ).items()
        others = frozenset((name, value) for name, value in environment if name not in _OF_TERMINALS)
        question = command, options.get("input"), options.get("cwd"), others
        if question not in answers:
            answers[question] = ask(command, **options)
        return answers[question]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(subprocess, "run", ask_once)

    def run(command, width):
        for name in _OF_TERMINALS:
            monkeypatch.delenv(name, raising=False)
        terminal = {} if width == "pipe" else {"COLUMNS": width, "FORCE_COLOR": "1", "TERM": "xterm"}
        for name, value in terminal.items():
            monkeypatch.setenv(name, value)
        answer = mbr_perf(*command.split())
        text = _STEERING.sub("", answer.out + answer.err).replace(str(ROOT), "/checkout")
        return _trimmed(text)

    return run


def drawn(page, width, color_system=None):
    """The page as a terminal of ``width`` columns, or a pipe, gets it."""
    out, of = io.StringIO(), {} if width == "pipe" else {"width": int(width), "force_terminal": True}
    print_page(
        Console(file=out, highlight=False, no_color=not color_system, color_system=color_system, **of), page.brief
    )
    return _trimmed(out.getvalue())


def _trimmed(text):
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def kept(name, text):
    if WRITE in os.environ:
        (KEPT / name).write_text(text, encoding="utf-8")
    return (KEPT / name).read_text(encoding="utf-8")


def holds_at_every_width(texts):
    """What a terminal drops may be missing; what it shows is whole and fits, and no heading comes twice."""
    for width, shown in texts.items():
        for whole in (_FIGURE, _PATH):
            assert set(whole.findall(shown)) <= set(whole.findall(texts["pipe"]))
        if width != "pipe":
            first, *others = shown.splitlines()
            wide = [line for line in others if len(line) > int(width)]
            assert len(first) <= LONGEST_ANSWER
            assert [line for line in wide if not _TO_COPY.search(line)] == []
        assert shown.splitlines().count(shown.splitlines()[0]) == 1


_SLOW = "check_refused", "recipes_list"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in COMMANDS])
def test_an_output_is_as_it_was_looked_at(name, printed):
    texts = {width: printed(COMMANDS[name], width) for width in WIDTHS}
    assert texts[KEPT_WIDTH] == kept(f"{name}.txt", texts[KEPT_WIDTH]), REWRITE
    holds_at_every_width(texts)


@pytest.mark.parametrize("name", PAGES)
def test_an_answer_is_as_it_was_looked_at(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = PAGES[name]()
    texts = {width: drawn(page, width) for width in WIDTHS}
    assert texts[KEPT_WIDTH] == kept(f"{name}.txt", texts[KEPT_WIDTH]), REWRITE
    holds_at_every_width(texts)


def test_colours_are_as_they_were_looked_at():
    text = drawn(PAGES["night"](), "120", "standard").replace("\x1b[", "ESC[")
    assert text == kept("night.colours.txt", text), REWRITE


@pytest.mark.parametrize("name", NIGHTS)
def test_the_reports_of_a_night_are_as_they_were_looked_at(name):
    night = NIGHTS[name]()
    page = re.sub(r"<(style|script)>.*?</\1>|<path[^>]*>", "", night_html(night), flags=re.DOTALL)
    page = re.sub(r'<span class="word">(.*?)</span>', r"\1", page.replace("<wbr>", ""))
    page = re.sub(r"</t[dh]><t[dh][^>]*>", " | ", page)
    words = re.sub(r"\n\s*\n+", "\n", html.unescape(re.sub(r"<(?!a href)[^>]*>", "\n", page)))
    text = f"{drawn(night_page(night), KEPT_WIDTH)}\n{words}\n{night_junit(night)}"
    assert text == kept(f"night_{name}.txt", text), REWRITE


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", "looked_at", __file__]
    sys.exit(subprocess.call(command, env=os.environ | {WRITE: "1"}))
