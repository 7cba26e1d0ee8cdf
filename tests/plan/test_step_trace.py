"""The predicted steps as a file: its figures are those of the plan, and the tools it is for open it."""

import html
import json
import pickle
import re
from itertools import pairwise

import pytest

from harness.units import format_bytes

JOB = ("plan", "-mr", "llama3_8b", "-g", "h100", "-ng", "8", "-c", "bf16", "--only", "mlp", "full:uniform:1", "--json")
SMALL = (*JOB, "--num_layers", "4")
NATIVE = ("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")
INTERLEAVED = ("-pp", "2", "-vp", "2")


def stage_of(answer, setting):
    """The fullest stage of a setting in the answer of a plan."""
    (found,) = (row for row in json.loads(answer.out)["settings"] if row["recompute"] == setting)
    return max(found["stages"], key=lambda stage: stage["total"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "more"),
    [("none", ()), ("none", NATIVE), ("full:uniform:1", (*INTERLEAVED, "--num_layers", "32"))],
    ids=["expandable", "native", "interleaved"],
)
def test_the_snapshot_has_the_peak_of_the_plan_and_torch_reads_it(mbr_perf, tmp_path, setting, more):
    file = tmp_path / "step.pickle"
    file.write_text("replaced")
    stage = stage_of(mbr_perf(*SMALL, *more, "--recompute", setting, "--step_trace", file), setting)
    snapshot = pickle.loads(file.read_bytes())
    there, peak, asked, reserved = {}, 0, set(), 0
    for row in snapshot["device_traces"][0]:
        match row["action"]:
            case "alloc":
                assert row["addr"] not in there
                there[row["addr"]] = row["size"]
            case "free_requested":
                asked.add(row["addr"])
            case "free_completed":
                asked.remove(row["addr"])
                del there[row["addr"]]
            case "segment_alloc" | "segment_map":
                reserved += row["size"]
        peak = max(peak, sum(there.values())) if row["action"] == "alloc" else peak
    # torch records what was asked for, and counts as allocated what it rounds that to.
    assert peak == pytest.approx(stage["total"], rel=1e-4)
    assert not asked
    if stage["reserved_source"] == "replayed":
        assert reserved == stage["reserved_bytes"]
    segments = snapshot["segments"]
    blocks = {
        (b["address"], b["requested_size"]) for s in segments for b in s["blocks"] if b["state"] == "active_allocated"
    }
    assert blocks == set(there.items())
    assert sum(segment["total_size"] for segment in segments) == reserved
    sizes = {
        kind: {b["size"] for s in segments if s["segment_type"] == kind for b in s["blocks"]}
        for kind in ("small", "large")
    }
    assert max(sizes["small"], default=0) <= 2**20 < max(sizes["large"])

    answer = mbr_perf("snapshot", file, "--json", "--what_if", "expandable_segments:True")
    answer = json.loads(answer.out)
    (shown,) = answer["devices"]
    assert (shown["reserved_bytes"], shown["allocated_bytes"] - shown["rounding_bytes"]) == (
        reserved,
        sum(there.values()),
    )
    assert answer["predicted"] == f"{setting}, pipeline stage {stage['pp_rank']}"
    assert {"weights", "gradients", "optimizer"} <= {holder["module"] for holder in shown["holders"]}
    own, expandable = (answer["what_if"]["rows"][at] for at in (0, -1))
    assert own["reserved_bytes"] == pytest.approx(reserved, rel=1e-3)
    assert own["fits_bytes"] == stage["fits_bytes"]  # the same replay
    assert (expandable["reserved_bytes"] < own["reserved_bytes"]) == (more == NATIVE)

    viz = pytest.importorskip("torch.cuda._memory_viz")
    assert viz.segsum(snapshot)
    assert viz.trace(snapshot)
    assert "html" in viz.trace_plot(snapshot).lower()
    words = {frame["name"] for row in snapshot["device_traces"][0] for frame in row["frames"]}
    assert words >= {"weights", "micro-batch 1", "layers, backward"}
    assert ("layers, mlp" in words) == (setting == "none")


