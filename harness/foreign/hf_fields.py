"""Reads keys of a config.json: transformers 5.23.0, Megatron-Bridge @067f987. Absent: the class's default."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from harness.errors import BadRequestError
from harness.foreign.words import Given, Words
from harness.records.reading import PlainValue, read_text
from harness.records.strict_json import parse_json
from harness.records.strict_yaml import plain
from harness.resolve.recipe import Setting, Value
from harness.units import shortened

FILE = "config.json"
_LANGUAGE = ("text_config", "llm_config", "language_config")


@dataclass
class HfConfig(Words):
    """The values of a file; ``class_name``: its class, with ``keys`` and defaults; ``part``: of several modalities."""

    class_name: str = ""
    part: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)


def read_config(path: Path, label: str) -> HfConfig:
    """Read the file, or `config.json` of a folder. BadRequestError if it is not one strict JSON object."""
    if path.is_dir():
        path, label = path / FILE, f"{label.rstrip('/')}/{FILE}"
    if not path.exists():
        raise BadRequestError(
            f"{label}: no such file", remedy=f"give the {FILE} of a model, or its folder: mbr-perf downloads no models"
        )
    content = read_text(path, label).removeprefix("\ufeff")
    try:
        values = plain(parse_json(content, label))
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy="give a model's config.json, with every key once") from error
    values, part = _language_model(values)
    config = HfConfig(label, part=part)
    for key, value in values.items():
        config.given[key] = Given(value, f"{label}: {key}")
        for name, each in value.items() if isinstance(value, dict) else ():
            config.around[f"{key}.{name}"] = Given(each, f"{label}: {key}.{name}")
    return config


def _language_model(values: dict[str, PlainValue]) -> tuple[dict[str, PlainValue], str]:
    inner = next((key for key in _LANGUAGE if isinstance(values.get(key), dict)), None)
    if inner is None:
        return values, ""
    others = [key for key in values if key.endswith("_config") and key not in (inner, "quantization_config")]
    kept = {key: values[key] for key in ("tie_word_embeddings", "quantization_config") if key in values}
    part = f"{inner} is read, the language model without {', '.join(others) or 'other parts'}"
    return kept | cast(dict[str, PlainValue], values[inner]), part


Settings = dict[str, Setting]

_REMEDY = "write the value of the model's own file"
_MOST_VOCAB_UNIT = 128
_ROPES = ("longrope", "linear", "dynamic", "yarn", "llama3")
_MANY = 10_000  # a file may name any number of layers; the spec refuses more
_KINDS: dict[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "an object", tuple: "a list",
}  # fmt: skip


def typed(config: HfConfig, *names: str, kind: type) -> Any:
    """Return the first value; None for null. Refuse another kind; 5.0 is a whole number, and 1 a number."""
    value = config.value(*names)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int | float if kind is float else kind)
                         and isinstance(value, bool) == (kind is bool)):  # fmt: skip
        return value
    name = next((name for name in names if config.has(name)), names[0])
    config.refuse(name, f"must be {_KINDS[kind]}, is {shortened(json.dumps(value))}", _REMEDY)
    return None


whole, number, text, table, items = (partial(typed, kind=kind) for kind in (int, float, str, dict, tuple))


def size(config: HfConfig, *names: str) -> int:
    """Return a whole number from 1; refuse another value, and return 1."""
    num_problems = len(config.problems.found)
    value: int = whole(config, *names) or 0
    if value < 1 and len(config.problems.found) == num_problems:
        shown = json.dumps(config.value(*names))
        config.refuse(names[0], f"must be a whole number from 1, is {shown}", _REMEDY)
    return max(value, 1)


def number_or_0(config: HfConfig, *names: str) -> float:
    """Read a number of any kind; null counts as 0."""
    return float(number(config, *names) or 0.0)


def whole_or_none(config: HfConfig, name: str) -> Value:
    """Read a whole number; 0 means that the model has none of it."""
    return whole(config, name) or None


def flag(config: HfConfig, name: str) -> bool:
    """Read a switch, which null turns off."""
    return bool(typed(config, name, kind=bool))


def _layers(config: HfConfig) -> int:
    return min(size(config, "num_hidden_layers"), _MANY)


_SIZES = {
    "num_hidden_layers": "model.num_layers", "hidden_size": "model.hidden_size",
    "intermediate_size": "model.ffn_hidden_size", "num_attention_heads": "model.num_attention_heads",
    "vocab_size": "model.vocab_size",
}  # fmt: skip


def core(config: HfConfig) -> Settings:
    """Note sizes that the file leaves to its config class."""
    config.read.add("hidden_act")
    found: Settings = {}
    for key, path in _SIZES.items():
        if not config.has(key):
            note = f"{key} {size(config, key)} of {config.class_name}"
            found[path] = Setting(size(config, key), config.place(key), note=note, option=f"--set {path}=N")
    return found


def vocabulary_unit(config: HfConfig, name: str) -> Value:
    """Return what the vocabulary is padded to: as the checkpoints of the class are, else its largest power of 2."""
    vocabulary = size(config, name)
    return config.keys.get("vocab_unit") or min(vocabulary & -vocabulary, _MOST_VOCAB_UNIT)


def query_groups(config: HfConfig, name: str, heads_name: str) -> int:
    """Read the key/value heads; without them, each attention head has its own."""
    return whole(config, name) or size(config, heads_name)


def heads(config: HfConfig) -> Settings:
    """Read biases of attention and of the feed-forward blocks."""
    bias = "qkv_bias" if "qkv_bias" in config.keys else "attention_bias"
    has_bias, mlp_bias = flag(config, bias), flag(config, "mlp_bias")
    return {
        "model.add_qkv_bias": Setting(has_bias and not mlp_bias, config.place(bias)),
        "model.add_bias_linear": Setting(mlp_bias, config.place("mlp_bias")),
    }


def _rope_table(config: HfConfig) -> str:
    return "rope_parameters" if config.value("rope_parameters") else "rope_scaling"


def rotary(config: HfConfig, name: str) -> Setting:
    """Return a number of the rotary embedding, which newer files keep in its table."""
    config.read.add(name)
    inner = f"{_rope_table(config)}.{name}"
    where = inner if config.has(inner) else name
    value = whole(config, where) if name == "rope_theta" else number(config, where) or 1.0
    return Setting(value, config.place(where))


def rope(config: HfConfig) -> Settings:
    """Read how rotary frequencies are scaled; most scalings change neither memory nor time."""
    name = _rope_table(config)
    inner = table(config, name) or {}
    if any(isinstance(each, dict) for each in inner.values()):
        config.refuse(name, "a rotary embedding for each kind of layer", "mbr-perf knows one for all layers")
    own = text(config, f"{name}.rope_type") or text(config, f"{name}.type")
    kind = str(own or config.keys.get("rope_type") or "default")
    if kind == "default" and "factor" in inner:
        config.refuse(f"{name}.rope_type", "missing, and factor belongs to a type", f"known: {', '.join(_ROPES)}")
    if inner and kind in _ROPES[1:] and inner.get("factor") is None:
        config.refuse(f"{name}.factor", f"missing, and {kind} needs it", _REMEDY)
    if kind == "llama3":
        where = f"{name}.factor"
        return {"model.rope_scaling_factor": Setting(number(config, where), config.place(where))}
    if kind == "yarn":
        return _yarn(config, name)
    if kind not in ("default", *_ROPES):
        config.refuse(name, f"{kind}: mbr-perf does not know this rotary embedding", f"known: {', '.join(_ROPES)}")
    return {}


def _yarn(config: HfConfig, name: str) -> Settings:
    is_latent = "kv_lora_rank" in config.keys
    rows: dict[str, Value] = {"factor": 1.0, "original_max_position_embeddings": 4096, "mscale": None}
    rows |= {"mscale_all_dim": None} | ({} if is_latent else {"beta_fast": 32.0, "beta_slow": 1.0})
    prefix = "model.mla." if is_latent else "model.yarn.yarn_"
    found: Settings = {}
    for key, usual in rows.items():
        where = f"{name}.{key}"
        own = whole(config, where) if key.startswith("original") else number(config, where)
        value = config.keys.get(f"yarn_{key}") or usual if own is None else own
        if value is not None:
            path = prefix + ("rotary_scaling_factor" if key == "factor" else key)
            found[path] = Setting(value, config.place(where))
    if is_latent:
        return found
    where = f"{name}.truncate"
    truncates = flag(config, where) if config.has(where) else config.keys.get("truncate", True)
    return found | {
        "model.position_embedding_type": Setting("yarn", config.place(f"{name}.rope_type")),
        "model.yarn.yarn_correction_range_round_to_int": Setting(truncates, config.place(where)),
    }


def window(config: HfConfig) -> Settings:
    """Read sliding windows, where the class has them and the file does not turn them off."""
    width, layers = whole(config, "sliding_window"), _layers(config)
    if "use_sliding_window" in config.keys and not flag(config, "use_sliding_window"):
        width = None
    every_second = tuple((i + 1) % 2 for i in range(layers))
    pattern = _windowed_layers(config, every_second if config.keys.get("alternates") else (1,) * layers)
    if width is None or not any(pattern):
        return {}
    found: Settings = {"model.window_size": Setting((width - 1, 0), config.place("sliding_window"))}
    if not all(pattern):
        frequency = 2 if pattern == every_second else pattern
        found["model.window_attn_skip_freq"] = Setting(frequency, config.place("layer_types"))
    return found


def _windowed_layers(config: HfConfig, usual: tuple[int, ...]) -> tuple[int, ...]:
    if "max_window_layers" in config.keys:
        first = min(whole(config, "max_window_layers") or 0, len(usual))
        usual = (0,) * first + (1,) * (len(usual) - first)
    return _of_types(config, "layer_types", "sliding_attention", len(usual)) or usual


def _of_types(config: HfConfig, name: str, kind: str, num_layers: int) -> tuple[int, ...]:
    kinds = items(config, name) or ()
    if kinds and (len(kinds) != num_layers or any(each not in (kind, "full_attention") for each in kinds)):
        said = f"{len(kinds)}: not {kind} or full_attention for each of {num_layers} layers"
        config.refuse(name, said, "write one for each layer")
    return tuple(int(each == kind) for each in kinds)


def layers_without_rope(config: HfConfig, own: str, interval: str) -> Setting:
    """Return which layers have no rotary embedding: those with a 0 in the list, without one every n-th."""
    kinds, layers, step = items(config, own), _layers(config), size(config, interval)
    pattern = tuple(int((i + 1) % step == 0) for i in range(layers))
    asked = tuple(int(not kind) for kind in kinds[:layers]) if kinds else pattern
    is_regular = asked == pattern and layers % step == 0
    return Setting((step if is_regular else asked) if any(asked) else None, config.place(own if kinds else interval))


def expert_count(config: HfConfig, *names: str) -> int:
    """Read the routed experts by the first name that the file, or else the class, has."""
    return size(config, next(name for held in (config.given, config.keys) for name in names if name in held))


def balancing_loss(config: HfConfig, alpha: str, coefficient: str) -> float:
    """Read the weight of the loss that balances experts; ``alpha`` counts before ``coefficient``."""
    config.read |= {alpha, coefficient}
    return number_or_0(config, alpha if alpha in {*config.given, *config.keys} else coefficient)


def expert_width(config: HfConfig, own: str, dense: str) -> int:
    """Read an expert's inner width; classes without one make experts as wide as dense blocks."""
    return size(config, *(name for name in (own, dense) if name in config.keys))


