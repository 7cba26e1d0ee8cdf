"""Golden values on disk: found by settings, written for review."""

import json
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.records.folders import golden_dir
from harness.records.golden import golden_digest, golden_text
from harness.records.goldens import (
    find_golden,
    list_goldens,
    named_golden,
    promotion_path,
    read_golden,
    writable_golden_dir,
    write_golden,
)
from tests.commands import refused

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results/golden/h100/llama3_70b.sft.fp8_cs.32gpu.core_attn.json"
VALUES = {"tflops_per_gpu": 700.5, "peak_allocated_bytes": 58_800_000_000}


def test_goldens_are_in_the_checkout_by_default(tmp_path):
    assert golden_dir() == writable_golden_dir() == ROOT / "results/golden"
    assert golden_dir(tmp_path) == writable_golden_dir(tmp_path) == tmp_path


def test_a_golden_reads_back_as_it_was_written(tmp_path, make_record, make_golden):
    record = make_record()
    golden = make_golden(record, VALUES)
    path = write_golden(tmp_path, record.spec, golden)
    assert path == tmp_path / "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn.json"
    assert read_golden(path) == golden.model_copy(update={"digest": golden_digest(golden)})


def test_the_text_is_made_for_review(make_record, make_golden):
    text = golden_text(make_golden(make_record(), VALUES))
    assert '      "value": 58800000000\n' in text
    assert '      "value": 700.5\n' in text
    spec = json.loads(text)["spec"]
    assert list(spec) == sorted(spec)
    assert golden_text(make_golden(make_record(), VALUES)) == text


