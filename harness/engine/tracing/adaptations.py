"""Adaptations that let real megatron-core run on tensors without data, each with its reason.

They select the kernels that torch would pick on the target device. A tracing process does nothing else.
"""

import functools
from contextlib import contextmanager, nullcontext

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own spelling)
from torch.utils._device import _device_constructors

from harness.engine import cpu_backend
from harness.engine.tracing import collectives, offloading, routing
from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.routing import PLACE
from harness.engine.tracing.tracer import active, fusible

aten = torch.ops.aten


class FusedRmsNorm(torch.autograd.Function):
    """CUDA's `_fused_rms_norm`: one kernel that saves its input, its weight and one reciprocal root per row in fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        """[..., h] -> [..., h]."""
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device))
        active().kernel("elementwise", peak_key(x.dtype), num_bytes=2 * tensor_bytes(x))
        return out

    @staticmethod
    def backward(ctx, _grad):
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        active().kernel("elementwise", peak_key(x.dtype), num_bytes=3 * tensor_bytes(x))
        return torch.empty_like(x), torch.empty_like(weight)


class GatedOutput(torch.autograd.Function):
    """What torch.compile makes of the gate behind a gated delta net's norm: one kernel that saves only its inputs."""

    @staticmethod
    def forward(ctx, normed, gate):
        """[..., d], [..., d] -> [..., d]."""
        ctx.save_for_backward(normed, gate)
        active().kernel("elementwise", peak_key(normed.dtype), num_bytes=3 * tensor_bytes(normed))
        return torch.empty_like(normed)

    @staticmethod
    def backward(ctx, _grad):
        """Gradients of both."""
        normed, gate = ctx.saved_tensors
        active().kernel("elementwise", peak_key(normed.dtype), num_bytes=5 * tensor_bytes(normed))
        return torch.empty_like(normed), torch.empty_like(gate)


def _gated_norm_is_compiled() -> None:
    """torch.compile does not keep what autograd saves of each operation; the norm is no part of its graph."""
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet

    plain = GatedDeltaNet._apply_gated_norm

    def gated_norm(self, x, gate):
        if PLACE.is_real or not PLACE.stands_for_cuda:
            return plain(self, x, gate)
        return GatedOutput.apply(self.out_norm(x.reshape(-1, x.shape[-1])), gate.reshape(-1, gate.shape[-1]))

    GatedDeltaNet._apply_gated_norm = gated_norm


class TritonKernel:
    """A Triton kernel that reads and writes its tensors once; the functions around it allocate as they do on a GPU."""

    def __getitem__(self, _grid):
        """Accept the grid of a launch in Triton's notation."""
        return self._launch

    def _launch(self, *arguments, **_constants) -> None:
        tensors = [tensor for tensor in arguments if isinstance(tensor, torch.Tensor)]
        active().kernel("elementwise", peak_key(tensors[0].dtype), num_bytes=sum(map(tensor_bytes, tensors)))


def _latent_rope_launches() -> None:
    """The fused rotary embedding of multi-latent attention is Triton's, which needs data."""
    from megatron.core.fusions import fused_mla_yarn_rope_apply

    for name in [name for name in vars(fused_mla_yarn_rope_apply) if name.endswith("_kernel")]:
        setattr(fused_mla_yarn_rope_apply, name, TritonKernel())


def _target_picks_kernels() -> None:
    """Torch chooses attention, norm and dropout kernels by device, and they save different tensors."""
    plain_dropout, plain_rms, plain_sdpa = F.dropout, F.rms_norm, F.scaled_dot_product_attention

    def dropout(x, p=0.5, training=True, inplace=False):  # noqa: FBT002 (torch's signature)
        # CUDA keeps a mask of one byte per element, other devices the scaled noise in the input's type
        if PLACE.is_real or not PLACE.stands_for_cuda or not training or p == 0:
            return plain_dropout(x, p, training, inplace)
        return torch.native_dropout(x, p, True)[0]

    def rms_norm(x, normalized_shape, weight=None, eps=None):
        if PLACE.is_real or not PLACE.stands_for_cuda:
            return plain_rms(x, normalized_shape, weight, eps)
        return FusedRmsNorm.apply(x, weight)

    def attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, **more,  # noqa: FBT002
    ):  # fmt: skip
        # meta tensors would get the unfused composite, whatever the device they stand for
        kernel = None if PLACE.is_real or attn_mask is not None else _attention_kernel(query, value, dropout_p)
        if kernel is None:
            return plain_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        return kernel(query, key, value, dropout_p, is_causal, scale)

    F.dropout, F.rms_norm, F.scaled_dot_product_attention = dropout, rms_norm, attention


