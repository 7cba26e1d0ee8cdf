"""Expert inputs padded to what quantised GEMMs need."""

import torch


class _Resize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, num_rows):
        ctx.num_rows = x.shape[0]
        return x.new_empty((num_rows, x.shape[1]))

    @staticmethod
    def backward(ctx, grad):
        return grad.new_empty((ctx.num_rows, grad.shape[1])), None


class Fp8Padding(torch.nn.Module):
    """Rows of each expert up to a multiple of ``align_size``; aligned ones are handed through."""

    def __init__(self, num_gemms, align_size=16):
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, x, m_splits):
        """[sum(m_splits), k] -> [sum of padded, k] and the padded splits."""
        padded = [-(-m // self.align_size) * self.align_size for m in m_splits]
        return (x, list(m_splits)) if padded == list(m_splits) else (_Resize.apply(x, sum(padded)), padded)


class Fp8Unpadding(torch.nn.Module):
    """Takes the padding out again."""

    def __init__(self, num_gemms, align_size=16):
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, x, m_splits):
        """[sum of padded, k] -> [sum(m_splits), k]."""
        return x if x.shape[0] == sum(m_splits) else _Resize.apply(x, sum(m_splits))
