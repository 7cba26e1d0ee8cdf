import pytest

from harness.experiment.software import Software
from harness.predict.compose import Parameters
from harness.predict.model_states import adam_of, model_states, state_bytes

ON_HOST = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
BF16_GRADIENTS = {"grad_reduce_in_fp32": False}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"ddp": BF16_GRADIENTS}, (10.0, 12.0)),
        ({}, (12.0, 12.0)),  # fp32 gradients need no cast
        ({"optimizer": {"use_distributed_optimizer": False}}, (18.0, 18.0)),
    ],
)
def test_two_ranks_take_these_bytes_per_parameter_between_steps_and_inside_one(spec_of, asked, expected):
    """As megatron-core's own DDP and optimizer were measured."""
    states = model_states(spec_of(**asked), Parameters(dense=1200, stored_bytes=2400))
    assert (states.total / 1200, (states.total + states.step_transient) / 1200) == expected


@pytest.mark.parametrize(
    ("optimizer", "dtype", "expected"),
    [
        ({}, "bf16", 12),
        ({"use_precision_aware_optimizer": True}, "bf16", 2 + 8),  # remainders of bf16 weights beside fp32 moments
        ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, "bf16", 2 + 4),
        ({"use_precision_aware_optimizer": True, "main_params_dtype": "fp16"}, "bf16", 2 + 8),
        ({"use_precision_aware_optimizer": True}, "fp8_cs", 4 + 8),  # megatron-core keeps the fp32 master itself
        ({"use_precision_aware_optimizer": True}, "fp8_ds", 2 + 8),
        ({}, "fp16", 12),
        ({"optimizer": "sgd"}, "bf16", 4 + 4),
        ({"optimizer": "sgd", "sgd_momentum": 0.0}, "bf16", 4),
        ({"optimizer": "muon"}, "bf16", 4 + 4),
        (ON_HOST, "bf16", 0),
        (ON_HOST | {"optimizer_offload_fraction": 0.75, "exp_avg_dtype": "bf16"}, "bf16", 12 / 4),
    ],
)
def test_optimizer_state_follows_its_dtypes(spec_of, optimizer, dtype, expected):
    assert state_bytes(spec_of(optimizer=optimizer, compute_dtype=dtype)).optimizer == expected


def test_states_are_widened_for_one_optimizer_at_a_time(spec_of, moe_spec):
    optimizer = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    moe_spec = moe_spec.model_copy(update={"optimizer": moe_spec.optimizer.model_copy(update=optimizer)})
    spread = model_states(moe_spec, Parameters(dense=400, expert=1200))
    # Experts over EP 8 have an optimizer of their own: two copies of every expert, four data-parallel ranks.
    assert spread.step_transient == 8 * 1200 / 2
    dense = model_states(spec_of(optimizer=optimizer), Parameters(dense=400))
    assert dense.step_transient == 8 * 400 / spec_of().data_parallel_size


def test_transformer_engine_from_2_13_on_updates_bf16_moments_where_they_are(spec_of):
    """Its kernel reads bf16; one moment in fp32, or a master weight in fp16, is still copied (`fuse_unscale`)."""
    bf16 = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    asked = {"both": bf16, "one": bf16 | {"exp_avg_dtype": "fp32"}, "master": bf16 | {"main_params_dtype": "fp16"}}
    found = {}
    for name, optimizer in asked.items():
        spec = spec_of(optimizer=optimizer)
        for release in ("2.12.0", "2.13.0"):
            adam = adam_of(spec, Software(megatron_core="0.16.1", transformer_engine=release))
            transient = model_states(spec, Parameters(dense=400), adam=adam).step_transient
            found[name, release] = transient * spec.data_parallel_size / 400
    assert found == {
        ("both", "2.12.0"): 8, ("both", "2.13.0"): 0, ("one", "2.12.0"): 4, ("one", "2.13.0"): 4,
        ("master", "2.12.0"): 12, ("master", "2.13.0"): 4,
    }  # fmt: skip


def test_torchs_adam_holds_the_root_of_the_second_moment_of_all_that_it_steps_at_once(spec_of, moe_spec):
    states = model_states(spec_of(ddp=BF16_GRADIENTS), Parameters(dense=1200), adam="torch")
    assert states.step_transient == (4 + 4) * 1200 / 2
    # experts over EP 8 have an optimizer of their own: two copies of every expert, four data-parallel ranks
    states = model_states(moe_spec, Parameters(dense=1200, expert=1200), adam="torch")
    assert states.step_transient == 4 * 1200 / 2


