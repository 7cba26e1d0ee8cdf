"""A request for `--engine bridge`: what is settled, refused, replaced, and never compared."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.errors import BadRequestError
from harness.foreign.bridge_engine import GPT_STEP
from harness.judge.derive import derive
from harness.judge.likeness import is_for, likeness
from harness.launch.environment import Host
from harness.measure.bridge import keep_config
from harness.measure.ranks import read_back, suspicions
from harness.measure.understanding import RunRequest, understand
from harness.records.collect import Collected
from harness.records.launch import BRIDGE_CONFIG
from harness.records.rank import LayerRecompute
from harness.resolve.recipe import ForeignSource, Request
from tests.commands import mbr_perf as mbr_perf  # noqa: PLC0414 (a fixture)
from tests.commands import refused
from tests.scripted_bridge import PACKAGE, container

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="host")
def _host():
    return Host(python=sys.executable, hostname="node0", num_cores=4, shell={"PATH": "/bin"})


@pytest.fixture(name="bridge", autouse=True)
def _bridge(monkeypatch):
    """Megatron-Bridge 0.3.1 is installed."""
    monkeypatch.syspath_prepend(str(PACKAGE))


@pytest.fixture(name="asked")
def _asked(tmp_path):
    """Return a request for a container, changed by ``edit(container)``, and by options."""

    def request(edit=lambda tree: None, **options):
        tree = container()
        edit(tree)
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(tree))
        source = ForeignSource("bridge_config", str(path))
        usual = {"engine": "bridge", "num_gpus": 1} | options
        return RunRequest(asked=Request(model_recipe_name="", gpu="cpu", source=source, **usual))

    return request


def test_the_engine_its_version_and_its_step_are_settled(asked, host, tmp_path):
    understood = understand(asked(max_steps=9), host, tmp_path / "run")
    engine = understood.spec.engine
    assert (engine.name, engine.version, engine.forward_step, engine.unsaid) == ("bridge", "0.3.1", GPT_STEP, ())
    assert engine.overrides == {}
    assert understood.spec.measure.max_steps == 9
    assert understood.sources["engine"] == "--engine"
    assert understood.spec.slug.endswith(".none.bridge")


def test_options_replace_settings_of_the_container(asked, host, tmp_path):
    spec = understand(asked(recompute="full:uniform:1", seq_length=32, global_batch_size=4), host, tmp_path).spec
    assert spec.engine.overrides == {
        "model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1,
        "model.recompute_modules": (), "model.distribute_saved_activations": False,
        "model.seq_length": 32, "dataset.seq_length": 32, "train.global_batch_size": 4,
    }  # fmt: skip


def test_a_point_stands_for_the_recipe_function_that_it_is_from_and_gives_its_environment(host, tmp_path, monkeypatch):
    def write(function, num_gpus, path, *_):
        written.append((function, num_gpus))
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(container()))

    written = []
    monkeypatch.setattr("harness.measure.bridge._write_config", write)
    recipe = yaml.safe_load((ROOT / "recipes" / "llama" / "llama3_8b.yaml").read_text())
    point = recipe["points"][0] | {"source": "Bridge, tiny_gpt_config", "num_gpus": 1, "env": {"A": 1, "B": 1}}
    path = tmp_path / "llama3_8b.yaml"
    path.write_text(yaml.safe_dump(recipe | {"points": [point]}))
    asked = Request(model_recipe_name=str(path), gpu="cpu", engine="bridge", compute_dtype="fp32", env=("B=2",))
    there = replace(host, shell={**host.shell, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    spec = understand(RunRequest(asked=asked), there, tmp_path / "run").spec
    assert written == [("tiny_gpt_config", 1)]
    assert (spec.recipe, spec.num_gpus, spec.env["A"], spec.env["B"]) == ("tiny_gpt_config", 1, "1", "2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_dtype": "fp32"}, "--compute_dtype"),
        ({"set_values": ("kernels.attention_backend=flash",)}, "kernels.attention_backend"),
    ],
)
def test_an_option_without_a_setting_in_the_container_is_refused(asked, host, tmp_path, options, message):
    with pytest.raises(BadRequestError, match=message):
        understand(asked(**options), host, tmp_path)


def test_the_same_job_of_another_engine_has_another_fingerprint(asked, host, tmp_path):
    by_bridge = understand(asked(), host, tmp_path).spec
    own = understand(asked(engine=None), host, tmp_path).spec
    assert own.engine is None
    assert by_bridge.fingerprint != own.fingerprint
    newer = by_bridge.engine.model_copy(update={"version": "0.4.0"})
    assert by_bridge.model_copy(update={"engine": newer}).fingerprint != by_bridge.fingerprint


@pytest.mark.parametrize(
    ("section", "name", "value", "differs"),
    [
        ("dataset", "num_workers", 8, True),
        ("model", "mamba_state_dim", 256, True),
        ("logger", "log_interval", 7, False),
        ("checkpoint", "save", "/elsewhere", False),
        ("train", "train_iters", 7, False),
    ],
)
def test_settings_that_no_leaf_holds_count_in_the_fingerprint_if_they_decide_a_result(
    asked, host, tmp_path, section, name, value, differs
):
    def edit(tree):
        tree.setdefault(section, {})[name] = value

    plain, edited = (understand(asked(how), host, tmp_path).spec for how in (lambda _: None, edit))
    assert (plain.fingerprint != edited.fingerprint) is differs


def dora(tree):
    tree["peft"] = {"_target_": "megatron.bridge.peft.dora.DoRA", "dim": 16}


def hybrid(tree):
    tree["model"] |= {"_target_": "megatron.bridge.models.mamba.MambaModelProvider"}
    del tree["model"]["vocab_size"]


@pytest.mark.parametrize(("edit", "why"), [(dora, "DoRA"), (hybrid, "MambaModelProvider")])
def test_a_job_that_our_worker_refuses_may_run_and_is_marked(asked, host, tmp_path, edit, why):
    understood = understand(asked(edit, task="peft", recompute="full:uniform:1"), host, tmp_path)
    assert any(why in text for text in understood.spec.engine.unsaid)
    assert [finding for finding in understood.findings if finding.blocks] == []
    assert sum("predicted" in note for note in understood.notes) == 1
    assert (understood.effective.is_counted, understood.effective.does_nothing) == (False, False)


def test_vision_models_have_bridges_step_for_them(asked, host, tmp_path):
    def edit(tree):
        tree["model"]["_target_"] = "megatron.bridge.models.qwen_vl.qwen25_vl_provider.Qwen25VLModelProvider"

    assert understand(asked(edit), host, tmp_path).spec.engine.forward_step.startswith(
        "megatron.bridge.training.vlm_step:"
    )
    chosen = understand(asked(edit, forward_step="mine:step"), host, tmp_path).spec.engine.forward_step
    assert chosen == "mine:step"


def test_training_counted_in_samples_is_refused(asked, host, tmp_path):
    with pytest.raises(BadRequestError, match="train_samples: "):
        understand(asked(lambda tree: tree["train"].update(train_samples=1000)), host, tmp_path)


def test_a_container_without_a_batch_is_refused(asked, host, tmp_path):
    with pytest.raises(BadRequestError, match=r"job\.yaml"):
        understand(asked(lambda tree: tree["train"].pop("micro_batch_size")), host, tmp_path)


def test_a_bridge_without_callbacks_is_refused(asked, host, tmp_path, monkeypatch):
    package = tmp_path / "older" / "megatron" / "bridge"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "package_info.py").write_text('__version__ = "0.2.1"\n')
    monkeypatch.syspath_prepend(str(tmp_path / "older"))
    with pytest.raises(BadRequestError, match=r"Megatron-Bridge 0\.2\.1 "):
        understand(asked(), host, tmp_path)


def test_the_ranks_get_the_container_that_the_run_was_planned_with(asked, host, tmp_path):
    request = asked()
    engine = understand(request, host, tmp_path).spec.engine
    keep_config(engine, tmp_path)
    assert (tmp_path / BRIDGE_CONFIG).read_text() == Path(engine.config).read_text()
    Path(engine.config).write_text("another: file\n")
    refused(lambda: keep_config(engine, tmp_path), engine.config)
    Path(engine.config).unlink()
    refused(lambda: keep_config(engine, tmp_path), engine.config, "No such file")


@pytest.fixture(name="by_bridge")
def _by_bridge(asked, host, tmp_path, make_record):
    """Return a record of a finished run by Bridge; ``edit`` changes its container."""

    def record(edit=lambda _: None):
        return make_record(understand(asked(edit, max_steps=10), host, tmp_path).spec)

    return record


def test_a_golden_of_the_other_engine_is_never_accepted(by_bridge, make_golden):
    record = by_bridge()
    own = record.model_copy(update={"spec": record.spec.model_copy(update={"engine": None})})
    golden = make_golden(own.model_copy(update={"fingerprint": own.spec.fingerprint}), {})
    found = {
        d.name: d.accepted
        for d in likeness(record, golden, accept=("engine",)).differences
        if d.name.startswith("engine")
    }
    assert found == {"engine.name": False, "engine.version": True, "engine.forward_step": True, "engine.rest": True}
    assert not is_for(golden, record, accept=("engine",))


def test_another_release_of_bridge_may_be_accepted(by_bridge, make_golden):
    record = by_bridge()
    engine = record.spec.engine.model_copy(update={"version": "0.4.0"})
    newer = record.model_copy(update={"spec": record.spec.model_copy(update={"engine": engine})})
    golden = make_golden(newer.model_copy(update={"fingerprint": newer.spec.fingerprint}), {})
    assert not is_for(golden, record)
    assert is_for(golden, record, accept=("engine.version",))


def test_a_job_that_is_not_described_has_times_but_no_flops(by_bridge):
    metrics = derive(by_bridge(dora))
    assert metrics.step_time_s is not None
    assert metrics.tokens_per_s_per_gpu is not None
    assert (metrics.tflops_per_gpu, metrics.mfu, metrics.model_flops_per_step) == (None, None, 0)
    assert metrics.problems["tflops_per_gpu"]


def test_the_recompute_of_a_job_that_is_not_described_is_that_of_the_built_model(by_bridge):
    record = by_bridge(dora)
    built = LayerRecompute(num_layers=2, modules={"core_attn": 2})
    ranks = (record.ranks[0].model_copy(update={"recompute": built}),)
    effective = read_back(record.effective, record.spec, ranks)
    assert (effective.modules, effective.num_layers, effective.is_counted) == ({"core_attn": 2}, 2, True)
    collected = Collected(ranks=ranks, nodes=(), notes=(), unwatched=())
    assert not any("built layers" in why for why in suspicions(record.spec, record.effective, collected, ranks))


CONFIG = ("--bridge_config", "job.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "bridge", "-mr", "llama3_8b"), "--engine bridge: "),
        (("--engine", "brigde", *CONFIG), "--engine 'brigde': "),
        (("--forward_step", "a:b", *CONFIG), "--forward_step: "),
        (("--bridge_recipe", "f"), "--bridge_recipe: "),
        (("--engine", "bridge", "--bridge_recipe", "f", *CONFIG), "--bridge_recipe"),
        (("--engine", "bridge", "--bridge_recipe", "llama_config"), "llama_config"),
    ],
)  # fmt: skip
def test_words_that_do_not_fit_together_are_refused(mbr_perf, words, message):
    answer = mbr_perf("run", "-g", "cpu", *words)
    assert answer.code == 2
    assert message in answer.err


def test_without_bridge_nothing_starts(mbr_perf, tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(container()))
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(PACKAGE)])
    results = tmp_path / "results"
    answer = mbr_perf(
        "run", "-g", "cpu", "-ng", "1", "--engine", "bridge", "--bridge_config", path, "--results_dir", results
    )
    assert answer.code == 2
    assert "megatron.bridge " in answer.err
    assert not results.exists()
