"""DotProductAttention: its kernel, the memory layout of Q, K and V, and what it saves (2.11)."""

import os
from itertools import islice
from math import sqrt

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own spelling)

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active, attention_flops


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, batch_first, sinks, window):
        out = query.new_empty((*query.shape[:3], value.shape[3]))
        statistics, generator = row_statistics(query, batch_first=batch_first), _generator_state(query)
        flops = causal_flops(query, key, value, batch_first=batch_first)
        flops = windowed(flops, query.shape[1 if batch_first else 0], window)
        record(flops, query, key, value, out)
        # inputs and output, from which backward rebuilds the scores with one statistic per row; generator state
        ctx.save_for_backward(query, key, value, out, statistics, generator, sinks)
        ctx.flops, ctx.batch_first = flops, batch_first
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, out, _, _, sinks = ctx.saved_tensors
        grad = grad.contiguous()
        # five products for the forward's two; an fp32 accumulator of Q's gradient and one more statistic per row
        record(ctx.flops * 5 // 2, query, key, value, out, grad, query, key, value)
        accumulator = torch.empty(query.shape, dtype=torch.float32, device=query.device)
        statistics = row_statistics(query, batch_first=ctx.batch_first)
        grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (query, key, value)]
        del accumulator, statistics
        return *grads, None, None if sinks is None else torch.empty_like(sinks), None


def fused_attention(query, key, value, *, batch_first: bool = False, sinks=None, window=(-1, -1), group=None):
    """[s, b, h, d] (or [b, s, h, d]) -> [s, b, h, d_v]; ``sinks``: one learnt logit per head [1, h, 1, 1], or None.

    ``group``: ranks with pieces of the sequence, which exchange tokens for heads.
    """
    if group is not None and group.size() > 1:
        sinks = None if sinks is None else sinks[:, : sinks.shape[1] // group.size()].clone()
        return _AllToAll.apply(group, query, key, value, batch_first, sinks, window)
    return _Fused.apply(query, key, value, batch_first, sinks, window)


def windowed(flops: int, length: int, window: tuple[int, int]) -> int:
    """Return the FLOPs of causal attention whose queries see ``window`` tokens before them (-1: all)."""
    width = window[0] + 1
    if width < 1 or width >= length:
        return flops
    return flops * (2 * width * length - width * (width - 1)) // length**2


def row_statistics(query: torch.Tensor, *, batch_first: bool = False) -> torch.Tensor:
    """Allocate one fp32 per row of scores: [b, h, s, 1]."""
    length, batch = query.shape[1::-1] if batch_first else query.shape[:2]
    return torch.empty((batch, query.shape[2], length, 1), dtype=torch.float32, device=query.device)


def _generator_state(query: torch.Tensor) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device=query.device)


def causal_flops(query, key, value, *, batch_first: bool = False) -> int:
    """Return the FLOPs of the forward kernel."""
    order = (0, 2, 1, 3) if batch_first else (1, 2, 0, 3)
    return attention_flops(*(t.permute(order) for t in (query, key, value)), causal=True)


def record(flops: int, *moved: torch.Tensor) -> None:
    """Record the cost of a kernel that reads or writes each of ``moved`` once."""
    active().kernel("attention", peak_key(moved[0].dtype), flops=flops, num_bytes=sum(map(tensor_bytes, moved)))


