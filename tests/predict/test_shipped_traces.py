"""The traces that travel with mbr-perf: they are those of this tracer, stand for nothing else, and cover shipped points."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software
from harness.predict.search import candidates, required_cases
from harness.predict.shipped_traces import (
    About,
    Shipped,
    _called,
    _digest,
    address_of,
    events_file,
    find_shipped,
    made_here,
    shipped_file,
    shipped_releases,
    shipped_traces,
    why_not,
)
from harness.predict.trace_cases import CachedTrace, CaseMaker
from harness.records.trace import ChunkTrace, OpCost
from tests.real_te.shipped_points import IMPLEMENTATION, SOFTWARE, shipped_points

ROOT = Path(__file__).parents[2]
packed = runpy.run_path(str(ROOT / "scripts" / "accuracy.d" / "packing.py"))["packed"]
every_case = runpy.run_path(str(ROOT / "scripts" / "accuracy.d" / "cases.py"))["every_case"]
RELEASES = shipped_releases()
REGENERATE = "the tracer changed: run scripts/accuracy --traces, which takes minutes, and commit results/traces"
OP = OpCost(phase="forward", kind="gemm", dtype="bf16", flops=12, bytes=4, count=2)
CHUNK = ChunkTrace(
    saved_bytes=1, forward_peak_bytes=2, backward_peak_bytes=3, persistent_bytes=4, hidden_bytes=5,
    num_parameters_dense=6, num_parameters_expert=0, parameter_bytes=7, ops=(OP, OP.model_copy(update={"flops": 14}), OP), notes=("eager",),
)  # fmt: skip
ABOUT = About(megatron_core="0.16.1", torch="2.13.0", tracer="t", stand_in="s", layers="l")


def trace(**values) -> CachedTrace:
    return CachedTrace(megatron_core="0.16.1", torch="2.13.0", **values)


@pytest.fixture(name="point", scope="module")
def _point():
    return next(point.spec for point in shipped_points() if point.name == "llama3_70b" and point.gpu == "h100")


@pytest.fixture(name="written")
def _written(tmp_path):
    def write(*traces) -> Shipped:
        path = tmp_path / "traces.zip"
        path.write_bytes(packed(ABOUT, traces))
        return shipped_traces(path, ABOUT)

    return write


def about(release: str) -> About:
    found, reason = find_shipped(release, Software())
    assert found, f"{reason}. {REGENERATE}"
    return found.about


@pytest.mark.parametrize("release", RELEASES)
def test_shipped_traces_are_those_of_this_tracer_and_stand_in(release):
    here = made_here()
    assert (about(release).tracer, about(release).stand_in) == (here.tracer, here.stand_in), REGENERATE


def test_shipped_traces_are_those_of_the_installed_layers():
    """Their code counts, and not its bytes: a row of a table that no trace depends on may change these."""
    here = made_here()
    if here.megatron_core in RELEASES:
        assert about(here.megatron_core).model_copy(update={"sources": here.sources}) == here, REGENERATE


def test_the_assumed_release_is_shipped_and_all_of_them_within_ten_megabytes():
    assert ASSUMED_MEGATRON_CORE in RELEASES
    assert sum(shipped_file(release).stat().st_size for release in RELEASES) < 10_000_000


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_every_shipped_point_is_there_under_other_pipelines_and_gpu_counts(release):
    found, reason = find_shipped(release, Software())
    assert found, reason
    missing = []
    for point in shipped_points()[::9]:
        for pp in (1, 2, 4):
            if point.spec is None:
                continue
            p = point.spec.parallelism
            layout = {"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": None,
                      "pipeline_model_parallel_layout": None, "num_layers_in_first_pipeline_stage": None,
                      "num_layers_in_last_pipeline_stage": None, "account_for_embedding_in_pipeline_split": False,
                      "account_for_loss_in_pipeline_split": False}  # fmt: skip
            num_gpus = 2 * max(
                p.tensor_model_parallel_size * pp * p.context_parallel_size, p.expert_model_parallel_size * pp
            )
            spec = point.spec.model_copy(update={"parallelism": p.model_copy(update=layout), "num_gpus": num_gpus})
            if spec.model.num_layers % pp:
                continue
            software = SOFTWARE.model_copy(update={"megatron_core": release})
            needed = required_cases(candidates(spec, software, IMPLEMENTATION), IMPLEMENTATION, software)
            missing += [
                (point.name, point.gpu, pp, case.spec.recompute.text)
                for case in needed
                if found.read(case, 1.0) is None
            ]
    assert missing == []


def test_what_was_packed_is_read_again(point, written):
    make = CaseMaker(point, IMPLEMENTATION)
    first, second = (make.layers("dense", point.recompute, n) for n in (1, 2))
    shipped = written((first, 1.0, trace(chunk=CHUNK)), (second, 1.0, trace(refused="a defect")))
    assert shipped.read(first, 1.0) == trace(chunk=CHUNK)
    assert shipped.read(second, 1.0) == trace(refused="a defect")
    assert shipped.read(first, 1.25) is None
    assert shipped.read(make.first("dense", point.recompute), 1.0) is None


def test_the_order_of_traces_does_not_change_the_file(point):
    make = CaseMaker(point, IMPLEMENTATION)
    traces = [(make.layers("dense", point.recompute, n), 1.0, trace(chunk=CHUNK)) for n in (1, 2)]
    assert packed(ABOUT, traces) == packed(ABOUT, traces[::-1])


def test_gpus_that_differ_in_nothing_that_a_layer_sees_share_traces(point):
    def address(gpu: str):
        spec = point.model_copy(update={"gpu": gpu})
        return address_of(CaseMaker(spec, IMPLEMENTATION).layers("dense", spec.recompute, 1), 1.0)

    assert address("h200") == address("h100")
    assert address("b200") != address("h100")


def test_a_default_that_has_changed_since_is_no_match(point, written, tmp_path):
    """The case names only values that differ from defaults, so that a new field makes nothing stale."""
    import json
    import zipfile

    case = CaseMaker(point, IMPLEMENTATION).layers("dense", point.recompute, 1)
    shipped = written((case, 1.0, trace(chunk=CHUNK)))
    member = f"{address_of(case, 1.0).member}.json"
    content = json.loads(zipfile.ZipFile(shipped.path).read(member))

    def with_spec(**changes) -> Shipped:
        path = tmp_path / "changed.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, json.dumps(content | {"spec": content["spec"] | changes}))
        return shipped_traces(path, ABOUT)

    assert with_spec(a_field_of_the_past=1).read(case, 1.0) == trace(chunk=CHUNK)
    kernels = content["spec"]["kernels"]
    assert (
        with_spec(kernels={**kernels, "moe_permute_fusion": not kernels["moe_permute_fusion"]}).read(case, 1.0) is None
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"tracer": "0", "sources": ""}, "version of the tracer"),
        ({"stand_in": "0", "sources": ""}, "version of the tracer"),
        ({"sources": ""}, ""),
        ({"layers": "0"}, "differs from"),
        ({"torch": "2.0"}, "torch 2.0 made them, torch"),
    ],
)
def test_traces_of_something_else_are_not_used(changes, reason):
    here = made_here()
    installed = Software(megatron_core=here.megatron_core, torch=f"{here.torch}+cpu")
    found = why_not(here.model_copy(update=changes), installed)
    assert reason in found if reason else not found


def test_only_the_tracer_must_agree_where_megatron_core_is_not_installed():
    about = made_here().model_copy(update={"layers": "0", "torch": "2.0"})
    assert why_not(about, Software()) == ""
    assert "tracer" in why_not(about.model_copy(update={"tracer": "0", "sources": ""}), Software())


def test_where_the_sources_are_the_same_bytes_nothing_is_parsed(monkeypatch):
    about = made_here()
    monkeypatch.setattr("harness.predict.shipped_traces.ast.parse", None)
    assert why_not(about, Software()) == ""


def test_a_release_without_traces_names_those_that_have_some():
    found, reason = find_shipped("0.17.0", Software())
    assert found is None
    assert f" {' and '.join(RELEASES)}, " in reason and reason.endswith(" 0.17.0")


SOURCE = '''"""A module."""
LIMIT: int = 3
def double(size):
    """Twice."""
    if size < 0:
        raise ValueError("negative")
    return size * 2
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("A module.", "Another text.", True),
        ("Twice.", "Doubled.", True),
        ("    if", "    # why\n    if", True),
        ('"negative"', '"below zero"', True),
        ("int = 3", "int = 4", False),
        ("* 2", "* 3", False),
        ("def double", "def twice", False),
    ],
)
def test_a_fingerprint_follows_the_code_and_no_text(old, new, same):
    assert old in SOURCE
    before, after = (_digest([ast.parse(text)]) for text in (SOURCE, SOURCE.replace(old, new)))
    assert (before == after) is same


def test_of_a_request_only_the_functions_count_that_the_tracer_calls_however_indirectly():
    caller = ast.parse("request.first()")
    request = ast.parse(
        "def first(): return second()\ndef second(): return 2\ndef third(): return 3\nclass A:\n size: int = 1"
    )
    assert {function.name for function in _called([caller], [request])} == {"first", "second"}


@pytest.mark.train
@pytest.mark.long
def test_tracing_again_gives_the_same_bytes(tmp_path):
    program = "import sys; sys.path.insert(0, 'scripts/accuracy.d'); import traces; from pathlib import Path; from harness.launch.environment import this_host; print(*traces.write(this_host(), Path(sys.argv[1])))"
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    subprocess.run((sys.executable, "-c", program, tmp_path), cwd=ROOT, env=environment, check=True)
    release = made_here().megatron_core
    for file in (shipped_file(release), events_file(release)):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_every_case_holds_the_settings_that_a_plan_composes(point):
    cases = {case.key for case in every_case(point, IMPLEMENTATION)}
    graph = point.cuda_graph.model_copy(update={"impl": "none", "scope": ()})
    eager = point.model_copy(update={"cuda_graph": graph})
    needed = required_cases(candidates(eager, SOFTWARE, IMPLEMENTATION), IMPLEMENTATION, SOFTWARE)
    assert {case.key for case in needed} <= cases
    assert len(needed) > 10


@pytest.mark.parametrize(("release", "is_known"), [("0.16.1", False), ("0.19.2", True)])
def test_a_module_of_a_later_release_has_traces_of_its_own_there(release, is_known):
    spec = next(each.spec for each in shipped_points() if each.name == "qwen3_next_80b_a3b" and each.gpu == "h100")
    software = SOFTWARE.model_copy(update={"megatron_core": release})
    cases = required_cases(candidates(spec, software, IMPLEMENTATION), IMPLEMENTATION, software)
    assert any("gdn_norm_out" in case.spec.recompute.text for case in cases) is is_known
    assert {case.key for case in cases} <= {case.key for case in every_case(spec, IMPLEMENTATION, software)}
