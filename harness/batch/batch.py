"""A batch: many runs by one plan. It reads from disk which runs are due, so a resumed batch equals an unbroken one."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import harness
from harness.batch.launches import nodes_of, understood_again
from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.launch.build import host_with
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.launch.plan import LaunchRequest
from harness.launch.warm import WarmParents
from harness.measure.checking import (
    Checked,
    Question,
    check_request,
    in_one_sentence,
    megatron_findings,
    unasked_notes,
)
from harness.measure.launched import Following, Ran, launched
from harness.measure.prediction import KeptPrediction
from harness.measure.understanding import RunRequest, Understood
from harness.records.batches import BatchLaunch, Build, PlannedEntry, Purpose, append_event
from harness.records.disk import disk_faults_reported
from harness.records.job import JobRun
from harness.records.redact import own_command
from harness.show.page import Block, Code
from harness.show.progress import CellProgress, cell_progress
from harness.show.terminal import narrate, narration, show_blocks
from harness.units import utc_now

if TYPE_CHECKING:
    from harness.launch.cluster_job import ClusterJob

Entry = TypeVar("Entry", bound=PlannedEntry)
Lesson = tuple[str, str]
"""The name of an entry that needs no more runs, and the reason."""


@dataclass(frozen=True)
class DueRun(Generic[Entry]):
    """One run to start: its number among the runs of the entry (from 0), its purpose, and the reason."""

    entry: Entry
    number: int
    purpose: Purpose = "repeat"
    reason: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan. ``software``: what its entry was judged for. ``build``: None for mbr-perf's own."""

    run_dir: Path
    run_id: str
    title: str
    launch: BatchLaunch
    software: Software | None
    build: Build | None = None


@dataclass
class Batch(ABC, Generic[Entry]):
    """Runs of several entries by one plan, in one folder that this process holds. ``command`` resumes it."""

    folder: Path
    host: Host
    command: ClassVar[Literal["sweep", "nightly"]]
    predicts: ClassVar[bool] = False
    outlives_failed_starts: ClassVar[bool] = False

    @abstractmethod
    def due(self) -> Sequence[DueRun[Entry]]:
        """Return the next round, in the order of its starts; empty when every entry has what it needs."""

    @abstractmethod
    def planned(self, due: DueRun[Entry]) -> PlannedRun:
        """Return the run as planned."""

    @abstractmethod
    def recorded(self, due: DueRun[Entry]) -> Path | None:
        """Return the recorded run to replay, if any."""

    @abstractmethod
    def ended(self, due: DueRun[Entry], ran: Ran) -> Sequence[Lesson]:
        """Note how the run ended. Returns the entries that it makes superfluous."""

    def starts(self, due: DueRun[Entry]) -> None:
        """Write down that the run is about to start."""

    def interrupted(self, reason: str, due: DueRun[Entry] | None = None) -> None:
        """Write down that a signal ended the batch, possibly during a run."""

    def cancelled(self, due: DueRun[Entry], reason: str) -> None:
        """Write down that someone cancelled the job of the run."""

    def note(self, event: Frozen) -> None:
        """Append an event. RunFailedError as in :func:`disk_faults_reported`."""
        with disk_faults_reported(self.folder):
            append_event(self.folder, event)

    def understood(self, due: DueRun[Entry], run_dir: Path, node_rank: int = 0) -> Understood:
        """Return the run as `mbr-perf run` understands a request. BadRequestError if its launch cannot be planned."""
        entry, planned = due.entry, self.planned(due)
        nodes = nodes_of(planned.launch, node_rank)
        settings = planned.launch.model_copy(update={"replay_from": self.recorded(due)})
        request = LaunchRequest(entry.spec, run_dir, host_with(self.host, planned.build), nodes, settings)
        if planned.build is not None and settings.launcher != "replay":
            return understood_again(entry, request, planned.build.software)
        if planned.software is not None:
            return understood_again(entry, request, planned.software, entry.findings)
        here = Software() if settings.launcher == "replay" else software_for(entry.spec.gpu, self.host)[0]
        return understood_again(entry, request, here)

    def run_here(
        self,
        due: DueRun[Entry],
        run_dir: Path,
        progress: CellProgress,
        parents: WarmParents | None = None,
        node_rank: int = 0,
    ) -> Ran:
        """Take part in the run on this node. Errors as for :meth:`understood` and `launched`."""
        understood, following = self.understood(due, run_dir, node_rank), self.following(due, progress)
        run_id, kept = self.planned(due).run_id, self.prediction(due)
        return launched(understood, run_id, progress=following, kept=kept, parents=parents)

    def job_run(self, due: DueRun[Entry]) -> JobRun:
        """Return the run as a Slurm job takes it."""
        entry, planned = due.entry, self.planned(due)
        return JobRun(
            run_dir=str(planned.run_dir),
            run_id=planned.run_id,
            spec=entry.spec,
            sources=entry.sources,
            notes=entry.notes,
            force=entry.force,
            prediction=entry.prediction,
            no_prediction=entry.no_prediction,
            build=planned.build,
        )

    def prediction(self, due: DueRun[Entry]) -> KeptPrediction | None:
        """Return the planned prediction; None if one is to be made before or during the run."""
        kept = KeptPrediction(due.entry.prediction, due.entry.no_prediction)
        return None if self.predicts and kept.prediction is None else kept

    def following(self, due: DueRun[Entry], progress: CellProgress) -> Following:
        """Shows the steps of the run."""
        show = progress.start(self.planned(due).title, due.entry.spec.measure.max_steps)
        return nullcontext(lambda now: show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s))


