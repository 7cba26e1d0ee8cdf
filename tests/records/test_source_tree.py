"""A changed file is noticed by its stamp, without reading it or importing anything."""

import sys

import pytest

from harness.records.trace import megatron_core_stamps, tree_stamps


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


def test_byte_code_is_no_input(checkout):
    before = list(tree_stamps(checkout))
    (checkout / "__pycache__" / "layer.pyc").touch()
    assert list(tree_stamps(checkout)) == before


def test_a_file_that_is_not_there_has_a_stamp_too(tmp_path):
    assert list(tree_stamps(tmp_path / "gone")) == [f"{tmp_path / 'gone'} none"]
