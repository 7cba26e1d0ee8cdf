"""A plan is a value that can be read before it runs, and that a recorded run answers in place of a launch."""

import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.plan import LaunchRequest, Nodes, build_plan
from harness.launch.replay import LAUNCHERS, execute
from harness.measure.values import launch_document
from harness.records.collect import LaunchOutcome
from harness.records.gating import LaunchSettings
from harness.records.rank import Failure, RankRecord
from harness.show.json import text
from tests.commands import json_of, refused

TWO_NODES = Nodes(nnodes=2, node_rank=1, master_addr="node-0")


def plan_of(spec, host, run_dir=Path("/runs/x"), **changes):
    settings = {name: changes.pop(name) for name in list(changes) if name in LaunchSettings.model_fields}
    fields: dict = {"spec": spec, "run_dir": run_dir, "host": host, "settings": LaunchSettings(**settings), **changes}
    return build_plan(LaunchRequest(**fields))


def test_one_node_runs_torchrun_with_static_rendezvous_on_the_loopback(cpu, host):
    plan = plan_of(cpu(), host, nodes=Nodes(master_port=29555))
    assert plan.argv == (
        host.python, "-m", "harness.engine.agent", "--result", "/runs/x/ranks/launch.json", "--nnodes=1",
        "--node-rank=0", "--nproc-per-node=2", "--rdzv-backend=static", "--master-addr=127.0.0.1",
        "--master-port=29555", "--max-restarts=0", "--log-dir=/runs/x/logs/torchrun", "-m", "harness.engine.worker",
        "--run_dir", "/runs/x",
    )  # fmt: skip
    assert (plan.sampler, plan.ranks) == (None, range(2))


def test_a_free_port_is_chosen_for_one_node(cpu, host):
    plan = plan_of(cpu(), host, run_dir=Path("results/x"))
    assert plan.worker[-1] == str(Path.cwd() / "results/x")  # absolute, whatever was typed
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", plan.rendezvous.master_port))


def test_gpus_are_sampled_under_the_name_of_the_node_unless_that_is_switched_off(h100, host):
    plan = plan_of(h100(), replace(host, hostname="../node 1"), sample_interval_ms=20)
    assert plan.sampler == (
        host.python, "-m", "harness.engine.nvml", "sample", "--out", "/runs/x/ranks/nvml_.._node_1.json",
        "--interval_ms", "20",
    )  # fmt: skip
    assert json_of(launch_document(plan_of(h100(), host, sample_interval_ms=0)))["sampler"] is None


def test_each_node_of_several_has_its_ranks_and_its_own_files(h100, host):
    plan = plan_of(h100(num_gpus=16), host, nodes=TWO_NODES)
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=8", "--master-addr=node-0"} <= set(plan.argv)
    assert plan.ranks == range(8, 16)
    assert (plan.agent_file.name, plan.launcher_log.name) == ("launch_node_001.json", "launcher_node_001.log")


def test_the_rendered_plan_can_be_pasted_into_a_shell(cpu, host):
    shell = {**host.shell, "TOKENIZERS_PARALLELISM": "true", "MINE": "1"}
    settings = cpu(env={"FLAG": "a b;c"})
    plan = plan_of(settings, replace(host, shell=shell), run_dir=Path("/runs/a b"), pass_env=("MINE",))
    lines = plan.render().splitlines()
    assert tuple(shlex.split(lines[-1])) == plan.argv
    exported = dict(line.removeprefix("export ").split("  # ") for line in lines if line.startswith("export "))
    sources = {"FLAG='a b;c'": " -E", "PYTHONUNBUFFERED=1": "mbr-perf", "TOKENIZERS_PARALLELISM=true": "shell"}
    assert [name for name, source in sources.items() if source not in exported[name]] == []
    assert not any("other nodes" in line for line in lines)
    assert [line.endswith(" --pass_env") for line in lines if "MINE=" in line] == [True]
    assert any(line.endswith(": HOME, PATH") for line in lines)


def test_a_plan_tells_no_secret(cpu, host):
    shell = {"HF_TOKEN": "canary-1", "UCX_PROXY": "http://me:canary-2@proxy", **host.shell}
    plan = plan_of(cpu(), replace(host, shell=shell), pass_env=("HF_TOKEN",))
    assert {v.value for v in plan.env} >= {"canary-1", "http://me:canary-2@proxy"}
    assert "canary" not in plan.render() + text(launch_document(plan))


