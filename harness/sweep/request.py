"""The request of a sweep, and its axes."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError, Problems, nearest, raise_all
from harness.experiment.gpu import SPARE
from harness.launch.environment import secrets_in
from harness.measure.understanding import RunRequest
from harness.records.batches import BatchLaunch
from harness.records.gating import GateOptions, LaunchSettings
from harness.records.redact import redact
from harness.resolve.options import set_settings
from harness.resolve.recipe import Request
from harness.resolve.recompute import policy_from_text
from harness.resolve.sweep_file import NO_AXIS, OPTION_NAMES, SHORT_NAMES, SIZES, SWEPT, Over, SweepFile
from harness.sweep.axes import AUTO, PYTHON, RECOMPUTE, SweptAxis, as_text, typed


def split_over(text: str, option: str = "--over") -> Over:
    """Split ``tp=2,4`` or ``recompute=none; mlp``; a ``;`` at the end: one value. BadRequestError without ``=``."""
    name, equals, values = text.partition("=")
    if not equals:
        raise BadRequestError(f"{option} {text}: no '='", remedy=f"e.g. {option} tp=2")
    separator = ";" if ";" in values or _plain(name.strip()) == RECOMPUTE else ","
    parts = [part.strip() for part in values.split(separator)]
    values_of = tuple(parts[:-1] if separator == ";" and len(parts) > 1 and not parts[-1] else parts)
    return Over(name.strip(), values_of, f"{option} {name.strip()}")


def read_axes(asked: Iterable[Over]) -> tuple[SweptAxis, ...]:
    """Read axes from the given names and values. BadRequestError with all problems."""
    problems = Problems()
    axes: list[SweptAxis] = []
    for over in asked:
        with problems.collecting():
            axis = _axis(over)
            twin = next((other for other in axes if other.leaf == axis.leaf), None)
            if twin:
                raise BadRequestError(f"{over.place}: {twin.name} is varied already", remedy="give its values once")
            axes.append(axis)
    problems.raise_if_any()
    return tuple(axes)


def read_control(text: str, axes: tuple[SweptAxis, ...]) -> dict[str, str]:
    """Read ``recompute=mlp tp=4``, or a cell's name, ``mlp tp=4``. BadRequestError for an unknown axis."""
    problems, chosen = Problems(), dict[str, str]()
    known = {axis.name: axis for axis in axes}
    for part in _parts(text):
        name, equals, value = part.partition("=")
        if not equals and RECOMPUTE in known:
            name, equals, value = RECOMPUTE, "=", part
        with problems.collecting():
            axis = known.get(_canonical(name)) if equals else None
            if axis is None:
                raise BadRequestError(
                    f"--control {redact(part)}: not AXIS=VALUE with an axis of this sweep",
                    remedy=f"axes: {', '.join(known)}",
                )
            chosen[axis.name] = _checked(axis.target, value, f"--control {name}")
    problems.raise_if_any()
    return chosen


def _parts(text: str) -> list[str]:
    """Split into words as a shell does, so that a quoted value may hold blanks. BadRequestError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadRequestError(f"--control {text}: {error}", remedy="quote values that hold blanks") from error


def _plain(name: str) -> str:
    """Return ``-mb``, ``--micro-batch-size`` and ``micro_batch_size`` without dashes; dotted paths stay."""
    return name if "." in name else name.lstrip("-").replace("-", "_")


def _canonical(name: str) -> str:
    """Return the axis' name in cells: `tp` for any spelling of it, the long name for most others."""
    plain = _plain(name)
    target = SWEPT.get(plain, SHORT_NAMES.get(plain, plain))
    return next((short for short, option in SIZES.items() if option == target), target)


def _axis(over: Over) -> SweptAxis:
    canonical = _canonical(over.name)
    target = SWEPT.get(canonical, canonical)
    if "." not in target and target not in (*OPTION_NAMES, PYTHON):
        hint = NO_AXIS.get(target) or nearest(target, (*SHORT_NAMES, *OPTION_NAMES))
        if target not in NO_AXIS and not hint.startswith("did you mean"):
            hint = f"one of {RECOMPUTE}, {PYTHON}, {', '.join(SIZES)}, a long option, env.NAME or section.field"
        raise BadRequestError(f"{over.place}: cannot be varied", remedy=hint)
    problems, read = Problems(), list[str]()
    for value in over.values:
        with problems.collecting():
            checked = _checked(target, value, over.place)
            if checked in read:
                raise BadRequestError(f"{over.place}: {value} is given twice", remedy="give each value once")
            read.append(checked)
    problems.raise_if_any()
    return SweptAxis(canonical, target, tuple(read))


def _checked(target: str, value: str, place: str) -> str:
    if not value and not target.startswith("env."):
        raise BadRequestError(f"{place}: an empty value", remedy=f"e.g. {place.partition(' ')[0]} tp=2")
    if target == RECOMPUTE:
        parts = [part.strip() for part in value.split(",")]
        if len(parts) > 1 and any(part in ("none", AUTO, "full") or part.startswith("full:") for part in parts):
            raise BadRequestError(
                f"{place}: {value} is not one setting: commas join the modules of one setting",
                remedy=f"separate settings with ';': recompute='{'; '.join(parts)}'",
            )
        return AUTO if value == AUTO else policy_from_text(value, place).text
    if target == PYTHON:
        return value
    if "." not in target:
        return as_text(typed(target, value, place))
    if target.startswith("env."):
        raise_all(secrets_in({target.removeprefix("env."): value}))
    problems = Problems()
    set_settings((f"{target}={value}",), problems)
    for problem in problems.found:
        raise BadRequestError(f"{place}: {problem.message.removeprefix(f'--set {target}: ')}", remedy=problem.remedy)
    return value


def same_axis(first: str, second: str) -> bool:
    """Return whether two names stand for the same axis."""
    return _canonical(first) == _canonical(second)


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The varied request, its axes and repeats. ``control``: empty for no recompute, or for the request itself."""

    asked: Request
    over: tuple[Over, ...]
    title: str = ""
    grid: bool = False
    repeats: int = 1
    control: str = ""
    prune: bool = True
    margin: float = SPARE
    force: frozenset[str] = frozenset()
    launch: BatchLaunch = field(default_factory=BatchLaunch)
    gate: GateOptions = field(default_factory=GateOptions)
    results_dir: Path | None = None

    def run_request(self, asked: Request) -> RunRequest:
        """Return the request of one cell, as the checks of `mbr-perf run` take it."""
        return RunRequest(
            asked=asked,
            starts=True,
            force=self.force,
            launch=LaunchSettings(launcher=self.launch.launcher, pass_env=self.launch.pass_env),
        )


def all_over(file: SweepFile | None, texts: "list[str] | tuple[str, ...]") -> tuple[Over, ...]:
    """Return the axes of the file, then of the command line, which replaces the file's axes of the same name."""
    problems, given = Problems(), list[Over]()
    for text in texts:
        with problems.collecting():
            given.append(split_over(text))
    problems.raise_if_any()
    kept = [over for over in (file.axes if file else ()) if not any(same_axis(over.name, g.name) for g in given)]
    return (*kept, *given)
