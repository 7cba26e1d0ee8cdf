"""Findings as a reader sees them, and as programs do."""

import io

import pytest

from harness.check.show import check_page
from harness.experiment.effective import effective_recompute
from harness.experiment.rules.rule import Finding
from harness.show.terminal import Console, print_page

REFUSED = Finding(
    id="R09", severity="error", message="mla_up_proj needs multi-latent attention", fix="drop mla_up_proj",
    mcore_text="mla_up_proj in recompute_modules is only supported with multi_latent_attention.",
)  # fmt: skip
WASTEFUL = Finding(id="R10", severity="warning", message="frees almost nothing", fix="drop core_attn")
KNOWN = Finding(id="ENV02", severity="note", message="megatron-core [bold]0.21[/bold] is newer", fix="")
FORCED = REFUSED.model_copy(update={"overridden": True})


@pytest.fixture
def printed(make_spec):
    """The lines of a printed check; colours and folding only at a ``terminal``."""

    def lines(*findings, width=80, terminal=False, notes=()):
        spec, out = make_spec(), io.StringIO()
        console = Console(file=out, width=width, force_terminal=terminal, no_color=True, highlight=False)
        effective = effective_recompute(spec, "transformer_engine")
        print_page(console, check_page(spec, effective, findings, notes=notes))
        return out.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()

    return lines


def test_a_finding_is_its_id_the_fix_and_megatron_cores_words(printed):
    lines = printed(REFUSED, WASTEFUL)
    assert lines[2:5] == [f"R09 fix: {REFUSED.fix}", f"warning R10: {WASTEFUL.message}", f"  fix: {WASTEFUL.fix}"]
    assert f"R09: {REFUSED.mcore_text}" in lines
    assert any(line.startswith("forced R09: ") for line in printed(REFUSED.model_copy(update={"id": "A"}), FORCED))
    assert "ENV02: megatron-core [bold]0.21[/bold] is newer" in printed(KNOWN)


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ((), "LEGAL: llama3_70b sft, fp8_cs, 32 x H100 80GB SXM, "),
        ((WASTEFUL, REFUSED, KNOWN), "ILLEGAL: 1 warning, 1 error. R09: "),
        ((FORCED, WASTEFUL), "LEGAL: 1 forced error, 1 warning. R09: "),
        ((FORCED, FORCED, REFUSED), "ILLEGAL: 2 forced errors, 1 error. R09: "),
    ],
)
def test_the_first_line_is_the_verdict_with_the_worst_problem(printed, findings, verdict):
    assert printed(*findings)[0].startswith(verdict)


@pytest.mark.parametrize("width", [80, 120])
def test_at_a_terminal_nothing_is_wider_and_further_lines_are_indented(printed, width):
    long = WASTEFUL.model_copy(update={"message": "word " * 60, "fix": "act " * 60})
    lines = printed(long, REFUSED, width=width, terminal=True, notes=("seen " * 50,))
    assert max(map(len, lines[1:])) <= width
    assert sum(line.startswith("  seen") for line in lines) == sum("seen" in line for line in lines) - 1
    assert sum(line.startswith("       act") for line in lines) == sum("act " in line for line in lines) - 1


def test_in_a_pipe_a_paragraph_is_one_line(printed):
    long = WASTEFUL.model_copy(update={"message": "word " * 60})
    assert any(line.count("word") == 60 for line in printed(long, width=40))
