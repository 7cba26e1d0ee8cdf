"""Reads strict files as pydantic models. Every error names the place of the value and what to write instead."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ValidationError, field_validator
from pydantic_core import ErrorDetails

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.frozen import Frozen
from harness.resolve.strict_yaml import Items, Node, Scalar, Table, plain, read_yaml
from harness.units import grouped

Keys = tuple[str | int, ...]
"""The way from the root of a document to a value: names of mappings and positions in lists."""

Read = TypeVar("Read")
Model = TypeVar("Model", bound=BaseModel)

TYPES = "see recipes/README.md for types and ranges"
_LONGEST_SHOWN = 80  # characters; messages must not print a whole wrong file
_PHRASES = {
    "string_type": ("must be text", "quote it"),
    "string_too_short": ("must not be empty", "write a text"),
    "int_type": ("must be an integer", TYPES),
    "int_from_float": ("must be an integer", TYPES),
    "float_type": ("must be a number", TYPES),
    "bool_type": ("must be true or false", "write true or false"),
    "tuple_type": ("must be a list", "write a list, as in [a, b]"),
    "too_short": ("must be a list of at least one item", "write a list, as in [a, b]"),
    "dict_type": ("must be a mapping", "write key: value pairs"),
    "model_type": ("must be a mapping", "write key: value pairs"),
    "model_attributes_type": ("must be a mapping", "write key: value pairs"),
    "string_pattern_mismatch": (  # every pattern of a model is that of a name
        "must be lower-case letters, digits, '.', '_' or '-', 64 at most, a letter or digit first", TYPES,
    ),
}  # fmt: skip
"""What a value must be, and the remedy, by pydantic's type of error. Pydantic's own words serve for the others."""

HUGGING_FACE = {
    "num_hidden_layers": "model.num_layers", "n_layer": "model.num_layers", "n_layers": "model.num_layers",
    "hidden_size": "model.hidden_size", "n_embd": "model.hidden_size", "d_model": "model.hidden_size",
    "intermediate_size": "model.ffn_hidden_size", "n_inner": "model.ffn_hidden_size",
    "num_attention_heads": "model.num_attention_heads", "n_head": "model.num_attention_heads",
    "num_key_value_heads": "model.num_query_groups", "head_dim": "model.kv_channels", "vocab_size": "model.vocab_size",
    "max_position_embeddings": "batch.seq_length", "n_positions": "batch.seq_length",
    "rms_norm_eps": "model.layernorm_epsilon", "layer_norm_eps": "model.layernorm_epsilon",
    "layer_norm_epsilon": "model.layernorm_epsilon", "rope_theta": "model.rotary_base",
    "partial_rotary_factor": "model.rotary_percent", "hidden_act": "model.activation_func",
    "tie_word_embeddings": "model.share_embeddings_and_output_weights", "attention_bias": "model.add_bias_linear",
    "mlp_bias": "model.add_bias_linear", "use_qk_norm": "model.qk_layernorm",
    "num_nextn_predict_layers": "model.mtp_num_layers",
    "num_experts": "model.moe.num_moe_experts", "num_local_experts": "model.moe.num_moe_experts",
    "n_routed_experts": "model.moe.num_moe_experts", "num_experts_per_tok": "model.moe.moe_router_topk",
    "moe_intermediate_size": "model.moe.moe_ffn_hidden_size",
    "shared_expert_intermediate_size": "model.moe.moe_shared_expert_intermediate_size",
    "n_group": "model.moe.moe_router_num_groups", "topk_group": "model.moe.moe_router_group_topk",
    "routed_scaling_factor": "model.moe.moe_router_topk_scaling_factor",
    "scoring_func": "model.moe.moe_router_score_function", "router_aux_loss_coef": "model.moe.moe_aux_loss_coeff",
    "qk_nope_head_dim": "model.mla.qk_head_dim", "qk_rope_head_dim": "model.mla.qk_pos_emb_head_dim",
}  # fmt: skip
"""Names in a config.json of Hugging Face, and the setting that each is here."""


def nearest_setting(name: str, known: Iterable[str]) -> str:
    """As :func:`nearest`, but a name of Hugging Face's gives the setting that it is here, in whichever section."""
    known, last = list(known), name.rpartition(".")[2]
    path = HUGGING_FACE.get(last)
    if path is None:
        return nearest(name, known)
    own = path.rpartition(".")[2]
    whose = "" if own == last else f" Hugging Face calls it {last}"
    return f"did you mean '{own if own in known else path}'?{whose}"


class FileModel(Frozen):
    """A mapping of a file. An absent key sets nothing; a key without a value is an error."""

    @classmethod
    def remedy_for(cls, key: str) -> str:
        """Say what to write instead of an unknown key; empty: suggest the nearest name."""
        del key
        return ""

    @field_validator("*", mode="before")
    @classmethod
    def _has_a_value(cls, value: object) -> object:
        if value is None:
            raise RefusedError.at((), "has no value", "give it a value, or leave the key out")
        return value


