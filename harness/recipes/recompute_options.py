"""The recompute options of the command line as one policy; contradictions are named by both options."""

from collections.abc import Mapping

from harness.errors import BadRequestError
from harness.experiment.recompute import FullRecompute, NoRecompute
from harness.recipes.problems import Problems, nearest
from harness.recipes.recipe import Request
from harness.recipes.recompute_section import Policy, policy_from_text, selective
from harness.recipes.settings import Setting

_GRANULARITIES = ("selective", "full", "none")
_METHODS = ("uniform", "block")
_FULL_ONLY = ("recompute_num_layers", "recompute_method", "distribute_saved_activations")


def recompute_setting(request: Request) -> Setting | None:
    """The policy that the options ask for; None when none of them is given.

    ``--recompute_modules`` and ``-rl`` alone mean what they mean in Megatron-Bridge (selective; full, block), but the
    recipe's policy is replaced whole, so that no field of it is left to contradict them.
    """
    policy, given = recompute_policy(request), _given(request)
    if policy is None:
        return None
    source = ", ".join(f"--{name}" for name in given)
    note = ""
    if request.recompute_granularity == "selective" and request.recompute_modules is None:
        note = "--recompute_granularity selective without --recompute_modules: megatron-core recomputes core_attn"
    return Setting(policy, source, note=note)


def recompute_policy(request: Request) -> Policy | None:
    """What the options ask for; None when none of them is given. BadRequestError for contradictions and unknown words."""
    given = _given(request)
    if not given:
        return None
    _check_words(request)
    _check_combination(given)
    return _policy(request)


def _given(request: Request) -> dict[str, object]:
    fields: dict[str, object] = {
        "recompute": request.recompute,
        "recompute_modules": request.recompute_modules,
        "recompute_granularity": request.recompute_granularity,
        "recompute_method": request.recompute_method,
        "recompute_num_layers": request.recompute_num_layers,
        "distribute_saved_activations": request.distribute_saved_activations,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _check_words(request: Request) -> None:
    problems = Problems()
    for option, value, known in (
        ("--recompute_granularity", request.recompute_granularity, _GRANULARITIES),
        ("--recompute_method", request.recompute_method, _METHODS),
    ):
        if value is not None and value not in known:
            problems.add(f"{option}: no such value '{value}'", nearest(value, known))
    if request.recompute_num_layers is not None and request.recompute_num_layers < 1:
        problems.add(f"--recompute_num_layers: must be 1 or more, is {request.recompute_num_layers}",
                     "--recompute_modules none keeps every activation")  # fmt: skip
    problems.raise_if_any()


def _check_combination(given: Mapping[str, object]) -> None:
    """Refuse options that ask for two policies at once, or for half of one."""
    problems = Problems()
    for first, second in _contradictions(given):
        problems.add(f"--{first} {given[first]} contradicts --{second} {given[second]}", "give one of them")
    problems.raise_if_any()
    granularity = given.get("recompute_granularity")
    if granularity == "full":
        for needed in ("recompute_method", "recompute_num_layers"):
            if needed not in given:
                problems.add(f"--recompute_granularity full needs --{needed}", "as in --recompute full:uniform:1")
    if granularity is None and "recompute_num_layers" not in given:
        for name in [n for n in _FULL_ONLY if n in given]:
            problems.add(f"--{name} needs --recompute_granularity full", "as in --recompute full:uniform:1")
    problems.raise_if_any()


def _contradictions(given: Mapping[str, object]) -> list[tuple[str, str]]:
    pairs = [("recompute", name) for name in given if name != "recompute" and "recompute" in given]
    if "recompute_modules" in given:
        pairs += [("recompute_modules", name) for name in _FULL_ONLY if name in given]
        if given.get("recompute_granularity") in ("full", "none"):
            pairs.append(("recompute_modules", "recompute_granularity"))
    if given.get("recompute_granularity") in ("selective", "none"):
        pairs += [("recompute_granularity", name) for name in _FULL_ONLY if name in given]
    return pairs


def _policy(request: Request) -> Policy:
    if request.recompute is not None:
        return policy_from_text(request.recompute, "--recompute")
    if request.recompute_modules is not None:
        if request.recompute_modules.strip() == "none":
            return NoRecompute()
        return selective(request.recompute_modules.split(","), "--recompute_modules")
    if request.recompute_granularity == "none":
        return NoRecompute()
    if request.recompute_granularity == "selective":
        return selective(["core_attn"], "--recompute_granularity")
    if request.recompute_num_layers is None:
        raise BadRequestError("--recompute_granularity full needs --recompute_num_layers")
    return FullRecompute(
        method="uniform" if request.recompute_method == "uniform" else "block",
        num_layers=request.recompute_num_layers,
        distribute_saved_activations=bool(request.distribute_saved_activations),
    )
