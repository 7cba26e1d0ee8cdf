"""One page, written for a terminal, a pipe, Markdown and HTML."""

import io
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest

from harness.show.chart import Axis, Bar, Bars
from harness.show.html import html
from harness.show.markup import markdown
from harness.show.page import (
    GAP,
    Code,
    Column,
    Facts,
    Line,
    Listing,
    Only,
    Page,
    Picture,
    Section,
    Span,
    Table,
    answer_line,
    bar,
    details,
    plain,
    style_of,
    table,
    tabled,
)  # fmt: skip
from harness.show.terminal import Console, print_page
from tests.commands import piped

HOSTILE = "a | `x` [b](c)<script>\x1b[2J\u202e</script>\nsecond line"
PICTURE = Picture("trend", "Trend", "It falls.", Bars(Axis("s"), {}, (Bar("none", "1 s", ()),)))
PAGE = Page(
    title="A sweep",
    headline="2 cells",
    about="On cpu.",
    notes=("a note",),
    answer="Use mlp.",
    footer="mbr-perf sweep",
    blocks=(
        GAP,
        table(("Cell", "Step"), [("none", "1.0 s"), ("mlp", Span("1.2 s", "worse"))], right=("Step",)),
        Section("About", (Listing(("first", Line("second", "bad"))),)),
        Code("mbr-perf diagnose 'a b'"),
        PICTURE,
        Only("terminal", ("at a terminal",)),
        Only("html", ("in a browser",)),
        Only("pages", ("on a page",)),
    ),
)


def at_terminal(page: Page, width: int) -> str:
    out = io.StringIO()
    print_page(Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False), page)
    return out.getvalue()


def cells(page: Page, width: int) -> list[list[str]]:
    """The cells of each line at a terminal; how wide a table is drawn differs between releases of rich."""
    return [re.split(r" {2,}", line.strip()) for line in at_terminal(page, width).splitlines()]


def test_a_pipe_gets_the_answer_first():
    assert piped(PAGE) == [
        "Use mlp.", "", "A sweep: 2 cells", "On cpu.", "Note: a note", "", "Cell   Step", "none  1.0 s", "mlp   1.2 s", "", "About", "first",
        "second", "mbr-perf diagnose 'a b'", "at a terminal",
    ]  # fmt: skip


def test_without_details_the_last_line_counts_them():
    rows = table(("Cell", Column("Step", detail=True)), [("none", "1.0 s")])
    page = Page((rows, details("note", ("b", "c")), details("run", ("d",)), "to copy"), notes=("a",), answer="Use mlp.")

    assert piped(page.brief) == ["Use mlp.", "", "Cell", "none", "to copy", "More with -v: 4 details, 1 column"]
    assert piped(Page(("a",), answer="Use mlp.").brief) == ["Use mlp.", "", "a"]
    assert "- d" in markdown(page)


def test_line_1_of_an_answer_has_no_more_than_160_characters():
    line = answer_line((Span("PASS", "good"), ": 3 s"), f", {'a' * 150}", ", golden 3 s")

    assert plain(line.words) == "PASS: 3 s, golden 3 s"
    cut = plain(answer_line((Span("FAILED", "failed"), ": " + "abc " * 200)).words)
    assert (len(cut) <= 160, cut[-8:]) == (True, " abc ...")
    assert at_terminal(Page((), answer=line), 20) == "PASS: 3 s, golden 3 s\n"


def test_markdown_has_the_answer_below_the_title():
    assert markdown(PAGE, level=2).split("\n\n") == [
        "## A sweep", "**Use mlp.**", "2 cells. On cpu.", "- a note",
        "| Cell | Step |\n| --- | ---: |\n| none | 1.0 s |\n| mlp | 1.2 s |", "### About", "- first\n- second",
        "```\nmbr-perf diagnose 'a b'\n```", "### Trend", "It falls.", "on a page\n",
    ]  # fmt: skip


def test_html_has_the_answer_below_the_title_the_notes_last_and_a_sign_beside_a_colour():
    page = html(PAGE)

    order = ["<h1>A sweep", 'class="answer">Use mlp.', "2 cells. On cpu.", "<table>", "<h2>About", "a note", "<footer>"]
    assert sorted(order, key=page.index) == order
    assert '<td class="right worse" data-title="Step">▼ 1.2 s</td>' in page
    assert '<li class="bad">second</li>' in page
    assert "in a browser" in page
    assert "at a terminal" not in page
    assert page.count("<script>") == 1
    script = page.partition("<script>")[2].partition("</script>")[0]
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in page


def test_details_are_folded_below_their_number_or_title_and_an_empty_section_is_left_out():
    page = html(
        Page((details("note", ("a", "b")), details("price", ("c",), title="Prices"), Section("Empty", ())), title="A")
    )

    assert re.findall(r"<details><summary>([^<]*)", page) == ["Details", "Prices"]
    assert "Empty" not in page


def test_a_line_to_copy_is_code_below_its_label():
    page = html(
        Page((Line("  Megatron-LM: --a b", whole=True), Listing((Line("mbr-perf run --x", whole=True),))), title="A")
    )

    assert [re.sub("<[^>]*>", "", code) for code in re.findall("<pre>(.*?)</pre>", page)] == [
        "--a b",
        "mbr-perf run --x",
    ]
    assert '<span class="label">Megatron-LM</span>' in page
    assert "<pre>" not in html(Page((Line("Report: a/b.html", whole=True),)))