class RefusedError(ValueError):
    """Problems that a validator found, each with the path from the validated value to the wrong one."""

    def __init__(self, found: list[tuple[Keys, BadRequestError]]) -> None:
        super().__init__("; ".join(error.message for _, error in found))
        self.found = found

    @classmethod
    def at(cls, keys: Keys, message: str, remedy: str) -> "RefusedError":
        """Refuse with one problem."""
        return cls([(keys, BadRequestError(message, remedy=remedy))])


def refusing(read: Callable[..., Read]) -> Callable[[object], Read]:
    """Turn ``read`` into a validator. Its BadRequestError is reported at the value."""

    def validated(value: object) -> Read:
        problems = Problems()
        with problems.collecting():
            return read(value)
        raise RefusedError([((), error) for error in problems.found])

    return validated


def one_of(known: Collection[str], message: str = "no such value") -> AfterValidator:
    """Refuse a text that is not in ``known``, and name the nearest."""

    def validated(value: str) -> str:
        if value not in known:
            raise RefusedError.at((), f"{message} '{value}'", nearest(value, known))
        return value

    return AfterValidator(validated)


@dataclass(frozen=True)
class Fault:
    """One wrong value. ``keys`` lead to it; ``message`` does not contain the place."""

    keys: Keys
    message: str
    remedy: str
    is_missing: bool = False


def faults(error: ValidationError, model: type[BaseModel] | object, data: object) -> Iterator[Fault]:
    """Yield the faults of ``data``, which ``model`` refused: one for each wrong value.

    A union reports each of its arms. Arms at one value become one fault, at the innermost value.
    """
    found = grouped((_keys(detail, data), detail) for detail in error.errors(include_url=False))
    for keys, details in found.items():
        if any(len(keys) < len(other) and other[: len(keys)] == keys for other in found):
            continue
        refused = details[0].get("ctx", {}).get("error")
        if isinstance(refused, RefusedError):
            yield from (Fault((*keys, *at), each.message, each.remedy) for at, each in refused.found)
        elif details[0]["type"] in ("missing", "union_tag_not_found"):
            yield Fault(keys, "missing", f"add {keys[-1]}", is_missing=True)
        elif details[0]["type"] == "extra_forbidden":
            yield from _unknown_key(keys, model, data)
        else:
            fault = _wrong_value(keys, details, _value_at(data, keys))
            meaning = _meaning(keys, model) if fault.remedy == TYPES else ""
            yield replace(fault, remedy=meaning) if meaning else fault


def _keys(detail: ErrorDetails, data: object) -> Keys:
    """Return the location without the names of a union's arms and of validators, which are no keys of the data."""
    keys: list[str | int] = []
    for part in detail["loc"]:
        is_item = isinstance(data, tuple) and isinstance(part, int) and part < len(data)
        if (isinstance(data, dict) and part in data) or is_item:
            keys.append(part)
            data = data[part]  # type: ignore[index]
    if detail["type"] == "missing":
        keys.append(detail["loc"][-1])
    if detail["type"].startswith("union_tag"):
        keys.append(detail["ctx"]["discriminator"].strip("'"))
    return tuple(keys)


def _value_at(data: object, keys: Keys) -> object:
    for key in keys:
        data = data[key]  # type: ignore[index]
    return data


