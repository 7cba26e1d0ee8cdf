"""Looks at a clock stay bounded, and no slowdown is lost."""

from harness.engine.nvml import MAX_SAMPLES, ClockRecorder

CAP, THERMAL = 0x04, 0x40


def test_a_long_run_keeps_a_bounded_number_of_looks_and_every_slowdown():
    recorder, at = ClockRecorder(0.1), 0.0
    for number in range(10 * MAX_SAMPLES):
        if at >= recorder.due_s:
            recorder.add(at, 1755, THERMAL if number == 333 else CAP if number % 2 else 0)
        at += 0.1
    samples = recorder.samples()
    assert MAX_SAMPLES / 2 <= len(samples.times_s) <= MAX_SAMPLES
    assert samples.times_s == tuple(sorted(samples.times_s))
    assert sum(reasons == THERMAL for reasons in samples.reasons) == 1
    assert recorder.every_s > 0.1
    assert recorder.reasons_seen() == ("sw_power_cap", "hw_thermal_slowdown")


def test_without_a_look_there_is_nothing_to_keep():
    assert ClockRecorder(0.1).samples() is None
    assert ClockRecorder(0.1).median_busy_mhz() is None
