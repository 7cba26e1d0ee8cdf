"""Writes training logs in the formats of Megatron-Bridge and Megatron-LM for tests."""


def step_time(seconds, tflops):
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops}MODEL_TFLOP/s/GPU"


def iteration(number, total, seconds=0.9, loss=11.5, grad_norm=1.234, extra=""):
    loss_field = "" if loss is None else f" lm loss: {loss:.6E} |"
    return (
        f" [2026-08-01 10:00:01] iteration {number:8d}/{total:8d} | consumed samples: {number * 128:12d} |"
        f" elapsed time per iteration (ms): {seconds * 1000:.1f} |{extra} learning rate: 3.000000E-05 |"
        f" global batch size:   128 |{loss_field} loss scale: 1.0 | grad norm: {grad_norm} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def golden_of(tflops, **memory):
    """The golden file of Bridge with this throughput by step; a figure of None is left out."""
    steps = {
        str(step): {"lm loss": 11.5, "elapsed time per iteration (ms)": 900.0, "GPU utilization": value}
        for step, value in enumerate(tflops)
    }
    return steps | {name: value for name, value in memory.items() if value is not None}


def memory_gb(rank, after, **gigabytes):
    fields = " | ".join(f"mem-{name.replace('_', '-')}-gigabytes: {value}" for name, value in gigabytes.items())
    return f"[Rank {rank}] (after {after} iterations) memory (GB) | {fields} | mem-alloc-retires: 0"


def memory_mb(rank, after, allocated, max_allocated, reserved, max_reserved):
    return (
        f"[Rank {rank}] (after {after} iterations) memory (MB) | allocated: {allocated:.2f} |"
        f" max allocated: {max_allocated:.2f} | reserved: {reserved:.2f} | max reserved: {max_reserved:.2f}"
    )


def bridge_log(tflops, losses=None, memory=()):
    """Return a whole log; a throughput of None: the job had ended before."""
    total, lines = len(tflops), []
    for number, value in enumerate(tflops, start=1):
        if value is not None:
            loss = losses[number - 1] if losses else 11.5
            lines += [step_time(0.9, value), iteration(number, total, loss=loss)]
        lines += [line for after, line in memory if after == number]
    return "\n".join(lines) + "\n"


def megatron_lm_log(seconds, tflops=None, memory=(), total=None):
    """Return one line per iteration; times have fractions, as in newer versions."""
    lines = []
    for number, value in enumerate(seconds, start=1):
        extra = f" throughput per GPU (TFLOP/s/GPU): {tflops[number - 1]} |" if tflops else ""
        lines.append(
            iteration(number, total or len(seconds), seconds=value, extra=extra).replace(":01]", ":01.481093]")
        )
        lines += [line for after, line in memory if after == number]
    return "\n".join(lines) + "\n"
