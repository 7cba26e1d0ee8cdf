"""Adapts megatron-core to run without CUDA, and without transformer-engine; nothing changes what is computed.

Each adaptation says its reason; places are in megatron-core 0.16.1. Apply it once, after megatron-core's import.
"""

import contextlib
import functools
import importlib.util
import sys
import warnings

import torch

_CPU = torch.device("cpu")
_GROUPED_GEMM = "megatron.core.transformer.moe.grouped_gemm_util"
_DELTA_NET = "megatron.core.ssm.gated_delta_net"
_ASKS_FOR_INFERENCE = "is_inference_column_parallel_linear"


def block_transformer_engine() -> None:
    """Make `import transformer_engine` an ImportError, before megatron is imported.

    Its wheel raises RuntimeError on a machine without CUDA, and megatron guards only against ImportError.
    """
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]


def before_megatron() -> None:
    """Prepare a rank on the CPU before it imports megatron-core: silence its warnings about missing packages."""
    block_transformer_engine()
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|transformer_engine|deprecated).*")


def install() -> None:
    """Apply every CPU adaptation, and those for a missing transformer-engine."""
    for adapt in (*CPU_ADAPTATIONS, *LOCAL_ADAPTATIONS):
        adapt()


def install_local() -> None:
    """Apply what the local layer spec lacks on a GPU without transformer-engine."""
    for adapt in LOCAL_ADAPTATIONS:
        adapt()


def _device_is_cpu() -> None:
    """GlobalMemoryBuffer, gradient buffers, RoPE and p2p ask torch.cuda.current_device()."""
    torch.cuda.current_device = lambda: _CPU


def _rng_is_cpu() -> None:
    """The RNG tracker and checkpoint replay save and restore CUDA generator states."""
    from megatron.core.tensor_parallel import random as megatron_random

    def get(*_args, **_kwargs):
        return torch.get_rng_state()

    def put(state, *_args, **_kwargs):
        torch.set_rng_state(state)

    torch.cuda.get_rng_state, torch.cuda.manual_seed = get, torch.manual_seed
    megatron_random._get_cuda_rng_state, megatron_random._set_cuda_rng_state = get, put


def _cuda_literals_are_cpu() -> None:
    """Schedules, optimizer, grad clipping and MoE write device="cuda"."""

    def redirected(factory):
        @functools.wraps(factory)
        def call(*args, **kwargs):
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = _CPU
            return factory(*args, **kwargs)

        return call

    for name in ("zeros", "ones", "tensor"):
        setattr(torch, name, redirected(getattr(torch, name)))


def _tensor_type_is_cuda() -> None:
    """The distributed optimizer accepts only torch.cuda.*Tensor; tied embeddings under PP call .cuda()."""
    plain_type = torch.Tensor.type

    def tensor_type(self, *args, **kwargs):
        out = plain_type(self, *args, **kwargs)
        return out.replace("torch.", "torch.cuda.", 1) if isinstance(out, str) else out

    torch.Tensor.type = tensor_type
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self


def no_cuda_sync() -> None:
    """Pipeline p2p and timers call torch.cuda.synchronize()."""
    torch.cuda.synchronize = lambda *_args, **_kwargs: None


def streams_are_inert() -> None:
    """DDP and the all-to-all dispatcher create CUDA streams."""

    class Stream:  # a type, as annotations such as `torch.cuda.Stream | None` are evaluated when a module is imported
        def __init__(self, *_args, **_kwargs):
            pass

        def wait_stream(self, *_args):
            return None

        synchronize = wait_event = wait_stream

        def record_event(self, *_args):
            return self

    stream = Stream()
    torch.cuda.Stream = Stream
    torch.cuda.current_stream = lambda *_args, **_kwargs: stream
    torch.cuda.stream = lambda *_args, **_kwargs: contextlib.nullcontext()


def _split_sizes_are_numpy() -> None:
    """All-to-all split sizes stay tensors unless they were on a GPU."""
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    move = dispatcher.maybe_move_tensor_to_cpu

    def to_cpu(tensor, as_numpy=False, record_stream=False):  # noqa: FBT002 (megatron's signature)
        if as_numpy and torch.is_tensor(tensor) and not tensor.is_cuda:
            return tensor.numpy()
        return move(tensor, as_numpy=as_numpy, record_stream=record_stream)

    dispatcher.maybe_move_tensor_to_cpu = to_cpu


