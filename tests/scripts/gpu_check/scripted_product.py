"""Stands in for `mbr-perf run` on a GPU: leaves a record in no time.

``SCRIPTED_FAULT`` names one thing that goes wrong.
"""

import argparse
import os
import sys
from pathlib import Path

from harness.experiment.effective import effective_recompute
from harness.experiment.software import Software
from harness.launch.heartbeats import UNENDED
from harness.records.rank import Coordinates, Device, Failure, LayerRecompute, MemoryRecord, RankRecord, StepRecord
from harness.records.run import DeviceSample, NodeSample, Provenance, RunRecord
from harness.records.store import write_record
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

GB = 10**9
FAULT = os.environ.get("SCRIPTED_FAULT", "")


def options_of(argv):
    parser = argparse.ArgumentParser()
    for name in ("--model_recipe_name", "--gpu", "--compute_dtype", "--point_gpu", "--variant", "--recompute"):
        parser.add_argument(name)
    for name in ("--num_layers", "--micro_batch_size", "--global_batch_size", "--max_steps", "--num_gpus"):
        parser.add_argument(name, type=int)
    parser.add_argument("--set", dest="set_values", action="append")
    parser.add_argument("--run_dir", type=Path)
    parser.add_argument("--timeout")
    for name in ("--json", "--memory_snapshot", "--snapshot_on_oom"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args(argv)


def record_of(options):
    asked = {k: v for k, v in vars(options).items() if k not in ("run_dir", "timeout", "json")}
    spec = resolve(Request(**{**asked, "set_values": tuple(options.set_values or ())})).spec
    kernels = spec.kernels.model_copy(update={"transformer_impl": "local"})  # as the product settles it on that machine
    spec = spec.model_copy(update={"kernels": kernels})
    effective = effective_recompute(spec, "local", Software(megatron_core="0.16.1"))
    full = effective.full_layers > 0
    out_of_memory = options.num_layers is not None and FAULT != "oom_fits"
    allocated = (12 if full and FAULT == "full_costs_more" else 8 if full else 10) * GB
    reserved = allocated + (40 if FAULT == "reserved_above_device" else 1) * GB
    overlaps = spec.kernels.tp_comm_overlap or spec.ddp.overlap_grad_reduce
    loss = 10.4 + (0.5 if FAULT == "other_loss" and (options.recompute != "none" or overlaps) else 0.0)
    steps = [StepRecord(step=i, seconds=0.1, loss=loss - i / 100) for i in range(spec.measure.max_steps)]
    failure = Failure(kind="oom", message="CUDA out of memory", phase="forward_backward", step=0, request_bytes=GB)
    if FAULT == "timed_out":
        failure = Failure(kind="timeout", message="not finished after 9 s (limit 8 s)")
    ok = not out_of_memory and FAULT != "timed_out"
    ranks = [RankRecord(
        rank=number, world_size=spec.num_gpus, hostname="here", pid=1 + number, finished=ok, coordinates=place(spec, number),
        seconds={"finish": 1900.0 if FAULT == "slow_end" and overlaps else 1.5}, failure=None if ok else failure,
        device=Device(kind="cuda", name="NVIDIA H200", uuid="GPU-9" if FAULT == "other_gpu" else f"GPU-{number + 1}"),
        steps=tuple(steps) if ok else (),
        memory=MemoryRecord(meter="scripted", max_allocated_bytes=allocated, max_reserved_bytes=reserved),
        recompute=LayerRecompute(
            num_layers=2, full_layers=effective.full_layers,
            modules={} if FAULT == "other_layers" else effective.modules,
        ),
    ) for number in range(spec.num_gpus)]  # fmt: skip
    seen = [
        DeviceSample(uuid=f"GPU-{number + 1}", name="NVIDIA H200", index=number, max_used_bytes=20 * GB, num_samples=9)
        for number in range(spec.num_gpus)
    ]
    node = NodeSample(hostname="here", driver_version="580.1", devices=tuple(seen))
    suspect = ("GPU 0 of here was throttled: sw_thermal_slowdown",) if FAULT == "throttled" else ()
    return RunRecord(
        run_id=options.run_dir.name, status="ok" if ok else "failed" if FAULT == "timed_out" else "oom", spec=spec, fingerprint=spec.fingerprint,
        effective=effective, ranks=tuple(ranks), suspect=suspect, notes=(UNENDED,) if FAULT == "no_end" and overlaps else (), failure=None if ok else "rank 0 ran out of memory", nodes=(node,),
        provenance=Provenance(
            started_at="2026-01-02T03:04:05+00:00", finished_at="2026-01-02T03:04:06+00:00", duration_s=1.0,
            command=(), mbr_perf="0.1.0", hostname="here", platform="Linux", processor="A Processor",
            versions={"torch": "2.11.0"},
        ),
    )  # fmt: skip


def place(spec, rank):
    """Coordinates of a rank in a layout that splits over one of TP, PP and DP only."""
    p = spec.parallelism
    return Coordinates(
        tp=rank % p.tensor_model_parallel_size,
        pp=rank * p.pipeline_model_parallel_size // spec.num_gpus,
        dp=rank if p.model_parallel_size == 1 else 0,
    )


def main(argv):
    assert argv[:3] == ["-m", "harness.app", "run"]
    options = options_of(argv[3:])
    if FAULT == "control_crash" and options.recompute == "none":
        return 3
    if FAULT in ("crash", "secret") and options.recompute == "mlp":
        sys.stderr.write("it fell over\n" if FAULT == "crash" else "it fell over WANDB_API_KEY=CANARYvalue\n")
        return 3
    record = record_of(options)
    options.run_dir.mkdir(parents=True)
    write_record(options.run_dir, record)
    return {"ok": 0, "failed": 3, "oom": 4}[record.status]


sys.exit(main(sys.argv[1:]))
