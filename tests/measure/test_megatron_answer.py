"""megatron-core's answer to a request: refusal, approval, or none."""

import json
import sys
import time
from dataclasses import replace

import pytest

from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.launch.environment import Host, this_host
from harness.measure.checking import Question, megatron_finding, megatron_findings, unasked_notes
from harness.resolve.find import all_recipe_files, load_recipe, recipes_dir
from harness.resolve.recipe import build_spec

INSTALLED = Software(megatron_core="0.16.1", torch="2.9.1")
WITH_TE = INSTALLED.model_copy(update={"transformer_engine": "2.11"})
WITHOUT_TE = "fused permutation is not available. Please install TE >= 2.1.0."


@pytest.fixture
def host(program):
    """A machine whose interpreter is a script with the given body."""
    machine = Host(python="", hostname="node", num_cores=1, shell={"PATH": "/usr/bin:/bin", "SET": "by shell"})
    return lambda body: replace(machine, python=program(f"import os, signal, sys, time\n{body}", sys.executable))


@pytest.fixture
def answered(host, make_spec):
    """The finding for what a scripted megatron-core prints."""

    def finding(body, software=INSTALLED, env=None, **options):
        return megatron_finding(make_spec(), software, host(body), env, **options)

    return finding


def prints(**answer):
    return f"print({json.dumps(answer)!r})"


def test_a_refusal_is_an_error_with_megatron_cores_words(answered):
    finding = answered(prints(accepted=False, kind="ValueError", text="no such thing", place="transformer_config.py:7"))
    assert (finding.id, finding.severity, finding.blocks) == ("MCORE", "error", True)
    assert "megatron-core 0.16.1" in finding.message
    assert finding.mcore_text == "ValueError: no such thing"
    assert "transformer_config.py:7" in finding.fix


def test_a_field_that_the_release_lacks_needs_no_place(answered):
    finding = answered(prints(accepted=False, kind="UnknownField", text="TransformerConfig has no mla_flash"))
    assert finding.severity == "error"
    assert "megatron-core 0.16.1" in finding.fix


def test_approval_without_transformer_engine_says_so(answered):
    finding = answered(prints(accepted=True, without_transformer_engine=True), WITH_TE)
    assert (finding.severity, "transformer-engine" in finding.message) == ("note", True)


@pytest.mark.parametrize(
    ("text", "software", "severity"),
    [
        (WITHOUT_TE, WITH_TE, "note"),
        (WITHOUT_TE, INSTALLED, "error"),
        ("moe_act needs moe_grouped_gemm", WITH_TE, "error"),
    ],
)
def test_only_a_want_of_transformer_engine_is_forgiven_and_only_where_the_job_has_it(
    answered, text, software, severity
):
    answer = prints(accepted=False, kind="ValueError", text=text, place="a.py:1", without_transformer_engine=True)
    assert answered(answer, software).severity == severity


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('ImportError: libcudart.so.12')", " 1: ImportError: libcudart.so.12"),
        (
            "import atexit; atexit.register(sys.stderr.write, 'nanobind: leaked 2 types!'); raise TypeError('no stream')",
            " 1: TypeError: no stream",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", " -11: "),
        ("print('hello')", ": 'hello'"),
        ("pass", "no answer"),
        ('print(\'{"problem": "exit code -11"}\')', " megatron-core exit code -11"),
    ],
)
def test_a_probe_that_does_not_answer_is_a_note(answered, body, why):
    finding = answered(body)
    assert (finding.severity, finding.blocks) == ("note", False)
    assert why in finding.message


def test_a_probe_that_hangs_is_a_note_in_time(answered):
    began = time.monotonic()
    finding = answered("time.sleep(60)", timeout_s=0.5)
    assert finding.severity == "note"
    assert " 0.5 s" in finding.message
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("software", "missing"),
    [(Software(), "megatron-core and torch"), (Software(torch="2.9"), "megatron-core"),
     (Software(megatron_core="0.16.1"), "torch")],
)  # fmt: skip
def test_what_is_not_installed_is_not_asked(answered, software, missing):
    finding = answered("raise SystemExit('was asked')", software)
    assert f": {missing} " in finding.message


