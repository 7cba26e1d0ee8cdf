"""The GPU that is stood for."""

from dataclasses import dataclass


@dataclass
class Machine:
    """``capability``: compute capability. Before Blackwell, FP8 GEMMs read both operands along their inner dimension."""

    capability: tuple[int, int] = (9, 0)

    @property
    def needs_transposes(self) -> bool:
        """Whether per-tensor FP8 data is stored a second time, transposed, for the backward GEMMs."""
        return self.capability < (10, 0)


MACHINE = Machine()
