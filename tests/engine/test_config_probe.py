"""What the probe asks the installed megatron-core, and how it hands on the answer."""

import json
import os
import subprocess
import sys

import pytest

from harness.engine.config_probe import place_in_megatron, translation, without_transformer_engine
from harness.launch.processes import identify, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.train


PROBE = [sys.executable, "-m", "harness.engine.config_probe"]


def asked(text, **environment):
    """Variables that are None are unset."""
    shell = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run(PROBE, input=text, env=shell, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def question(spec, **env):
    return json.dumps({"spec": spec.model_dump(mode="json"), "env": env})


def answers(*specs):
    code, out, err = asked("\n".join(map(question, specs)))
    assert code == 0, err
    return [json.loads(line) for line in out]


@pytest.mark.parametrize(
    ("kind", "text", "meaning"),
    [
        ("KeyError", "'full'", "cuda_graph_scope"),
        ("AssertionError", "\n", "offload_modules"),
        ("TypeError", "'>=' not supported between instances of 'NoneType' and 'Version'", "transformer-engine"),
        ("ValueError", "", None),
        ("AssertionError", "TP must divide the heads", None),
        ("KeyError", "", None),
    ],
)
def test_a_text_that_says_nothing_is_translated_and_another_left_alone(kind, text, meaning):
    found = translation(kind, text)
    assert found is None if meaning is None else meaning in found


def test_each_is_answered_for_itself_and_a_refusal_comes_with_its_words_and_its_place(make_spec, local):
    bad = make_spec(gpu="cpu", recompute="mla_up_proj", kernels={"transformer_impl": "local"})
    accepted, refused, again = answers(local, bad, local)
    assert accepted == again == {"accepted": True, "without_transformer_engine": False}
    assert (refused["accepted"], refused["kind"], refused["meaning"]) == (False, "ValueError", None)
    assert refused["text"] == "mla_up_proj in recompute_modules is only supported with multi_latent_attention."
    assert refused["place"].startswith("transformer/transformer_config.py:")


@pytest.fixture
def local(make_spec):
    """A request for the layers that run anywhere."""
    return make_spec(gpu="cpu", kernels={"transformer_impl": "local"})


@pytest.fixture
def scripted_megatron(tmp_path):
    """Variables under which megatron-core is this: every configuration that is built runs ``body``."""

    def written(body, imported="pass"):
        core = tmp_path / "megatron" / "core"
        for package in ("transformer", "fusions"):
            (core / package).mkdir(parents=True)
        files = {
            "__init__": f"print('imported', flush=True); {imported}", "distributed": "DistributedDataParallelConfig = None",
            "optimizer": "OptimizerConfig = None", "transformer/__init__": "", "fusions/__init__": "",
            "activations": "squared_relu = None", "fusions/fused_bias_geglu": "quick_gelu = None", "transformer/enums": "AttnBackend = {'local': 0}",
            "transformer/transformer_config": f"""
import os, sys, time
class Fields:
    def values(self):
        {body}
class TransformerConfig:
    __dataclass_fields__ = Fields()
MLATransformerConfig = TransformerConfig
""",
        }  # fmt: skip
        (core.parent / "__init__.py").write_text("")
        for name, text in files.items():
            (core / f"{name}.py").write_text(text)
        return {"PYTHONPATH": str(tmp_path)}

    return written


def test_what_one_request_broke_is_reported_in_its_words_and_the_next_is_asked(local, scripted_megatron):
    variables = scripted_megatron(
        "print('OSError:', os.environ.get('ONE'), os.environ.get('TWO'), '\\nnanobind: leaked', file=sys.stderr); os._exit(7)"
    )
    code, out, _ = asked(f"{question(local, ONE='1')}\n{question(local, TWO='2')}", **variables)
    assert (code, [json.loads(line) for line in out]) == (
        0, [{"problem": f"ended with exit code 7: OSError: {words}"} for words in ("1 None", "None 2")]
    )  # fmt: skip


THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@pytest.mark.parametrize("many", [True, False])
def test_where_an_import_starts_a_thread_every_request_has_a_process_of_its_own(local, scripted_megatron, many):
    variables = scripted_megatron("raise ValueError(os.environ.get('ONE'))", imported=THREAD)
    lines = [question(local, ONE="1"), question(local)] if many else [question(local, ONE="1")]
    code, out, err = asked("\n".join(lines), **variables)
    assert code == 0, err
    assert [json.loads(line)["text"] for line in out] == ["1", "None"][: len(lines)]


def test_the_imports_start_no_thread_though_nobody_forbids_numpy_its_own(local, scripted_megatron):
    count = (
        "raise ValueError((len(os.listdir('/proc/self/task')), os.getppid() == int(os.environ['MBR_PERF_PARENT_PID'])))"
    )
    unset = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    code, out, err = asked(question(local), **scripted_megatron(count), **unset)
    assert code == 0, err
    assert json.loads(out[0])["text"] == "(1, True)", "a fork, and one thread"


def test_cuda_that_an_import_has_initialised_is_no_refusal(local, scripted_megatron):
    text = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use 'spawn'"
    variables = scripted_megatron(f"raise RuntimeError({text!r})")
    code, out, _ = asked(question(local), **variables)
    assert (code, json.loads(out[0])) == (0, {"problem": f"ended with exit code 1: RuntimeError: {text}"})


def test_a_configuration_that_hangs_is_gone_when_the_probe_is_killed(local, scripted_megatron, tmp_path):
    number = tmp_path / "pid"
    variables = scripted_megatron(f"open({str(number)!r}, 'x').write(str(os.getpid())); time.sleep(100)")
    with subprocess.Popen(PROBE, stdin=subprocess.PIPE, env={**os.environ, **variables}) as probe:
        probe.stdin.write(question(local).encode())
        probe.stdin.close()
        fork = wait_until(lambda: number.exists() and number.read_text() and identify(int(number.read_text())), 60.0)
        probe.kill()
    assert wait_until(lambda: not is_alive(fork), 60.0)


def test_an_unreadable_request_says_nothing_about_megatron_core():
    code, out, err = asked("{}")
    assert (code, out) == (1, [])
    assert "ValidationError" in err


def test_what_only_transformer_engine_has_is_left_out_where_it_is_missing(make_spec):
    kernels = {"transformer_impl": "transformer_engine", "moe_permute_fusion": True, "attention_backend": "fused"}
    spec = make_spec(kernels=kernels)
    asked_about = without_transformer_engine(spec)
    changed = {name for name in kernels if getattr(asked_about.kernels, name) != getattr(spec.kernels, name)}
    assert changed == {"transformer_impl", "moe_permute_fusion"}
    assert asked_about.model_copy(update={"kernels": spec.kernels}) == spec


def test_an_error_outside_megatron_core_has_no_place_in_it():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert place_in_megatron(caught.value) is None
