"""Rounds of a night: runs that are due at the same time, and the boundary to what does them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from harness.launch.disk import full_disk_told
from harness.launch.environment import Host
from harness.records.night import NightEvent, NightPlan, PlannedCase, Purpose
from harness.records.nights import append_event


@dataclass(frozen=True)
class DueRun:
    """One run to be started: its number in the case, what it is for, and why.

    Its folder is `records.nights.run_dir_of`, the id of its record `records.nights.run_id_of`.
    """

    case: PlannedCase
    number: int
    purpose: Purpose
    reason: str = ""

    @property
    def title(self) -> str:
        """``llama3_8b, run 2 of 3``, or what else it is for."""
        if self.purpose == "repeat":
            return f"{self.case.name}, run {self.number + 1} of {self.case.repeats}"
        if self.purpose == "aa":
            return f"{self.case.name}, A/A: {self.reason}"
        return f"{self.case.name}, {'again' if self.purpose == 'retry' else 'to confirm'}: {self.reason}"


@dataclass(frozen=True)
class NightAtWork:
    """A planned night whose folder this process holds."""

    night_dir: Path
    plan: NightPlan
    host: Host


class RoundRunner(Protocol):
    """Does rounds: one run after the other on this machine, or all of them as jobs of a cluster."""

    def run(self, due: Sequence[DueRun]) -> int | None:
        """Do these runs; when this returns, each is committed by a ``record.json`` in its folder, also where it failed.

        Every run is :func:`noted <note_started>` before it starts. After a run that ended badly, no further run of its
        case is started in this round. A signal ends the round early: its number, else None. A run that was not
        committed is due again; where a round commits nothing, the night ends there and can be resumed.
        """


def note_started(night_dir: Path, due: DueRun) -> None:
    """Write down that a run is about to start, and why. RunFailedError on a full disk."""
    _note(night_dir, NightEvent(time=_now(), kind="started", case=due.case.name, number=due.number,
                                purpose=due.purpose, reason=due.reason))  # fmt: skip


def note_interrupted(night_dir: Path, reason: str, due: DueRun | None = None) -> None:
    """Write down that a signal ended the night, maybe while a run was at work."""
    case, number = (due.case.name, due.number) if due else ("", None)
    _note(night_dir, NightEvent(time=_now(), kind="interrupted", case=case, number=number, reason=reason))


def note_cancelled(night_dir: Path, due: DueRun, reason: str) -> None:
    """Write down that somebody ended the job of a run, so that it is not started again before the night is resumed."""
    _note(night_dir, NightEvent(time=_now(), kind="cancelled", case=due.case.name, number=due.number, reason=reason))


def note_finished(night_dir: Path, finished_at: str) -> None:
    """Write down that every case has what it needs, at the time that the reports tell."""
    _note(night_dir, NightEvent(time=finished_at, kind="finished"))


def _note(night_dir: Path, event: NightEvent) -> None:
    with full_disk_told(night_dir):
        append_event(night_dir, event)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
