"""Diagnoses a log or a run: sorts the paths of the request, reads them, and asks the planner."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType

from harness.diagnose.allocator import answer_of
from harness.diagnose.diagnosis import diagnose
from harness.diagnose.of_log import case_of_log
from harness.diagnose.of_run import case_of_run, case_of_unfinished
from harness.diagnose.values import NO_PREDICTION, NO_RULINGS, Case, Diagnosis, is_doubted
from harness.errors import BadRequestError, HarnessError, Problems
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.software import ALLOCATOR_NAMES
from harness.failures.classify import expandable_segments
from harness.failures.entries import pools_in
from harness.failures.failure_scan import FailureScan
from harness.failures.failure_signs import WORDS_BEFORE_MORE, words_of_failures
from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sieve import Wanted
from harness.foreign.logs.sources import STDIN, Passage
from harness.foreign.reader import WORDS, LogReader
from harness.launch.environment import Host
from harness.measure.logged import Logged, logged_arguments, with_logged
from harness.measure.understanding import RunRequest, Settled, settle
from harness.predict.allocator_settings import require_taken
from harness.records.references import folder_of, refuse_other_kinds
from harness.records.run import RunRecord
from harness.records.store import RECORD, is_committed, read_run
from harness.records.strict_json import read_document
from harness.resolve.options import env_of_options
from harness.resolve.recipe import Request

_SPEC, _PICKLE = "spec.json", ".pickle"


@dataclass(frozen=True)
class DiagnoseRequest:
    """``asked``: settings of a job that left only logs; ``env``: its variables. ``given``: options as typed."""

    paths: tuple[str, ...]
    asked: Request | None = None
    env: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    results_dir: Path | None = None
    plans: bool = True
    passage: Passage = field(default_factory=Passage, compare=False)


@dataclass(frozen=True)
class Inputs:
    """One job: a run's ``folder`` with its ``record``, None if it has none, or all ``logs``."""

    folder: Path | None = None
    record: RunRecord | None = None
    logs: tuple[str, ...] = ()


def sorted_inputs(references: Iterable[str], results: Path | None = None) -> Inputs:
    """Sort paths, ids of runs and ``-``. BadRequestError: unknown ones, other results, or several jobs."""
    found, problems = list[Inputs](), Problems()
    for reference in dict.fromkeys(references):
        with problems.collecting():
            found.append(_sorted(reference, results))
    problems.raise_if_any()
    logs = tuple(log for each in found for log in each.logs)
    jobs = [*(each for each in found if each.folder), *([Inputs(logs=logs)] if logs else [])]
    if len(jobs) > 1:
        remedy = "name one run, or all logs of one job; mbr-perf explain RUN OTHER_RUN compares two runs"
        raise BadRequestError(f"{len(jobs)} jobs: diagnose takes one job", remedy=remedy)
    return jobs[0] if jobs else Inputs()


def _sorted(reference: str, results: Path | None) -> Inputs:
    if reference == STDIN:
        return Inputs(logs=(reference,))
    remedy = "name a run, a log, a folder of logs, or - for standard input"
    path = Path(reference) if Path(reference).exists() else folder_of(reference, "run", results, remedy=remedy)
    if path.name == RECORD or (path.is_dir() and is_committed(path)):
        return Inputs(path if path.is_dir() else path.parent, read_run(path))
    if path.is_dir() and (path / _SPEC).is_file():
        return Inputs(path)
    if path.suffix == _PICKLE:
        raise BadRequestError(f"{path}: a memory snapshot, not a log", remedy=f"mbr-perf snapshot {path} explains it")
    refuse_other_kinds(path.absolute(), ("run",))
    return Inputs(logs=(reference,))


@contextmanager
def stopped_by_ctrl_c(passage: Passage) -> Iterator[None]:
    """Inside the block, the first Ctrl-C stops ``passage`` and the second ends the program."""
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        passage.is_stopped = True
        passage.notes.append(f"Interrupted: this answer uses the first {passage.num_bytes / 1e6:.1f} MB of the logs.")
        signal.signal(signal.SIGINT, before)

    if not callable(before):  # a shell that starts mbr-perf in the background ignores Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def diagnosed(request: DiagnoseRequest, host: Host) -> Diagnosis:
    """Diagnose the request. BadRequestError: a path cannot be read, or there are too many jobs."""
    inputs, asked = _inputs(request, host), request.asked
    is_described = asked is not None and bool(asked.job_name)
    logged = None if is_described or not inputs.logs else logged_arguments(inputs.logs)
    given = _given(request, inputs, logged, host)
    case = _case(inputs, given, request, host)
    if logged is not None:
        gpu, has_tokens = asked.gpu if asked else "", _knows_vocabulary(asked, logged)
        words = ("-g", gpu or "GPU", *(() if has_tokens else ("--vocab_size", "N")))
        case = replace(case, asks=() if gpu and has_tokens else words)
    rulings, outlook, trials = NO_RULINGS, None, None
    if case.spec is not None:
        from harness.diagnose.forecasts import planned, rulings_on, tried  # a log without settings needs no planner

        rulings = rulings_on(case, host)
        if request.plans and not is_doubted(case, rulings):
            case, outlook = planned(case, host)
            with suppress(HarnessError, OSError, LayoutError):  # the outlook says so
                trials = tried(case, host)
    answer = diagnose(case, outlook, rulings, answer_of(case, trials))
    evidence = (*request.passage.notes, *answer.evidence)
    return answer.model_copy(update={"evidence": evidence, "is_interrupted": request.passage.is_stopped})


