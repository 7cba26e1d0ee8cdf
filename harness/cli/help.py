"""How commands look in help: options and commands in groups by purpose, and three examples."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, cast

from harness.units import grouped

_PROGRAM = "mbr-perf"
_OTHER = "Options"
_LEAST_WIDTH = 20
_WIDEST = 28  # a longer name stands on a line of its own
_Row = tuple[str, tuple[str, str]]

LENGTH: ContextVar[Literal["short", "long", "all"]] = ContextVar("LENGTH", default="long")
_JOB = ("model_recipe_name", "gpu", "compute_dtype", "num_gpus", "task", "recompute", "tensor_model_parallel_size",
        "pipeline_model_parallel_size")  # fmt: skip
_OFTEN = {
    "run": (*_JOB, "max_steps", "repeats", "ab", "dryrun"),
    "check": (*_JOB, "megatron_args", "bridge_config", "assume", "explain"),
    "sweep": (*_JOB[:5], "over", "file", "repeats", "control", "resume", "results_dir", "dryrun"),
    "plan": (*_JOB[:6], "bridge_config", "hf", "over", "fit_into", "html"),
    "nightly": ("suite", "only", "resume", "against", "junit", "html", "golden_dir", "dryrun", "results_dir"),
    "diagnose": (*_JOB, "megatron_args", "no_plan", "results_dir"),
    "compare": ("repeat", "follow", "timing_threshold", "memory_threshold", "accept_differences",
                "fail_on_improvement", "results_dir"),
    "import": (*_JOB, "log", "results_dir"),
    "recipes export": (*_JOB, "bridge_config", "megatron_args", "form"),
    "recipes new": (*_JOB, "hf", "bridge_config", "megatron_args", "output"),
    "golden promote": ("what", "reason", "case", "every", "only", "author", "dryrun", "golden_dir", "results_dir"),
}  # fmt: skip
"""What people use, by the names of parameters; every command with answers also has -q, -v and --json."""
_TWINS = ("recompute_granularity", "recompute_method", "distribute_saved_activations", "point_gpu")


_PLAN = "plan -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32"

TASKS = (
    ("I have a model and GPUs. Which recompute setting fits, and what does it cost?", _PLAN),
    ("My job ran out of memory, or became slow. Why?", "diagnose train.log"),
    ("Is this log or run slower than that one?", "compare train.log golden.json"),
    (
        "Which setting is best on this machine? Measure it.",
        "sweep -mr llama3_8b --over recompute='none; mlp' --repeats 3",
    ),
    ("Is tonight's build still as good as yesterday's?", "nightly cpu_smoke --junit junit.xml --html pages"),
)


def examples() -> Mapping[str, list[str]]:
    """Return command lines by command (``golden list``), without the program's name."""
    from harness.records.strict_yaml import table_in

    return cast(dict[str, list[str]], table_in(Path(__file__).with_name("examples.yaml")))


