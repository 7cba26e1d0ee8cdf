"""`mbr-perf plan`: which recompute setting to use, without a GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import ExperimentOptions, Explain, Json, flag, option, options

if TYPE_CHECKING:
    from harness.plan.request import PlanRequest
    from harness.plan.run import Layout, Planned
    from harness.show.page import Line, Page


_PLAN, _CAL = "Plan", "Calibration"


# fmt: off
@options({"margin": _PLAN, "calibrate": _CAL, "html": ""})
class PlanOptions:
    """What must fit, what to vary, and what to print."""

    margin: Annotated[float, option("FRACTION", "Share of the GPU's memory that must stay free.")] = 0.02
    fit_into: Annotated[float | None, option("GIB", "Memory to fit into instead of the GPU's, in GiB, e.g. 60.")] = None
    max_overhead: Annotated[float | None, option("FRACTION", "Recommend no setting that makes a step longer by more "
        "than this share.")] = None
    over: Annotated[list[str] | None, option("NAME=N,N...", "Plan for several sizes: tp, pp, vp, cp, ep, et, mb, gb, "
        "sl or ng, e.g. --over tp=4,8 pp=4,8 vp=none,5.")] = None
    lengths: Annotated[str | None, option("MEAN,SPREAD|FILE", "Tokens of sequences that vary up to the sequence "
                                                              "length; a file has TOKENS,COUNT on each line.")] = None
    routing: Annotated[str | None, option("MEAN,SPREAD|FILE", "Tokens that an expert gets of a micro-batch, where they "
        "vary: as --lengths.")] = None
    search: Annotated[bool, flag("Search all layouts (TP, PP, VP, CP, EP, ETP, micro-batch); sizes that you give "
                                 "stay. With --over ng=8,16,32: the fewest GPUs that anything fits into.")] = False
    max_minutes: Annotated[float | None, option("MINUTES", "End the search then, with the best so far.")] = None
    optimal: Annotated[bool, flag("Find the fastest recompute by layer that fits, with a proof.")] = False
    layers_too: Annotated[bool, flag("With --optimal: also move layers between pipeline stages, for about ten "
        "seconds.")] = False
    plan_file: Annotated[Path | None, option("FILE", "Also write that plan: *.yaml for --recompute, *.py for "
        "Megatron-LM and Megatron-Bridge.")] = None
    assume: Annotated[str | None, option("NAME=VERSION,...", "Judge for other software, e.g. transformer-engine=none "
        "for local layers.")] = None
    no_cache: Annotated[bool, flag("Trace again, without the cache.")] = False
    only: Annotated[list[str] | None, option("SETTING...", "Plan only these settings, e.g. mlp full:uniform:1. The "
        "plan always includes none.", completes=completion.settings)] = None
    exact: Annotated[list[str] | None, option("[SETTING...]", "Also trace whole steps of these settings over "
                                                              "megatron-core's schedule, e.g. mlp. "
                                                              "Default: the recommended one.")] = None
    show_all: Annotated[bool, flag("Print all settings and columns.", "--all")] = False
    columns: Annotated[str | None, option("NAME,NAME,...", "Print these columns: peak, usable, step, cost, range, "
        "tflops, fits, reserved, device, hfu, stage.")] = None
    calibrate: Annotated[list[str] | None, option("RUN|FILE...", "Fit the planner's constants to these runs "
                                                                 "(folders, ids, sweeps) of one GPU type; a file of "
                                                                 "`mbr-perf probe` fixes those that it has.",
        completes=completion.stored)] = None
    out: Annotated[Path | None, option("PATH", "File for --calibrate. Default: results/calibration/<gpu>.json, which "
        "plans and runs use.")] = None
    no_calibration: Annotated[bool, flag("Plan with the built-in constants.")] = False
    html: Annotated[Path | None, option("FILE", "Also write the answer as a page, with pictures.")] = None
    svg: Annotated[Path | None, option("FILE", "Also write the first of these pictures, as *.svg.")] = None
    step_trace: Annotated[Path | None, option("FILE", "Also write the predicted step of the fullest rank: *.json for "
        "Perfetto, *.pickle for torch's memory_viz.")] = None
    explain: Explain = False
    as_json: Json = False
# fmt: on


@takes(ExperimentOptions, PlanOptions)
def plan(asked: ExperimentOptions, how: PlanOptions) -> None:
    """Predict peak memory and step time of every recompute setting, and say which to use. Needs no GPU.

    mbr-perf traces real megatron-core layers without data. Exits 0 even if nothing fits.
    """
    if how.calibrate:
        _calibrate(asked, how)
        return
    from harness.launch.environment import this_host
    from harness.plan.run import plan_request
    from harness.show.progress import counting
    from harness.show.terminal import narration, show_page

    _require_writable(how)
    request = _request(asked, how)
    if how.search:
        _search(request, how)
        return
    with counting(narration(), "Stages traced") as progress:
        planned = plan_request(request, this_host(), progress)
    page = cache(lambda: _page(planned, request, how))
    written = _written(planned, page, how)
    if how.plan_file:
        from harness.plan.optimal import write_plan

        written.append(write_plan(how.plan_file, planned))
    if how.as_json:
        from harness.plan.rows import planned_document
        from harness.show import json

        json.answer(planned_document(planned))
        return
    show_page(replace(page(), blocks=(*page().blocks, *written)))


def _search(request: "PlanRequest", how: PlanOptions) -> None:
    """Search, and show the best layouts. Ctrl-C shows the best layouts so far, and exits 130."""
    from harness.errors import BadRequestError, ExitCode
    from harness.launch.environment import this_host
    from harness.plan.nearest import nearest_blocks
    from harness.plan.run import Planned
    from harness.plan.searching import fewest, search
    from harness.plan.show import with_columns
    from harness.plan.show_layouts import news, search_page
    from harness.show.progress import counting
    from harness.show.terminal import narration, show_page

    if _files(how):
        raise BadRequestError(f"--search writes no {_files(how)[0]}", remedy="plan the chosen layout with this option")
    with counting(narration(), "Layouts") as progress:
        report, numbers = partial(news, progress), request.num_gpus
        found = fewest(request, this_host(), numbers, report) if numbers else search(request, this_host(), report)
    if how.as_json:
        from harness.plan.rows import planned_document
        from harness.plan.searched import search_document
        from harness.show import json

        json.answer(
            planned_document(
                Planned(tuple(found.best), sources=found.sources), search_document(found, request), found.base.spec
            )
        )
    else:
        planned = Planned(tuple(found.best))
        nearest = nearest_blocks(planned.nearest_golden)
        page = search_page(found, request, show_all=how.show_all)
        page = with_columns(page, _columns(how)) if how.columns else page
        show_page(replace(page, blocks=(*page.blocks, *nearest)))
    if found.interrupted and not found.is_time_up:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _page(planned: "Planned", request: "PlanRequest", how: PlanOptions) -> "Page":
    from harness.plan.nearest import nearest_blocks
    from harness.plan.show import exact_section, plan_page, with_columns
    from harness.plan.show_layouts import layouts_page
    from harness.show.page import GAP, Block
    from harness.show.request_text import explanation, stop_lines

    first = planned.made[0]
    if len(planned.layouts) > 1:
        page = layouts_page(planned)
    else:
        is_beaten = bool(planned.optimal and planned.optimal.is_faster)
        page = plan_page(first.plan, planned.notes, own=_own_setting(request, first),
                         show_all=how.show_all or bool(how.only), is_beaten=is_beaten)  # fmt: skip
    if planned.optimal:
        from harness.plan.optimal import with_optimal

        page = with_optimal(page, planned)
    more: list[Block] = nearest_blocks(planned.nearest_golden)
    more += [exact_section(setting.recompute, setting.stages) for setting in planned.exact]
    if how.explain:
        more += [GAP, *explanation(first.settled.spec, first.settled.sources)]
    page = replace(page, blocks=(*stop_lines((planned.judged or first).settled.notes), *page.blocks, *more))
    return with_columns(page, _columns(how)) if how.columns else page


def _own_setting(request: "PlanRequest", layout: "Layout") -> str:
    """Return the setting of the request's recipe; empty for a job without a recipe."""
    from harness.resolve.resolve import resolve

    if request.asked.source is not None:
        return ""
    if not layout.settled.sources.get("recompute", "").startswith("-"):
        return layout.settled.spec.recompute.text
    names = (name for name in vars(request.asked) if name.startswith(("recompute", "distribute_saved")))
    point = {"gpu": layout.settled.spec.gpu, **layout.settled.from_point, **dict.fromkeys(names)}
    return resolve(replace(request.asked, **point)).spec.recompute.text  # type: ignore[arg-type]


