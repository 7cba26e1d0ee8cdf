"""Reads suite files strictly, with the line of each problem. Each case is a request for a recipe."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.experiment.model import Repeats
from harness.records.folders import SUITES
from harness.records.reading import Document
from harness.records.refusing import FileModel, Keys, RefusedError, one_of, refusing
from harness.records.strict_yaml import read_yaml
from harness.resolve.find import find_recipe_file
from harness.resolve.recompute import policy_from_text
from harness.resolve.suite import (
    THRESHOLD_METRICS,
    ExpectedFailure,
    Suite,
    SuiteCase,
    case_name,
    recompute_of,
    require_safe,
)
from harness.resolve.sweep_file import Options, as_texts, find_named, laid_over, request_of

_Metric = Annotated[str, one_of(THRESHOLD_METRICS, "no metric with a threshold:")]
_Fraction = Annotated[float, Field(gt=0, lt=1)]


def _settings(value: object) -> tuple[str, ...]:
    texts = as_texts(value)
    if not texts:
        raise RefusedError.at((), "must be text or a list of texts", "e.g. recompute: [none, core_attn]")
    for text in texts:
        policy_from_text(text)
    return texts


class _DefaultOptions(Options):
    recompute: Annotated[str | None, AfterValidator(refusing(lambda text: _settings(text)[0]))] = None


class _CaseOptions(Options):
    recompute: Annotated[tuple[str, ...], BeforeValidator(refusing(_settings))] = ()


class SuiteSettings(FileModel):
    """Keys that `defaults` and a case share. None and empty values set nothing."""

    request: Options = Field(
        default=_DefaultOptions(),
        description="long names of `mbr-perf run`'s options and their values; in a case `recompute` may be a list, "
        "one case for each",
    )
    repeats: Repeats | None = Field(default=None, description="runs of the case; default 1")
    thresholds: dict[_Metric, _Fraction] = Field(
        default={},
        description="allowed worsening by metric, a fraction; else the GPU type's. "
        f"Metrics: {', '.join(f'`{name}`' for name in THRESHOLD_METRICS)}",
    )
    golden: Literal["required", "optional"] | None = Field(
        default=None,
        description="`required` (default): inconclusive without a golden; `optional`: passes without a golden",
    )
    owner: str | None = Field(default=None, description="whom to ask")
    timeout: Annotated[float, Field(gt=0)] | None = Field(default=None, description="seconds for one run")


class SuiteDefaults(SuiteSettings):
    """The `defaults` of a suite."""

    request: _DefaultOptions = _DefaultOptions()


class CaseEntry(SuiteSettings):
    """One case as the file writes it."""

    request: _CaseOptions = _CaseOptions()
    name: Annotated[str, AfterValidator(refusing(require_safe))] = Field(
        default="",
        description="name of its folder; by default made of recipe, task, precision, GPUs, variant and recompute",
    )
    expected: ExpectedFailure | None = Field(
        default=None, description="a known failure that does not make the night red"
    )


class SuiteFile(FileModel):
    """A whole file."""

    title: str = Field(description="what the suite is for")
    source: str = Field(default="", description="where its cases are from")
    defaults: SuiteDefaults = SuiteDefaults()
    cases: Annotated[tuple[CaseEntry, ...], Field(min_length=1)]


def read_suite(name_or_path: str, directory: Path | None = None) -> Suite:
    """Read a suite by name or path; ``directory`` has its recipes. BadRequestError with every problem at its line."""
    path, label = find_named(SUITES, "suite", name_or_path, directory)
    file = read_yaml(path, label)
    suite = file.read(SuiteFile)
    for keys in (keys for keys in file.lines if keys[-2:] == ("request", "model_recipe_name")):
        if isinstance(name := file.at(keys), str):
            with file.collecting(keys):
                find_recipe_file(name, directory)
    suite = file.problems.having(suite)
    cases = tuple(_cases(suite, file, directory))
    file.problems.raise_if_any()
    return Suite(name=path.stem, title=suite.title, source=suite.source, cases=cases)


def _cases(suite: SuiteFile, file: Document, directory: Path | None) -> Iterator[SuiteCase]:
    """Yield every case, or one for each recompute setting of a list. Names must differ."""
    seen: dict[str, int] = {}
    for place, entry in enumerate(suite.cases):
        keys: Keys = ("cases", place)
        if not (entry.request.given | suite.defaults.request.given).get("model_recipe_name"):
            fix = "name a recipe here, or one for all under defaults"
            file.refuse((*keys, "request", "model_recipe_name"), "missing", fix)
            continue
        with file.collecting((*keys, "request")):
            for case in _cases_of(entry, suite.defaults):
                folded = case.name.casefold()
                if folded in seen:
                    message = f"{case.name!r} is that of the case on line {seen[folded]}"
                    file.refuse((*keys, "name"), message, "give each its own name")
                seen.setdefault(folded, file.line(keys))
                yield replace(case, request=replace(case.request, recipes_dir=directory))


def _cases_of(entry: CaseEntry, defaults: SuiteDefaults) -> Iterator[SuiteCase]:
    settings = entry.request.recompute
    for text in settings or (None,):
        own = replace(request_of(entry.request), recompute=text)
        request = laid_over(request_of(defaults.request), own)
        recompute = recompute_of(request)
        is_listed = len(settings) > 1 or not entry.name
        yield SuiteCase(
            name=require_safe(case_name(entry.name, request, recompute if is_listed else None) or "_"),
            request=request,
            repeats=entry.repeats or defaults.repeats or 1,
            thresholds={**defaults.thresholds, **entry.thresholds},
            owner=(defaults.owner if entry.owner is None else entry.owner) or "",
            expected=entry.expected,
            is_golden_required=(entry.golden or defaults.golden or "required") == "required",
            timeout_s=entry.timeout or defaults.timeout,
        )
