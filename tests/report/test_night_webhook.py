"""What a webhook is told of a night."""

import json
from dataclasses import replace

from harness.errors import ExitCode
from harness.report.night_webhook import webhook_message


def sent(night):
    return json.loads(webhook_message(night).render())


def test_the_text_says_how_it_went_and_what_to_look_at(night):
    first, second, *cases = sent(night)["text"].splitlines()

    assert first.startswith("Llama 3 on H100, nightly: FAILED (exit 3): look at llama3_70b_4nodes, deepseek_v3")
    assert second.startswith("9 cases: ")
    assert cases[0].startswith("• llama3_70b_mlp [perf-team]: regression: TFLOP/s/GPU 175.31 against 181.48: -3.4 %")
    assert len(cases) == 6


def test_the_fields_say_the_same_to_a_program(night):
    document = sent(night)

    assert (document["schema_version"], document["outcome"], document["exit_code"]) == (1, "failed", 3)
    assert (document["num_cases"], document["num_red_cases"]) == (9, 6)
    assert [case["name"] for case in document["cases"]][:2] == ["llama3_70b_mlp", "llama3_8b_throttled"]


def test_a_green_night_is_told_in_two_lines(make_night, night):
    document = sent(make_night(cases=(night.cases[0],)))

    assert document["text"].splitlines()[0] == "Llama 3 on H100, nightly: PASS (exit 0): nothing to look at"
    assert document["cases"] == []


def test_names_cannot_mention_anybody_or_link_anywhere(make_night, make_case):
    case = make_case("<!channel> & <http://x|y>", [], outcome="failed", exit_code=ExitCode.RUN_FAILED)

    assert "&lt;!channel&gt; &amp; &lt;http://x|y&gt;" in sent(make_night(cases=(case,)))["text"]
    assert "<" not in sent(make_night(cases=(case,)))["text"]


def test_secrets_in_a_failure_stay_here(make_night, make_case):
    case = make_case(
        "x", [], outcome="failed", exit_code=ExitCode.RUN_FAILED, reason="401 for HF_TOKEN=hf_abcdefghijklmnop"
    )

    body = webhook_message(make_night(cases=(case,))).render().decode()

    assert "HF_TOKEN=***" in body
    assert "hf_abc" not in body


def test_a_secret_that_a_long_failure_is_cut_at_stays_here_too(make_night, make_case):
    failure = f"{'x' * 270} https://somebody:hunter2hunter2@example.org/{'y' * 100}"
    case = make_case("x", [], outcome="failed", exit_code=ExitCode.RUN_FAILED, reason=failure)

    body = webhook_message(make_night(cases=(case,))).render().decode()

    assert "https://***@example" in body
    assert "hunter2" not in body


def test_a_night_of_thousands_of_failures_stays_a_message(make_night, night):
    bad = replace(night.cases[5], reason="é" * 100_000)
    body = webhook_message(make_night(cases=(bad,) * 3000)).render()

    assert len(body) < 40_000
    assert "and 2980 cases more" in json.loads(body)["text"]
