"""`mbr-perf bisect` on repositories of megatron-core with planted changes."""

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.bisect.measuring import pinned_build
from harness.bisect.revisions import SUBMODULE, copied, find_revisions, pins_at
from harness.bisect.search import ENDS
from harness.launch.environment import this_host
from harness.records.batches import EVENTS
from tests.bisect.repositories import BROKEN, LARGER, MENDED, NO_RECOMPUTE, SLOWER, git, pinning, repository, wheel
from tests.commands import refused

SUITE = """title: One case
cases:
  - name: dense
    golden: optional
    request: {model_recipe_name: llama3_8b, gpu: cpu, max_steps: 6, eval_time_start_step: 1, seq_length: 64, recompute: mlp}
"""


@pytest.fixture(name="bisect")
def _bisect(mbr_perf, tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)

    def run(repo, good, bad, *more):
        asked = (f"{tmp_path / 'suite.yaml'}:dense", "--good", good, "--bad", bad, "--repo", repo)
        return mbr_perf("bisect", *asked, "--results_dir", tmp_path / "results", *more)

    return run


@pytest.fixture(name="small")
def _small(tmp_path):
    """A repository whose package is a single file, and its commits."""
    package = tmp_path / "small" / "megatron" / "core"
    package.mkdir(parents=True)
    git(tmp_path / "small", "init", "-q")
    shas = []
    for place in range(3):
        (package / "__init__.py").write_text(f"PLACE = {place}\n")
        (package / "package_info.py").write_text("MAJOR = 0\nMINOR = 16\nPATCH = 1\nPRE_RELEASE = ''\n")
        git(tmp_path / "small", "add", "-A")
        git(tmp_path / "small", "commit", "-q", "-m", f"Change {place}")
        shas.append(git(tmp_path / "small", "rev-parse", "HEAD"))
    return tmp_path / "small", shas


def test_every_problem_of_a_request_is_told_at_once_and_nothing_is_written(bisect, mbr_perf, small, tmp_path):
    repo, (first, second, third) = small
    git(repo, "commit", "-q", "--allow-empty", "-m", "Nothing")
    other = git(repo, "commit-tree", "HEAD^{tree}", "-m", "Another history")
    for (folder, good, bad), *expected in (
        ((tmp_path / "none", first, third), "no such folder"),
        ((tmp_path, first, third), "not a git repository"),
        ((repo, "nonsense", third), "--good nonsense: no commit"),
        ((repo, "--all", third), "--good --all: no commit"),
        ((repo, third, first), "is no ancestor", "swap them"),
        ((repo, other, first), "is no ancestor"),
        ((repo, third, "HEAD"), "no commit from"),
        ((repo, first, "HEAD~3"), "no commit from"),
    ):
        answer = bisect(folder, good, bad)
        assert (answer.code, answer.out) == (2, "")
        assert all(text in " ".join(answer.err.split()) for text in expected), answer.err
    pinning(tmp_path / "stack", "megatron-core>=0.16", "megatron-core")
    for pins, expected in (
        ("requirements.txt", "pins no version"),
        ("none.txt", "no such file"),
        ("-x", "no such file"),
    ):
        answer = bisect(tmp_path / "stack", "HEAD~1", "HEAD", f"--pins={pins}")
        assert (answer.code, answer.out) == (2, "") and expected in " ".join(answer.err.split())
    few = bisect(repo, first, second, "--max_runs", "3")
    assert (few.code, "--max_runs" in few.err) == (2, True)
    nothing = mbr_perf("bisect")
    assert (nothing.code, all(f"bisect needs {name}" in nothing.err for name in ("CASE", "--good", "--bad", "--repo"))) == (2, True)  # fmt: skip
    unknown = mbr_perf("bisect", f"{tmp_path / 'suite.yaml'}:dens", "--good", first, "--bad", third, "--repo", repo)
    assert (unknown.code, "did you mean 'dense'" in unknown.err) == (2, True)
    both = mbr_perf("bisect", "--resume", "x", "--good", first)
    assert (both.code, "--good would change it" in both.err) == (2, True)
    assert not (tmp_path / "results").exists()


