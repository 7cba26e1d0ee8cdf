"""Answers of `plan` are kept until something they were made of changes."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def answer(cache: Path, recipes: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of a plan of the CPU point."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    command = ("plan", "-mr", "llama3_8b", "-g", "cpu", "--recipes_dir", str(recipes), *options)
    done = subprocess.run(
        (sys.executable, "-m", "harness.cli.app", *command),
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A cache that holds what the tracer said of the point, and no answer."""
    cache = tmp_path_factory.mktemp("cache")
    assert answer(cache, ROOT / "recipes")[0] == 0
    shutil.rmtree(cache / "mbr-perf" / "answers")
    return cache


@pytest.fixture
def ask(tmp_path, traced):
    """A plan of the CPU point of a recipe folder that belongs to the test; returns exit code and answer."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copytree(traced, tmp_path, dirs_exist_ok=True)
    return partial(answer, tmp_path, tmp_path / "recipes")


@pytest.fixture
def kept(tmp_path):
    """The files of kept answers."""
    return lambda: sorted((tmp_path / "mbr-perf" / "answers").glob("*"))


@pytest.mark.train
def test_the_same_question_is_answered_from_what_was_kept(ask, kept):
    code, first = ask()
    (file,) = kept()
    assert (code, file.read_text()) == (0, first)
    file.write_text("kept\n")
    assert ask() == (0, "kept\n")
    assert ask("--fit_into", "1")[1] != "kept\n"


@pytest.mark.train
@pytest.mark.parametrize("change", ["recipe", "variable"])
def test_a_change_of_what_it_was_made_of_asks_again(ask, kept, tmp_path, change):
    _, first = ask()
    kept()[0].write_text("kept\n")
    if change == "recipe":
        recipe = tmp_path / "recipes" / "llama" / "llama3_8b.yaml"
        recipe.write_text(recipe.read_text() + "# a remark\n")
        assert ask() == (0, first)
    else:
        assert ask(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == (0, first)


def test_what_failed_or_was_asked_for_afresh_is_not_kept(tmp_path, kept):
    assert answer(tmp_path, ROOT / "recipes", "--margin", "2")[0] == 2
    assert answer(tmp_path, ROOT / "recipes", "--help")[0] == 0
    assert kept() == []


@pytest.mark.train
def test_no_cache_neither_reads_nor_keeps(ask, kept):
    assert ask("--no_cache")[0] == 0
    assert kept() == []


@pytest.mark.train
def test_a_cache_that_cannot_be_written_fails_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    assert answer(tmp_path / "file", ROOT / "recipes")[0] == 0


@pytest.mark.train
def test_what_was_not_traced_in_time_is_asked_again(ask, kept):
    code, told = ask("--only", "mlp", "--exact", "mlp", "--exact_timeout", "0.1")
    assert (code, "not traced within 0.1 s" in " ".join(told.split())) == (0, True)
    assert kept() == []
