"""One run: requirements, folder, display and verdict. The report goes to stdout, messages to stderr."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadRequestError, ExitCode, os_errors_reported
from harness.judge.compare import compare_runs, find_reference
from harness.judge.gate import run_outcome
from harness.launch.cluster_job import ClusterJob
from harness.launch.heartbeats import Progress
from harness.launch.plan import LaunchPlan
from harness.launch.replay import Plan
from harness.measure.checking import megatron_finding
from harness.measure.launched import Ran
from harness.measure.prediction import KeptPrediction, misfit_line, prediction_line
from harness.measure.understanding import RunRequest, Understood, rule_problem
from harness.records import folders
from harness.records.gating import GateOptions
from harness.records.store import RECORD, new_run_dir
from harness.show import json
from harness.show.page import GAP, Block, Code, Details, Line, Page, answer_line, details
from harness.show.progress import step_progress
from harness.show.request_text import explanation, finding_lines, request_facts, request_words
from harness.show.terminal import narrate, narration, show_page, show_stopped
from harness.units import format_bytes

if TYPE_CHECKING:
    from harness.measure.values import RunDocument


@dataclass(frozen=True)
class Display:
    """Where the report and the messages go."""

    as_json: bool = False
    explain: bool = False

    def plan(self, understood: Understood, prediction: KeptPrediction, plan: Plan | ClusterJob | None = None) -> None:
        """Show a dry run: the settings, the prediction, and the ``plan``, if it is not this node's launch."""
        plan = plan or understood.plan
        if self.as_json:
            from harness.measure.values import run_plan_document

            json.answer(run_plan_document(understood, prediction, plan))
            return
        spec, found = understood.spec, prediction.prediction
        line, misfit = prediction_line(found, prediction.reason), misfit_line(found, spec)
        submission = f"\n\n# submitted with\n{shlex.join(plan.submit_command)}" if isinstance(plan, ClusterJob) else ""
        script = Code(f"{plan.render().rstrip()}{submission}")
        sources, facts = explanation(spec, understood.sources), request_facts(spec, understood.effective)
        notes = [f"{each.id}: {each.message}; {each.fix}" for each in understood.findings if each.severity == "note"]
        blocks: tuple[Block, ...] = (
            finding_lines(understood.findings),
            *([Line(misfit, "doubt", hang=2)] if misfit else []),
            script,
            GAP,
            Details(len(facts.rows), "fact", (facts,)),
            details("note", [f"Note: {note}" for note in (*understood.notes, *notes)]),
            *([Details(1, "prediction", (line,))] if line else []),
            *([GAP, *sources] if self.explain else [Details(len(understood.sources), "setting", (GAP, *sources))]),
        )
        peak = f": predicted peak {format_bytes(found.peak_bytes)}" if found else ""
        show_page(Page(blocks, answer=answer_line(f"Would run {request_words(spec)}", peak)))

    def understood(self, understood: Understood) -> None:
        """Before anything starts, show the request in one line, and every problem that does not stop it."""
        sources = explanation(understood.spec, understood.sources) if self.explain else ()
        narrate(Line(request_words(understood.spec), whole=True), finding_lines(understood.findings), *sources)

    def warn_of_misfit(self, understood: Understood, kept: KeptPrediction) -> None:
        """Before the ranks start, warn of what does not fit. The run starts anyway."""
        if warning := misfit_line(kept.prediction, understood.spec):
            narrate(Line(warning, hang=2))

    @contextmanager
    def progress(self, understood: Understood) -> Iterator[Callable[[Progress], None]]:
        """Show a live bar on a terminal, occasional lines elsewhere."""
        with step_progress(narration(), understood.spec.measure.max_steps) as show:
            yield lambda p: show(str(p.phase or "start"), p.step, p.last_step_s, p.eta_s)

    def result(self, verdict: "RunDocument") -> None:
        """Show figures and verdict of all runs, and the ranks of the last run."""
        if self.as_json:
            json.answer(verdict)
        else:
            from harness.measure.result import run_page

            show_page(run_page(verdict))


def require_megatron(understood: Understood, plan: LaunchPlan) -> None:
    """Raise if megatron-core refuses the configuration. Not asked for CPU runs, nor for Bridge's loop."""
    if understood.spec.gpu_type.is_cpu or understood.spec.engine is not None:
        return
    finding = megatron_finding(understood.spec, understood.software, understood.host, plan.variables)
    if finding.blocks:
        raise rule_problem(finding)


def run_folder(request: RunRequest) -> Path:
    """Return a folder without files of another run's ranks, which would count as this run's."""
    if request.run_dir is None:
        return new_run_dir(folders.results_dir(request.results_dir), request.asked.job_name)
    if (request.run_dir / RECORD).exists() or any((request.run_dir / "ranks").glob("rank_*")):
        raise BadRequestError(f"{request.run_dir} already holds a run", remedy="name a new folder")
    with os_errors_reported(f"--run_dir {request.run_dir}: cannot make the folder", "name a writable folder"):
        for folder in ("ranks", "logs"):
            (request.run_dir / folder).mkdir(parents=True, exist_ok=True)
    return request.run_dir


def judge(runs: list[Ran], gate: GateOptions, results_dir: Path | None, display: Display) -> ExitCode:
    """Judge the runs of one request together and print the report. If the last run failed, judge only that run."""
    from harness.measure.values import run_document  # a dry run judges nothing

    records, last = [run.record for run in runs], runs[-1]
    judged = records if last.record.status == "ok" else [last.record]
    try:
        search = find_reference(None, last.record, gate, results_dir)
        metrics, comparison = compare_runs(judged, search, gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the run is kept in {last.run_dir}") from error
    fail_on_improvement = gate.fail_on_improvement
    verdict = run_outcome(last.record.status, comparison, fail_on_improvement=fail_on_improvement, signal=last.signal)
    if last.signal is not None and not display.as_json:
        num_steps = min((len(rank.steps) for rank in last.record.ranks), default=0)
        of = f"{num_steps} of {last.record.spec.measure.max_steps} steps done"
        show_stopped(f"{last.record.spec.recipe}, {of}", verdict[1], last.run_dir)
        return verdict[1]
    ids = [record.run_id for record in records]
    display.result(run_document(last.record, metrics, comparison, verdict, last.run_dir, ids))
    return verdict[1]