def test_the_trace_for_perfetto_has_the_peak_of_the_plan_and_a_slice_for_every_pass(mbr_perf, tmp_path):
    file = tmp_path / "step.json"
    stage = stage_of(mbr_perf(*SMALL, "--recompute", "none", "--step_trace", file), "none")
    rows = json.loads(file.read_text())["traceEvents"]
    assert {row["ph"] for row in rows} == {"M", "X", "C"}
    assert all(isinstance(row["ts"], int) and row["pid"] == row["tid"] == 0 and row["name"] for row in rows)
    counters, moments = {}, {}
    for row in (row for row in rows if row["ph"] == "C"):
        counters.setdefault(row["name"], []).append(row["args"]["bytes"])
        moments.setdefault(row["ts"], {})[row["name"]] = row["args"]["bytes"]
    assert max(counters["allocated"]) == pytest.approx(stage["total"], rel=1e-4)
    assert max(counters["reserved"]) == pytest.approx(stage["reserved_bytes"], rel=1e-4)
    known = {}
    for changes in moments.values():
        known |= changes
        assert known.get("allocated", 0) == sum(size for name, size in known.items() if name.startswith("part: "))
    slices = [row for row in rows if row["ph"] == "X"]
    names = [row["name"].split(",")[0] for row in slices]
    assert names[0] == "build"
    assert names[-1] == "step 2: optimizer"
    assert names.count("step 1: forward") == names.count("step 2: backward") >= 1
    assert all(one["ts"] + one["dur"] == other["ts"] for one, other in pairwise(slices))


@pytest.mark.parametrize(
    ("setting", "more", "groups"),
    [
        ("none", (), {"weights", "gradients", "optimizer", "overhead", "layers", "layers, mlp", "output layer"}),
        ("full:uniform:1", INTERLEAVED, {"transient", "output layer"}),
        ("none", NATIVE, {"layers"}),
    ],
    ids=["expandable", "interleaved", "native"],
)
@pytest.mark.slow
def test_the_step_on_the_page_reaches_the_peak_and_the_reserved_bytes_of_the_plan(
    mbr_perf, tmp_path, setting, more, groups
):
    file = tmp_path / "plan.html"
    stage = stage_of(mbr_perf(*JOB, *more, "--recompute", setting, "--html", file), setting)
    figure = file.read_text().partition("<h2>Memory over one step")[2].partition("</figure>")[0]
    peak, reserved = (re.search(rf"{where} ([\d.]+ GiB)", figure)[1] for where in (": peak", ">reserved,"))
    assert peak == format_bytes(stage["total"])
    if stage["reserved_source"] == "replayed":
        assert reserved == format_bytes(stage["reserved_bytes"])
    assert {html.unescape(name) for name in re.findall(r"<polygon[^>]*><title>([^<]*)", figure)} >= groups
    # Full recompute on two stages needs so little that the line of the limit is far off the axis, which the caption says.
    assert (">usable " in figure, "is beyond the axis" in figure) == (setting == "none", setting != "none")


@pytest.mark.parametrize(
    "options",
    [
        (*JOB, "--cuda_graph_impl", "local"),
        (*JOB, "-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.1"),
        ("plan", "-mr", "llama3_8b", "-g", "h100", "--search"),
        ("plan", "--calibrate", "RUN"),
    ],
    ids=["graphs", "refused", "search", "calibrate"],
)
def test_a_plan_without_a_known_step_writes_none(mbr_perf, tmp_path, options):
    answer = mbr_perf(*options, "--step_trace", tmp_path / "step.json")
    assert (answer.code, list(tmp_path.glob("step.*"))) == (2, [])
    assert "step" in answer.err


@pytest.mark.slow
def test_a_page_has_no_step_where_its_requests_are_not_known(mbr_perf, tmp_path):
    file = tmp_path / "plan.html"
    assert mbr_perf(*JOB, "--cuda_graph_impl", "local", "--html", file).code == 0
    assert re.findall("<h2>([^:<]*)[^<]*</h2><figure>", file.read_text()) == [
        "Which setting",
        "Memory by stage and part",
    ]
