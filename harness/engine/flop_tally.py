"""FLOPs of a step, counted operation by operation without touching the lifetime of a tensor."""

from torch.ops import aten
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def _attention(query, key, value, *_args, **_kwargs) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad_out, query, key, value, *_args, **_kwargs) -> int:
    return sdpa_backward_flop_count(grad_out.shape, query.shape, key.shape, value.shape)


# torch's table lacks the processor's flash kernels.
_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class FlopTally(TorchDispatchMode):
    """Inside it ``flops`` grows, recomputed work included, by the formulas of `torch.utils.flop_counter`.

    Attention is counted as torch counts it on a GPU: the whole score matrix, causal or not. torch's own `FlopCounterMode`
    gives the same figure, but hangs hooks into modules and so keeps tensors alive for longer: in a step that it counts,
    memory cannot be measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self._formulas = {**flop_registry, **_CPU_ATTENTION}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run ``func`` and add its FLOPs."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out
