"""Pages as their readers see them: in headless Chromium, on a wide screen and a phone, light and dark."""

import json
import subprocess
from pathlib import Path

import pytest

from harness.history.run import write_pages
from harness.history.store import write_history
from harness.nightly.reports import Outputs, night_html, write_night_reports
from harness.plan.pictures import pictured
from harness.plan.run import Planned
from harness.plan.show import plan_page
from harness.records.metrics import BY_NAME
from harness.records.sweep import read_sweep
from harness.show.html import html
from harness.show.page import Page
from harness.sweep.judge import judge_sweep
from harness.sweep.reports import write_reports
from tests.conftest import build_kept
from tests.nightly.conftest import build_night
from tests.plan.test_plan_terminal import TE, layout, planned
from tests.show.browser import Browser, axe_core, chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="no Chromium: apt-get install --no-install-recommends chromium"),
]
RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"


def plan_html(folder, make_spec):
    spec = make_spec(compute_dtype="bf16", recompute="none", num_gpus=2, kernels={"transformer_impl": TE},
                     parallelism={"pipeline_model_parallel_size": 2})  # fmt: skip
    made = planned(spec, 8 << 30)
    path = folder / "plan.html"
    path.write_text(html(pictured(Planned((layout("", made),)), plan_page(made, ()))))
    return path


def sweep_html(folder, _):
    data = read_sweep(RECORDED)
    return write_reports(judge_sweep(data), data, folder)[0]


def night_page(folder, _):
    path = folder / "night.html"
    path.write_text(night_html(build_night(night_dir=folder / "20260103T020000Z-h100_nightly-0a1b2c3d")))
    return path


def index_of_nights(folder, _):
    night = build_night(night_dir=folder / "nights" / "20260103T020000Z-h100_nightly-0a1b2c3d")
    night.night_dir.mkdir(parents=True)
    write_history(
        folder, [build_kept(0, started_at=f"2026-01-01T0{hour}:00:00Z", run_id=f"{hour}") for hour in range(4)]
    )
    write_night_reports(night, Outputs(html=folder / "html"))
    return folder / "html" / "index.html"


def history_html(folder, _):
    write_history(folder, [build_kept(number, 700 + number % 5) for number in range(40)])
    write_pages(folder, folder / "html", BY_NAME["tflops_per_gpu"], None, Page(()))
    return next(path for path in (folder / "html").iterdir() if path.name != "index.html")


# Pairs of texts of one chart that share more than their margins.
OVERLAPS = """[...document.querySelectorAll("svg.chart")].flatMap(chart => {
 const texts = [...chart.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
 return texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([, b]) => a.left < b.right - 1
  && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(([two]) => [one, two])); })"""


@pytest.fixture(name="axe", scope="module")
def _axe():
    try:
        return axe_core()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be fetched with npm: {error}")


@pytest.mark.parametrize("make", [plan_html, sweep_html, night_page, index_of_nights, history_html])
def test_nothing_runs_out_of_the_page_or_overlaps_and_axe_finds_nothing_serious(make, make_spec, tmp_path, axe):
    """Pictures of every look lie beside the page, for people."""
    page = make(tmp_path, make_spec)
    with Browser(chromium(), tmp_path / "profile") as browser:
        for width, dark in [(1400, False), (1400, True), (390, False), (390, True)]:
            browser.opens(page, width, dark=dark)
            browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            scrolls, inner = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            browser.evaluate(f"{axe};0")
            found = browser.evaluate("axe.run(document).then(found => found.violations)")
            browser.shoots(page.with_name(f"{page.stem}_{width}{'_dark' if dark else ''}.png"))
            assert scrolls <= inner == width
            assert browser.evaluate(OVERLAPS) == []
            serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
            assert not serious, json.dumps(serious, indent=1)[:3000]