def _grouped_gemm_is_matmul() -> None:
    """moe_act recompute needs GroupedMLP, whose kernels are a CUDA package; a product per expert does the same."""
    if importlib.util.find_spec(_GROUPED_GEMM) is None:
        return  # from 0.17 on local experts run one by one, and moe_grouped_gemm is ignored
    grouped = importlib.import_module(_GROUPED_GEMM)
    if grouped.grouped_gemm is not None and torch.cuda.is_available():
        return

    class Ops:
        @staticmethod
        def gmm(a, b, batch_sizes, trans_a=False, trans_b=False):  # noqa: ARG004, FBT002 (grouped_gemm's signature)
            parts = zip(a.split(batch_sizes.tolist()), b, strict=True)
            return torch.cat([x @ (w.t() if trans_b else w) for x, w in parts])

    grouped.grouped_gemm = grouped.ops = Ops


def _checkpoint_without_output_fp8() -> None:
    """`self.fp8 = fp8 is not None` is true for the default False and then uses transformer-engine names."""
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    plain_init = CheckpointWithoutOutput.__init__

    def init(self, fp8=False, *args, **kwargs):  # noqa: FBT002 (megatron's signature)
        plain_init(self, fp8, *args, **kwargs)
        self.fp8 = bool(fp8)

    CheckpointWithoutOutput.__init__ = init


def _router_gemm() -> None:
    """The MoE router reads te_general_gemm, undefined without transformer-engine."""
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)


def _mla_knows_te_is_absent() -> None:
    """multi_latent_attention sets HAVE_TE from a module that imports without TE."""
    import megatron.core.transformer.multi_latent_attention as mla

    mla.HAVE_TE = False


def _no_layer_is_for_inference() -> None:
    """MTP asks isinstance() for inference layers, which without transformer-engine are mocks, not types."""
    from megatron.core.transformer import multi_token_prediction as mtp

    if hasattr(mtp, _ASKS_FOR_INFERENCE):  # from 0.20 on
        inference = importlib.import_module("megatron.core.tensor_parallel.inference_layers")
        if not isinstance(inference.InferenceColumnParallelLinear, type):
            setattr(mtp, _ASKS_FOR_INFERENCE, lambda _module: False)


def _delta_rule_is_torch() -> None:
    """Gated delta nets take norm, convolution and recurrence from flash-linear-attention."""
    if torch.cuda.is_available():
        return  # the kernels of flash-linear-attention are Triton's
    net = importlib.import_module(_DELTA_NET)
    plain = net.torch_chunk_gated_delta_rule

    def l2norm(x):
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)

    def delta_rule(*args, cu_seqlens=None, **kwargs):  # noqa: ARG001 (flash-linear-attention's signature)
        return plain(*args, **kwargs)

    def causal_conv1d(x, weight, bias=None, activation=None, **_state):  # noqa: ARG001 (always silu)
        channels, width = weight.shape
        out = torch.nn.functional.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=width - 1, groups=channels)[
            ..., : x.shape[1]
        ]
        return torch.nn.functional.silu(out).transpose(1, 2), None

    made = {"HAVE_FLA": True, "l2norm": l2norm, "chunk_gated_delta_rule": delta_rule, "causal_conv1d": causal_conv1d}
    for name in ("", ".common", ".gdn"):  # 0.16 has one module, 0.19 a package
        module = sys.modules.get(_DELTA_NET + name)
        for attribute, value in made.items() if module else ():
            setattr(module, attribute, value)


CPU_ADAPTATIONS = (
    _device_is_cpu, _rng_is_cpu, _cuda_literals_are_cpu, _tensor_type_is_cuda, no_cuda_sync, streams_are_inert,
    _split_sizes_are_numpy,
)  # fmt: skip
LOCAL_ADAPTATIONS = (
    _checkpoint_without_output_fp8, _router_gemm, _mla_knows_te_is_absent, _grouped_gemm_is_matmul,
    _delta_rule_is_torch, _no_layer_is_for_inference,
)  # fmt: skip
