"""Quantised formats and their bytes, the imitated GPU, and matrix products: an output and a cost."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active, gemm_flops
from harness.experiment.gpu import PeakKey
from transformer_engine.common import recipe as recipes


@dataclass
class Machine:
    """``capability``: compute capability. Before Blackwell, FP8 GEMMs read operands along the inner dimension."""

    capability: tuple[int, int] = (9, 0)

    @property
    def needs_transposes(self) -> bool:
        """Return whether per-tensor FP8 data is stored a second time, transposed, for the backward GEMMs."""
        return self.capability < (10, 0)


MACHINE = Machine()


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True)
class QuantFormat:
    """One recipe's storage. Scale functions take rows and columns and return bytes.

    ``per_tensor`` formats keep one scale; only their row data can be gathered, and column data is a transposed copy
    that Blackwell does not need. ``fused_norm``: the norm kernel writes quantised output, without one in high
    precision. ``reads``: passes over the input that a quantisation takes.
    """

    name: str
    peak: PeakKey
    bits: int
    row_scale_bytes: Callable[[int, int], int]
    column_scale_bytes: Callable[[int, int], int]
    weight_scale_bytes: Callable[[int, int], int]
    per_tensor: bool = False
    fused_norm: bool = False
    reads: int = 1

    @property
    def shares_data(self) -> bool:
        """Return whether one copy serves rows and columns."""
        return self.per_tensor and not MACHINE.needs_transposes

    def weight_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a weight with everything that forward and backward GEMMs need."""
        copies = 1 if self.shares_data else 2
        return copies * (rows * columns * self.bits // 8 + self.weight_scale_bytes(rows, columns))


# Scales: fp32 per tensor; fp32 per 1 x 128 (weights 128 x 128), padded to 4; E8M0 per 32, padded to 128 x 4; E4M3 per
# 16, padded likewise, and one fp32 maximum per tensor.
_PER_TENSOR = dict.fromkeys(("row_scale_bytes", "column_scale_bytes", "weight_scale_bytes"), lambda _m, _k: 4)
FORMATS: dict[type, QuantFormat] = {
    recipes.DelayedScaling: QuantFormat("delayed", "fp8", 8, **_PER_TENSOR, per_tensor=True, fused_norm=True),
    recipes.Float8CurrentScaling: QuantFormat("current", "fp8", 8, **_PER_TENSOR, per_tensor=True, reads=2),
    recipes.Float8BlockScaling: QuantFormat(
        "blockwise", "fp8", 8,
        row_scale_bytes=lambda m, k: 4 * -(-k // 128) * _up(m, 4),
        column_scale_bytes=lambda m, k: 4 * -(-m // 128) * _up(k, 4),
        weight_scale_bytes=lambda m, k: 4 * -(-m // 128) * _up(-(-k // 128), 4),
    ),
    recipes.MXFP8BlockScaling: QuantFormat(
        "mxfp8", "fp8", 8,
        row_scale_bytes=lambda m, k: _up(m, 128) * _up(-(-k // 32), 4),
        column_scale_bytes=lambda m, k: _up(-(-m // 32), 4) * _up(k, 128),
        weight_scale_bytes=lambda m, k: _up(m, 128) * _up(-(-k // 32), 4),
        fused_norm=True,
    ),
    recipes.NVFP4BlockScaling: QuantFormat(
        "nvfp4", "fp4", 4,
        row_scale_bytes=lambda m, k: _up(m, 128) * _up(-(-k // 16), 4) + 4,
        column_scale_bytes=lambda m, k: _up(k, 128) * _up(-(-m // 16), 4) + 4,
        weight_scale_bytes=lambda m, k: _up(m, 128) * _up(-(-k // 16), 4) + 4,
        reads=2,
    ),
}  # fmt: skip


def format_of(recipe: recipes.Recipe) -> QuantFormat:
    """Return the format of a recipe; megatron-core subclasses DelayedScaling."""
    return next(row for kind, row in FORMATS.items() if isinstance(recipe, kind))


@dataclass
class Quantized:
    """Row and column parts of one quantised matrix; either may be absent, both may be one.

    ``ahead``: the output that 2.11 `_all_gather_nvfp4` makes before it gathers, and replaces afterwards.
    """

    format: QuantFormat
    shape: tuple[int, int]
    rows: torch.Tensor | None
    columns: torch.Tensor | None
    ahead: torch.Tensor | None = None

    def only_rows(self) -> "Quantized":
        """Return the matrix without its column data."""
        return Quantized(self.format, self.shape, self.rows, None)

    def only_columns(self) -> "Quantized":
        """Return the matrix without its row data, unless that serves columns too."""
        return Quantized(self.format, self.shape, None, self.columns)

    def tensors(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the tensors that autograd must save."""
        return self.rows, self.columns

    def with_columns(self) -> "Quantized":
        """Transpose per-tensor row data if the GPU needs it; other formats were quantised both ways from the start."""
        if self.columns is not None:
            return self
        if self.format.shares_data:
            return Quantized(self.format, self.shape, self.rows, self.rows)
        columns = torch.empty_like(self.rows)
        active().kernel("elementwise", self.format.peak, num_bytes=2 * tensor_bytes(self.rows))
        return Quantized(self.format, self.shape, self.rows, columns)

    def in_order(self) -> "Quantized":
        """Copy gathered column data into its order (2.11 `_post_process_fp8_blockwise_gather`, also NVFP4's)."""
        if self.format.per_tensor or self.format.name == "mxfp8":
            return self
        size = self.columns.numel()
        data = self.columns.new_empty(self.shape[0] * self.shape[1] * self.format.bits // 8)  # scales need no order
        active().kernel("elementwise", self.format.peak, num_bytes=2 * tensor_bytes(data))
        self.columns.data = self.columns.new_empty(0)  # 2.11 frees it before the GEMM
        del data
        return Quantized(self.format, self.shape, self.rows, self.columns.new_empty(size))


def quantize(
    x: torch.Tensor, fmt: QuantFormat, *, rows: bool, columns: bool, splits: tuple[int, ...] = ()
) -> Quantized:
    """Quantise a matrix; ``splits`` cuts its rows into separately scaled parts that share one allocation."""
    num_columns = x.shape[1]
    parts = splits or (x.shape[0],)
    row_part = column_part = None
    if rows or (columns and fmt.shares_data):
        row_part = _buffer(x, fmt, sum(fmt.row_scale_bytes(m, num_columns) for m in parts))
    if columns:
        scales = sum(fmt.column_scale_bytes(m, num_columns) for m in parts)
        column_part = row_part if fmt.shares_data else _buffer(x, fmt, scales)
    written = {id(t): tensor_bytes(t) for t in (row_part, column_part) if t is not None}
    active().kernel("elementwise", fmt.peak, num_bytes=fmt.reads * tensor_bytes(x) + sum(written.values()))
    return Quantized(fmt, tuple(x.shape), row_part, column_part)


def _buffer(x: torch.Tensor, fmt: QuantFormat, scale_bytes: int) -> torch.Tensor:
    return torch.empty(x.numel() * fmt.bits // 8 + scale_bytes, dtype=torch.uint8, device=x.device)


def gemm(sizes: tuple[int, int, int], like: torch.Tensor, fmt: QuantFormat | None, out: torch.Tensor | None = None):
    """Multiply [m, k] x [k, n] -> [m, n] in the type of ``like``, or accumulate into ``out``.

    Both operands have one type: quantised by ``fmt``, or the type of ``like``. ``sizes`` is (m, k, n).
    """
    record_gemm(sizes, like, fmt)
    m, _, n = sizes
    return torch.empty((m, n), dtype=like.dtype, device=like.device) if out is None else out


def record_gemm(sizes: tuple[int, int, int], like: torch.Tensor, fmt: QuantFormat | None, num_weights: int = 1) -> None:
    """Record the cost of a product; ``num_weights`` matrices of [k, n] in a grouped one."""
    m, k, n = sizes
    bits = like.element_size() * 8 if fmt is None else fmt.bits
    moved = bits * (m * k + num_weights * k * n) // 8 + like.element_size() * m * n
    active().kernel("gemm", fmt.peak if fmt else peak_key(like.dtype), flops=gemm_flops(m, k, n), num_bytes=moved)