def _inputs(request: DiagnoseRequest, host: Host) -> Inputs:
    """Return the sorted paths. BadRequestError with all that is wrong with them and with the request."""
    problems, inputs, asked = Problems(), Inputs(), request.asked
    with problems.collecting():
        inputs = sorted_inputs(request.paths, request.results_dir)
    with problems.collecting():
        for name, value in env_of_options(request.env).items():
            if name in ALLOCATOR_NAMES:
                require_taken(value, where=name)
    if asked is not None and asked.job_name and not asked.gpu:
        problem = f"{' '.join(asked.job_words)}: the GPU type of the job is missing"
        problems.add(problem, "add it, e.g. -g h100, or -g cpu")
    if problems.found and asked is not None:
        with problems.collecting():
            settle(RunRequest(asked=asked), host)
    problems.raise_if_any()
    return inputs


def _given(request: DiagnoseRequest, inputs: Inputs, logged: Logged | None, host: Host) -> Settled | None:
    if (request.asked or request.env) and not inputs.logs:
        problem = f"{', '.join(request.given)}: only for logs, a run records its own settings"
        raise BadRequestError(problem, remedy="leave out what a run records")
    if request.asked is None:
        if logged is not None and request.plans:
            hint = f"{logged.path} prints the settings of the job: add -g, e.g. -g h100, for its prediction."
            request.passage.notes.append(hint)
        return None
    try:
        asked, notes = with_logged(request.asked, inputs.logs, host)
        settled = settle(RunRequest(asked=asked), host)
    except BadRequestError as error:
        if logged is None or _is_read(inputs.logs, request.asked.gpu, host):
            raise
        request.passage.notes.append(f"{NO_PREDICTION}{error.problems[0].message}.")
        return None
    request.passage.notes += _notes(notes, settled, logged)
    return settled


def _notes(notes: Sequence[str], settled: Settled, logged: Logged | None) -> Iterator[str]:
    yield from (f"Settings {note.removeprefix('settings: ')}." for note in notes)
    yield from (f"{note}." for note in settled.notes if logged and note.startswith(logged.path))


def _is_read(logs: tuple[str, ...], gpu: str, host: Host) -> bool:
    """Return whether the log alone describes a job: then the options are wrong."""
    with suppress(BadRequestError):
        return bool(with_logged(Request(model_recipe_name="", gpu=gpu), logs, host)[1])
    return False


def _knows_vocabulary(asked: Request | None, logged: Logged) -> bool:
    given = asked.set_values if asked else ()
    return "model.vocab_size" in logged.settings or any(text.startswith("model.vocab_size=") for text in given)


def _case(inputs: Inputs, given: Settled | None, request: DiagnoseRequest, host: Host) -> Case:
    passage = request.passage
    if inputs.folder is None:
        env = env_of_options(request.env)
        case = _of_logs(inputs.logs, given.spec if given else None, passage, env)
        return replace(case, sources=tuple(given.sources.items()), has_given_settings=True) if given else case
    logs = inputs.folder / "logs"
    has_logs = logs.is_dir() and any(path.is_file() and path.suffix == ".log" for path in logs.iterdir())
    if inputs.record is None:
        spec = read_document(inputs.folder / "spec.json", ExperimentSpec)
        logged = _of_logs((str(logs),), spec, passage) if has_logs else None
        return case_of_unfinished(inputs.folder, spec, logged, host)
    case = case_of_run(inputs.record)
    if case.status not in ("failed", "oom") or case.has_oom or not has_logs:
        return case
    logged = _of_logs((str(logs),), case.spec, passage)  # the record names no out-of-memory error, but a log may
    if not logged.has_oom:
        return case
    said, pools = f"{case.said}\n{logged.said}", logged.pools_in_log
    return replace(case, verdict=logged.verdict, failed=logged.failed, said=said, pools_in_log=pools)


def _of_logs(
    paths: Sequence[str], spec: ExperimentSpec | None, passage: Passage, env: Mapping[str, str] = MappingProxyType({})
) -> Case:
    """Read the lines once: they may be gigabytes, or a pipe. ``env``: for what the lines do not show."""
    reader, scan, pools, text = LogReader(), FailureScan(), "", ""
    wanted = Wanted((*words_of_failures(), *WORDS), WORDS_BEFORE_MORE)
    with stopped_by_ctrl_c(passage):
        for line in log_lines(paths, passage=passage, wanted=wanted):
            reader.feed(line)
            scan.feed(line)
            pools, text = pools or pools_in(line.text), line.text or text
    if scan.expandable_segments is None:
        scan.expandable_segments = expandable_segments(env)
    name = "standard input" if tuple(paths) == ("-",) else ", ".join(paths)
    case = case_of_log(name, reader.finish(), scan, spec, is_empty=not text)
    return replace(case, pools_in_log=pools, paths=tuple(map(str, paths)))
