"""One sitting: understand the options, see whether the machine is fit, go through the stages, keep every case."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from case import Case, Check, Part, Unfinished, case_name, in_rounds, judged
from checks import GPU_ONLY
from environment import ATTENTIONS, DTYPES, SHAPES, STAGES
from evidence import archive_problem, cases_page, earlier_cases, exit_code, pack, write_case, write_summary
from machine import Target, find_target, require_fit
from ooms import make_ooms, survive_oom
from planner import compare, groups
from runs import Runs
from several_gpus import compare_layouts
from shapes import FIRST, Shape, shapes
from snapshots import read_snapshots
from training import train_settings

from harness.errors import BadRequestError, ExitCode, HarnessError, raise_all
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import this_host
from harness.launch.warm import WarmParents
from harness.predict.prediction import BOUNDS, BUILT_IN
from harness.probe.run import probe as measured
from harness.records.folders import results_dir
from harness.records.redact import redact_shapes
from harness.show.page import Line, visible
from harness.show.terminal import narrate, show_blocks, show_page

HERE = Path(__file__).parent
PROBE = "probe"


@dataclass(frozen=True)
class Asked:
    """``recompute``: only these settings besides none. ``is_named``: the shapes were chosen by name."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    attentions: tuple[str, ...]
    recompute: tuple[str, ...] | None = None
    is_named: bool = False