class _Ring(torch.autograd.Function):
    """Every rank attends to one rank's keys and values after another's, with a causal mask that is cut evenly."""

    @staticmethod
    def forward(ctx, query, key, value, group):
        num_ranks = group.size()
        buffers = [torch.cat((key.reshape(-1), value.reshape(-1)))]
        outputs, statistics = [], []
        # the whole sequence's causal work, shared evenly: num_ranks times a rank's own causal block
        flops = causal_flops(query, key, value) * num_ranks
        for step in range(num_ranks):
            if step < num_ranks - 1:
                buffers.append(torch.empty_like(buffers[-1]))
                active().send(tensor_bytes(buffers[-1]), "cp", overlapped=True)
            outputs.append(query.new_empty((*query.shape[:3], value.shape[3])))
            statistics.append(row_statistics(query))
            record(flops // num_ranks, query, buffers[step], outputs[step])
        total_statistics = torch.clone(statistics[0])
        out = torch.empty_like(outputs[0])
        for partial in outputs:
            active().kernel("elementwise", "bf16", num_bytes=3 * tensor_bytes(partial))
        # queries, the keys and values that arrived last, output, statistics over the whole sequence; generator states
        generators = [torch.empty(2, dtype=torch.int64, device=query.device) for _ in range(num_ranks)]
        ctx.save_for_backward(query, buffers[-1], out, total_statistics, *generators)
        ctx.group, ctx.flops, ctx.shapes = group, flops, (key.shape, value.shape)
        return out

    @staticmethod
    def backward(ctx, grad):
        query, keys_values, out, *_ = ctx.saved_tensors
        num_ranks = ctx.group.size()
        grad = grad.contiguous()
        grad_query = torch.empty_like(query)
        # keys and values travel on together with their gradients, in two buffers that take turns
        travelling = [keys_values.new_empty((2, keys_values.numel())) for _ in range(2)]
        travelling[0][0].copy_(keys_values)
        for step in range(num_ranks):
            parts = 2 if 0 < step < num_ranks - 1 else 1
            active().send(parts * tensor_bytes(keys_values), "cp", overlapped=True)
            step_grads = torch.empty_like(query), torch.empty_like(keys_values)
            record(ctx.flops * 5 // 2 // num_ranks, query, keys_values, out, grad, *step_grads)
            active().kernel("elementwise", "bf16", num_bytes=3 * sum(map(tensor_bytes, step_grads)))
            del step_grads
        grad_key_value = [keys_values.new_empty(shape) for shape in ctx.shapes]
        return grad_query, *grad_key_value, None


def ring_attention(query, key, value, group):
    """[s / ranks, b, h, d] -> [s / ranks, b, h, d_v]."""
    return _Ring.apply(query, key, value, group)


_HEADS = 2  # the dimension


class _AllToAll(torch.autograd.Function):
    """Every rank attends to the whole sequence with its share of the heads (2.11 `AttnFuncWithCPAndQKVOA2A`)."""

    @staticmethod
    def forward(ctx, group, query, key, value, batch_first, *options):
        ctx.group, length = group, int(batch_first)
        own = _exchanged((query, key, value), group, cut=_HEADS, join=length)
        return _exchanged((_Fused.forward(ctx, *own, batch_first, *options),), group, cut=length, join=_HEADS)[0]

    @staticmethod
    def backward(ctx, grad):
        length = int(ctx.batch_first)
        *grads, batch_first, sinks, window = _Fused.backward(
            ctx, *_exchanged((grad,), ctx.group, cut=_HEADS, join=length)
        )
        return None, *_exchanged(grads, ctx.group, cut=length, join=_HEADS), batch_first, sinks, window


def _exchanged(tensors, group, cut: int, join: int):
    """Send each rank a piece of dimension ``cut``, and join what arrives along ``join``, while nothing computes."""
    ranks, last = group.size(), len(tensors)
    packing = (_copy(tensor.unflatten(cut, (ranks, -1)).movedim(cut, 0)) for tensor in tensors)
    packed, travelling, arrived = [*islice(packing, int(cut != _HEADS))], [], []
    for number in range(last + 1):
        if number < last:
            packed += islice(packing, 1)
            travelling.append(torch.empty_like(packed[number]))
            active().send(tensor_bytes(packed[number]) * (ranks - 1) // ranks, "cp", overlapped=False)
        if number:
            arrived.append(_copy(travelling.pop(0).movedim(0, join)).flatten(join, join + 1))
    return arrived


def _copy(tensor):
    return tensor.clone(memory_format=torch.contiguous_format)


def fitted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Q, K and V in a layout that kernels take: as they are, or all three copied (2.11 `get_qkv_layout`).

    V of a model with rotary embeddings is a view of the QKV projection next to rotated copies of Q and K. No layout
    covers that, so V is copied too and the projection's output is free once the layer's forward pass is over.
    """
    tensors = (query, key, value)
    storages = [t.untyped_storage()._cdata for t in tensors]
    offsets = [t.storage_offset() for t in tensors]
    width = query.shape[-1]
    one_storage = len(set(storages)) == 1
    alike = all(t.stride() == query.stride() and t.shape == query.shape for t in tensors)
    steps = (width, query.shape[-2] * width)  # heads of Q, K, V side by side, or Q, K, V one after another
    if one_storage and alike and any(offsets == [i * step for i in range(3)] for step in steps):
        return tensors
    separate = len(set(storages)) == 3 and not any(offsets)
    if separate and _same_steps(key, value) and key.shape[:-1] == value.shape[:-1]:
        return tensors
    return tuple(t.contiguous() for t in tensors)


def _same_steps(key: torch.Tensor, value: torch.Tensor) -> bool:
    scaled = zip(key.stride()[:-1], value.stride()[:-1], strict=True)
    return all(k * value.shape[-1] == v * key.shape[-1] for k, v in scaled)


class DotProductAttention(torch.nn.Module):
    """Causal attention over [s, b, heads, d]; returns [s, b, heads * d_v]. Backends: `NVTE_*_ATTN`, else cuDNN's."""

    def __init__(self, num_attention_heads, kv_channels, attention_dropout=0.0, softmax_scale=None, cp_group=None,
                 **options):  # fmt: skip
        super().__init__()
        width = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.num_attention_heads = num_attention_heads
        self.softmax_scale = softmax_scale or 1 / sqrt(width)
        self.dropout, self.cp_group, self.window = attention_dropout, cp_group, options.get("window_size") or (-1, -1)
        self.has_ring = options.get("cp_comm_type") != "a2a"
        self.softmax_offset = None
        if options.get("softmax_type") == "learnable":
            heads = num_attention_heads // options["tp_size"]
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads, device="cuda"))

    def forward(self, query, key, value, _attention_mask=None, **_options):
        """The mask is causal; Q, K and V may have their own widths and numbers of heads."""
        query, key, value = fitted(query, key, value)
        group = self.cp_group
        if self.has_ring and group is not None and group.size() > 1:
            out = ring_attention(query, key, value, group)
        elif _allowed("UNFUSED") and not _allowed("FUSED") and not _allowed("FLASH"):
            out = unfused_attention(query, key, value, self.softmax_scale, self.dropout)
        elif _allowed("FLASH") and not _allowed("FUSED"):
            out = flash_attention(query, key, value, self.window, group)
        else:
            sinks = self.softmax_offset
            sinks = None if sinks is None else sinks.reshape(1, -1, 1, 1).to(torch.float32)
            out = fused_attention(query, key, value, sinks=sinks, window=self.window, group=group)
        return out.reshape(out.shape[0], out.shape[1], -1)


def _allowed(backend: str) -> bool:
    return os.environ.get(f"NVTE_{backend}_ATTN", "1") == "1"


def flash_attention(query, key, value, window, group=None):
    """flash-attn wants the batch outside: everything is copied for it, and its output back, unless the batch is one."""
    swapped = [t.transpose(0, 1).contiguous() for t in (query, key, value)]
    return fused_attention(*swapped, batch_first=True, window=window, group=group).transpose(0, 1).contiguous()


class _MaskedSoftmax(torch.autograd.Function):
    """One kernel that saves its output; backward writes over the incoming gradient (2.11 `extensions/softmax.cpp`)."""

    @staticmethod
    def forward(ctx, scores):
        probs = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(probs)
        return probs

    @staticmethod
    def backward(ctx, grad):
        (probs,) = ctx.saved_tensors
        active().kernel("elementwise", peak_key(grad.dtype), num_bytes=tensor_bytes(probs) + 2 * tensor_bytes(grad))
        return grad


def unfused_attention(query, key, value, scale: float, dropout: float):
    """Scores in memory: product, masked softmax, dropout, product."""
    length, batch, heads, _ = query.shape
    if key.shape[2] != heads:
        key, value = (t.repeat_interleave(heads // t.shape[2], dim=2) for t in (key, value))
    query, key, value = (t.reshape(t.shape[0], batch * heads, -1) for t in (query, key, value))
    scores = torch.baddbmm(
        torch.empty(batch * heads, length, key.shape[0], dtype=query.dtype, device=query.device),
        query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=scale,
    )  # fmt: skip
    probs = F.dropout(_MaskedSoftmax.apply(scores), dropout)
    context = torch.bmm(probs, value.transpose(0, 1)).view(batch, heads, length, -1)
    return context.permute(2, 0, 1, 3).contiguous()