def test_megatron_core_sees_the_variables_of_the_ranks(answered):
    body = "import json; sys.exit(os.environ['SET'] + ' ' + json.loads(sys.stdin.read())['env']['NCCL_GRAPH_REGISTER'])"
    assert answered(body, env={"NCCL_GRAPH_REGISTER": "0"}).message.endswith("by shell 0")


@pytest.mark.slow
def test_many_are_asked_in_one_process_and_those_without_an_answer_say_so(host, make_spec):
    asked = [Question(make_spec(), software) for software in (INSTALLED, Software(), INSTALLED, INSTALLED)]
    yes, no = json.dumps({"accepted": True}), json.dumps({"accepted": False, "kind": "ValueError", "text": "no"})
    body = f"print({yes!r}); print({no!r}, flush=True); len(sys.stdin.readlines()) == 3 and time.sleep(60)"
    found = megatron_findings(dict(enumerate(asked)), host(body), timeout_s=0.5)
    assert [finding.blocks for finding in found.values()] == [False, False, True, False]
    assert "megatron-core and torch" in found[1].message and " 2.5 s" in found[3].message
    assert unasked_notes(found.values()) == tuple(
        f"1 of 4: {found[place].message}; {found[place].fix}" for place in (1, 3)
    )


@pytest.mark.train
def test_the_installed_megatron_core_is_asked_about_a_gpu_without_transformer_engine(make_spec):
    spec = make_spec(recompute="mla_up_proj", compute_dtype="bf16", kernels={"transformer_impl": "transformer_engine"})
    finding = megatron_finding(spec, WITH_TE, this_host())
    assert finding.severity == "error"
    assert "mla_up_proj in recompute_modules" in finding.mcore_text


def shipped_points():
    """One GPU point that the rules accept for each set of switches, FP8 recipe and kind of model."""
    found = {}
    for file in all_recipe_files(recipes_dir()):
        for point in load_recipe(file.path, file.label).points:
            spec = build_spec(point.layer, point.place)
            kernels = spec.kernels.model_copy(update={"transformer_impl": "transformer_engine"})
            spec = spec.model_copy(update={"kernels": kernels})
            fields = [*spec.parallelism, *kernels, *spec.ddp]
            switches = frozenset(name for name, value in fields if isinstance(value, bool) and value)
            kind = (spec.compute_dtype, bool(spec.model.moe), switches, spec.cuda_graph.impl)
            if not spec.gpu_type.is_cpu and not any(finding.blocks for finding in check(spec, WITH_TE)):
                found.setdefault(kind, (f"{file.name} {point.title}", spec))
    return dict(found.values())


@pytest.mark.train
@pytest.mark.slow
def test_without_transformer_engine_no_shipped_point_that_the_rules_accept_is_refused():
    asked = {name: Question(spec, WITH_TE) for name, spec in shipped_points().items()}
    assert any(question.spec.parallelism.defer_embedding_wgrad_compute for question in asked.values())
    found = megatron_findings(asked, this_host())
    assert {name: finding.mcore_text for name, finding in found.items() if finding.blocks} == {}


@pytest.mark.train
def test_a_deferral_is_refused_only_for_what_was_asked_for(make_spec):
    def deferred(pp, fuses):
        kernels = {"transformer_impl": "transformer_engine", "gradient_accumulation_fusion": fuses}
        cut = {"pipeline_model_parallel_size": pp, "defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 2}
        return Question(make_spec(kernels=kernels, parallelism=cut), WITH_TE)

    found = megatron_findings({0: deferred(2, True), 1: deferred(2, False), 2: deferred(1, True)}, this_host())
    assert [finding.blocks for finding in found.values()] == [False, True, True]
    assert "accumulation fusion" in found[1].mcore_text
    assert "pipeline" in found[2].mcore_text