def sit(options: argparse.Namespace) -> int:
    """Return the exit code; see ``--help``. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(_sit(options))
    except HarnessError as error:
        sys.stderr.write(visible(redact_shapes(f"error: {error}")) + "\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _sit(options: argparse.Namespace) -> ExitCode:
    stages, asked = understood(options)
    began = time.monotonic()
    target = find_target(this_host(), HERE, rehearse=options.rehearse)
    warnings = require_fit(target, results_dir())
    runs_dir = results_dir() / "runs" / f"gpu-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder = options.out or (runs_dir if target.is_rehearsal else results_dir() / "gpu") / target.gpu
    earlier = earlier_cases(folder, target)
    kept = earlier.kept if options.resume else {}
    runs = Runs(target, runs_dir, began + options.minutes * 60, HERE, kept)
    where = f"checking {target.device} ({target.gpu}); its runs are in {runs_dir}"
    narrate(*(f"doctor: {warning}" for warning in warnings), Line(where, whole=True), *earlier.notes)
    found, there = dict[str, Case](), earlier.cases
    try:
        for case in filter(None, in_rounds(RUN[stage](runs, asked) for stage in stages)):
            found[case.name] = case
            if not case.is_unknown or case.name not in there:
                there[case.name] = case
            if runs.kept.get(case.name) is not case:
                write_case(folder, target, case)
            write_summary(folder, target, list(there.values()), time.monotonic() - began)
            narrate(f"{case.verdict:8} {case.name} ({case.seconds:.0f} s)")
    finally:
        if options.archive:
            pack(options.archive, folder, runs_dir)
    cases = list(found.values())
    show_page(cases_page(cases))
    show_blocks(Line(f"exit {int(exit_code(cases))}, {time.monotonic() - began:.0f} s, {folder}", whole=True))
    return exit_code(cases)


def understood(options: argparse.Namespace) -> tuple[tuple[str, ...], Asked]:
    """Return the stages and what they are about, in the order of the tables. BadRequestError with every problem."""
    problems: list[BadRequestError] = []
    stages = _chosen("--only", options.only, STAGES, problems)
    names = _chosen("--shapes", options.shapes, SHAPES, problems)
    dtypes = _chosen("--dtypes", options.dtypes, DTYPES, problems)
    attentions = _chosen("--attention", options.attention, ATTENTIONS, problems)
    if options.archive and (problem := archive_problem(options.archive)):
        problems.append(BadRequestError(problem))
    if not options.minutes > 0:
        problems.append(BadRequestError(f"--minutes {options.minutes:g} must be above 0"))
    recompute = []
    for text in options.recompute or ():
        try:
            recompute.append(parse_recompute(text).text)
        except ValueError as error:
            problems.append(BadRequestError(f"--recompute {text}: {error}"))
    raise_all(problems)
    found = tuple(shape for shape in shapes(HERE) if shape.name in names)
    return stages, Asked(found, dtypes, attentions, tuple(recompute) or None, is_named=options.shapes is not None)


def _chosen(option: str, text: str | None, known: Collection[str], problems: list[BadRequestError]) -> tuple[str, ...]:
    wanted = list(known) if text is None else [name.strip() for name in text.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        message = f"{option}: there is no {', '.join(map(repr, unknown))}"
        problems.append(BadRequestError(message, remedy=f"known: {', '.join(known)}"))
    return tuple(name for name in known if name in wanted)


def probe(runs: Runs) -> Part:
    """Measure single operations, and judge whether each constant is one that a calibration accepts."""
    if kept := runs.kept.get(PROBE):
        yield kept
        return
    if runs.left_s("program") is None:
        yield Unfinished().case(PROBE)
        return
    began, is_rehearsal = time.monotonic(), runs.target.is_rehearsal
    try:
        facts = measured(runs.target.host, lambda *_: None, rehearse=is_rehearsal).model_dump(mode="json")
        checks = tuple(_plausible(runs.target.gpu, *each) for each in facts["constants"].items())
        why = f"{GPU_ONLY}: a CPU's rates say nothing of one"
        checks = (Check("plausible", "skipped", why),) if is_rehearsal else checks
    except HarnessError as error:
        facts, checks = {}, (judged("made", holds=False, found=error.message),)
    yield Case(PROBE, checks=checks, seconds=time.monotonic() - began, facts={} if is_rehearsal else facts)


def _plausible(gpu: str, name: str, value: float) -> Check:
    (low, high), built_in = BOUNDS[name], getattr(BUILT_IN.efficiency(gpu), name, BUILT_IN.outside_allocator_bytes)
    return judged(name, holds=low <= value <= high, found=f"{value:.3g}, the planner's own is {built_in:.3g}")


def _planner(runs: Runs, asked: Asked) -> Part:
    missing = {shape: case for shape in asked.shapes if (case := _needs_te(runs.target, asked, shape, "planner"))}
    able = [shape for shape in asked.shapes if shape not in missing]
    yield from missing.values()
    with WarmParents() as parents:
        every = (groups(runs, shape, dtype, asked.attentions) for dtype in asked.dtypes for shape in able)
        yield from in_rounds(compare(runs, group, asked.recompute, parents) for group in chain.from_iterable(every))


def _train_shape(runs: Runs, asked: Asked, shape: Shape) -> Part:
    missing = _needs_te(runs.target, asked, shape, "train")
    for case in [missing] if missing else train_settings(runs, shape, asked.recompute):
        yield case
        if case.recompute == FIRST[-1]:
            yield None


def _needs_te(target: Target, asked: Asked, shape: Shape, stage: str) -> Case | None:
    """Return the skipped case of a shape that needs transformer-engine; a shape that was named is tried without it."""
    if not shape.needs_te or asked.is_named or target.is_rehearsal or target.software.transformer_engine:
        return None
    return Case(case_name(shape.name, stage), checks=(Check(stage, "skipped", "transformer-engine is not installed"),))


RUN: dict[str, Callable[[Runs, Asked], Part]] = {
    "probe": lambda runs, _: probe(runs),
    "planner": _planner,
    "train": lambda runs, asked: in_rounds(_train_shape(runs, asked, shape) for shape in asked.shapes),
    "oom": lambda runs, asked: chain(survive_oom(runs, asked.shapes[0]), make_ooms(runs)),
    "snapshot": lambda runs, asked: read_snapshots(runs, asked.shapes[0]),
    "parallel": lambda runs, _: compare_layouts(runs, HERE),
}