def test_a_page_has_no_bar_of_a_terminal():
    page = html(Page((table(("Usable",), [(Span(f"{bar(0.5)}  50 % FITS", "good"),)]),), title="A"))
    assert ">✓ 50 % FITS<" in page


def test_the_first_column_of_words_names_the_rows_of_a_table():
    columns = ("", "#", "Cell", Column("Step", right=True))
    page = html(Page((table(columns, [("*", "0", "none", "1.0 s"), ("", "1", "", "1.2 s")]),), title="A sweep"))
    assert re.findall(r'<th scope="row"[^>]*>([^<]*)', page) == ["none"]
    assert '<td class="left" data-title="#">0</td>' in page
    assert '<td class="left" data-title=""></td>' in page


def test_no_text_becomes_markup_or_steers_a_terminal():
    blocks = (
        HOSTILE, Line(HOSTILE), Listing((HOSTILE,)), Facts(((HOSTILE, HOSTILE),), 4), table((HOSTILE,), [(HOSTILE,)]),
        Section(HOSTILE, (HOSTILE,), anchor=HOSTILE), Section(HOSTILE, (), folded=True), Code(HOSTILE),
        replace(PICTURE, title=HOSTILE, caption=HOSTILE),
        table(("A",), [(Span(HOSTILE, "good", link="x.html"),)]),
    )  # fmt: skip
    page = Page(blocks, HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)

    assert html(page).count("<script>") == 1
    fence = markdown(Page((Code(HOSTILE),)))
    assert fence.startswith("```\n")
    assert fence.endswith("\n```\n")
    others = markdown(replace(page, blocks=tuple(block for block in blocks if not isinstance(block, Code))))
    assert "<script>" not in others.replace("\\<script\\>", "")
    for text in (html(page), markdown(page), "\n".join(piped(page)), at_terminal(page, 80)):
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
    lines = piped(replace(page, blocks=blocks[:-2]))
    assert not [line for line in lines if line.startswith("second line") and line != "second line</script>"][1:]


def test_code_that_holds_a_fence_stays_code():
    assert markdown(Page((Code("```\nx"),))) == "````\n```\nx\n````\n"


def test_a_terminal_drops_columns_before_it_breaks_figures_and_reports_it():
    columns = (
        Column("Cell"),
        Column("Step", right=True),
        Column("Rank", right=True, drop=1),
        Column("Clock", drop=2, whole=True),
    )
    shown = at_terminal(
        Page((Table(columns, (("full:uniform:1 (control)", "12.5 s", "3", "a clock of 1395 MHz"),)),)), 40
    )

    assert [line.rstrip() for line in shown.splitlines()] == [
        "Cell                        Step  Rank", "full:uniform:1 (control)  12.5 s     3", "Not shown at this width: Clock",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "width", "figure", "folded"),
    [
        ("full:uniform:1 (control)", 24, "12.5 s", ["full:uniform:1", "(control)"]),
        ("drifts by 2 % over a month", 20, "12 steps", ["drifts by", "2 % over a", "month"]),
        ("layernorm,mlp,shared_experts", 24, "12.5 s", ["layernorm,mlp,", "shared_experts"]),
    ],
    ids=["between words", "no figure leaves its unit", "after commas"],
)
def test_names_are_folded_where_a_table_finds_no_room_and_figures_stay_whole(name, width, figure, folded):
    made = table(("Name", "Step"), [(name, figure)], right=("Step",))

    first, *rest = folded
    assert cells(Page((made,)), width) == [["Name", "Step"], [first, figure], *([each] for each in rest)]


def test_an_optional_column_without_a_word_is_left_out():
    made = tabled([1, 2], [(Column("N"), str), (Column("Empty", optional=True), lambda _: "-")])

    assert [column.title for column in made.filled().columns] == ["N"]


def test_a_line_to_copy_is_never_broken_and_others_are_indented():
    page = Page((Line("word " * 8, hang=4), Code("word " * 8), Section("Title", ("inner",), indent=2)))

    assert [line.rstrip() for line in at_terminal(page, 25).splitlines()] == [
        "word word word word word", "    word word word", "word " * 7 + "word", "", "Title", "  inner",
    ]  # fmt: skip


def test_no_line_ends_within_a_path_a_command_or_between_a_figure_and_its_unit():
    page = Page((Line("see results/golden/h100/a.json for `mbr-perf check` and 12.5 s more", hang=2),))

    assert [line.rstrip() for line in at_terminal(page, 24).splitlines()] == [
        "see", "  results/golden/h100/a.json", "  for `mbr-perf check`", "  and 12.5 s more",
    ]  # fmt: skip


def test_a_table_without_room_overruns_the_terminal_and_folds_no_path_and_no_figure():
    made = table(("Path", "Step", "Why"), [("results/golden/h100/a.json", "12.5 s", "slow node")], right=("Step",))

    assert [line.rstrip() for line in at_terminal(Page((made,)), 30).splitlines()] == [
        "Path                          Step  Why", "results/golden/h100/a.json  12.5 s  slow", "                                    node",
    ]  # fmt: skip


def test_the_anchor_of_a_folded_section_lies_inside_it():
    page = html(Page((Section("A case", ("told",), anchor="case-a", folded=True),)))

    assert '<details><summary>A case</summary><div id="case-a"><p>told</p></div></details>' in page


def test_words_know_their_style():
    assert (style_of("PASS"), style_of("oom"), style_of("what"), style_of("what", "doubt")) == (
        "good",
        "oom",
        "plain",
        "doubt",
    )
    assert plain(("a", Span("b"))) == "ab"
