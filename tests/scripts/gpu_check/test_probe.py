"""The stage that measures the planner's constants one by one."""

import pytest
from evidence import write_case
from sitting import probe

from harness.records.strict_json import read_document
from harness.records.trace import Probe


@pytest.mark.parametrize(("fault", "failing"), [("", []), ("too_fast", ["gemm_bf16"]), ("program_dies", ["made"])])
def test_probed_constants_that_no_gpu_reaches_fail(machine, fault, failing):
    (case,) = probe(machine(fault))
    assert [check.name for check in case.checks if check.verdict == "fail"] == failing


def test_a_processors_rates_are_no_constants(machine):
    (case,) = probe(machine(rehearse=True))
    assert (case.verdict, case.facts) == ("skipped", {})


def test_the_file_of_the_probe_is_what_a_calibration_reads(machine, tmp_path):
    runs = machine()
    (case,) = probe(runs)
    write_case(tmp_path, runs.target, case)
    read = read_document(tmp_path / "probe.json", Probe)
    assert (read.gpu, read.facts.constants["call_s"]) == ("h200", 6e-5)