TE_211 = Software(megatron_core="0.16.1", transformer_engine="2.11.0")


@pytest.mark.parametrize(
    ("gpu", "software", "fsdp", "expected"),
    [
        ("h100", Software(megatron_core="0.16.1"), False, "torch"),
        ("h100", TE_211, False, "fused"),
        ("h100", TE_211, True, "whole"),
        ("h100", TE_211.model_copy(update={"assumed": True}), True, "fused"),
        ("h100", TE_211.model_copy(update={"transformer_engine": "2.9.0"}), True, "fused"),
        ("h100", TE_211.model_copy(update={"transformer_engine": "2.12.0"}), True, "fused"),
        ("h100", Software(), False, "fused"),  # nobody looked
        ("h100", None, True, "fused"),
        ("cpu", Software(megatron_core="0.16.1"), False, "fused"),
    ],
)
def test_the_software_decides_which_adam_steps(spec_of, gpu, software, fsdp, expected):
    dtype = "bf16" if gpu == "h100" else "fp32"
    spec = spec_of(gpu=gpu, compute_dtype=dtype, ddp={"use_megatron_fsdp": fsdp})
    assert adam_of(spec, software) == expected


def test_moments_of_whole_tensors_are_as_many_on_every_rank_of_fsdp(spec_of):
    """TP 4 and 8 shards: what this rank's 1200 parameters are a part of."""
    spec = spec_of(ddp=BF16_GRADIENTS | {"use_megatron_fsdp": True}, parallelism={"tensor_model_parallel_size": 4})
    optimizer = [model_states(spec, Parameters(1200, 0, 2400), adam=adam).optimizer for adam in ("fused", "whole")]
    assert optimizer == [(4 + 8) * 1200 / 8, 4 * 1200 / 8 + 8 * 4 * 1200]


def test_fp8_weights_are_cast_to_bf16_together_inside_the_step(spec_of):
    """Beside 4 bytes of each gradient: results/scripted_gpu has these bytes of gpt_oss_120b's experts."""
    parameters = Parameters(dense=3_000_000_000, stored_bytes=4_000_000_000)
    tables = 128512 // 4 * 8192  # embedding or output layer over TP 4
    steps = [
        model_states(spec_of(compute_dtype=dtype, ddp=BF16_GRADIENTS), parameters).step_transient
        for dtype in ("bf16", "fp8_cs")
    ]
    assert steps[1] - steps[0] == pytest.approx(2 * (3_000_000_000 - tables) / 2)


def test_gradients_of_16_bits_are_copied_and_kept_for_the_states_that_stay_on_the_gpu(spec_of):
    """As ranks on scripted GPUs measured: 16 bytes per parameter and 4 of them before the first step."""
    fraction = {"optimizer_offload_fraction": 0.0}
    spec = spec_of(optimizer=ON_HOST | fraction, ddp=BF16_GRADIENTS)
    states = model_states(spec, Parameters(dense=1200, stored_bytes=2400))
    assert (states.optimizer, states.step_transient) == (16 * 1200 / 2, 0)
    many = model_states(spec_of(optimizer=ON_HOST | fraction, num_gpus=128), Parameters(dense=1200, stored_bytes=2400))
    # eight ranks share the states, which are less than the master weights of whole weights that are made first
    assert many.optimizer + many.step_transient == 4 * (1200 + 1200 / 8)


def test_muon_has_one_momentum_and_embeddings_have_adams_moments(spec_of):
    muon = {"optimizer": "muon", "use_distributed_optimizer": False}
    tp = spec_of().parallelism.tensor_model_parallel_size
    table, num = 128512 // tp * 8192, 2 * 10**9
    states = model_states(spec_of(optimizer=muon), Parameters(dense=num, stored_bytes=2 * num))
    assert states.optimizer == 8 * num + 4 * table
    assert states.step_transient == 10 * 2 * 28672 // tp * 8192
    spread = model_states(
        spec_of(optimizer=muon | {"optimizer": "dist_muon"}), Parameters(dense=num, stored_bytes=2 * num)
    )
    assert spread.optimizer == states.optimizer / 2
    assert spread.step_transient == 2 * (num + num / 2)