Shows = Callable[[int], AbstractContextManager[CellProgress]]
"""Shows the progress of so many runs."""


@dataclass(frozen=True)
class BatchDisplay:
    """Where the report and the messages of a batch go."""

    as_json: bool = False

    def narrate(self, *lines: Block) -> None:
        """Show what the batch waits for, or what failed."""
        narrate(*lines)

    def progress(self, num_due: int) -> AbstractContextManager[CellProgress]:
        """Show a round of ``num_due`` runs: bars on a terminal, lines elsewhere."""
        return cell_progress(narration(), num_due)

    def batch_files(self, jobs: "Iterable[ClusterJob]") -> None:
        """Show what a dry run would submit, and the commands for it."""
        for job in jobs:
            show_blocks(Code(f"\n{job.render().rstrip()}\n\n{shlex.join(job.submit_command)}"))


def run_of(name: str, number: int, repeats: int) -> str:
    """``mlp, run 2 of 3``; only the name if there is one run."""
    return f"{name}, run {number + 1} of {repeats}" if repeats > 1 else name


def stamp() -> dict[str, Any]:
    """Return what every plan says of its start: the command, the time (UTC ISO-8601) and the version of mbr-perf."""
    return {"command": own_command(), "started_at": utc_now(), "mbr_perf": harness.__version__}


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Draft(Generic[Asked]):
    """What is asked for, the result of the checks (None: not resolved), and why it may not run. ``twin``: its index."""

    asked: Asked
    checked: Checked | None
    problem: str = ""
    twin: int | None = None

    @property
    def spec(self) -> ExperimentSpec | None:
        return self.checked.spec if self.checked else None

    @property
    def words(self) -> dict[str, object]:
        """Return what an entry of a plan takes over from the checks; empty if it was not resolved."""
        return {name: getattr(self.checked, name) for name in ("spec", "sources", "notes", "findings") if self.checked}

    @property
    def may_run(self) -> bool:
        return not self.problem and self.twin is None

    @property
    def asks_megatron(self) -> bool:
        return not self.problem and self.spec is not None and not self.spec.gpu_type.is_cpu

    @property
    def blocking(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.checked.findings if finding.blocks) if self.checked else ()


def drafted(asked: Asked, request: RunRequest, host: Host, words: Callable[[Finding], str]) -> Draft[Asked]:
    """Check one entry as `mbr-perf run` checks ``request``. ``words`` writes the message of a rule that forbids it."""
    try:
        checked = check_request(request, host, assume=None, ask_megatron=False)
    except BadRequestError as problem:
        return Draft(asked, None, in_one_sentence(problem))
    draft = Draft(asked, checked)
    return replace(draft, problem="; ".join(words(finding) for finding in draft.blocking))


def ask_megatron(drafts: Sequence[Draft[Asked]], host: Host) -> tuple[list[Draft[Asked]], tuple[str, ...]]:
    """Mark drafts for GPUs that the installed megatron-core refuses, twins too. Also return notes without an answer."""
    asked = {
        place: Question(draft.checked.spec, draft.checked.software, draft.checked.env)
        for place, draft in enumerate(drafts)
        if draft.checked and draft.asks_megatron
    }
    found = megatron_findings(asked, host)
    return [_refused_by(found.get(place), draft) for place, draft in enumerate(drafts)], unasked_notes(found.values())


def _refused_by(finding: Finding | None, draft: Draft[Asked]) -> Draft[Asked]:
    if finding is None or draft.checked is None or not finding.blocks:
        return draft
    checked = replace(draft.checked, findings=(*draft.checked.findings, finding))
    return replace(draft, checked=checked, problem=f"{finding.message}: {finding.mcore_text or ''}".removesuffix(": "))
