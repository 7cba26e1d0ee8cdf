"""Charts: where their writer draws what, and that no text of a user becomes markup."""

import re
import xml.etree.ElementTree as ET

import pytest

from harness.show.chart import Axis, Bar, Bars, Curve, Limit, Plane, Point
from harness.show.page import Picture
from harness.show.svg import svg, svg_file

LOOKS = {"good": ("#009E73", "circle"), "bad": ("#D55E00", "cross")}
HOSTILE = "</text><script>alert(1)</script>\x1b[2J\u202e\x00"
POINTS = (
    Point(10, 1, "good", "a", "none", "10 GiB", across=(8, 12)),
    Point(10.1, 1.01, "bad", "b", "mlp"),
    Point(40, 3, "bad", "c", note="far away", upwards=(2, 4)),
)


def plane(*points, **more):
    return Picture("p", "A plane", "What it shows.", Plane(Axis("GiB"), Axis("s"), LOOKS, points, **more))


def bars(*rows, **more):
    return Picture("b", "Bars", "What they show.", Bars(Axis("GiB"), LOOKS, rows, **more))


def drawn(picture):
    return ET.fromstring(svg_file(picture))


def texts(picture):
    return ["".join(found.itertext()) for found in drawn(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_points_on_each_other_share_a_label_with_their_numbers():
    shown = texts(plane(*POINTS))
    assert [text for text in shown if re.fullmatch("[abc](, [abc])*", text)] == ["a, b", "c"]
    assert {"a\xa0 none", "b\xa0 mlp", "10 GiB", "good", "bad"} <= {*shown}


def test_points_have_tooltips_and_places_by_their_values():
    found = svg(plane(*POINTS))
    assert "<title>far away</title>" in found
    places = [float(x) for x in re.findall(r'</title><svg x="([\d.]+)%"', found)]
    assert places == sorted(places, reverse=True)  # the first points are on top
    assert places[1] - places[2] == pytest.approx((places[0] - places[2]) / 300, rel=0.05)


def test_all_widths_are_shares_and_the_ranges_are_inside():
    found = svg(plane(*POINTS, across=(Limit(50, "usable 50 GiB"),), upwards=(Limit(2, "golden"),)))
    shares = [float(x) for x in re.findall(r'\bx[12]?="([-\d.]+)%"', found)]
    assert min(shares) >= 0 and max(shares) <= 100
    assert not re.search(r'<(line|rect)[^>]* (x1|x2|x|width)="[\d.]+"', found)
    assert "usable 50 GiB" in found and "golden" in found


def test_the_parts_of_a_bar_lie_behind_each_other():
    found = svg(bars(Bar("rank 0", "60 GiB", (("good", 40.0), ("bad", 20.0)), span=(55, 65)), Bar("rank 1", "-", ())))
    rects = [(float(x), float(w)) for x, w in re.findall(r'<rect[^>]*x="([\d.]+)%"[^>]*width="([\d.]+)%"', found)]
    assert [x for x, _ in rects] == pytest.approx([0, rects[0][1]])
    assert rects[0][1] == pytest.approx(2 * rects[1][1], rel=1e-3)
    assert "<title>rank 0, bad: 20</title>" in found


def test_a_step_curve_has_corners_and_an_area_has_a_lower_edge():
    line = svg(plane(curves=(Curve("", ((0, 1), (1, 2), (2, 2)), is_step=True),)))
    assert len(re.findall(r"[\d.]+,[\d.]+", line.partition("<polyline")[2].partition("/>")[0])) == 5
    area = svg(plane(curves=(Curve("good", ((0, 1), (1, 2)), below=(0, 0)),)))
    assert len(re.findall(r"[\d.]+,[\d.]+", area.partition("<polygon")[2].partition(">")[0])) == 4


@pytest.mark.parametrize("values", [(5.0, 5.0), (0.0, 0.0), (-3e9, 7e12), (1e-7, 2e-7)])
def test_ticks_lie_inside_the_axis_whatever_its_length(values):
    low, high = (Point(value, value, "good") for value in values)
    ticks = [text for text in texts(plane(low, high)) if re.fullmatch(r"-?[\d.,e+-]+", text)]
    assert len(ticks) >= 4


def test_no_text_becomes_markup():
    looks = {HOSTILE: ("#000", "")}
    hostile = Point(1, 2, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    for chart in (
        Plane(Axis(HOSTILE, {1: HOSTILE}), Axis(HOSTILE), looks, (hostile,), (), (Limit(1, HOSTILE),)),
        Bars(Axis(HOSTILE), looks, (Bar(HOSTILE, HOSTILE, ((HOSTILE, 1.0),)),), (Limit(1, HOSTILE),)),
    ):
        picture = Picture("p", HOSTILE, HOSTILE, chart)
        assert {element.tag.rpartition("}")[2] for element in drawn(picture).iter()} <= {
            "svg", "style", "rect", "text", "line", "path", "g", "title", "tspan",
        }  # fmt: skip
        assert not {"\x1b", "\u202e", "\x00"} & {*svg_file(picture)}


def test_a_long_name_runs_on_over_further_lines():
    names = " ".join(f"part{number}=of-a-setting" for number in range(9))
    picture = Picture("p", "", "", Bars(Axis("x"), {"a": ("#000", "")}, (Bar(names, "1 GiB", (("a", 1.0),)),)))
    assert all(name in svg_file(picture) for name in names.split())