def _wrong_value(keys: Keys, details: list[ErrorDetails], value: object) -> Fault:
    kind = details[0]["type"]
    if kind in ("literal_error", "union_tag_invalid"):
        ctx = details[0]["ctx"]
        expected: str = ctx["expected"] if "expected" in ctx else ctx["expected_tags"]
        near = nearest(str(value), [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")])
        if near.startswith("did you mean"):
            return Fault(keys, f"no such value {value!r}", near)
        message, remedy = f"must be {expected}", TYPES
    else:
        phrases = [_PHRASES.get(each["type"], (_own_words(each), TYPES)) for each in details]
        texts = dict.fromkeys(phrase for phrase, _ in phrases)
        message, remedy = " or ".join(texts).replace(" or must be ", " or "), phrases[0][1]
    is_about_itself = kind == "value_error" and isinstance(value, dict)
    return Fault(keys, message if is_about_itself else f"{message}, is {in_words(value)}", remedy)


def _own_words(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)


def in_words(value: object) -> str:
    """Format a value for a message; cut a large one."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters"
    kinds = {dict: "a mapping", tuple: "a list", type(None): "empty"}
    return kinds.get(type(value)) or repr(value)


def _unknown_key(keys: Keys, model: object, data: object) -> Iterator[Fault]:
    """Describe an unknown key. If a tag chose the model, the message names the tag; a wrong tag is reported alone."""
    *way, key = keys
    candidates = models_in(model)
    for part in way:
        inner = [
            m for c in candidates if part in c.model_fields for m in models_in(c.model_fields[str(part)].annotation)
        ]
        candidates = inner or candidates
    beside = _value_at(data, tuple(way))
    assert isinstance(beside, dict)
    fitting = [model for model in candidates if all(beside.get(tag, value) == value for tag, value in _tags(model))]
    known = list(dict.fromkeys(name for model in fitting for name in model.model_fields))
    tags = [f"{tag} '{value}'" for model in fitting for tag, value in _tags(model) if tag in beside]
    if tags:
        near = nearest_setting(str(key), known)
        names = f"known: {', '.join(known)}"
        yield Fault(keys, f"{tags[0]} has no {key}", near if near == names else f"{near} {names}")
    elif fitting:
        own = next((m.remedy_for(str(key)) for m in fitting if issubclass(m, FileModel)), "")
        yield Fault(keys, "no such setting", own or nearest_setting(str(key), known))


def _steps(way: Iterable[str | int], model: object) -> Iterator[tuple[list[type[BaseModel]], str]]:
    """List the possible models at each step of a path, from the root, and the meaning of the last field."""
    candidates = models_in(model)
    yield candidates, ""
    for part in way:
        fields = [candidate.model_fields[str(part)] for candidate in candidates if part in candidate.model_fields]
        candidates = [inner for info in fields for inner in models_in(info.annotation)] or candidates
        yield candidates, next((info.description for info in fields if info.description), "")


def _meaning(keys: Keys, model: object) -> str:
    """Return the meaning of the innermost field that leads to a value, if its model documents it."""
    meanings = [meaning for _, meaning in _steps(keys, model) if meaning]
    return meanings[-1] if meanings else ""


def _tags(model: type[BaseModel]) -> list[tuple[str, object]]:
    """Return the fields that can hold one value only: they choose the model in a union."""
    values = (
        (name, get_args(info.annotation))
        for name, info in model.model_fields.items()
        if get_origin(info.annotation) is Literal
    )
    return [(name, words[0]) for name, words in values if len(words) == 1]


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return the models that an annotation names: ``MoeModel | None`` gives MoeModel."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


@dataclass(frozen=True)
class Document:
    """A strict file. Messages call it ``label``; problems are collected, and reading goes on."""

    label: str
    root: Node
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def open(cls, path: Path, label: str) -> "Document":
        """BadRequestError with every problem of a file that is not strict YAML."""
        return cls(label, read_yaml(path, label))

    def at(self, keys: Keys) -> Node | None:
        """Return the node at ``keys``; None if the file has no such node."""
        node: Node | None = self.root
        for key in keys:
            match node, key:
                case Table(entries=entries), str():
                    node = entries.get(key)
                case Items(nodes=nodes), int():
                    node = nodes[key]
                case _:
                    return None
        return node

    def line(self, keys: Keys) -> int:
        """Return the line of the key or item; if it is missing, that of its mapping."""
        holder = self.at(keys[:-1])
        if isinstance(holder, Table) and keys and keys[-1] in holder.key_lines:
            return holder.key_lines[str(keys[-1])]
        node = self.at(keys)
        return node.line if node else self.line(keys[:-1]) if holder is None else holder.line

    def place(self, keys: Keys) -> str:
        """Return ``file:line: points[2].recompute``, which opens every message."""
        return f"{self.label}:{self.line(keys)}: {path_text(keys) or 'the file'}"

    def refuse(self, keys: Keys, message: str, remedy: str = "") -> None:
        """Add one problem at its place."""
        self.problems.add(f"{self.place(keys)}: {message}", remedy)

    @contextmanager
    def collecting(self, keys: Keys) -> Iterator[None]:
        """Collect a BadRequestError of the block as a problem at this place."""
        raised = Problems()
        with raised.collecting():
            yield
        for problem in raised.found:
            self.refuse(keys, problem.message, problem.remedy)

    def table(self, keys: Keys) -> Table | None:
        """Return the mapping at ``keys``; None if it is missing, a problem and None if it is something else."""
        node = self.at(keys)
        if isinstance(node, Table) or node is None:
            return node
        self.refuse(keys, f"must be a mapping, is {in_words(plain(node))}", "write key: value pairs")
        return None

    def require_known(self, keys: Keys, known: Collection[str]) -> None:
        """Refuse keys of the mapping at ``keys`` that are not in ``known``."""
        table = self.table(keys)
        for key in table.entries if table else ():
            if key not in known:
                self.refuse((*keys, key), "no such setting", nearest_setting(key, known))

    def read(self, model: type[Model], keys: Keys = (), values: Mapping[str, object] | None = None) -> Model | None:
        """Return the node at ``keys``, or its ``values``, as a model; None with every problem if the model refuses it."""
        data = plain(self.at(keys) or Scalar(None, 0)) if values is None else dict(values)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for fault in faults(error, model, data):
                self.refuse((*keys, *fault.keys), fault.message, fault.remedy)
            return None


def path_text(keys: Keys) -> str:
    """Return ``points[2].recompute`` for its keys."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
