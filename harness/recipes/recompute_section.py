"""Recompute settings as a section of a file and as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import BadRequestError
from harness.experiment.recompute import MODULES, FullRecompute, NoRecompute, SelectiveRecompute, parse_recompute
from harness.recipes.problems import Problems, nearest
from harness.recipes.strict_yaml import PlainValue

Policy = NoRecompute | SelectiveRecompute | FullRecompute


def selective(names: Sequence[str], where: str) -> SelectiveRecompute:
    """A selective policy of one or more modules; ``where`` opens every message.

    Raises BadRequestError for an unknown, empty or repeated name, all at once.
    """
    problems = Problems()
    modules = tuple(name.strip() for name in names)
    for name in dict.fromkeys(modules):
        if not name:
            problems.add(f"{where}: an empty module name", "write 'none' for no recompute")
        elif name not in MODULES:
            problems.add(f"{where}: unknown recompute module '{name}'", nearest(name, MODULES))
        elif modules.count(name) > 1:
            problems.add(f"{where}: module '{name}' is named twice", "name each module once")
    problems.raise_if_any()
    return SelectiveRecompute(modules=modules)


def policy_from_text(text: str, where: str) -> Policy:
    """The stable spelling: ``none``, ``mlp,core_attn``, ``full:uniform:1``, ``full:block:4``."""
    text = text.strip()
    if text == "none":
        return NoRecompute()
    if text != "full" and not text.startswith("full:"):
        return selective(text.split(","), where)
    try:
        return parse_recompute(text)
    except ValueError as error:
        raise BadRequestError(
            f"{where}: {error}", remedy="write full:uniform:1, full:block:4, a module list or none"
        ) from error


_FIELDS = {
    name: field
    for field, names in {
        "granularity": ("granularity", "recompute_granularity", "activations_checkpoint_granularity"),
        "method": ("method", "recompute_method", "activations_checkpoint_method"),
        "num_layers": ("num_layers", "recompute_num_layers", "activations_checkpoint_num_layers"),
        "modules": ("modules", "recompute_modules"),
        "distribute_saved_activations": ("distribute_saved_activations",),
        "recompute_activations": ("recompute_activations",),
        "checkpoint_activations": ("checkpoint_activations",),
    }.items()
    for name in names
}
TOP_LEVEL_NAMES = frozenset(name for name in _FIELDS if "_" in name and name != "num_layers")
"""Spellings that may also stand beside the sections, as the frameworks have them."""


@dataclass(frozen=True)
class Field:
    """One recompute field as written: its name there, its value, its place for messages."""

    name: str
    value: PlainValue
    place: str


def canonical_field(name: str, place: str) -> str:
    """Our name of a field; BadRequestError with the nearest spelling for an unknown one."""
    if name not in _FIELDS:
        raise BadRequestError(f"{place}: no such setting", remedy=nearest(name, _FIELDS))
    return _FIELDS[name]


def policy_from_fields(fields: Mapping[str, Field], place: str) -> tuple[Policy, str]:
    """The policy of canonical fields, and a note where a spelling was translated.

    Raises BadRequestError for a combination that megatron-core refuses or would ignore without a word.
    """
    if "checkpoint_activations" in fields:
        raise BadRequestError(
            f"{fields['checkpoint_activations'].place}: Megatron-LM removed checkpoint_activations",
            remedy="write recompute: full:uniform:1 for what it did, or recompute: core_attn",
        )
    if "recompute_activations" in fields:
        return _from_recompute_activations(fields)
    granularity = fields.get("granularity")
    if granularity is None:
        first = next(iter(fields.values()), None)
        raise BadRequestError(
            f"{first.place if first else place}: recompute fields without recompute_granularity do nothing",
            remedy="add recompute_granularity: selective or full, or write recompute: none",
        )
    match granularity.value:
        case None | "none":
            return NoRecompute(), _inert_note(fields)
        case "selective":
            return _selective(fields)
        case "full":
            return _full(fields), _nemo_note(granularity, "full")
        case other:
            raise BadRequestError(
                f"{granularity.place}: no such granularity {other!r}", remedy="selective, full or null"
            )


def _from_recompute_activations(fields: Mapping[str, Field]) -> tuple[Policy, str]:
    flag = fields["recompute_activations"]
    if not isinstance(flag.value, bool):
        raise BadRequestError(f"{flag.place}: must be true or false, is {flag.value!r}", remedy="write true or false")
    _refuse(fields, [name for name in fields if name != "recompute_activations"], "recompute_activations")
    if not flag.value:
        return NoRecompute(), ""
    return selective(["core_attn"], flag.place), "recompute_activations: true read as selective core_attn"


def _selective(fields: Mapping[str, Field]) -> tuple[Policy, str]:
    _refuse(fields, [n for n in ("method", "num_layers") if n in fields and fields[n].value is not None], "selective")
    _refuse(fields, [n for n in ("distribute_saved_activations",) if n in fields and fields[n].value], "selective")
    modules = fields.get("modules")
    if modules is None or modules.value is None:
        note = _nemo_note(fields["granularity"], "selective core_attn")
        place = fields["granularity"].place
        return selective(["core_attn"], place), note or "recompute_modules absent: megatron-core recomputes core_attn"
    names = _names(modules)
    if not names:
        return NoRecompute(), "recompute_modules is empty: nothing is recomputed"
    return selective(names, modules.place), ""


def _names(modules: Field) -> list[str]:
    value = modules.value
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, tuple) and all(isinstance(v, str) for v in value):
        return [str(v) for v in value]
    raise BadRequestError(
        f"{modules.place}: must be a list of module names, is {value!r}", remedy="as in [mlp, core_attn]"
    )


def _full(fields: Mapping[str, Field]) -> FullRecompute:
    if "modules" in fields and fields["modules"].value:
        _refuse(fields, ["modules"], "full")
    method, num_layers = fields.get("method"), fields.get("num_layers")
    place = fields["granularity"].place
    if method is None or method.value not in ("uniform", "block"):
        raise BadRequestError(f"{method.place if method else place}: full recompute needs a method",
                              remedy="recompute_method: uniform or block")  # fmt: skip
    value = num_layers.value if num_layers else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequestError(f"{num_layers.place if num_layers else place}: full recompute needs a number of layers",
                              remedy="recompute_num_layers: 1 or more")  # fmt: skip
    distribute = fields.get("distribute_saved_activations")
    if distribute and not isinstance(distribute.value, bool):
        raise BadRequestError(f"{distribute.place}: must be true or false, is {distribute.value!r}")
    return FullRecompute(
        method="uniform" if method.value == "uniform" else "block",
        num_layers=value,
        distribute_saved_activations=bool(distribute and distribute.value),
    )


def _refuse(fields: Mapping[str, Field], names: list[str], with_what: str) -> None:
    for name in names:
        raise BadRequestError(f"{fields[name].place}: {fields[name].name} contradicts {with_what} recompute",
                              remedy=f"remove {fields[name].name}, or choose another granularity")  # fmt: skip


def _inert_note(fields: Mapping[str, Field]) -> str:
    modules = fields.get("modules")
    if modules is None or not modules.value:
        return ""
    return "recompute_modules are inert: recompute_granularity is not set"


def _nemo_note(granularity: Field, meaning: str) -> str:
    if granularity.name != "activations_checkpoint_granularity":
        return ""
    return f"NeMo's activations_checkpoint_granularity: {granularity.value} read as {meaning}"


def read_recompute_text(value: PlainValue, place: str) -> Policy:
    """`recompute:` as one text; a list of modules is read too."""
    if isinstance(value, str):
        return policy_from_text(value, place)
    if isinstance(value, tuple):
        names = _names(Field("recompute", value, place))
        return selective(names, place) if names else NoRecompute()
    raise BadRequestError(f"{place}: must be text or a mapping, is {value!r}",
                          remedy="write none, a module list such as core_attn,mlp, or full:uniform:1")  # fmt: skip