@pytest.mark.parametrize(
    ("num_gpus", "nodes", "expected"),
    [
        (16, Nodes(), "--nnodes 2 --node_rank 0..1 --master_addr HOST"),
        (12, TWO_NODES, "nnodes x gpus_per_node = 2 x 8 = 16"),
        (16, replace(TWO_NODES, node_rank=2), "--node_rank 2 of 2 nodes"),
        (8, Nodes(node_rank=1), "--node_rank 1 of 1 nodes"),
        (16, Nodes(nnodes=2), "--nnodes 2 needs --master_addr"),
        (16, replace(TWO_NODES, master_addr="-x;y"), "--master_addr '-x;y' "),
        (8, Nodes(master_port=70000), "--master_port 70000 "),
        (8, Nodes(nnodes=0), "--nnodes 0: "),
    ],
)
def test_nodes_that_cannot_meet_are_refused(h100, host, num_gpus, nodes, expected):
    refused(lambda: plan_of(h100(num_gpus=num_gpus), host, nodes=nodes), expected, num=None)


def test_problems_of_nodes_limits_and_environment_are_reported_together(h100, host):
    wrong = {"timeout_s": 0.0, "hang_timeout_s": -1.0, "sample_interval_ms": -5, "pass_env": ("NOWHERE",)}
    names = ("--timeout 0 ", "--hang_timeout -1 ", "num_gpus 16", "--pass_env NOWHERE", "--sample_interval_ms -5 ")
    refused(lambda: plan_of(h100(num_gpus=16), host, **wrong), *names, num=5)


def rank_record(rank, failure=None):
    finished = failure is None
    return RankRecord(
        rank=rank, world_size=2, hostname="n", pid=1, finished=finished, failure=failure
    ).model_dump_json()


@pytest.fixture
def recorded(tmp_path, cpu):
    """A run folder of two ranks that ended well, as an older version left it: without launch or outcome."""
    folder = tmp_path / "recorded"
    (folder / "ranks").mkdir(parents=True)
    (folder / "spec.json").write_text(cpu().model_dump_json())
    for rank in range(2):
        (folder / "ranks" / f"rank_{rank:03d}.json").write_text(rank_record(rank))
        (folder / "ranks" / f"rank_{rank:03d}.progress.jsonl").write_text("")
    (folder / "ranks" / "pid_0").write_text("1")
    return folder


@pytest.fixture
def request_for(cpu, host, tmp_path, recorded):
    return LaunchRequest(spec=cpu(), run_dir=tmp_path / "new", host=host, settings=LaunchSettings(replay_from=recorded))


def replayed(request):
    return execute(LAUNCHERS["replay"](request), on_progress=lambda _: None)


def test_planning_a_replay_writes_nothing_and_only_records_of_ranks_are_copied(request_for, recorded):
    plan = LAUNCHERS["replay"](request_for)
    assert json_of(launch_document(plan))["files"][0] == "rank_000.json"
    assert not request_for.run_dir.exists()
    assert replayed(request_for).status == "ok"
    names = {path.name for path in (request_for.run_dir / "ranks").iterdir()}
    assert names == {
        "rank_000.json", "rank_001.json", "rank_000.progress.jsonl", "rank_001.progress.jsonl",
    }  # fmt: skip
    assert (request_for.run_dir / "ranks" / "rank_001.json").read_text() == rank_record(1)


def test_a_recorded_failure_stays_one_and_a_rank_that_left_only_heartbeats_did_not_end_well(request_for, recorded):
    failure = Failure(kind="oom", message="CUDA out of memory")
    (recorded / "ranks" / "rank_001.json").write_text(rank_record(1, failure))
    assert replayed(request_for).status == "failed"
    (recorded / "ranks" / "rank_001.json").unlink()
    assert replayed(replace(request_for, run_dir=request_for.run_dir.with_name("again"))).status == "failed"


def test_a_recorded_outcome_is_the_outcome(request_for, recorded):
    was = LaunchOutcome(status="hang", exit_code=143, seconds=12.5, rank=1, reason="silent")
    (recorded / "ranks" / "outcome.json").write_text(was.model_dump_json())
    assert replayed(request_for) == was


def test_what_cannot_be_replayed_is_refused(request_for, recorded, cpu):
    def refusal(*names, **changes):
        refused(lambda: LAUNCHERS["replay"](replace(request_for, **changes)), *names)

    refusal(str(recorded), "tiny.pretrain.fp32.2gpu.none", spec=cpu(task="sft"))
    refusal(str(recorded), "itself", run_dir=recorded)
    refusal("recorded", settings=LaunchSettings())
    (recorded / "ranks").rename(recorded / "elsewhere")
    refusal(str(recorded), "heartbeats")
    (recorded / "spec.json").unlink()
    refusal(str(recorded), "run folder")
