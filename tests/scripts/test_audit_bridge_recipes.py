"""Every point with a Megatron-Bridge source equals what Bridge 067f987 runs, or the table says why not."""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("audit-bridge-recipes.d",)
RESOLVED = ROOT / "tests" / "data" / "bridge" / "containers_067f987.tar.xz"


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    """The configurations that scripts/audit-bridge-recipes recorded, one file for each point."""
    folder = tmp_path_factory.mktemp("resolved")
    with tarfile.open(RESOLVED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def copy_of(resolved, tmp_path, *files):
    for name in files:
        shutil.copy(resolved / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_every_point_equals_what_bridge_runs_or_the_table_says_why_not(module, resolved):
    found = module("compare").audit(resolved)
    assert found.unlisted == ()
    assert found.absent == () and found.without_point == () and found.stale == ()
    assert found.num_points == len(module("ask").bridge_points()) == 257
    assert found.num_fields > 100 * found.num_points
    assert found.passed


def test_bridge_refuses_only_points_that_say_they_cannot_run(module, resolved):
    refused = (resolved / "refused.json").read_text()
    for point in module("ask").bridge_points():
        if f'"{point.file}"' in refused:
            assert point.point.key.inconsistent, point.name
    assert refused.count("Error") == 3


def test_a_difference_that_is_not_listed_is_found_at_its_point(module, resolved, tmp_path):
    changed, refused = "llama3_70b_sft_32gpu_h100_bf16.yaml", "llama3_8b_pretrain_8gpu_h100_bf16.yaml"
    path = copy_of(resolved, tmp_path, changed, refused) / changed
    path.write_text(path.read_text().replace("wgrad_deferral_limit: 22", "wgrad_deferral_limit: 21"))
    (tmp_path / "refused.json").write_text(f'{{"{refused}": "ValueError: no"}}')
    found = {row.field: row for row in module("compare").audit(tmp_path).unlisted}
    limit = found.pop("parallelism.wgrad_deferral_limit")
    assert (limit.point, limit.ours, limit.theirs) == ("llama3_70b.sft.h100.bf16.32", "22", "21")
    assert (found.keys(), found["inconsistent"].theirs) == ({"inconsistent"}, "ValueError: no")


def test_a_file_without_a_point_and_a_row_without_a_difference_are_named(module, resolved, tmp_path):
    copy_of(resolved, tmp_path, "llama3_8b_pretrain_8gpu_h100_bf16.yaml").joinpath("x.yaml").write_text("a: 1\n")
    found = module("compare").audit(tmp_path)
    assert found.without_point == ("x.yaml",)
    assert "model.vocab_size" in [row.field for row in found.stale]
    assert len(found.absent) == 256
    assert not found.passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "BRIDGE_CHECKOUT"),
        (("{tmp}",), "perf_recipes: "),
        (("{checkout}",), "argument_parser.py: "),
        (("{whole}",), "git submodule update --init 3rdparty/Megatron-LM"),
    ],
)
def test_what_is_no_checkout_is_refused_before_anything_is_installed(tmp_path, arguments, message):
    checkout = tmp_path / "bridge"
    (checkout / "src" / "megatron" / "bridge" / "perf_recipes").mkdir(parents=True)
    whole = shutil.copytree(checkout, tmp_path / "whole")
    write_parser(whole, "")
    given = [each.format(tmp=tmp_path, checkout=checkout, whole=whole) for each in arguments]
    run = subprocess.run(
        [ROOT / "scripts" / "audit-bridge-recipes", *given], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "MBR_PERF_NO_SETUP": "1", "PYTHON": shutil.which("python") or "python3"},
    )  # fmt: skip
    assert run.returncode == 2
    assert message in run.stdout + run.stderr
    assert "installing" not in run.stderr


def test_the_offline_cache_answers_for_the_branch_and_for_every_pinned_commit(module, tmp_path):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "a.py").write_text(f'REVISION = "{"a1" * 20}"\n')
    module("offline_models").write(tmp_path / "hub", recipes)
    folder = tmp_path / "hub" / "models--Qwen--Qwen3-30B-A3B"
    main = (folder / "refs" / "main").read_text()
    for commit in (main, "a1" * 20):
        assert '"num_experts": 128' in (folder / "snapshots" / commit / "config.json").read_text()


def write_parser(checkout, lines):
    path = checkout / "scripts" / "performance" / "argument_parser.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines)


def test_options_are_read_from_the_source_and_changes_are_named(module, tmp_path):
    options = module("options")
    write_parser(
        tmp_path,
        "group = parser.add_argument_group('A')\n"
        "group.add_argument('-m', '--model_family_name', type=lower_str, required=True)\n"
        "if x:\n    parser.add_argument('--new', nargs='*', default=[6], help='No fact.')\n",
    )
    found = options.read(tmp_path)
    assert found == ["--model_family_name -m", "--new *"]
    changes = options.changes(found)
    assert changes[0].startswith("--new is new")
    assert changes[1:] and all(change.endswith(" is gone") for change in changes[1:])
    found[0] = "--model_family_name -f"
    assert any(change.startswith("--model_family_name changed") for change in options.changes(found))


def test_a_refreshed_list_has_the_commit_and_no_changes(module, tmp_path, monkeypatch):
    options = module("options")
    write_parser(tmp_path, "parser.add_argument('--lr', type=float)\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", tmp_path, *author, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    monkeypatch.setattr(options, "COMMITTED", tmp_path / "options.json")
    options.write(options.read(tmp_path), tmp_path, options.COMMITTED)
    written = json.loads(options.COMMITTED.read_text())
    assert len(written["commit"]) == 40
    assert written["options"] == ["--lr"]
    assert options.changes(options.read(tmp_path)) == []