def shared_width(config: HfConfig, count: str, width: str) -> Value:
    """Read the inner width of all shared experts together, by their number or as a whole."""
    if count in config.keys and (number_of := whole(config, count)):
        return int(number_of) * expert_width(config, "moe_intermediate_size", "intermediate_size")
    return whole_or_none(config, width)


def pre_softmax(config: HfConfig, name: str) -> bool:
    """Return whether scores are normalised before the choice of experts, where the class leaves that to a key."""
    normalises = flag(config, name)
    return name in config.keys and "scoring_func" not in config.keys and not normalises


def expert_layers(config: HfConfig, first: str, last: str, every: str, dense: str, sparse: str) -> Setting:
    """Return which layers have experts: every n-th between first and last, without dense ones, or those named."""
    config.read.add("moe_layer_freq")
    layers, named, step = _layers(config), items(config, dense) or (), max(whole(config, every) or 1, 1)
    begin, end = (whole(config, name) if name in config.keys else None for name in (first, last))
    among = range(begin or 0, layers if end in (None, -1) else end + 1)
    own = items(config, sparse)
    if own == ():
        config.refuse(sparse, "[]: no layer has experts", "name the layers with experts, or leave it out for all")
    own = own or tuple(i for i in among if i not in named and (i + 1) % step == 0)
    pattern = tuple(int(i in own) for i in range(layers))
    return Setting(1 if all(pattern) else pattern, config.place(first, every, dense, sparse))


def unless_greedy(config: HfConfig, name: str, method: str) -> int | None:
    """Return a number of expert groups; None where experts are chosen from all."""
    config.read.add(name)
    found: int | None = whole(config, name)
    return found if text(config, method) != "greedy" else None


def latents(config: HfConfig) -> Settings:
    """Read latent attention, whose sizes other keys repeat."""
    config.read |= {"num_key_value_heads", "head_dim", "qk_head_dim", "mlp_bias", "attention_bias"}
    return {"model.mla.rotary_scaling_factor": Setting(1.0, config.place("rope_scaling"))}


def delta_net_layers(config: HfConfig, types: str, interval: str) -> Setting:
    """Return which layers have a gated delta net in place of attention: all but every n-th."""
    layers, step = _layers(config), whole(config, interval) or 4
    pattern = tuple(int((i + 1) % step != 0) for i in range(layers))
    asked = _of_types(config, types, "linear_attention", layers) or pattern
    return Setting(step if asked == pattern else asked, config.place(interval if asked == pattern else types))