def _columns(how: PlanOptions) -> list[str]:
    return [name.strip() for name in (how.columns or "").split(",") if name.strip()]


def _require_writable(how: PlanOptions) -> None:
    """BadRequestError, before anything is traced, for files that cannot be written and unknown columns."""
    from harness.errors import Problems
    from harness.plan.show import COLUMNS
    from harness.plan.step_trace import FORMATS, OPTION
    from harness.show.svg import require_file

    problems = Problems()
    if how.plan_file and not how.optimal:
        problems.add("--plan_file writes the plan of --optimal", "add --optimal")
    for name in _columns(how):
        if name not in COLUMNS:
            problems.add(f"--columns {name}: no such column", f"columns: {', '.join(COLUMNS)}")
    plan_file = ("--plan_file", how.plan_file, (".yaml", ".yml", ".py"))
    files = (("--html", how.html, (".html",)), ("--svg", how.svg, (".svg",)), (OPTION, how.step_trace, FORMATS))
    for name, path, formats in (*files, plan_file):
        with problems.collecting():
            if path:
                require_file(name, path, formats)
    problems.raise_if_any()


def _written(planned: "Planned", page: Callable[[], "Page"], how: PlanOptions) -> "list[Line]":
    """Write the files that options ask for; return a line for each, or why there is none."""
    from harness.show.page import Line

    if not _files(how):
        return []
    layout = planned.judged
    if layout is None or not layout.plan.predicted:
        return [Line("No file is written: no setting could be predicted.")]
    if how.step_trace:
        from harness.plan.step_trace import write_step_trace

        write_step_trace(how.step_trace, layout.step(), layout.plan.spec)
    if how.html or how.svg:
        from harness.plan.pictures import chief_pictures, pictured
        from harness.show.html import html
        from harness.show.svg import svg_file, write_file

        if how.html:
            write_file("--html", how.html, html(pictured(planned, page())))
        if how.svg:
            write_file("--svg", how.svg, svg_file(chief_pictures(planned)[0]))
    return [Line(f"Written: {path}", whole=True) for path in _files(how)]


