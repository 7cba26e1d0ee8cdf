"""Every entry of failures.yaml, by its own example, and the words that rule out most lines."""

import re
from dataclasses import fields

import pytest

from harness.failures.classify import classify
from harness.failures.entries import RETRIES, Entry, Sign, entries, known, pools_in, signs, word_of
from harness.failures.failure_signs import sign_of, words_of_failures
from harness.failures.verdict import table

ENTRIES = entries()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.id for entry in ENTRIES])
def test_the_example_of_an_entry_has_its_verdict_and_no_entry_of_another_class_claims_it(entry):
    verdict = classify(entry.example)
    assert (verdict.entry, verdict.oom_class, verdict.confidence) == (entry.id, entry.oom_class, entry.sure)
    claims = {other.id for other in ENTRIES if other.match(entry.example) and other.oom_class != entry.oom_class}
    assert claims == set()
    assert entry.oom_class in table()["advice"] and entry.sure in ("high", "medium", "low")
    assert entry.retry in RETRIES
    assert entry.advice or entry.oom_class not in ("not_oom", "unknown")


@pytest.mark.parametrize("entry", signs(), ids=[entry.id for entry in signs()])
def test_the_example_of_an_entry_with_a_sign_alone_shows_the_failure(entry):
    sign = sign_of(entry.example, in_traceback=False)
    assert (sign.kind, sign.weight, sign.entry) == (entry.sign.kind, entry.sign.weight, entry.id)
    assert any(word in entry.example for word in words_of_failures())


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.id for entry in ENTRIES])
def test_every_pattern_has_a_word_and_no_quantifier_without_a_bound(entry):
    """So that most lines are ruled out by their words, and no line makes a pattern slow."""
    for pattern in entry.patterns:
        assert len(word_of(pattern)) >= 3
        assert max(map(int, re.findall(r",(\d+)\}", pattern)), default=0) <= 2000


@pytest.mark.parametrize("row", table()["pools"], ids=[row["name"] for row in table()["pools"]])
def test_the_example_of_memory_pools_shows_them(row):
    assert pools_in(row["example"]) == row["name"]
    assert any(word in row["example"] for word in words_of_failures())


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("  nccl_ub: true", "NCCL's user buffers"),
        ("  enable_sleep_mode: true", "vLLM's sleep mode"),
        ('"enable_sleep_mode": true,', "vLLM's sleep mode"),
        ("python -m sglang.launch_server --enable-memory-saver", "torch_memory_saver"),
        ("server_args=ServerArgs(enable_memory_saver=True)", "torch_memory_saver"),
        ("  enable_sleep_mode: false", ""),
        ("  nccl_ub ......................................... False", ""),
        ("ServerArgs(enable_memory_saver=False)", ""),
    ],
)
def test_options_and_yaml_show_memory_pools_too(line, name):
    assert pools_in(line) == name


def test_ids_are_unique():
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (r"\bCUDA error: \w{1,9}", "CUDA error: "),
        (r"(?:Array)?MemoryError\b", "MemoryError"),
        (r"[Ff]ailed to (?:open|read) file \(x\)\.", " file (x)."),
        (r"colou?r of it(?!.{0,9}blue)", "r of it"),
        (r"ab{2,3}cde", "cde"),
    ],
)
def test_the_word_of_a_pattern_is_in_all_that_it_matches(pattern, word):
    assert word_of(pattern) == word


@pytest.mark.parametrize("pattern", ["a.*failed", "x+ failed", r"\d{3,} failed", "this|that", "(?:this|that)", "[ab]"])
def test_a_pattern_without_a_word_or_a_bound_is_refused(pattern):
    with pytest.raises(ValueError, match="needs bounds"):
        word_of(pattern)


def test_a_made_up_entry_works_through_its_row_alone():
    entry = Entry("made_up", (r"flux capacitor (?:drained|burst)",), "killed", "low", Sign("error"), "c", "a", "e")
    assert entry.match("the flux capacitor burst").group() == "flux capacitor burst"
    assert entry.match("x" * 60_000 + "flux capacitor drained" + "y" * 60_000)
    assert entry.match("flux capacitors") is None
    assert (entry.verdict().oom_class, entry.verdict().entry) == ("killed", "made_up")
    assert len(fields(Entry)) == 9


@pytest.mark.parametrize(
    ("text", "reason"),
    [("Slurm: TIMEOUT after 3 h", "Slurm: TIMEOUT after 3 h"), ("Slurm: REQUEUED 2 times, then NODE_FAIL", None)],
)
def test_the_text_that_mbr_perf_took_from_slurm_is_the_reason(text, reason):
    assert known(text).reason == (reason or text)
