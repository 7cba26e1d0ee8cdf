"""Answers of `plan`, kept until anything that they were made of changes; looked up before anything heavy is imported."""

import hashlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import harness
from harness.records.atomic import write_atomically
from harness.records.source_tree import file_stamp, megatron_core_stamps, tree_stamps

# Asked for afresh, or done for what is written rather than for the answer.
_NEVER = {"--no_cache", "--calibrate", "--out", "--help", "-h"}
# Shell variables that change from one command to the next and decide nothing.
_IDLE_VARIABLES = {"_", "SHLVL", "PWD", "OLDPWD", "PYTEST_CURRENT_TEST", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
                   "WINDOWID", "TMUX_PANE", "TERM_SESSION_ID", "HISTCMD"}  # fmt: skip
_MACHINE_FILES = ("/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version", "/etc/machine-id")
_MOST_KEPT = 200
# `this_host` reads it for everybody else; importing that takes longer than all that is done here.
_SHELL = os.environ  # noqa: TID251


def kept_answer(arguments: Sequence[str]) -> Path | None:
    """Where the answer to a command line is kept, whether it is there or not; None for what is never kept."""
    names = {argument.partition("=")[0] for argument in arguments}
    if not arguments or arguments[0] != "plan" or names & _NEVER:
        return None
    digest = hashlib.sha256()
    for fact in _facts(arguments):
        digest.update(fact.encode(errors="surrogateescape") + b"\0")
    cache = _SHELL.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "mbr-perf" / "answers" / digest.hexdigest()[:32]


def _facts(arguments: Sequence[str]) -> Iterator[str]:
    """Everything that decides the answer: the request, the program, its inputs, the software, the machine, the screen."""
    yield from ("arguments", *arguments)
    yield from ("program", sys.version, *sys.path)
    for name, value in sorted(_SHELL.items()):
        if name not in _IDLE_VARIABLES:
            yield f"{name}={value}"
    yield f"screen {sys.stdout.isatty()} {_screen()}"
    here, package = Path.cwd(), Path(harness.__file__).parent
    yield str(here)
    beside = (package.parent / "recipes", package.parent / "results" / "calibration", here / "results" / "calibration")
    for root in (package, *beside, *_recipe_folders(arguments)):
        yield from tree_stamps(root)
    yield from megatron_core_stamps()
    for argument in arguments:
        yield file_stamp(argument.rpartition("=")[2])  # a recipe file
    for entry in sys.path:
        yield file_stamp(entry)  # installing or removing a package touches its folder
    for name in _MACHINE_FILES:
        yield _content(name)
    yield from sorted(str(path) for path in Path("/dev").glob("nvidia*"))


def _recipe_folders(arguments: Sequence[str]) -> Iterator[Path]:
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, inline = argument.partition("=")
        if name == "--recipes_dir":
            yield Path(inline or value)


def _screen() -> str:
    try:
        return str(os.get_terminal_size(sys.stdout.fileno()))
    except (OSError, io.UnsupportedOperation):
        return "none"


def _content(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return "none"


def answered(path: Path | None) -> bool:
    """Print the kept answer, if there is one."""
    try:
        text = path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError):
        return False
    if text is None:
        return False
    sys.stdout.write(text)
    sys.stdout.flush()
    return True


@contextmanager
def keeping(path: Path | None) -> Iterator[None]:
    """Keep what the block prints if it ends well, also by exit code 0, unless it says not to. A cache that cannot be written fails nothing."""
    if path is None:
        yield
        return
    copy = _Copied(sys.stdout)
    sys.stdout = copy
    try:
        yield
    except SystemExit as ended:
        if not ended.code:
            _keep(path, copy)
        raise
    finally:
        sys.stdout = copy.stream
    _keep(path, copy)


def keep_nothing() -> None:
    """What is being printed is not to be kept: asked again, the answer may be another though nothing has changed."""
    if isinstance(sys.stdout, _Copied):
        sys.stdout.is_wanted = False


def _keep(path: Path, copy: "_Copied") -> None:
    if not copy.is_wanted:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, copy.text.getvalue())
        _forget_the_oldest(path.parent)
    except OSError:
        return


class _Copied:
    """A stream that keeps a copy of what is written, and is the stream in everything else."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.text, self.is_wanted = stream, io.StringIO(), True

    def write(self, text: str) -> int:
        """Write and remember."""
        self.text.write(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def _forget_the_oldest(folder: Path) -> None:
    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in kept[_MOST_KEPT:]:
        path.unlink(missing_ok=True)
