"""Kills processes of running sweeps at random moments, resumes them, and reports what was kept: a crash loop.

Exit code 1: something was lost, and the folder is kept. The seed decides who is killed and after what share of a run, the
machine how far it had come by then.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.launch.processes import Process, adopt_orphans, bury, descendants, identify, is_alive, send
from harness.records.store import write_atomically
from harness.records.sweep import SweepData, num_missing
from tests.faults.kept import Kept
from tests.faults.scenes import Played, Scene, Training, one_of
from tests.faults.tally import Tally, document
from tests.faults.victims import victims

GONE_S = 30.0  # on a machine that is busy with other things
SITTING_S = 1800.0
SCENES: dict[str, type[Training] | type[Played]] = {"trained": Training, "played": Played}


class Loop:
    """Runs sweeps of one scene until ``num_kills`` kills. AssertionError at the first check that fails."""

    def __init__(self, scene: Scene, chance: random.Random, num_kills: int, seconds: float) -> None:
        self.scene, self.chance, self.num_kills = scene, chance, num_kills
        self.tally, self._end = Tally(), time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether enough was killed, or time is up: what runs by then runs to its end."""
        return self.tally.kills.total() >= self.num_kills or time.monotonic() > self._end

    def run(self) -> Tally:
        """Sweep after sweep, each killed and resumed until it is done."""
        while not self.is_over:
            self._sweep()
        return self.tally

    def _sweep(self) -> None:
        sweep_dir, command = self.scene.begun()
        self.tally.sweeps += 1
        kept, before = Kept(sweep_dir), self.tally.kills.copy()
        while True:
            code = self._sitting(command, sweep_dir.with_suffix(".log"), kept)
            data = kept.look()
            if code is not None:
                break
            if data is None:
                self.tally.unplanned += 1
                shutil.rmtree(sweep_dir, ignore_errors=True)
            else:
                command = self.scene.resumed(sweep_dir)
        during = self.tally.kills - before
        lost = sum(count for kind, count in during.items() if kind in ("agent", "rank"))
        self.tally.files_read += kept.files_read
        self.tally.records_compared += kept.records_compared
        self._whole(code, data, lost, sweep_dir.with_suffix(".err"))

    def _whole(self, code: int, data: SweepData | None, num_lost: int, narration: Path) -> None:
        """A sweep that ended by itself has all its runs, and no more bad ones than agents and ranks were killed."""
        assert data is not None, narration.read_text()
        assert code in (0, 3), f"exit code {code}: {narration.read_text()[-3000:]}"
        runs = [run for cell in data.cells for run in cell.runs]
        bad = [run for run in runs if run.status != "ok"]
        failures = [run.failure for run in bad]
        assert (code == 3) == bool(bad), f"exit code {code} with {failures}"
        assert len(bad) <= num_lost, f"{num_lost} agents and ranks were killed, but {failures}"
        missing = [c.planned.name for c in data.cells if c.planned.fate == "run" and num_missing(c, data.plan.repeats)]
        assert not missing, f"{missing} of {data.sweep_dir} are not done"
        self.tally.ends.update(run.status for run in runs)

    def _sitting(self, command: tuple[str, ...], log: Path, kept: Kept) -> int | None:
        """The sweep's exit code, or None when it was killed."""
        began, num_finished = time.monotonic(), len(kept.seen)
        harness = self.scene.start(command, log)
        self.tally.sittings += 1
        try:
            while harness.poll() is None and not self.is_over:
                kind = one_of(self.chance, self.scene.kinds)
                if self._killed(kind, harness.pid) and kind == "harness":
                    harness.wait()
                    return None
                kept.look()
                if len(kept.seen) > num_finished:
                    num_finished = sys.maxsize
                    self.scene.pace_s = (self.scene.pace_s + time.monotonic() - began) / 2
            return harness.wait(timeout=SITTING_S)
        finally:
            if harness.poll() is None:
                harness.kill()
                harness.wait()
            self._nothing_is_left()

    def _killed(self, kind: str, harness: int) -> bool:
        """Whether a process was killed, after a while of up to two sittings' way to a finished run for the harness."""
        if kind == "harness":
            time.sleep(self.chance.uniform(0, 2 * self.scene.pace_s))
        elif not _appears(kind, harness, within_s=4 * self.scene.pace_s):
            return False
        else:
            time.sleep(self.chance.uniform(0, 0.2 if kind == "rank" else self.scene.pace_s / 12))  # ranks live shortly
        there = victims(harness)[kind]
        if not there or not send(self.chance.choice(there), signal.SIGKILL):
            return False
        self.tally.kills[kind] += 1
        sys.stderr.write(f"{type(self.scene).__name__} {self.tally.kills.total()}/{self.num_kills}: {kind}\n")
        return True

    def _nothing_is_left(self) -> None:
        """This process adopts what the harness leaves behind, so nothing can hide."""
        began = time.monotonic()
        while left := _alive_below():
            if time.monotonic() - began > GONE_S:
                commands = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in left]
                for process in left:
                    send(process, signal.SIGKILL)
                raise AssertionError(f"left running after {GONE_S:g} s: {commands}")
            time.sleep(0.1)
        self.tally.longest_until_gone_s = max(self.tally.longest_until_gone_s, round(time.monotonic() - began, 2))


