"""Runs on scripted devices give no times and become no golden, history or calibration. These tests need no such device."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.golden.export import of_run
from harness.history.record import history_record
from harness.judge.derive import derive
from harness.judge.promotion import PromotionOptions, promote
from harness.launch.environment import this_host
from harness.measure.calibration_runs import calibrate
from harness.records.metrics import SUMMARY_METRICS
from harness.records.rank import Device
from harness.records.store import write_record
from tests.conftest import build_rank, build_record, build_spec
from tests.scripted_cuda.lane import DEVICE_NAME

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripted():
    """A run that only its device's name tells from a measured one."""
    spec = build_spec()
    device = Device(kind="cuda", name=DEVICE_NAME)
    return build_record(spec, ranks=tuple(build_rank(spec, rank, device=device) for rank in range(spec.num_gpus)))


def test_it_has_memory_but_neither_times_nor_losses(scripted):
    metrics = derive(scripted)
    assert metrics.peak_allocated_bytes.value == derive(build_record()).peak_allocated_bytes.value
    assert all(getattr(metrics, name) is None for name in (*SUMMARY_METRICS, "mfu", "hfu", "loss_first", "loss_last"))
    assert all(DEVICE_NAME in metrics.problems[name] for name in (*SUMMARY_METRICS, "mfu", "hfu"))


def test_it_becomes_neither_golden_nor_history_nor_calibration(scripted, tmp_path):
    with pytest.raises(BadRequestError, match=DEVICE_NAME):
        promote([scripted], PromotionOptions("try", "someone", datetime.now(UTC)))
    with pytest.raises(BadRequestError, match=DEVICE_NAME):
        of_run(scripted)
    with pytest.raises(BadRequestError, match=DEVICE_NAME):
        history_record(scripted, derive(scripted))
    run = tmp_path / "run"
    run.mkdir()
    write_record(run, scripted)
    with pytest.raises(BadRequestError, match=DEVICE_NAME):
        calibrate((str(run),), this_host(), tmp_path / "constants.json")


def test_no_golden_or_document_of_this_checkout_has_its_figures():
    kept = [*(ROOT / "results").rglob("*.json"), *(ROOT / "results").rglob("*.md"), *(ROOT / "harness").rglob("*.md")]
    wrong = [path for path in kept if "scripted_gpu" not in path.parts and DEVICE_NAME in path.read_text()]
    assert not wrong
    assert f'"{DEVICE_NAME}"' in (ROOT / "tests/scripted_cuda/double/scripted.h").read_text()