def test_a_golden_with_a_setting_of_another_version_is_told_apart_by_it(tmp_path, make_spec, make_record, make_golden):
    spec = make_record().spec
    write_golden(tmp_path, spec, make_golden(make_record(), VALUES, spec=spec.identity() | {"a_setting_of_2027": 1}))
    other = make_spec(batch={"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 8192})
    assert find_golden(make_record().spec, tmp_path).golden is not None
    assert "a_setting_of_2027: golden 1, here " in find_golden(other, tmp_path).note


def test_a_golden_is_found_for_exactly_its_settings(tmp_path, make_spec, make_record, make_golden):
    record = make_record()
    path = write_golden(tmp_path, record.spec, make_golden(record, VALUES))
    assert find_golden(record.spec, tmp_path).path == path
    longer = make_spec(batch={"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 8192})
    found = find_golden(longer, tmp_path)
    assert found.golden is None
    assert found.note.endswith(": batch.seq_length: golden 4096, here 8192")
    missing = find_golden(make_spec(recompute="mlp"), tmp_path)
    assert f": {tmp_path}/h100/llama3_70b.sft.fp8_cs.32gpu.mlp.json " in missing.note
    assert find_golden(make_spec(measure={"max_steps": 20}), tmp_path).golden is not None
    refused(lambda: find_golden(make_spec(), tmp_path / "nowhere"), str(tmp_path / "nowhere"))


def test_a_golden_whose_recipe_point_changed_is_found_by_its_name(tmp_path, make_spec, make_record, make_golden):
    record = make_record()
    path = write_golden(tmp_path, record.spec, make_golden(record, VALUES))
    changed = make_spec(optimizer={"lr": 2e-4})
    by_recipe = {"optimizer.lr": "recipes/llama/llama3_70b.yaml:40", "num_gpus": "--num_gpus"}
    found = find_golden(changed, tmp_path, by_recipe)
    assert (found.golden.fingerprint, found.path) == (record.fingerprint, path)
    assert found.note.endswith(f" {path}: optimizer.lr: golden 0.0001, here 0.0002")
    for sources in (
        {"optimizer.lr": "--set optimizer.lr"},
        {"optimizer": "--set"},
        by_recipe | {"variant": "--variant"},
    ):
        assert find_golden(changed, tmp_path, sources).golden is None


def test_goldens_are_listed_and_named(tmp_path, make_record, make_golden):
    record = make_record()
    path = write_golden(tmp_path, record.spec, make_golden(record, VALUES))
    assert list(list_goldens(tmp_path)[0]) == [path]
    name = "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn"
    for same in (str(path), name, f"{name}.json"):
        assert named_golden(same, tmp_path)[0] == path
    refused(lambda: named_golden("other", tmp_path), "'other'")
    refused(lambda: named_golden(name.removesuffix("attn") + "atn", tmp_path), f"'{name}'")


def test_the_published_golden_is_external_and_says_what_it_lacks(make_spec):
    golden = read_golden(PUBLISHED)
    assert golden.metrics["tflops_per_gpu"].value == 709.93
    assert golden.metrics["peak_allocated_bytes"].value == 58_800_000_000
    assert (golden.kind, golden.fingerprint, golden.measured_on.device_name) == ("external", None, None)
    assert len(golden.caveats) == 5
    assert PUBLISHED.read_text() == golden_text(golden)
    assert find_golden(make_spec()).path == PUBLISHED


def test_a_golden_that_cannot_be_written_is_reported_with_a_remedy(tmp_path, make_record, make_golden):
    (tmp_path / "file").write_text("")
    record = make_record()
    golden = make_golden(record, {"tflops_per_gpu": 1.0})
    refused(lambda: write_golden(tmp_path / "file", record.spec, golden), str(tmp_path / "file"), "Not a directory")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"700"', "golden.json:{line}: metrics.tflops_per_gpu.value: "),
        ("0", "golden.json:{line}: metrics.tflops_per_gpu.value: "),
        ("NaN", "golden.json:{line}: metrics.tflops_per_gpu.value: "),
        ('700.5, "colour": "red"', "golden.json:{line}: metrics.tflops_per_gpu.colour: "),
        ("[" * 100_000, "golden.json: nested"),
        ("[" * 300 + "1" + "]" * 300, "golden.json"),
        (r'"\ud800"', "golden.json"),
        ("9" * 5000, "has 5000 digits"),
        ('1.0, "value": 2.0', "duplicate key 'value'"),
        ("NaN, oops", "golden.json:{line}: not JSON"),
    ],
)
def test_a_damaged_golden_is_reported_in_a_line_with_a_remedy(tmp_path, make_record, make_golden, value, expected):
    path = tmp_path / "golden.json"
    text = golden_text(make_golden(make_record(), VALUES))
    line = text[: text.index('"value": 700.5')].count("\n") + 1
    path.write_text(text.replace('"value": 700.5', f'"value": {value}'))
    [problem] = refused(lambda: read_golden(path), expected.format(line=line))
    assert "golden promote" in problem.remedy


@pytest.mark.parametrize(("old", "new"), [
    ('"value": 700.5', '"value": 600.5'), ('"value": 700.5', '"value": 700.5, "relative_spread": 0.4'),
    ('"global_batch_size": 32', '"global_batch_size": 64'), ('"device_name": "', '"device_name": "other '),
    ('"kind": "measured"', '"kind": "external"'), ('"num_runs": 1', '"num_runs": 2'), ('"promoted_at": "2026-0', '"promoted_at": "2936-0'), ('"digest"', '"source"'),
])  # fmt: skip
def test_a_golden_whose_figures_were_edited_by_hand_is_refused(tmp_path, make_record, make_golden, old, new):
    record = make_record()
    path = write_golden(tmp_path, record.spec, make_golden(record, VALUES, run_ids=("a",)))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadRequestError, match=r"digest|promoted_at|num_runs"):
        read_golden(path)
    path.write_text(json.dumps(json.loads(text) | {"kind": "external", "digest": None}))
    with pytest.raises(BadRequestError, match="digest"):
        read_golden(path)


def test_goldens_that_differ_only_in_the_batch_have_different_names(tmp_path, make_record, make_spec, make_golden):
    batch = {"micro_batch_size": 1, "seq_length": 4096}
    first, second = (make_record(make_spec(batch=batch | {"global_batch_size": size})) for size in (32, 64))
    path = write_golden(tmp_path, first.spec, make_golden(first, VALUES))
    other = promotion_path(tmp_path, second.spec)
    assert other == path.with_name(f"{first.spec.slug}.mbs1.gbs64.seq4096.json")
    write_golden(tmp_path, second.spec, make_golden(second, VALUES), other)
    assert [find_golden(record.spec, tmp_path).path for record in (first, second)] == [path, other]
    assert promotion_path(tmp_path, first.spec) == path