def test_of_megatron_bridge_the_commits_count_that_move_the_submodule(small, tmp_path):
    inner, shas = small
    bridge = tmp_path / "bridge"
    (bridge / "src").mkdir(parents=True)
    git(bridge, "init", "-q")
    moved = []
    for place, pin in enumerate((shas[0], shas[0], shas[1], shas[2])):
        (bridge / "src" / "own.py").write_text(f"{place}\n")
        git(bridge, "add", "-A")
        git(bridge, "update-index", "--add", "--cacheinfo", f"160000,{pin},{SUBMODULE}")
        git(bridge, "commit", "-q", "-m", f"Change {place}")
        moved.append(git(bridge, "rev-parse", "HEAD"))
    refused(lambda: find_revisions(bridge, moved[0], moved[-1]), "submodule update --init")
    git(bridge, "clone", "-q", str(inner), SUBMODULE)
    found = find_revisions(bridge, moved[0], moved[-1])
    assert [each.sha for each in found] == [moved[0], *moved[2:]]
    assert copied(bridge, moved[2], tmp_path / "copy") == f"0.16.1+g{shas[1][:10]}"
    assert (tmp_path / "copy" / "megatron" / "core" / "__init__.py").read_text() == "PLACE = 1\n"


def test_pins_are_read_below_the_folder_that_is_named(tmp_path):
    pinning(tmp_path / "stack", "torch==1")
    (tmp_path / "stack" / "train").mkdir()
    (tmp_path / "stack" / "train" / "requirements.txt").write_text("torch==2\n")
    git(tmp_path / "stack", "add", "-A")
    git(tmp_path / "stack", "commit", "-q", "-m", "train")
    project = '[project]\nname = "x"\ndependencies = ["megatron-core==0.16.1", "einops"]\n'
    for name, text in (("pyproject.toml", project), ("none.toml", "[project]\n")):
        (tmp_path / "stack" / name).write_text(text)
    others = ("-r other.txt", "-cother.txt", "--requirement=other.txt", "--constraint other.txt")
    for number, option in enumerate(others):
        (tmp_path / "stack" / f"pins{number}.txt").write_text(f"torch==1\n{option}\n")
    git(tmp_path / "stack", "add", "-A")
    git(tmp_path / "stack", "commit", "-q", "-m", "more files")
    assert pins_at(tmp_path / "stack", "HEAD", "pyproject.toml") == "megatron-core==0.16.1\neinops"
    refused(lambda: pins_at(tmp_path / "stack", "HEAD", "none.toml"), "no project.dependencies")
    for number, option in enumerate(others):
        refused(lambda name=f"pins{number}.txt": pins_at(tmp_path / "stack", "HEAD", name), f":2: {option}: reads")
    folders = (tmp_path / "stack", tmp_path / "stack" / "train")
    assert [pins_at(folder, "HEAD", "requirements.txt") for folder in folders] == ["torch==1\n", "torch==2\n"]


@pytest.mark.slow
def test_two_bisects_at_once_share_the_environment_that_is_ready_first(tmp_path):
    (sha,) = pinning(tmp_path / "stack", f"numpy=={version('numpy')}")
    environments, host = tmp_path / "environments", this_host()
    text = f"{sys.prefix}\n{pins_at(tmp_path / 'stack', sha, 'requirements.txt')}"
    half = environments / f"{sha256(text.encode()).hexdigest()[:16]}.half"
    (half / "lib" / "python0.0").mkdir(parents=True)  # of a bisect that was killed
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(pinned_build, tmp_path / "stack", sha, "requirements.txt", environments, host) for _ in "ab"
        ]
        first, second = (each.result() for each in asked)
    assert first == second and [each for each in environments.iterdir() if each.is_dir()] == [half.with_suffix("")]
    assert not (half.with_suffix("") / "lib" / "python0.0").exists()


@pytest.mark.slow
def test_an_end_that_cannot_be_traced_ends_the_bisect_and_is_tried_again(bisect, small, mbr_perf, tmp_path):
    repo, (first, _, third) = small
    answer = bisect(repo, first, third)
    assert (answer.code, answer.out) == (3, "")
    assert f"the good revision {first[:10]} cannot be measured" in answer.err
    again = mbr_perf("bisect", "--resume", next((tmp_path / "results" / "bisects").iterdir()))
    assert (again.code, f"the good revision {first[:10]}" in again.err) == (3, True)
    assert not git(repo, "status", "--porcelain")


