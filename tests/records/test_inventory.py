"""The inventory of a results folder, and stamps of sources: read, and nothing is changed or imported."""

import sys

import pytest

from harness.records.inventory import file_sizes, find_stored, inventory
from harness.records.store import new_run_dir, write_record
from harness.records.trace import megatron_core_stamps, tree_stamps
from tests.commands import refused


@pytest.fixture(name="results")
def _results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def committed(results, make_record):
    def commit(**changes):
        run_dir = new_run_dir(results, "llama3_8b")
        write_record(run_dir, make_record(run_id=run_dir.name, **changes))
        return run_dir

    return commit


def test_a_committed_run_is_listed_with_its_outcome(committed, results):
    run_dir = committed(status="oom", failure="rank 0 ran out")
    [entry] = inventory(results)
    assert (entry.kind, entry.id, entry.recipe, entry.state, entry.detail) == (
        "run", run_dir.name, "llama3_8b", "oom", "rank 0 ran out",
    )  # fmt: skip
    assert (
        entry.when
        == f"{run_dir.name[:4]}-{run_dir.name[4:6]}-{run_dir.name[6:11]}:{run_dir.name[11:13]}:" + (run_dir.name[13:16])
    )
    assert entry.num_bytes == (run_dir / "record.json").stat().st_size


def test_entries_come_oldest_first_and_links_are_not_followed_and_weigh_nothing(results, tmp_path):
    assert inventory(results) == ()
    for name in ("20260102T000000Z-b-00000000", "20260101T000000Z-a-11111111"):
        (results / "runs" / name).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large").write_bytes(b"x" * 1000)
    (results / "runs" / "20260103T000000Z-c-22222222").symlink_to(tmp_path / "elsewhere")
    assert [entry.recipe for entry in inventory(results)] == ["a", "b"]
    run_dir = new_run_dir(results, "a")
    (run_dir / "link").symlink_to(tmp_path / "elsewhere" / "large")
    (run_dir / "file").write_bytes(b"x" * 10)
    assert file_sizes(run_dir) == (("file", 10),)


@pytest.mark.parametrize("cut", [slice(None), slice(0, 20), slice(-8, None)])
def test_an_entry_is_found_by_its_id_its_start_or_its_last_digits(committed, results, cut):
    run_dir = committed()
    assert find_stored(run_dir.name[cut], results).path == run_dir


def test_a_folder_that_is_neither_run_nor_sweep_is_refused(tmp_path):
    refused(lambda: find_stored(tmp_path, tmp_path), str(tmp_path))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An editable megatron-core, the first that would be imported."""
    (tmp_path / "megatron" / "core" / "__pycache__").mkdir(parents=True)
    (tmp_path / "megatron" / "__init__.py").touch()
    (tmp_path / "megatron" / "core" / "layer.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "megatron" / "core"


def test_an_edited_megatron_core_of_the_same_version_has_other_stamps_and_is_not_imported(checkout):
    before = list(megatron_core_stamps())
    (checkout / "layer.py").write_text("x = 10\n")
    after = list(megatron_core_stamps())
    assert len(before) == len(after) == 1
    assert before != after
    assert "megatron" not in sys.modules


def test_byte_code_is_no_input_and_a_file_that_is_not_there_has_a_stamp_too(checkout):
    before = list(tree_stamps(checkout))
    (checkout / "__pycache__" / "layer.pyc").touch()
    assert list(tree_stamps(checkout)) == before
    assert list(tree_stamps(checkout / "gone")) == [f"{checkout / 'gone'} none"]
