"""An installed wheel brings recipes, sweep files and suites, and finds them without a checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASK = (
    "from harness.recipes.find import open_recipe; from harness.recipes.sweep_file import read_sweep_file, sweep_files; "
    "sweep = read_sweep_file('cpu_dense'); open_recipe(sweep.request.said['model_recipe_name']); "
    "from harness.recipes.suite_file import read_suite; "
    "print(sweep.title, len(sweep_files()), len(read_suite('cpu_smoke').cases), sep='|')"
)


def test_a_wheel_finds_its_sweep_files_and_suites(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    title, count, num_cases = done.stdout.strip().split("|")
    assert title.startswith("Does recompute buy a larger micro-batch?")
    assert int(count) == len(list((ROOT / "recipes" / "sweeps").glob("*.yaml")))
    assert num_cases == "4"
