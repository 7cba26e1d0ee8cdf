"""Parameters of a traced chunk: how many, in how many bytes, and what happens to their gradients."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ParameterCount:
    """Elements of dense and expert parameters of one rank, and the bytes of all that their modules store for compute."""

    dense: int
    expert: int
    bytes: int


def count(model: torch.nn.Module) -> ParameterCount:
    """Experts are the routed ones; shared experts are dense parameters. Tied parameters count once."""
    dense = expert = num_bytes = 0
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            expert += parameter.numel()
        else:
            dense += parameter.numel()
        num_bytes += stored_bytes(parameter)
    return ParameterCount(dense, expert, num_bytes + buffer_bytes(model))


def buffer_bytes(model: torch.nn.Module) -> int:
    """Bytes of registered buffers: expert biases, and the two tables that YaRN keeps in every MLA layer."""
    storages = [buffer.untyped_storage() for buffer in model.buffers()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def stored_bytes(parameter: torch.nn.Parameter) -> int:
    """Bytes of data and, for parameters that transformer-engine keeps quantised, of their transposes and scales."""
    quantized = getattr(parameter, "stand_in_quantized_bytes", None)
    return parameter.numel() * parameter.element_size() if quantized is None else quantized


def workspaces(model: torch.nn.Module) -> int:
    """Bytes of quantised copies that layers keep of weights stored in high precision."""
    tensors = [t for module in model.modules() for t in getattr(module, "stand_in_workspace", ())]
    return sum(t.untyped_storage().nbytes() for t in tensors)


def attach_main_grads(model: torch.nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
    """Give every parameter its gradient buffer and the hook by which megatron's DDP empties ``.grad`` into it.

    Returns the buffers: they belong to the optimizer's ledger, not to the chunk's.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.main_grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(_into_main_grad)
    return [parameter.main_grad for parameter in trained]


def _into_main_grad(parameter: torch.nn.Parameter) -> None:
    if not parameter.grad_added_to_main_grad:
        parameter.main_grad.add_(parameter.grad)
    parameter.grad = None
    parameter.grad_added_to_main_grad = False
