"""`mbr-perf rules`: the list, and one rule."""

import json


def test_list_has_a_line_for_every_rule_uncut_in_a_pipe(mbr_perf):
    lines = mbr_perf("rules", "list").out.splitlines()
    assert lines[0].split()[:2] == [str(len(lines) - 3), "rules;"]
    assert lines[2].split() == ["Rule", "Severity", "megatron-core", "Message"]
    assert [line for line in lines if "…" in line or "{" in line or line != line.rstrip()] == []


def test_list_picks_a_severity(mbr_perf):
    rows = [line.split() for line in mbr_perf("rules", "list", "--severity", "note").out.splitlines()[3:]]
    assert {row[1] for row in rows} == {"note"}


def test_q_prints_line_1_of_any_answer(mbr_perf):
    for words in (("rules", "show", "A07"), ("recipes", "list"), ("recipes", "validate"), ("golden", "list")):
        whole, brief = mbr_perf(*words).out, mbr_perf(*words, "-q").out
        assert brief.splitlines() == whole.splitlines()[:1] and brief
        assert mbr_perf(*words, "-q", "--json").code == 2


def test_an_unknown_severity_exits_2(mbr_perf):
    done = mbr_perf("rules", "list", "--severity", "fatal")
    assert (done.code, done.out) == (2, "")


def test_show_explains_a_rule_with_its_evidence(mbr_perf):
    said, *lines = mbr_perf("rules", "show", "t08").out.splitlines()
    assert said.startswith("T08: full:uniform:<num_layers> ")
    found = dict(line.strip().split(": ", 1) for line in lines)
    assert list(found) == ["severity", "fix", "megatron-core", "versions", "evidence", "source"]
    assert (found["severity"], found["versions"]) == ("error", "before 0.17")
    assert found["source"] == "transformer_block.py:532; https://github.com/NVIDIA/Megatron-LM/pull/3562"


def test_show_of_an_unknown_rule_exits_2_with_the_nearest(mbr_perf):
    done = mbr_perf("rules", "show", "T8")
    assert (done.code, done.out) == (2, "")
    assert "no rule 'T8'" in done.err
    assert "T08" in done.err


def test_both_answer_in_json(mbr_perf):
    every = json.loads(mbr_perf("rules", "list", "--json").out)
    single = json.loads(mbr_perf("rules", "show", "T08", "--json").out)
    assert every["schema_version"] == single["schema_version"] == 1
    assert [rule for rule in every["rules"] if rule["id"] == "T08"] == single["rules"]
    assert set(single["rules"][0]) == {
        "id", "severity", "message", "fix", "mcore_text", "versions", "evidence", "source",
    }  # fmt: skip
