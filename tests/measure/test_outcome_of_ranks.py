"""Nodes, ranks and their coordinates: who is to blame for a failed run, and what makes a good one doubtful."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from harness.experiment.effective import effective_recompute, settled_implementation
from harness.judge.readings import with_clocks
from harness.launch.plan import Nodes
from harness.measure.launched import wait_for_other_nodes
from harness.measure.ranks import built_otherwise, disagreements, doubts, frozen_loss, status_of, suspicions
from harness.records.collect import Collected, LaunchOutcome
from harness.records.rank import ClockSamples, Coordinates, Device, Failure, LayerRecompute, coordinates, placed
from harness.records.run import DeviceSample, NodeSample

OK = LaunchOutcome(status="ok", exit_code=0)
FAILED = LaunchOutcome(status="failed", exit_code=1, reason="rank 0: exit 1")
PEER_GONE = Failure(kind="error", message="RuntimeError: Connection closed by peer [127.0.0.1]:1", phase="step")
OUT_OF_MEMORY = Failure(
    kind="oom", message="CUDA out of memory.\nmore", phase="forward_backward", step=3, request_bytes=2**31
)


@pytest.fixture(name="ranks")
def _ranks(make_spec, make_rank):
    """Ranks of the tiny two-stage run, each with the given failure or none."""

    def build(*failures):
        spec = make_spec(gpu="cpu")
        return tuple(
            make_rank(spec, rank, failure=failure, finished=failure is None, coordinates=Coordinates(pp=rank))
            for rank, failure in enumerate(failures)
        )

    return build


def test_ranks_without_failure_and_a_good_launch_are_ok(ranks):
    assert status_of(OK, ranks(None, None)) == ("ok", None)


def test_the_rank_that_ran_out_of_memory_is_named_and_not_its_victims(ranks):
    status, sentence = status_of(FAILED, ranks(PEER_GONE, OUT_OF_MEMORY))
    assert status == "oom"
    assert re.fullmatch(r"rank 1 \(stage 1\) .* forward_backward of step 3, .* 2.00 GiB: CUDA .*\.", sentence)


@pytest.mark.parametrize(
    ("first", "second", "blamed"),
    [
        (PEER_GONE, Failure(kind="error", message="ValueError: no"), 1),
        (Failure(kind="error", message="ValueError: no"), PEER_GONE, 0),
        (Failure(kind="signal", message="killed by SIGTERM"), Failure(kind="signal", message="killed by SIGKILL"), 1),
        (Failure(kind="signal", message="killed by SIGTERM"), Failure(kind="error", message="ValueError: no"), 1),
        (Failure(kind="signal", message="Signal 15 (SIGTERM) received by PID 9"), Failure(kind="hang", message="x"), 1),
        (Failure(kind="error", message="KeyError: 'x'"), Failure(kind="non_finite_loss", message="loss is nan"), 1),
        (Failure(kind="lost", message="left nothing"), Failure(kind="error", message="KeyError: 'x'"), 1),
        (Failure(kind="error", message="ValueError: a"), Failure(kind="error", message="ValueError: b"), 0),
    ],
)
def test_the_cause_is_separated_from_its_consequences(ranks, first, second, blamed):
    status, sentence = status_of(FAILED, ranks(first, second))
    assert status == "failed"
    assert sentence.startswith(f"rank {blamed} (stage {blamed}) failed")


@pytest.mark.parametrize(
    ("failure", "when"),
    [
        (Failure(kind="error", message="x", phase="build_model"), " in build_model"),
        (Failure(kind="error", message="x", phase="optimizer_step", step=2), " in optimizer_step of step 2"),
        (Failure(kind="signal", message="x", phase="step", step=5), " after step 5"),
        (Failure(kind="lost", message="x"), ""),
    ],
)
def test_the_sentence_says_when(ranks, failure, when):
    assert status_of(OK, ranks(None, failure)) == ("failed", f"rank 1 (stage 1) failed{when}: x")


def test_a_launch_that_started_no_rank_gives_the_reason(ranks):
    lost = Failure(kind="lost", message="left nothing")
    taken = LaunchOutcome(status="failed", exit_code=1, reason="torchrun: EADDRINUSE")
    assert status_of(taken, ranks(lost, lost)) == ("failed", taken.reason)


def test_an_interruption_counts_before_what_it_did_to_ranks(ranks):
    stopped = LaunchOutcome(status="interrupted", signal=2, reason="interrupted by SIGINT")
    killed = Failure(kind="signal", message="killed by SIGTERM")
    assert status_of(stopped, ranks(killed, killed)) == ("interrupted", "interrupted by SIGINT")


def test_a_full_disk_is_reported_with_the_rank_it_hit(ranks):
    full = LaunchOutcome(status="failed", exit_code=1, reason="disk full; rank 0: exit 1", disk_full=True)
    failure = Failure(kind="error", message="OSError: No space left on device", phase="step", step=1)
    _, sentence = status_of(full, ranks(failure, None))
    assert sentence == "disk full; rank 0 (stage 0) failed after step 1: OSError: No space left on device"


def test_ranks_without_failure_do_not_hide_a_failed_launch(ranks):
    assert status_of(FAILED, ranks(None, None)) == ("failed", FAILED.reason)


def sample(uuid, num_samples=1, **changes):
    clocks = ClockSamples(times_s=(0.0,), sm_clocks_mhz=(1755,), reasons=(changes.pop("reasons", 0),))
    device = DeviceSample(uuid=uuid, name="GPU", index=3, num_samples=num_samples, clocks=clocks, **changes)
    return NodeSample(hostname="n", driver_version="550.54.15", devices=(device,))


def doubts_of(node, ranks):
    return doubts([node], with_clocks(ranks, [node], (1, 3)))


@pytest.fixture(name="on_gpu")
def _on_gpu(make_spec, make_rank):
    device = Device(kind="cuda", name="GPU", uuid="GPU-AA-1")
    return (make_rank(make_spec(), 0, device=device),)


def test_throttling_and_neighbours_make_a_run_suspect(on_gpu):
    assert doubts_of(sample("gpu-aa-1", reasons=0x44), on_gpu) == ("GPU 3 of n was throttled: hw_thermal_slowdown",)
    (shared,) = doubts_of(sample("aa-1", foreign_processes=("python (4711)",)), on_gpu)
    (lost,) = doubts_of(sample("GPU-AA-1", num_samples=9, error="GPU is lost (NVML 15) after 9 samples"), on_gpu)
    assert re.fullmatch(r"GPU 3 of n .* python \(4711\)", shared)
    assert re.fullmatch(r"GPU 3 of n .*: GPU is lost \(NVML 15\) after 9 samples", lost)
    refused = sample("GPU-AA-1", num_samples=0, error="Insufficient Permissions (NVML 4) after 0 samples")
    assert doubts_of(refused, on_gpu) == ()
    assert doubts_of(sample("GPU-AA-1"), on_gpu) == ()


def test_gpus_that_no_rank_ran_on_do_not_matter(on_gpu):
    other = sample("GPU-BB-2", reasons=0x40, foreign_processes=("x",))
    assert doubts_of(other, on_gpu) == ()


VERSIONS = {"torch": "2.9.1", "megatron-core": "0.16.1", "transformer-engine": "2.11.0"}


@pytest.fixture(name="four")
def _four(make_spec, make_rank):
    """Four ranks on two nodes of two GPUs, and what the samplers saw; ``odd`` replaces fields of rank 3."""

    def build(drivers=("550.54.15", "550.54.15"), **odd):
        spec = make_spec()
        devices = [Device(kind="cuda", name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{rank}") for rank in range(4)]
        ranks = [make_rank(spec, rank, device=devices[rank], versions=VERSIONS) for rank in range(4)]
        ranks[3] = ranks[3].model_copy(update=odd)
        nodes = [
            NodeSample(
                hostname=f"n{node}",
                driver_version=driver,
                devices=tuple(
                    DeviceSample(uuid=f"GPU-{rank}", name="H100", index=rank % 2) for rank in (2 * node, 2 * node + 1)
                ),
            )
            for node, driver in enumerate(drivers)
        ]
        return disagreements(nodes, tuple(ranks))

    return build


def test_ranks_that_agree_are_no_doubt(four):
    assert four() == ()


@pytest.mark.parametrize("package", VERSIONS)
def test_ranks_with_another_version_are_named(four, package):
    for version, shown in (("9.9", "9.9"), (None, "none")):
        (doubt,) = four(versions=VERSIONS | {package: version})
        assert doubt.endswith(f" {package}: {VERSIONS[package]} on ranks 0-2; {shown} on rank 3")
    assert four(versions={}, device=None) == ()


def test_another_device_model_and_another_driver_are_named(four):
    (model,) = four(device=Device(kind="cuda", name="NVIDIA H200", uuid="GPU-3"))
    (driver,) = four(drivers=("550.54.15", "570.1"))
    assert model.endswith(": NVIDIA H100 80GB HBM3 on ranks 0-2; NVIDIA H200 on rank 3")
    assert driver.endswith(" driver: 550.54.15 on ranks 0-1; 570.1 on ranks 2-3")
    assert four(drivers=("550.54.15", None)) == ()


@pytest.fixture(name="built")
def _built(make_spec, make_rank):
    """The doubt about layers built on every rank of the two-stage run."""

    def judge(recompute, *layers):
        spec = make_spec(gpu="cpu", recompute=recompute, parallelism={"pipeline_model_parallel_size": 2})
        ranks = tuple(make_rank(spec, rank, recompute=built) for rank, built in enumerate(layers))
        return built_otherwise(effective_recompute(spec, settled_implementation(spec)), ranks)

    return judge


def test_layers_built_as_expected_are_no_doubt(built):
    layers = LayerRecompute(num_layers=2, modules={"mlp": 2})
    assert built("mlp", layers, layers) is None


def test_layers_built_otherwise_are_a_doubt(built):
    layers = LayerRecompute(num_layers=2, modules={"mlp": 2})
    nothing = LayerRecompute(num_layers=2)
    whole, half = LayerRecompute(num_layers=2, full_layers=2), LayerRecompute(num_layers=2, full_layers=1)
    assert built("full:uniform:1", whole, whole) is None
    for doubt, names in (
        (built("core_attn", layers, layers), " mlp in 4 layers, .* core_attn in 4 layers"),
        (built("mlp", nothing, nothing), " nothing, .* mlp in 4 layers"),
        (built("full:uniform:1", whole, half), " recompute in 3 layers, .* 4 layers"),
        (built("mlp", layers, None), ": .* on rank 1"),
        (built("none", None, None), ": .* on ranks 0-1"),
    ):
        assert re.search(f"{names}$", doubt), doubt


def test_a_run_that_failed_before_it_built_layers_leaves_nothing_to_say(make_spec, make_rank):
    spec = make_spec(gpu="cpu", recompute="mlp", parallelism={"pipeline_model_parallel_size": 2})
    ranks = (make_rank(spec, 0, finished=False), make_rank(spec, 1, recompute=LayerRecompute(num_layers=2)))
    assert built_otherwise(effective_recompute(spec, settled_implementation(spec)), ranks) is None


@pytest.mark.parametrize(
    ("measure", "num_doubts"),
    [({}, 0), ({"memory_snapshot": True}, 0), ({"snapshot_on_oom": True}, 1)],
)
def test_only_a_history_of_measured_steps_makes_their_times_doubtful(make_spec, measure, num_doubts):
    spec = make_spec(recompute="none")
    asked = spec.model_copy(update={"measure": spec.measure.model_copy(update=measure)})
    found = suspicions(asked, effective_recompute(asked, settled_implementation(asked)), Collected((), ()), ())
    assert len(found) == num_doubts
    assert asked.fingerprint == spec.fingerprint


@pytest.fixture(name="train")
def _train(make_spec, make_rank):
    """Doubts about a run whose loss at each of 50 steps is given; the window is its last 15 steps."""

    def trained(loss_at, lr=1e-4):
        spec = make_spec(optimizer={"lr": lr})
        rank = make_rank(spec, 31)
        steps = tuple(step.model_copy(update={"loss": loss_at(step.step)}) for step in rank.steps)
        return frozen_loss(spec, (make_rank(spec, 0, steps=()), rank.model_copy(update={"steps": steps})))

    return trained


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_loss_that_stands_still_makes_a_run_suspect(train, noise):
    """What zeroed weights give: one step of random weights, then the logarithm of the vocabulary."""
    (doubt,) = train(lambda step: 11.81 if step == 0 else 11.762 + noise * (step % 2))
    assert re.search(r": 11\.762 .* 35 to 49 .* 31,", doubt)


@pytest.mark.parametrize(
    ("loss_at", "lr"),
    [
        (lambda step: 11.8 - 1e-4 * step, 1e-4),  # slow
        (lambda step: 11.8 + 1e-3 * (-1) ** step, 1e-4),  # only the data or the router's random numbers move it
        (lambda _: 11.8, 1e-9),  # a learning rate that bf16 rounds away
        (lambda step: 11.8 if step < 20 else 0.0, 1e-4),  # everything learnt
        (lambda _: None, 1e-4),  # another pipeline stage
        (lambda step: 11.8 if step < 36 else None, 1e-4),  # too few steps of the window
    ],
)
def test_a_loss_that_moves_or_could_not_move_is_no_doubt(train, loss_at, lr):
    assert train(loss_at, lr) == ()


SIZES = [
    {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 8, "expert_model_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
    {"tensor_model_parallel_size": 4, "context_parallel_size": 2, "expert_model_parallel_size": 8,
     "expert_tensor_parallel_size": 1, "pipeline_model_parallel_size": 2},
]  # fmt: skip


def test_tensor_parallel_ranks_are_neighbours_and_stages_far_apart(make_spec):
    spec = make_spec(parallelism=SIZES[0])  # 32 GPUs: two copies
    places = [coordinates(rank, spec) for rank in range(32)]
    assert places[3] == Coordinates(tp=3)
    assert places[4] == Coordinates(dp=1)
    assert places[8] == Coordinates(pp=1)
    assert places[31] == Coordinates(tp=3, dp=1, pp=3)


def test_recorded_coordinates_are_kept(make_spec, make_rank):
    spec = make_spec(gpu="cpu", parallelism={"pipeline_model_parallel_size": 2})
    known, silent = make_rank(spec, 0, coordinates=Coordinates(pp=1)), make_rank(spec, 1, coordinates=Coordinates())
    assert [rank.coordinates.pp for rank in placed((known, silent), spec)] == [1, 1]


ASK = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.modules["transformer_engine"] = None
from megatron.core.parallel_state import RankGenerator
answer = []
for dense, experts in json.loads(sys.argv[1]):
    of = {kind: RankGenerator(**dense, order="tp-cp-ep-dp-pp").get_ranks(kind) for kind in ("tp", "cp", "dp", "pp")}
    answer.append({**of, "ep": RankGenerator(**experts, order="tp-cp-ep-dp-pp").get_ranks("ep")})
print(json.dumps(answer))
"""


