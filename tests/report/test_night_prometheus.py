"""A night for node-exporter's textfile collector."""

import re
from dataclasses import replace

from harness.report.night_prometheus import night_prometheus

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (?P<value>\S+)')


def samples(text):
    found = [SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    assert None not in found
    return [(match["name"], match["labels"], float(match["value"])) for match in found]


def test_every_line_is_a_sample_or_a_header_and_none_is_there_twice(night):
    found = samples(night_prometheus(night))

    assert len(found) == len({(name, labels) for name, labels, _ in found})


def test_every_name_has_its_header_once_before_its_samples(night):
    text = night_prometheus(night)
    names = list(dict.fromkeys(name for name, _, _ in samples(text)))

    assert re.findall(r"^# HELP (\S+) .", text, re.MULTILINE) == names
    assert re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE) == names


def test_the_outcome_of_each_case_is_one_of_all(night):
    hot = [
        labels for name, labels, value in samples(night_prometheus(night)) if name == "mbr_perf_case_outcome" and value
    ]

    assert len(hot) == len(night.cases)
    assert 'suite="h100_nightly",case="llama3_70b_mlp",outcome="regression"' in hot


def test_figures_are_in_base_units_under_names_that_say_so(night):
    found = {(name, labels): value for name, labels, value in samples(night_prometheus(night))}
    mlp = 'suite="h100_nightly",case="llama3_70b_mlp"'

    assert found["mbr_perf_case_peak_allocated_bytes", mlp] == 58e9
    assert found["mbr_perf_case_step_time_seconds", mlp] == 10.12
    assert found["mbr_perf_case_change_ratio", f'{mlp},metric="tflops_per_gpu"'] == -0.034
    assert found["mbr_perf_night_start_time_seconds", 'suite="h100_nightly"'] == 1767405600
    assert found["mbr_perf_night_exit_code", 'suite="h100_nightly"'] == 3


def test_a_case_that_did_not_end_well_has_no_figures(night):
    with_memory = [
        labels for name, labels, _ in samples(night_prometheus(night)) if name.endswith("peak_allocated_bytes")
    ]

    assert not [labels for labels in with_memory if "llama3_8b_none" in labels]
    assert [labels for labels in with_memory if "llama3_70b_none" in labels]


def test_labels_are_escaped(make_night, make_case):
    text = night_prometheus(make_night(cases=(make_case('a"b\\c\nd', []),)))

    assert r'case="a\"b\\c\nd"' in text
    assert samples(text)


def test_shards_of_one_suite_do_not_hide_each_other(make_night, night):
    text = night_prometheus(replace(night, plan=night.plan.model_copy(update={"shard": "1/2"})))

    assert 'mbr_perf_night_exit_code{suite="h100_nightly",shard="1/2"} 3' in text
