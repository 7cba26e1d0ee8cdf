"""Every shipped suite resolves into cases that the rules let start; together they hold every H100 point."""

import pytest

from harness.launch.detection import one_look
from harness.launch.environment import this_host
from harness.measure.checking import check_request
from harness.measure.understanding import RunRequest
from harness.records.goldens import find_golden
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe_file import load_recipe
from harness.resolve.suite_file import read_suite

SUITES = ("cpu_smoke", "h100_library", "h100_nightly")
# Published operating points that no suite holds: their sizes do not divide.
LEFT_OUT = {("deepseek_v3", "pretrain", "bf16", 64, None), ("deepseek_v3", "pretrain", "fp8_cs", 64, None)}


def selected(case):
    """What chooses the operating point; the file states everything about it."""
    asked = case.request
    return asked.model_recipe_name, asked.task, asked.compute_dtype, asked.num_gpus, asked.variant


@pytest.fixture(name="h100_points", scope="module")
def _h100_points():
    """The source of every H100 point of the recipes, by what selects it."""
    recipes = [load_recipe(file.path, file.label) for file in all_recipe_files(recipes_dir())]
    return {
        (recipe.header.name, p.key.task, p.key.compute_dtype, p.key.num_gpus, p.key.variant): p.key.source
        for recipe in recipes
        for p in recipe.points
        if p.key.gpu == "h100"
    }


@pytest.fixture(name="checked", scope="module")
def _checked():
    """Every case of every suite with what `mbr-perf check` says about it."""
    host = this_host()
    with one_look():
        return [
            (case, check_request(RunRequest(asked=case.request), host, assume=None, ask_megatron=False))
            for name in SUITES
            for case in read_suite(name).cases
        ]


def test_every_shipped_suite_is_accounted_for():
    assert tuple(sorted(path.stem for path in (recipes_dir() / "suites").glob("*.yaml"))) == SUITES


@pytest.mark.slow
def test_every_case_may_start(checked):
    refused = {case.name: [f.id for f in found.findings if f.blocks] for case, found in checked}
    assert {name: ids for name, ids in refused.items() if ids} == {}


def test_the_suites_hold_every_h100_point_once(h100_points):
    cases = [case for name in ("h100_nightly", "h100_library") for case in read_suite(name).cases]
    asked = [selected(case) for case in cases if case.request.recompute is None]
    assert sorted(map(str, asked)) == sorted(str(point) for point in h100_points.keys() - LEFT_OUT)


def test_the_nightly_suite_is_for_points_of_speed_and_the_other_for_those_of_training(h100_points):
    for name, is_library in (("h100_nightly", False), ("h100_library", True)):
        sources = {case.name: h100_points[selected(case)] for case in read_suite(name).cases}
        assert {case: "/bridge/recipes/" in source for case, source in sources.items()} == dict.fromkeys(
            sources, is_library
        )


@pytest.mark.slow
def test_a_golden_is_optional_exactly_where_another_case_has_its_file(checked):
    fingerprints = {}
    for case, found in checked:
        fingerprints.setdefault((found.spec.gpu, found.spec.slug), []).append((case, found.spec.fingerprint))
    for (gpu, slug), sharing in fingerprints.items():
        required = {fingerprint for case, fingerprint in sharing if case.is_golden_required}
        assert len(required) == 1, f"{gpu}/{slug}"
        assert all(case.is_golden_required or fingerprint not in required for case, fingerprint in sharing)


@pytest.mark.slow
def test_every_case_of_the_smoke_suite_has_a_committed_golden(checked):
    goldens = {case.name: find_golden(found.spec).golden for case, found in checked if found.spec.gpu == "cpu"}
    assert len(goldens) == 4
    assert None not in goldens.values()