def _attention_kernel(query, value, dropout_p):
    """Return the choice of torch's `_fused_sdp_choice` on the target; None for unfused attention."""
    same_width = query.shape[-1] == value.shape[-1]
    if PLACE.stands_for_cuda:
        return _cuda_flash if same_width else _cuda_efficient
    return _cpu_flash if same_width and not dropout_p else None


def _cpu_flash(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, scale=scale)[0]


def _cuda_flash(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]


def _cuda_efficient(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, dropout_p, is_causal, scale=scale
    )[0]


_FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "arange", "randn")


def install_before_import() -> None:
    """Apply what the import of megatron.core needs: its package imports the fused functions."""
    torch.compile = lambda function=None, **_options: fusible if function is None else fusible(function)


def install(*, transformer_engine: bool) -> None:
    """Apply every adaptation. ``transformer_engine``: whether its stand-in is importable."""
    local = () if transformer_engine else cpu_backend.LOCAL_ADAPTATIONS
    for adapt in (cpu_backend.no_cuda_sync, cpu_backend.streams_are_inert, *local, *ADAPTATIONS):
        adapt()


def _device_is_place() -> None:
    """megatron-core asks torch.cuda.current_device() and writes device="cuda", on which a CPU build of torch aborts."""
    torch.cuda.current_device = lambda: PLACE.device
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self.to(PLACE.device)

    def redirected(factory):
        @functools.wraps(factory)
        def call(*args, **kwargs):
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = PLACE.device
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return factory(*args, **kwargs)

        return call

    _device_constructors()  # caches the plain functions: the device context knows factories by identity
    for name in _FACTORIES:
        setattr(torch, name, redirected(getattr(torch, name)))


class NoRandomStates:
    """A generator tracker that tracks nothing: no random number decides what is saved."""

    @contextmanager
    def fork(self, *_name):
        """Nothing to fork."""
        yield

    def get_states(self) -> dict:
        """None."""
        return {}

    def set_states(self, states: dict) -> None:
        """Nothing to restore."""

    def is_initialized(self) -> bool:
        """Always, so that layers hand it on."""
        return True


def _rng_holds_no_states() -> None:
    """Checkpoints save and restore CUDA generator states; meta tensors draw nothing."""
    from megatron.core.tensor_parallel import random as megatron_random

    def states():
        # a CPU run keeps torch's generator state (5056 bytes) twice per checkpoint; a GPU run keeps them on the host
        if PLACE.stands_for_cuda:
            return None, None, {}
        torch_state, cuda_state = (torch.empty(5056, dtype=torch.uint8, device=PLACE.device) for _ in range(2))
        return torch_state, cuda_state, {}

    megatron_random._get_all_rng_states = states
    megatron_random._set_all_rng_states = lambda *_states: None
    megatron_random._CUDA_RNG_STATE_TRACKER = NoRandomStates()
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _recompute_is_a_phase() -> None:
    """Both kinds of checkpoint fork the generators around the repeated forward pass, and nothing else does."""
    from megatron.core.tensor_parallel import random as megatron_random

    megatron_random._fork_rng = lambda: active().recomputing() if active() else nullcontext()


def _storages_report_their_size() -> None:
    """Output-discarding checkpoints empty and refill storages; meta storages cannot be copied."""
    resize, copy = torch.UntypedStorage.resize_, torch.UntypedStorage.copy_

    def resize_(storage, size):
        resize(storage, size)
        if active():
            active().ledger.resized(storage)

    def copy_(storage, source, non_blocking=None):
        if storage.device.type != "meta":
            return copy(storage, source, non_blocking)
        if active():
            active().kernel("elementwise", "bf16", num_bytes=2 * storage.nbytes())
        return storage

    torch.UntypedStorage.resize_, torch.UntypedStorage.copy_ = resize_, copy_


def _sharing_needs_no_compiler() -> None:
    """From 0.17 on output-discarding checkpoints hand bytes over in C++, of which no count would know."""
    from megatron.core.tensor_parallel import random as megatron_random

    if not hasattr(megatron_random, "_get_share_storage"):
        return
    resize, compiled = torch.UntypedStorage.resize_, megatron_random._get_share_storage

    def share_storage(output, recomputed):
        storage, owner = output.untyped_storage(), recomputed.untyped_storage()
        if storage.device.type == "meta":
            resize(storage, owner.nbytes())
        else:
            compiled()(output, recomputed)
        if active():
            active().ledger.share(storage, owner)

    megatron_random._get_share_storage = lambda: share_storage


ADAPTATIONS = (
    _device_is_place, _rng_holds_no_states, _recompute_is_a_phase, _sharing_needs_no_compiler,
    _storages_report_their_size, collectives.install, _target_picks_kernels, _latent_rope_launches,
    _gated_norm_is_compiled, offloading.install, routing.install,
)  # fmt: skip