def generator_arguments(spec):
    """Sizes of megatron-core's two rank generators: that of dense layers and that of experts."""
    p = spec.parallelism
    pp, cp, etp, ep = (
        p.pipeline_model_parallel_size, p.context_parallel_size, p.expert_tensor_size, p.expert_model_parallel_size,
    )  # fmt: skip
    dense = {"tp": p.tensor_model_parallel_size, "ep": 1, "dp": spec.data_parallel_size, "pp": pp, "cp": cp}
    return dense, {"tp": etp, "ep": ep, "dp": spec.num_gpus // (etp * ep * pp), "pp": pp, "cp": 1}


@pytest.mark.train
def test_places_are_those_of_megatron_core(make_spec):
    specs = [make_spec(parallelism=sizes) for sizes in SIZES]
    arguments = json.dumps([generator_arguments(spec) for spec in specs])
    asked = subprocess.run(
        [sys.executable, "-c", ASK, arguments], capture_output=True, text=True, check=True,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
    )  # fmt: skip
    for spec, groups in zip(specs, json.loads(asked.stdout.splitlines()[-1]), strict=True):
        for kind, of_kind in groups.items():
            places = [[getattr(coordinates(rank, spec), kind) for rank in group] for group in of_kind]
            assert places == [list(range(len(group))) for group in of_kind], (spec.parallelism, kind)


def test_one_node_waits_for_nobody(tmp_path):
    began = time.monotonic()
    assert wait_for_other_nodes(tmp_path, Nodes()) == ()
    assert time.monotonic() - began < 0.1


def test_the_first_node_waits_until_the_others_have_written_their_outcome(tmp_path):
    (tmp_path / "ranks").mkdir()
    late = threading.Timer(0.5, (tmp_path / "ranks" / "outcome_node_001.json").touch)
    late.start()
    began = time.monotonic()
    assert wait_for_other_nodes(tmp_path, Nodes(2, 0, "head"), patience_s=20) == ()
    assert time.monotonic() - began >= 0.4


def test_a_node_that_never_ends_is_named(tmp_path):
    notes = wait_for_other_nodes(tmp_path, Nodes(3, 0, "head"), patience_s=0.3)
    assert [(note[:7], " 0.3 s;" in note) for note in notes] == [("node 1 ", True), ("node 2 ", True)]