def write_command(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the docstring, arguments, options by panel, and examples, which are never wrapped."""
    command.format_usage(ctx, formatter)
    length, path = LENGTH.get(), ctx.command_path.removeprefix(f"{_PROGRAM} ")
    often = _OFTEN.get(path)
    if length == "short" and often:
        _write_often(command, ctx, formatter, often)
    else:
        _write_help(command, formatter)
        _write_panels(formatter, [("Arguments", record) for _, record in _records(command, ctx, "argument")])
        options = _records(command, ctx, "option", but=() if length == "all" else _TWINS)
        if command.takes_experiment and length == "all":
            from harness.cli.bridge import help_rows

            options += [("As in Megatron-Bridge", row) for row in help_rows()]
        _write_panels(formatter, sorted(options, key=lambda row: row[0] == _OTHER))
    _write_examples(formatter, examples().get(path, ()))


def _write_examples(formatter: Any, lines: Sequence[str]) -> None:
    formatter.write("\nExamples:\n" + "".join(f"  {_PROGRAM} {line}\n" for line in lines) if lines else "")


def _write_often(command: Any, ctx: Any, formatter: Any, often: Collection[str]) -> None:
    formatter.write(f"\n{_wrapped(_sentence(command.help or ''), 2, formatter.width)}\n")
    names = (*often, "as_json", "quiet", "verbose")
    hidden = {each.name for each in command.params} - set(names)
    rows = [
        ("Most used", (name, _sentence(text)))
        for kind in ("argument", "option")
        for _, (name, text) in _records(command, ctx, kind, but=hidden)
        if "--help" not in name
    ]
    _write_panels(formatter, rows)
    formatter.write(f"\nAll options: {ctx.command_path} --help\n")


def _sentence(text: str) -> str:
    first, *_ = re.split(r"(?<!e\.g)\. ", " ".join(text.split()))
    return f"{first.removesuffix('.')}."


def write_group(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the paragraphs of the docstring, commands in the order of ``panels``, then options."""
    group.format_usage(ctx, formatter)
    _write_help(group, formatter)
    found = ((name, group.get_command(ctx, name)) for name in group.list_commands(ctx))
    rows = [
        (getattr(command, "rich_help_panel", None) or "Commands", (name, command.get_short_help_str(200)))
        for name, command in found
        if command is not None and not command.hidden
    ]
    order = {panel: place for place, panel in enumerate(group.panels)}
    _write_panels(formatter, sorted(rows, key=lambda row: order.get(row[0], 0)))
    _write_panels(formatter, _records(group, ctx, "option"))
    known = examples()
    of_each = (known.get(f"{group.name} {name}", ())[:1] for name in group.list_commands(ctx))
    _write_examples(formatter, [line for lines in of_each for line in lines][:3])


def tasks_text() -> str:
    """Return what `mbr-perf` alone prints: the five tasks, each with a command to copy, and where to read on."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns)
    pitch = "mbr-perf finds the activation-recompute setting for a Megatron training job."
    tasks = "\n\n".join(f"{textwrap.fill(task, width)}\n    {_PROGRAM} {line}" for task, line in TASKS)
    return f"""{textwrap.fill(pitch, width)}

{tasks}

All commands:                {_PROGRAM} --help
One command, with examples:  {_PROGRAM} plan -h
What there is to ask for:    {_PROGRAM} recipes list
This machine:                {_PROGRAM} doctor"""


def _records(command: Any, ctx: Any, kind: str, but: Collection[str] = ()) -> list[_Row]:
    rows = []
    for parameter in command.get_params(ctx):
        record = None if parameter.name in but else parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name == kind:
            name = record[0].partition(" <")[0] if parameter.metavar else record[0]  # ` <list[str]>` behind a metavar
            rows.append((getattr(parameter, "rich_help_panel", None) or _OTHER, (name, record[1])))
    return rows


def _write_help(command: Any, formatter: Any) -> None:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        formatter.write(f"\n{_wrapped(paragraph, 2, formatter.width)}\n")


def _write_panels(formatter: Any, rows: Sequence[_Row]) -> None:
    for title, records in grouped(rows).items():
        column = 4 + max((len(name) for name, _ in records if len(name) <= _WIDEST), default=_WIDEST)
        formatter.write(f"\n{title}:\n")
        for name, text in records:
            lines = _wrapped(text, column, formatter.width)
            fits = len(name) <= column - 4
            formatter.write(f"  {name:<{column - 2}}{lines.lstrip()}\n" if fits else f"  {name}\n{lines}\n")


def _wrapped(text: str, indent: int, width: int) -> str:
    """Wrap the text. Nothing breaks within a word: a word may be part of a command."""
    blanks = " " * indent
    return textwrap.fill(
        " ".join(text.split()),
        width,
        initial_indent=blanks,
        subsequent_indent=blanks,
        break_on_hyphens=False,
        break_long_words=False,
    )
