"""Reads a file with a plan of recompute by layer, as `plan --optimal --plan_file` writes it."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from harness.errors import BadRequestError, Problems
from harness.experiment.recompute_plan import LayerGroup, PlannedRecompute
from harness.records.strict_yaml import read_yaml

_KEYS = ("stage", "chunk", "layers", "setting")
_REMEDY = 'as in recompute_plan: [{stage: 0, chunk: 0, layers: 2, setting: "full"}], one row for layers in a row'
_MOST = 4096  # more stages or chunks than a job has


def is_plan_file(text: str) -> bool:
    """Return whether a setting names a file."""
    return text.endswith((".yaml", ".yml"))


def read_plan(path: Path) -> PlannedRecompute:
    """Return the plan of a file. BadRequestError with every problem of its rows."""
    root = read_yaml(path, str(path)).value
    rows = root.get("recompute_plan") if isinstance(root, Mapping) and len(root) == 1 else None
    if not isinstance(rows, tuple) or not rows:
        raise BadRequestError(f"{path}: needs the one key recompute_plan with a list of rows", remedy=_REMEDY)
    problems, groups = Problems(), dict[tuple[int, int], list[LayerGroup]]()
    for number, row in enumerate(rows):
        if found := _row(row, f"{path}: recompute_plan[{number}]", problems):
            groups.setdefault(found[0], []).append(found[1])
    problems.raise_if_any()
    num_stages, num_chunks = (max(place[at] for place in groups) + 1 for at in (0, 1))
    try:
        return PlannedRecompute(
            stages=tuple(
                tuple(tuple(groups.get((stage, chunk), ())) for chunk in range(num_chunks))
                for stage in range(num_stages)
            )
        )
    except ValidationError as error:
        raise BadRequestError(f"{path}: {error.errors()[0]['msg']}", remedy="write their row first") from error


def _row(row: object, place: str, problems: Problems) -> tuple[tuple[int, int], LayerGroup] | None:
    """Return stage and chunk of a row, and its layers; None with every problem of it."""
    if not isinstance(row, Mapping) or {*row} != {*_KEYS}:
        problems.add(f"{place}: needs {', '.join(_KEYS)}, and nothing else", _REMEDY)
        return None
    bad = [name for name in _KEYS[:2] if type(row[name]) is not int or not 0 <= row[name] < _MOST]
    for name in bad:
        problems.add(f"{place}.{name}: must be a number from 0 on, is {row[name]!r}", "count stages and chunks from 0")
    try:
        group = LayerGroup(layers=row["layers"], setting=row["setting"])
    except ValidationError as error:
        for fault in error.errors():
            problems.add(f"{place}.{fault['loc'][0]}: {fault['msg']}, is {fault['input']!r}", _REMEDY)
        return None
    return None if bad else ((row["stage"], row["chunk"]), group)
