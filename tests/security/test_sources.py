"""What the source itself may not do, and files that no other user can read or write."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.records.folders import closed_to_others

ROOT = Path(__file__).parents[2]
FOLDERS = ("harness", "scripts")
SOURCES = {
    path.relative_to(ROOT): path.read_text() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
}
PRODUCT = {path: text for path, text in SOURCES.items() if path.parts[0] == "harness"}
RUN_TEXT = {
    "eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "marshal.loads", "shelve.open", "tempfile.mktemp",
}  # fmt: skip
KILLS = {"os.kill", "os.killpg", "signal.pidfd_send_signal"}
READS = re.compile(r"nvml(Init|Shutdown|DeviceGet|SystemGet|ErrorString)|NVML|nvmlMemory_v2$|c_nvml")


@cache
def trees() -> dict[Path, ast.Module]:
    """Every source, parsed when first asked for: collecting the tests does not wait for it."""
    return {path: ast.parse(text) for path, text in SOURCES.items()}


def calls(tree: ast.Module) -> Iterator[str]:
    """Functions that are called, by their names in the source, and functions that are taken out of their module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.slow
def test_nothing_that_is_read_can_run():
    assert {str(path): found for path, tree in trees().items() if (found := RUN_TEXT & set(calls(tree)))} == {}


THROUGH_A_SHELL = re.compile(r"shell\s*=\s*True|[\"'](?:[\w/]*/)?(?:ba|da|k|z)?sh[\"'],\s*f?[\"']-\w*c")


def test_no_command_goes_through_a_shell():
    assert [str(path) for path, text in SOURCES.items() if THROUGH_A_SHELL.search(text)] == []


@pytest.mark.slow
def test_signals_go_to_own_processes_only():
    """By a handle that `launch/processes.py` checks, to oneself, or to one's own child before it is waited for."""
    assert {str(path) for path, tree in trees().items() if KILLS & set(calls(tree))} == {
        "harness/engine/prepared_ranks.py",
        "harness/engine/process.py",
        "harness/launch/processes.py",
        "harness/records/launch.py",
        "harness/capture/run.py",
    }
    broad = {str(path) for path, text in SOURCES.items() if re.search(r"\b(pkill|killall)\b", text)}
    assert broad == {"harness/capture/run.py", "harness/capture/shim.py"}  # which keep a script from using them


@pytest.mark.slow
def test_every_console_shows_what_would_steer_it():
    """Only the writer of pages makes one, and its class shows it."""
    makers = {str(path) for path, tree in trees().items() if "Console" in set(calls(tree))}
    assert makers == {"harness/show/terminal.py", "scripts/accuracy.d/terminal_picture.py"}


@pytest.mark.slow
def test_nvml_is_only_asked():
    used = {
        f"{path}: {node.attr}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pynvml"
    }
    assert used
    assert {name for name in used if not READS.match(name.partition(": ")[2])} == set()


def test_the_scripted_driver_lets_nothing_be_set():
    text = (ROOT / "tests" / "native" / "fake_nvml.c").read_text()
    offered = set(re.findall(r"\b(nvml[A-Z]\w*)\s*\([^;{]*\)\s*\{", text))
    assert "nvmlDeviceGetName" in offered
    assert {name for name in offered if not READS.match(name)} == set()


def test_hooks_of_tests_are_not_in_the_product():
    read_by_tests = set(re.findall(r'getenv\("(\w+)"\)', (ROOT / "tests" / "native" / "fake_nvml.c").read_text()))
    own = {name for text in PRODUCT.values() for name in re.findall(r"\bMBR_[A-Z_]+\b", text)}
    assert read_by_tests
    assert own == {"MBR_PERF_PARENT_PID", "MBR_PERF_CAPTURE_PREFIX", "MBR_PERF_NODE"}
    hooks = [*read_by_tests, "fake_nvml", "from tests", "import tests"]
    assert {str(path): hook for path, text in PRODUCT.items() for hook in hooks if hook in text} == {}


REPLAYS = ROOT / "tests" / "data" / "replay"


@pytest.mark.slow
def test_a_shell_that_closes_nothing_leaves_nothing_open(tmp_path: Path) -> None:
    results = tmp_path / "results"
    recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAYS / "ok")
    command = [sys.executable, "-m", "harness.app", "run", *map(str, recorded), "--results_dir", str(results)]
    done = subprocess.run(command, cwd=ROOT, umask=0, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    left = [results, *results.rglob("*")]
    assert len(left) > 5
    assert {str(path): oct(path.stat().st_mode) for path in left if path.stat().st_mode & 0o007} == {}
    (run_dir,) = (results / "runs").iterdir()
    assert run_dir.stat().st_mode & 0o777 == 0o750


def test_the_umask_of_a_caller_comes_back() -> None:
    before = os.umask(0o002)
    try:
        with closed_to_others():
            assert os.umask(0o007) == 0o007
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(before)
