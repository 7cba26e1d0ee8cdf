"""A fresh folder for a run, with what a killed attempt left moved aside, never deleted."""

from glob import escape
from pathlib import Path

from harness.errors import RunFailedError


def fresh_folder(run_dir: Path) -> Path:
    """The folder, new, with empty ``ranks`` and ``logs``. RunFailedError where it cannot be made."""
    try:
        if run_dir.exists():
            run_dir.rename(_free_name(run_dir))
        for inner in ("ranks", "logs"):
            (run_dir / inner).mkdir(mode=0o750, parents=True)
    except OSError as error:
        raise RunFailedError(f"{run_dir}: cannot be made: {error.strerror}") from error
    return run_dir


def asides(run_dir: Path) -> tuple[Path, ...]:
    """What was moved aside for the run that lies there now."""
    return tuple(sorted(run_dir.parent.glob(f"{escape(run_dir.name)}.incomplete-*")))


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.incomplete-{number}")).exists():
        number += 1
    return aside
