"""What all layers share: quantised weights and gradients that go straight to their buffer."""

import torch
from torch.nn import Parameter

from harness.engine.tracing.collectives import tensor_bytes
from harness.engine.tracing.tracer import active
from transformer_engine.pytorch.formats import QuantFormat, format_of
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager

_dummy_wgrads: dict[tuple, torch.Tensor] = {}


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002
    """Return an empty gradient for autograd, one per shape, kept for good: the GEMM accumulated the real one."""
    key = (*shape, dtype)
    if key not in _dummy_wgrads:
        _dummy_wgrads[key] = torch.empty(shape, dtype=dtype, device="cuda")
    if zero:
        _dummy_wgrads[key].zero_()
    return _dummy_wgrads[key].detach()


def forget_dummy_wgrads() -> None:
    """Start as a fresh process does."""
    _dummy_wgrads.clear()


class TransformerEngineBaseModule(torch.nn.Module):
    """A layer with weights."""

    def make_weight(self, name: str, shape: tuple[int, int], dtype: torch.dtype, device) -> None:
        """Create a weight; inside `fp8_model_init` it is stored quantised only."""
        weight = Parameter(torch.empty(shape, dtype=dtype, device=device))
        recipe = FP8GlobalStateManager.MODEL_INIT_RECIPE
        if recipe is not None:
            weight.stand_in_quantized_bytes = format_of(recipe).weight_bytes(*shape)
        self.register_parameter(name, weight)

    def quantized_weights(self, weights, fmt: QuantFormat, is_first_microbatch):
        """Return quantised copies of high-precision weights, to be saved for backward; kept copies need no saving.

        With ``is_first_microbatch`` known, 2.11 keeps the copy on the layer and refreshes it once per step
        (`get_weight_workspace`); the refresh is priced in the warm-up pass only, as one micro-batch of many.
        """
        if hasattr(weights[0], "stand_in_quantized_bytes"):
            return ()
        if is_first_microbatch is None:
            return tuple(_copy(w, fmt) for w in weights)
        if not hasattr(self, "stand_in_workspace"):
            self.stand_in_workspace = tuple(_copy(w, fmt) for w in weights)
        return ()


def _copy(weight: torch.Tensor, fmt: QuantFormat) -> torch.Tensor:
    """Allocate row and column data with their scales as one buffer: neither is ever freed alone."""
    copy = torch.empty(fmt.weight_bytes(*weight.shape), dtype=torch.uint8, device=weight.device)
    copy._TE_do_not_offload, copy.offloading_activation = True, False  # transformer-engine, megatron-core
    active().kernel("elementwise", fmt.peak, num_bytes=fmt.reads * tensor_bytes(weight) + tensor_bytes(copy))
    return copy


def weight_grad(weight: torch.Tensor, main_grad, like: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``weight`` for autograd: the dummy if the GEMM has accumulated it."""
    if main_grad is None:
        return torch.empty(weight.shape, dtype=weight.dtype, device=like.device)
    weight.grad_added_to_main_grad = True
    return get_dummy_wgrad(list(main_grad.shape), weight.dtype, zero=getattr(weight, "zero_out_wgrad", False))
