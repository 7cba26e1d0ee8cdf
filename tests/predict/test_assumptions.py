from harness.predict.assumptions import Assumption, assumptions, band

TE = "transformer_engine"


def texts(spec):
    return [row.text.split(":")[0] for row in assumptions(spec, TE)]


def test_the_lower_end_of_a_range_stays_above_nothing():
    half = Assumption("half of it", lambda *_: True, lower=0.5, higher=0.5)
    assert (band((half,)), band((half, half))) == ((0.5, 0.5), (0.95, 1.0))


def test_a_prediction_without_special_features_adds_nothing_to_the_range_of_its_class(make_spec):
    spec = make_spec(gpu="h100", compute_dtype="bf16", kernels={"transformer_impl": TE})
    assert band(assumptions(spec, TE)) == (0, 0)


def test_deterministic_mode_may_change_the_attention_kernel_outside_of_hopper(make_spec):
    name, env = "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
    made = {
        gpu: make_spec(gpu=gpu, compute_dtype="bf16", env=env, kernels={"transformer_impl": TE})
        for gpu in ("a100", "h100", "gb200")
    }
    assert {gpu: name in texts(spec) for gpu, spec in made.items()} == {"a100": True, "h100": False, "gb200": True}
    asked = {"transformer_impl": TE, "attention_backend": "flash"}
    assert name not in texts(make_spec(gpu="a100", compute_dtype="bf16", env=env, kernels=asked))
    assert band(assumptions(made["a100"], TE))[1] > 0


def test_sequences_longer_than_those_measured_on_hopper_are_an_assumption(make_spec):
    for gpu, length, is_one in (("h100", 8192, False), ("h100", 16384, True), ("b200", 16384, False)):
        batch = {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": length}
        found = texts(make_spec(gpu=gpu, compute_dtype="bf16", batch=batch))
        assert any(" 8192 tokens" in text for text in found) is is_one
