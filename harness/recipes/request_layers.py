"""One request laid over another: what the upper one says wins, option by option."""

from dataclasses import replace

from harness.recipes.axes import RECOMPUTE_OPTIONS
from harness.recipes.option_values import OptionValue
from harness.recipes.request import Request


def request_of(options: dict[str, OptionValue]) -> Request:
    """A request that says what ``options`` of a file say, and nothing else."""
    return Request(**{"model_recipe_name": "", "gpu": "", **options})  # type: ignore[arg-type]


def laid_over(base: Request, given: Request) -> Request:
    """``base`` with what ``given`` says over it, option by option.

    Recompute is one value: whoever says anything about it says all. ``env`` and ``set_values`` meet name by name.
    """
    said = {name: value for name, value in vars(given).items() if value not in (None, "", ())}
    if any(name in said for name in RECOMPUTE_OPTIONS):
        base = replace(base, **dict.fromkeys(RECOMPUTE_OPTIONS))  # type: ignore[arg-type]
    for name in ("env", "set_values"):
        said[name] = _assignments(getattr(base, name), getattr(given, name))
    return replace(base, **said)


def _assignments(base: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    names = {text.partition("=")[0].strip() for text in given}
    return (*(text for text in base if text.partition("=")[0].strip() not in names), *given)