def _files(how: PlanOptions) -> list[Path]:
    return [path for path in (how.html, how.svg, how.step_trace) if path]


def _calibrate(asked: ExperimentOptions, how: PlanOptions) -> None:
    from harness.errors import BadRequestError
    from harness.launch.environment import this_host
    from harness.measure.calibration_runs import calibrate
    from harness.plan.show_calibration import CalibrationDocument, calibration_page
    from harness.show.answer import answer

    if _files(how) or asked.model_recipe_name or asked.bridge_config or asked.hf or asked.megatron_args or asked.gpu:
        raise BadRequestError(
            "--calibrate plans nothing: it reads the settings from the runs",
            remedy="omit the recipe, its options, --html, --svg and --step_trace",
        )
    calibration, path = calibrate(how.calibrate or (), this_host(), how.out, use_cache=not how.no_cache)
    document = CalibrationDocument(path=path, calibration=calibration)
    answer(lambda: document, lambda: calibration_page(calibration, path), as_json=how.as_json)


def _request(asked: ExperimentOptions, how: PlanOptions) -> "PlanRequest":
    from harness.cli.requests import experiment_request, read, require_job
    from harness.errors import BadRequestError
    from harness.plan.request import PlanRequest
    from harness.predict.draws import read_varied

    if how.out:
        raise BadRequestError("--out needs --calibrate: it names a file for it", remedy="omit --out")

    request = experiment_request(asked)
    require_job(request, "--calibrate RUN")
    return read(
        PlanRequest,
        how,
        asked=request,
        fit_into_gib=how.fit_into,
        over=_over(how.over or []),
        varied=read_varied(how.lengths, how.routing),
        use_cache=not how.no_cache,
        use_calibration=not how.no_calibration,
    )


def _over(texts: list[str]) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    """Return the varied sizes. One BadRequestError for all invalid texts and for sizes that are varied twice."""
    from harness.errors import Problems
    from harness.resolve.sweep_file import SWEPT

    read, problems = dict[str, tuple[str, tuple[int | None, ...]]](), Problems()
    for text in texts:
        name, _, values = text.partition("=")
        numbers = [value.strip() for value in values.split(",")]
        counts = [(n.isdecimal() and int(n) > 0) or (n == "none" and name in ("vp", "vpp")) for n in numbers]
        if name not in SWEPT:
            problems.add(f"--over {text}: {name!r} cannot be varied", f"one of {', '.join(SWEPT)}, e.g. tp=2,4")
        elif not all(counts):
            problems.add(f"--over {text}: values are counts", f"e.g. --over {name}=2,4")
        elif SWEPT[name] in read:
            problems.add(f"--over {text}: varied twice", f"give all values at once, e.g. --over {name}=2,4")
        else:
            read[SWEPT[name]] = name, tuple(None if n == "none" else int(n) for n in numbers)
    problems.raise_if_any()
    return tuple(read.values())
