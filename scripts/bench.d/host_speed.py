"""The rate at which a thread of this processor updates parameters by Adam, beside the planner's constant."""

import time

from result import Result

from harness.experiment.optimizer_states import HOST_ADAM_PER_S

_NUM = 20_000_000  # above any cache: 320 MB of weights, gradients and moments
_STEPS = 7


def host_adam() -> Result:
    """Measure torch's fused AdamW in one thread, as a rank that torchrun started has; the best step counts."""
    import torch  # which no other benchmark imports here

    torch.set_num_threads(1)
    weights = torch.zeros(_NUM, requires_grad=True)
    weights.grad = torch.ones(_NUM)
    optimizer = torch.optim.AdamW([weights], fused=True)
    optimizer.step()  # makes the moments
    seconds = []
    for _ in range(_STEPS):
        begun = time.process_time()
        optimizer.step()
        seconds.append(time.process_time() - begun)
    value, planned = min(seconds) / _NUM * 1e9, 1e9 / HOST_ADAM_PER_S
    details = {"parameters": _NUM, "cpu_s": [round(each, 4) for each in seconds], "planned_cpu_s": round(planned, 3),
               "torch": torch.__version__}  # fmt: skip
    title = "update of 1e9 parameters in host memory, fused AdamW in one thread"
    return Result("host_adam", title, round(value, 3), round(1.25 * planned, 3), "CPU s", details)
