"""The rule table as people read it."""

import re

import pytest

from harness.experiment.rules.check import RULES
from harness.experiment.rules.rulebook import entries, entries_named, readable


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("num_gpus {s.spec.num_gpus} over TP {s.tp} x ETP {s.etp}", "num_gpus <num_gpus> over TP <TP> x ETP <ETP>"),
        ("on {s.gpu.name} with recompute {s.spec.recompute.text}", "on <gpu> with recompute <recompute>"),
        ("is {s.env[NVTE_FLASH_ATTN]}, not {old!r}", "is <NVTE_FLASH_ATTN>, not <old>"),
        ("{hint}known: {known}", "known: <known>"),
        ("no values", "no values"),
    ],
)
def test_values_of_a_request_are_shown_by_name(template, text):
    assert readable(template) == text


def test_no_template_reaches_a_reader():
    texts = [(e.id, text) for e in entries() for text in (e.message, e.fix, e.mcore_text or "")]
    assert [(rule, text) for rule, text in texts if "{" in text or "}" in text] == []


def test_every_message_says_something_without_the_values_of_a_request():
    words = {(e.id, e.message): re.sub(r"<\w+>", "", e.message).strip(" =,") for e in entries()}
    assert [found for found, rest in words.items() if len(rest) < 12] == []


def test_only_rules_that_are_judged_are_counted():
    assert len(entries()) == len(RULES)
    assert {entry.severity for entry in entries()} == {"error", "warning", "note"}


def test_rules_come_in_the_order_of_their_numbers():
    ids = [e.id for e in entries() if e.id.startswith("R") and not e.id.startswith("RUN")]
    assert (ids[0], ids[-1]) == ("R06", "R25")
    assert ids.index("R09") < ids.index("R10")


def test_an_id_with_rows_for_several_releases_shows_them_all():
    assert [e.versions for e in entries_named("V04")] == ["before 0.18", "0.18 to before 0.19", "0.19 and later"]