@pytest.mark.slow
def test_sigterm_during_a_trace_keeps_the_bisect(bisect, small, mbr_perf, tmp_path):
    repo, (first, _, third) = small
    asked = (f"{tmp_path / 'suite.yaml'}:dense", "--good", first, "--bad", third, "--repo", str(repo), "--metric", "work", "--metric=memory")  # fmt: skip
    words = (sys.executable, "-m", "harness.app", "bisect", *asked, "--results_dir", str(tmp_path / "results"))
    process = subprocess.Popen(words, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    while not (copies := [*tmp_path.glob("results/bisects/*/revisions/*/megatron")]) and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    out, folder = process.communicate(timeout=60)[0], copies[0].parents[2]
    assert (process.returncode, f"mbr-perf bisect --resume {folder}" in out) == (143, True)
    show = ("results", "show", folder.name[-8:], *words[-2:], "--json")
    assert json.loads(mbr_perf(*show).out)["state"] == "unfinished"
    traces = [{"place": place, "kind": "trace", "number": 0, "peak_bytes": 1, "flops": 1, "recompute": "mlp"} for place in (0, 0, 2, 2)]  # fmt: skip
    (folder / EVENTS).write_text("".join(f"{json.dumps(each)}\n" for each in traces))
    undecided = mbr_perf("bisect", "--resume", folder, "--json")
    assert (undecided.code, "--metric" in json.loads(undecided.out)["advice"]) == (6, True)
    runs = [{"place": 2 * bad, "kind": "run", "number": 0, "seconds": 2 - bad} for bad in ENDS]
    (folder / EVENTS).write_text("".join(f"{json.dumps(each)}\n" for each in (*traces, *runs)))
    plan = json.loads((folder / "bisect.json").read_text()) | {"metric": None}
    (folder / "bisect.json").write_text(json.dumps(plan))
    document = json.loads(mbr_perf("bisect", "--resume", folder, "--json").out)
    assert (document["metric"], "no slower" in document["reason"]) == ("time", True)
    shown = json.loads(mbr_perf(*show).out)
    assert (shown["kind"], shown["state"]) == ("bisect", "finished")
    assert mbr_perf("history", "add", folder).code == mbr_perf("results", "show", copies[0]).code == 2


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_growth_of_memory_is_found_by_tracing_and_revisions_that_cannot_be_traced_are_skipped(
    bisect, tmp_path, mbr_perf
):
    repo, shas = repository(tmp_path / "repo", 6, {2: [BROKEN], 4: [MENDED, LARGER]})
    answer = bisect(repo, shas[0], shas[-1], "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["metric"], document["first_bad"]["sha"]) == (0, "memory", shas[4])
    assert [each["sha"] for each in document["between"]] in (shas[2:5], shas[3:5])
    assert {each["revision"]["sha"] for each in document["skipped"]} <= set(shas[2:4])
    assert 0.005 < document["change"] < 0.1 and document["levels"] == [s["figures"][0] for s in document["sides"]]
    assert any("# more memory" in line for line in document["changed_lines"])
    folder = tmp_path / "results" / "bisects" / document["bisect_id"]
    assert "one of" in (folder / "report" / "bisect.md").read_text()
    events = (folder / EVENTS).read_bytes().splitlines(keepends=True)
    copy = folder.with_name("cut")
    shutil.copytree(folder, copy)
    (copy / EVENTS).write_bytes(b"".join(events[:3]) + events[3][:20])
    again = json.loads(mbr_perf("bisect", "--resume", copy, "--json").out)
    assert {**again, "folder": None} == {**document, "folder": None}


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_recompute_that_has_no_effect_any_more_is_found_by_tracing(bisect, tmp_path):
    repo, shas = repository(tmp_path / "repo", 3, {2: [NO_RECOMPUTE]})
    document = json.loads(bisect(repo, shas[0], shas[-1], "--json").out)
    assert (document["metric"], document["first_bad"]["sha"]) == ("recompute", shas[2])
    assert any("recompute_mlp = False" in line for line in document["changed_lines"])


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_slower_commit_is_found_by_training(bisect, tmp_path):
    repo, shas = repository(tmp_path / "repo", 3, {2: [SLOWER]})
    answer = bisect(repo, shas[0], shas[-1], "--metric", "time", "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["first_bad"]["sha"]) == (0, shas[2])
    assert document["change"] > 0.2 and document["probability"] >= 0.85


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_release_that_needs_more_memory_is_found_in_a_file_of_pins(bisect, tmp_path):
    larger = f"megatron-core @ {wheel(tmp_path, '0.16.2', LARGER).as_uri()}"
    pins = ("megatron-core==0.16.0", "megatron-core==0.16.1", "megatron-core==0.16.999", larger, f"{larger}\neinops")
    shas = pinning(tmp_path / "stack", *pins)
    answer = bisect(tmp_path / "stack", shas[0], shas[-1], "--pins", "requirements.txt", "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["metric"], document["first_bad"]["sha"]) == (0, "memory", shas[3]), answer.err
    assert [each["revision"]["sha"] for each in document["skipped"]] == [shas[2]]
    assert document["changed_lines"][-1] == f"requirements.txt: +{larger}"
