"""The request of `mbr-perf plan`, its checks, and notes on what a plan is made from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from harness.errors import BadRequestError, Problems, closest, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import SPARE
from harness.experiment.modules import MODULES
from harness.experiment.recompute import NoRecompute, canonical_text, parse_recompute
from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software
from harness.launch.machine import installed_software
from harness.predict.draws import CONSTANT, LENGTHS, ROUTING, Varied
from harness.predict.exact import RECOMMENDED
from harness.predict.limits import Limits
from harness.predict.search import Candidates
from harness.predict.shipped_traces import find_events
from harness.predict.tracer import release_of, source_of
from harness.resolve.recipe import Request
from harness.units import GIB


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """All that `mbr-perf plan` asks for. ``only`` and ``exact``: settings to plan, empty for all, and to trace whole.

    ``over``: values by name of `harness.resolve.sweep_file.SWEPT`; None turns interleaving off.
    """

    asked: Request
    margin: float = SPARE
    fit_into_gib: float | None = None
    max_overhead: float | None = None
    over: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    use_cache: bool = True
    assume: str | None = None
    exact: tuple[str, ...] = ()
    use_calibration: bool = True
    only: tuple[str, ...] = ()
    search: bool = False
    max_minutes: float | None = None
    varied: Varied = CONSTANT
    optimal: bool = False
    layers_too: bool = False

    def points(self) -> list[dict[str, int | None]]:
        """Return every combination of ``over``, one of nothing without it."""
        names = [name for name, _ in self.over]
        return [dict(zip(names, values, strict=True)) for values in product(*(values for _, values in self.over))]

    @property
    def num_gpus(self) -> list[int]:
        return sorted(size for name, values in self.over if name == "ng" for size in values if size)

    def limits(self, spec: ExperimentSpec) -> Limits:
        """Return the limits of a rank of ``spec``, with `--fit_into` in the place of its memory."""
        known = replace(Limits.of(spec, self.margin), max_overhead=self.max_overhead)
        if self.fit_into_gib is None:
            return known
        whole = int(self.fit_into_gib * GIB)
        return replace(known, capacity_bytes=whole, beside_bytes=0, whole_bytes=whole)


def check_plan(request: PlanRequest) -> None:
    """Raise BadRequestError with everything that is wrong in any recipe."""
    problems = Problems()
    if not 0 <= request.margin < 1:
        problems.add(f"--margin {request.margin:g} must be a share of the memory, from 0 to below 1", "e.g. 0.06")
    if request.fit_into_gib is not None and not 0 < request.fit_into_gib < inf:
        problems.add(f"--fit_into {request.fit_into_gib:g} must be above 0 GiB and finite")
    if request.max_overhead is not None and not 0 <= request.max_overhead <= 1:
        share = "must be a share of the step time, from 0 to 1"
        problems.add(f"--max_overhead {request.max_overhead:g} {share}", "e.g. 0.1")
    if request.layers_too and not request.optimal:
        problems.add("--layers_too moves layers for the plan of --optimal", "add --optimal")
    if request.max_minutes is not None and not (request.search and 0 < request.max_minutes < inf):
        what = f"--max_minutes {request.max_minutes:g}: the minutes, above 0, after which --search ends"
        problems.add(what, "e.g. --search --max_minutes 5")
    if request.search:
        _check_search(request, problems)
    _check_settings(problems, "--exact", [text for text in request.exact if text != RECOMMENDED])
    _check_settings(problems, "--only", request.only)
    problems.raise_if_any()


def _check_settings(problems: Problems, option: str, settings: Iterable[str]) -> None:
    for text in settings:
        try:
            parse_recompute(text)
        except ValueError as error:
            problems.add(f"{option} {text}: {error}", _meant(text))


def _check_search(request: PlanRequest, problems: Problems) -> None:
    """Note the options that `--search` excludes."""
    for option, value in (
        ("--over", [name for name, _ in request.over if name != "ng"]),
        ("--only", request.only),
        ("--exact", request.exact),
        (LENGTHS, request.varied.lengths),
        (ROUTING, request.varied.routing),
        ("--optimal", request.optimal),
    ):
        if value:
            but = " of other names than ng" * (option == "--over")
            excluded = f"--search excludes {option}{but}"
            problems.add(excluded, f"omit {option}, or --search")


def _meant(text: str) -> str:
    """Return the nearest settings of the words in ``text``; empty where none is near."""
    known = [*MODULES, "none", "full:uniform:1", "full:block:1", RECOMMENDED]
    near = [closest(word, known) for word in text.split(",") if word not in known]
    return f"did you mean {', '.join(repr(each[0]) for each in near if each)}?" if any(near) else ""


def source_notes(release: str | None, spec: ExperimentSpec) -> tuple[str, ...]:
    """Say of a plan for ``release`` where its layers and requests for memory are not those of that release."""
    installed = installed_software()
    wanted, requests = release_of(release, installed), ""
    if not spec.gpu_type.is_cpu and not find_events(wanted, installed):
        known = f"Reserved and Fits take the ratios of jobs with megatron-core {ASSUMED_MEGATRON_CORE}"
        requests = f"mbr-perf brings no requests for memory that hold for megatron-core {wanted}: {known}"
    return tuple(filter(None, (_traces_note(release, wanted, installed), requests)))


def _traces_note(release: str | None, wanted: str, installed: Software) -> str:
    """A note if a prediction for ``release`` does not show the layers of an installed megatron-core of that release."""
    source = source_of(release, installed)
    if source.shipped and source.cannot_trace:
        here = "" if source.is_other else "torch and megatron-core are not installed: "
        return f"{here}predicted for megatron-core {wanted} from traces that mbr-perf brings (--assume for others)"
    if wanted != installed.megatron_core and not source.cannot_trace:
        have = f"the layers are those of the installed megatron-core {installed.megatron_core}"
        return f"{have}; mbr-perf brings no traces for {wanted}"
    return ""


def chosen(found: Candidates, only: tuple[str, ...]) -> Candidates:
    """Keep the settings of ``only`` and the one without recompute; BadRequestError names all unknown settings."""
    if not only:
        return found
    rows = {canonical_text(row.spec.recompute): row for row in found.rows}
    wanted = {canonical_text(parse_recompute(text)): text for text in only}
    unknown = [text for key, text in wanted.items() if key not in rows]
    problem = "not in this plan, which lists equal settings once"
    remedy = f"one of: {' '.join(row.text for row in found.rows)}"
    raise_all([BadRequestError(f"--only {text}: {problem}", remedy=remedy) for text in unknown])
    keep = {*wanted, NoRecompute().text}
    return replace(found, rows=tuple(row for key, row in rows.items() if key in keep))
