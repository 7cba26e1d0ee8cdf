"""Bounded series of memory readings."""

import pytest

from harness.records.rank import MAX_POINTS, SeriesRecorder


def test_each_point_is_the_highest_reading_of_its_interval():
    recorder = SeriesRecorder(1.0)
    for time_s, num_bytes in ((10.0, 5), (10.4, 9), (10.9, 2), (11.5, 3)):
        recorder.add(time_s, num_bytes)
    series = recorder.series("test")
    assert series.max_bytes == (9, 3)


def test_a_level_lasts_until_the_next_reading():
    recorder = SeriesRecorder(1.0)
    recorder.add(0.0, 7)
    recorder.add(3.2, 1)
    recorder.add(4.1, 1)
    series = recorder.series("test")
    assert series.max_bytes == (7, 7, 7, 7, 1)


@pytest.mark.parametrize("seconds", [239, 240, 1_000, 100_000])
def test_a_long_run_keeps_its_peak_and_stays_small(seconds: int):
    recorder = SeriesRecorder(1.0)
    for second in range(seconds):
        recorder.add(float(second), 999 if second == seconds // 3 else second % 10)
    series = recorder.series("test")
    assert max(series.max_bytes) == 999
    assert len(series.max_bytes) <= MAX_POINTS
    assert seconds <= len(series.max_bytes) * series.interval_s < seconds + 2 * series.interval_s


def test_nothing_read_is_no_series():
    assert SeriesRecorder(1.0).series("test") is None