def _alive_below() -> Sequence[Process]:
    """What lives below this process, after its dead were collected."""
    zombies = (Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")).read_text().split()
    bury(process for pid in zombies if (process := identify(int(pid))) is not None and not is_alive(process))
    return descendants(os.getpid())


def _appears(kind: str, harness: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and identify(harness) is not None:
        there = victims(harness)
        if there[kind]:
            return True
        if not there["harness"] or not is_alive(there["harness"][0]):
            return False
        time.sleep(0.1)
    return False


def main() -> None:
    """Run the loop, or several in parallel, and write the figures."""
    parser = argparse.ArgumentParser(
        prog="scripts/crash-loop",
        description=__doc__,
        epilog="scripts/crash-loop alone is `both --kills 200 --out results/faults/crash_loop.json`.",
    )
    parser.add_argument(
        "scene", choices=(*SCENES, "both"), help="sweeps that train, or whose agent and ranks are played"
    )
    parser.add_argument(
        "--kills", type=int, required=True, help="number of kills; with both, one in seven kills a sweep that trains"
    )
    parser.add_argument("--repeats", type=int, default=2, help="repeats of every cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop killing after this many minutes")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures; default: none")
    asked = parser.parse_args()
    began = time.monotonic()
    tallies = _beside(asked) if asked.scene == "both" else {asked.scene: _one_scene(asked)}
    text = json.dumps(document(asked.seed, time.monotonic() - began, tallies), indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(asked.out, text)
    sys.stdout.write(text)


def _one_scene(asked: argparse.Namespace) -> Tally:
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="crash-loop-"))
    sys.stderr.write(f"{asked.scene}: seed {asked.seed}, in {folder}\n")
    scene = SCENES[asked.scene](folder, asked.repeats)
    tally = Loop(scene, random.Random(asked.seed), asked.kills, asked.minutes * 60).run()
    shutil.rmtree(folder)
    return tally


def _beside(asked: argparse.Namespace) -> dict[str, Tally]:
    """Two loops that train beside four that play, each a process of its own with the next seed."""
    trained = asked.kills // 7
    shares = [("trained", (trained + n) // 2) for n in range(2)]
    shares += [("played", (asked.kills - trained + n) // 4) for n in range(4)]
    loops = []
    for n, (scene, kills) in enumerate(shares):
        values = {"kills": kills, "repeats": asked.repeats, "seed": asked.seed + n, "minutes": asked.minutes}
        options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        command = (sys.executable, "-m", "tests.faults.crash_loop", scene, *options)
        loops.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    answers = [loop.communicate()[0] for loop in loops]
    if any(loop.returncode for loop in loops):
        raise SystemExit(1)
    tallies: dict[str, Tally] = {}
    for answer in answers:
        for scene, figures in json.loads(answer)["sweeps"].items():
            tallies.setdefault(scene, Tally()).add(figures)
    return tallies


if __name__ == "__main__":
    main()
