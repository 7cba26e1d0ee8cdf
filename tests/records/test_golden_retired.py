"""Goldens that were taken out of force are kept, and nothing is compared with them."""

import json
from datetime import UTC, datetime

import pytest

from harness.records.golden import golden_text, list_retired, retire
from harness.records.goldens import find_golden, list_goldens, read_golden, write_golden
from tests.commands import refused

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
RETIREMENT = {"reason": "the cluster is gone", "author": "someone", "now": NOW}


@pytest.fixture(name="stored")
def _stored(tmp_path, make_record, make_golden):
    """A golden in force, and its record."""
    record = make_record()
    golden = make_golden(record, {"tflops_per_gpu": 700.5})
    return write_golden(tmp_path, record.spec, golden), golden, record


def test_a_retired_golden_moves_and_says_when_by_whom_and_why(tmp_path, stored):
    path, golden, _ = stored
    target = retire(tmp_path, path, golden, **RETIREMENT)
    assert target == tmp_path / "retired/h100/llama3_70b.sft.fp8_cs.32gpu.core_attn.20260304.json"
    assert not path.exists()
    retired = read_golden(target)
    assert (retired.retired_at, retired.retired_by, retired.retired_reason) == (
        "2026-03-04T05:06:07Z", "someone", "the cluster is gone",
    )  # fmt: skip
    assert retired.metrics == golden.metrics
    assert list_goldens(tmp_path) == ({}, {})
    assert list(list_retired(tmp_path)[0]) == [target]


def test_the_search_for_a_retired_golden_tells_of_it_and_nothing_is_compared_with_it(tmp_path, stored, make_spec):
    path, golden, record = stored
    target = retire(tmp_path, path, golden, **RETIREMENT)
    found = find_golden(record.spec, tmp_path)
    assert found.golden is None
    assert found.note.endswith(" 2026-03-04 by someone: the cluster is gone")
    other = make_spec(batch={"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 8192})
    assert "2026-03-04" not in find_golden(other, tmp_path).note
    refused(lambda: find_golden(record.spec, target), str(target), "someone")
    target.rename(target.with_name(target.name.replace("core_attn.", "core_attn.more.")))  # a similar name
    assert "2026-03-04" not in find_golden(record.spec, tmp_path).note


def test_a_second_one_of_a_day_overwrites_nothing(tmp_path, stored):
    path, golden, record = stored
    first = retire(tmp_path, path, golden, **RETIREMENT)
    text = first.read_text()
    write_golden(tmp_path, record.spec, golden.model_copy(update={"reason": "second"}))
    later = NOW.replace(hour=7)
    second = retire(tmp_path, path, read_golden(path), **RETIREMENT | {"now": later, "reason": "again"})
    assert second.name.endswith(".20260304-2.json")
    assert first.read_text() == text
    assert "again" in find_golden(record.spec, tmp_path).note


def test_only_a_golden_in_force_is_retired_and_only_with_a_reason(tmp_path, stored):
    path, golden, _ = stored
    refused(lambda: retire(tmp_path, path, golden, **RETIREMENT | {"reason": " "}), "--reason ")
    target = retire(tmp_path, path, golden, **RETIREMENT)
    refused(lambda: retire(tmp_path, target, golden, **RETIREMENT), str(target))
    assert target.exists()


def test_a_golden_names_no_field_at_its_default(make_record, make_golden):
    document = json.loads(golden_text(make_golden(make_record(), {"tflops_per_gpu": 1.0})))
    assert not document.keys() & {"retired_at", "window", "caveats"}
    assert not document["measured_on"].keys() & {"environment", "hostnames"}
