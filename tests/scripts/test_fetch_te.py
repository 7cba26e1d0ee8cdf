"""scripts/check --te: transformer-engine's Python arrives whole or not at all."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = {
    "transformer_engine/__init__.py": "",
    "transformer_engine/pytorch/module/linear.py": "",
    "libx.so": "compiled",
}


@pytest.fixture
def fetch(tmp_path):
    """Fetches a version from a folder of wheels, without network."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name = "transformer_engine_cu13-2.11.0"
    with zipfile.ZipFile(wheels / f"{name}-py3-none-manylinux_2_28_x86_64.whl", "w") as wheel:
        for path, text in SOURCE.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        wheel.writestr(
            f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: transformer_engine_cu13\nVersion: 2.11.0\n"
        )
        wheel.writestr(f"{name}.dist-info/RECORD", "")

    def run(version):
        settings = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        return subprocess.run(
            [sys.executable, "scripts/check.d/fetch_te.py", version], cwd=ROOT, env=os.environ | settings,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_only_python_is_kept_with_the_version_that_an_installed_package_has_and_fetched_once(fetch, tmp_path):
    first, second = fetch("2.11"), fetch("2.11")
    assert "fetching transformer-engine 2.11" in first.stderr
    assert (second.stdout, second.stderr) == (first.stdout, "")
    folder = Path(first.stdout.strip())
    assert folder == tmp_path / "cache" / "mbr-perf" / "te" / "2.11"
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert kept == {*list(SOURCE)[:2], "transformer_engine-2.11.0.dist-info/METADATA"}
    assert "Version: 2.11.0" in (folder / "transformer_engine-2.11.0.dist-info" / "METADATA").read_text()


@pytest.mark.slow
def test_a_release_that_cannot_be_fetched_is_named_and_leaves_nothing(fetch, tmp_path):
    done = fetch("2.99")
    assert done.returncode == 2
    assert "cannot fetch transformer-engine 2.99" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "cache" / "mbr-perf" / "te").iterdir()) == []


@pytest.mark.parametrize("given", ["", "nonsense", "2", "2.11/..", "2.11 "])
def test_check_wants_a_release_before_it_sets_anything_up(tmp_path, given):
    env = {"PATH": "/usr/bin:/bin", "MBR_PERF_NO_SETUP": "1", "PYTHON": str(tmp_path / "started")}
    done = subprocess.run(
        ["scripts/check", "--te", given], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    message = f"--te{given and f' {given}'}: name a release of transformer-engine, such as 2.11\n"
    assert (done.returncode, done.stderr) == (2, message)
