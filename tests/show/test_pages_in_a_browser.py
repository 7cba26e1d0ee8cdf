"""Pages as their readers see them: in headless Chromium, from a wide screen to a phone, light and dark, without scripts."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.history.cases import CaseHistory, GoldenBand
from harness.history.chart import write_trend
from harness.history.series import series_of
from harness.judge.metrics import BY_NAME
from harness.nightly.index import write_index
from harness.nightly.reports import write_night_reports
from harness.records.rank import MemoryRecord, MemorySeries
from harness.records.sweep import read_sweep
from harness.show.charts.drawing import obstacle
from harness.sweep.judge import judge_sweep
from harness.sweep.reports import write_reports
from harness.units import GIB
from tests.conftest import build_cell, build_kept, build_rank, build_record, build_spec, build_sweep
from tests.nightly.conftest import build_night
from tests.show.browser import Browser, axe_core, chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.skipif(chromium() is None, reason="no Chromium: apt-get install --no-install-recommends chromium"),
]
RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"
LONG = "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,garbage_collection_threshold:0.8/core_attn,layernorm,mlp"
PAGES = ("recorded", "sweep", "night", "index", "history")
WIDTHS = (1400, 1024, 390)


@pytest.fixture(name="page", scope="module", params=PAGES)
def _page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))


def recorded(folder: Path) -> Path:
    data = read_sweep(RECORDED)
    return write_reports(judge_sweep(data), data, folder, ("html",))[0]


def sweep(folder: Path) -> Path:
    """Three repeats of five cells on eight GPUs; names as long as names get, one cell out of memory."""
    series = MemorySeries(interval_s=0.1, max_bytes=tuple(n % 40 << 30 for n in range(400)), what="allocated bytes")

    def runs(recompute: str, seconds: float, peak_gib: float) -> list:
        spec = build_spec(recompute=recompute, num_gpus=8, parallelism={"tensor_model_parallel_size": 8},
                          batch={"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096})  # fmt: skip

        def rank(number: int, repeat: int):
            peak = int((peak_gib - number * 0.5 + repeat * 0.3) * GIB)
            memory = MemoryRecord(
                meter="cuda", max_allocated_bytes=peak, max_reserved_bytes=peak + GIB, timeline=series
            )
            return build_rank(spec, number, seconds * (1 + repeat / 300), memory=memory)

        return [build_record(spec, ranks=tuple(rank(n, repeat) for n in range(8))) for repeat in range(3)]

    oom = build_record(build_spec(recompute="layernorm"), status="oom", failure="rank 0 ran out of memory", ranks=())
    cells = [
        build_cell("none", runs("none", 9.2, 74)), build_cell("layernorm", [oom]), build_cell("mlp", runs("mlp", 9.9, 56)),
        build_cell(LONG, runs("core_attn,layernorm,mlp", 10.3, 50)),
        build_cell("full:uniform:1", runs("full:uniform:1", 12.0, 35)),
    ]  # fmt: skip
    data = build_sweep(cells, command=("mbr-perf", "sweep", "--over", f"recompute=none; mlp; {LONG * 3}"))
    return write_reports(judge_sweep(data), data, folder, ("html",))[0]


def night(folder: Path) -> Path:
    made = build_night(night_dir=folder / "20260103T020000Z-h100_nightly-0a1b2c3d")
    written = write_night_reports(made).paths
    return next(path for path in written if path.suffix == ".html")


def index(folder: Path) -> Path:
    for day in range(1, 13):
        night_dir = folder / "nights" / f"202601{day:02d}T020000Z-h100_nightly-0a1b2c3d"
        night_dir.mkdir(parents=True)
        plan = {"night_id": night_dir.name, "started_at": f"2026-01-{day:02d}T02:00:00Z"}
        made = build_night(night_dir=night_dir, plan=plan)
        first = made.cases[0]
        faster = tuple(
            replace(finding, current=finding.current * (1 + day % 5 / 50))
            if finding.metric == "tflops_per_gpu"
            else finding
            for finding in first.findings
        )
        made = replace(made, cases=(replace(first, findings=faster), *made.cases[1:]))
        (night_dir / "night.json").write_text(made.plan.model_dump_json())
        write_night_reports(made)
    write_index(folder / "nights", folder / "html")
    return folder / "html" / "index.html"


def history(folder: Path) -> Path:
    metric = BY_NAME["tflops_per_gpu"]
    series = series_of([build_kept(n, 700 + n % 5) for n in range(40)])
    shown = CaseHistory(
        series, metric, series.measured(metric), (), "", None, GoldenBand(folder / "golden.json", 705.0, 0.01), ""
    )
    return write_trend(shown, folder / "trend.html")


MAKERS = {
    "recorded": recorded, "sweep": sweep, "night": night, "index": index, "history": history,
}  # fmt: skip


@pytest.fixture(name="browser", scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(name="axe", scope="module")
def _axe() -> str:
    try:
        return axe_core()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be fetched with npm: {error}")


LOOKS = [(width, dark) for width in WIDTHS for dark in (False, True)]


def test_nothing_runs_out_of_the_page_and_axe_finds_nothing_serious(browser: Browser, page: Path, axe: str):
    """Screenshots of every look lie beside the page, for people."""
    for width, dark in LOOKS:
        browser.opens(page, width, dark=dark)
        browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        scrolls, inner = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        browser.evaluate(f"{axe};0")
        found = browser.evaluate("axe.run(document).then(found => found.violations)")
        serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
        browser.shoots(page.with_name(f"{page.stem}_{width}{'_dark' if dark else ''}.png"))

        assert scrolls <= inner == width
        assert not serious, json.dumps(serious, indent=1)[:3000]


def test_the_page_is_light_or_dark_as_its_reader_wants(browser: Browser, page: Path):
    def brightness(*, dark: bool) -> float:
        browser.opens(page, 1024, dark=dark)
        return sum(browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")) / 3

    assert brightness(dark=False) > 250
    assert brightness(dark=True) < 40


HEIGHTS = "Array.from(document.querySelectorAll('.chart[id] svg'), one => one.getBoundingClientRect().height)"


def test_pictures_show_without_scripts_and_scripts_replace_them_by_pictures_of_the_same_size(
    browser: Browser, page: Path
):
    browser.opens(page, 1400, scripts=False)
    still = browser.evaluate(HEIGHTS)
    assert browser.evaluate("document.querySelectorAll('.vega-embed').length") == 0
    assert len(still) == browser.evaluate("document.querySelectorAll('.chart[id]').length")
    assert all(height > 50 for height in still)

    browser.opens(page, 1400)
    assert browser.evaluate("document.querySelectorAll('.chart[id] .vega-embed').length") == len(still)
    assert browser.evaluate(HEIGHTS) == pytest.approx(still, rel=0.1)  # fonts are measured differently
