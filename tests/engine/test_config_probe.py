"""What the probe asks the installed megatron-core, and how it hands on the answer."""

import json
import os
import subprocess
import sys

import pytest

from harness.engine.config_probe import place_in_megatron, translation, without_transformer_engine

pytestmark = pytest.mark.train


def asked(text, **environment):
    command = [sys.executable, "-m", "harness.engine.config_probe"]
    done = subprocess.run(
        command, input=text, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def answers(*specs):
    code, out, err = asked("\n".join(spec.model_dump_json() for spec in specs))
    assert code == 0, err
    return [json.loads(line) for line in out]


@pytest.mark.parametrize(
    ("kind", "text", "meaning"),
    [
        ("KeyError", "'full'", "cuda_graph_scope"),
        ("AssertionError", "", "offload_modules"),
        ("AssertionError", "\n", "offload_modules"),
        ("TypeError", "'>=' not supported between instances of 'NoneType' and 'Version'", "transformer-engine"),
    ],
)
def test_a_text_that_says_nothing_is_translated(kind, text, meaning):
    assert meaning in translation(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("ValueError", ""), ("AssertionError", "TP must divide the heads"), ("TypeError", "unhashable type"),
     ("KeyError", "")],
)  # fmt: skip
def test_a_text_that_speaks_is_left_alone(kind, text):
    assert translation(kind, text) is None


def test_each_is_answered_for_itself_and_a_refusal_comes_with_its_words_and_its_place(make_spec):
    good = make_spec(gpu="cpu", kernels={"transformer_impl": "local"})
    bad = make_spec(gpu="cpu", recompute="mla_up_proj", kernels={"transformer_impl": "local"})
    accepted, said, again = answers(good, bad, good)
    assert accepted == again == {"accepted": True, "without_transformer_engine": False}
    assert (said["accepted"], said["kind"], said["meaning"]) == (False, "ValueError", None)
    assert said["text"] == "mla_up_proj in recompute_modules is only supported with multi_latent_attention."
    assert said["place"].startswith("transformer/transformer_config.py:")


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
