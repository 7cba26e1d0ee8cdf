"""Which recipe is in force."""

from contextlib import contextmanager


class FP8GlobalStateManager:
    """State of the innermost autocast, under the names that megatron-core reads."""

    FP8_ENABLED = False
    RECIPE = None
    # Set while layers are built whose weights are stored quantised only.
    MODEL_INIT_RECIPE = None

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Return whether layers quantise now."""
        return cls.FP8_ENABLED

    @classmethod
    def get_fp8_recipe(cls):
        """The recipe in force."""
        return cls.RECIPE

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, *_args) -> None:
        """Only CUDA graphs use it."""


@contextmanager
def fp8_autocast(
    enabled=True, calibrating=False, fp8_recipe=None, fp8_group=None, _graph=False,  # noqa: ARG001, FBT002
):  # fmt: skip
    """Layers inside quantise by ``fp8_recipe``."""
    state = FP8GlobalStateManager
    before = state.FP8_ENABLED, state.RECIPE
    state.FP8_ENABLED, state.RECIPE = enabled, fp8_recipe
    try:
        yield
    finally:
        state.FP8_ENABLED, state.RECIPE = before


@contextmanager
def fp8_model_init(enabled=True, recipe=None, preserve_high_precision_init_val=False):  # noqa: ARG001, FBT002
    """Weights made inside are stored quantised; the initial values in high precision go to the host."""
    state = FP8GlobalStateManager
    before, state.MODEL_INIT_RECIPE = state.MODEL_INIT_RECIPE, recipe if enabled else None
    try:
        yield
    finally:
        state.MODEL_INIT_RECIPE = before
