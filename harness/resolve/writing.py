"""Writes an experiment as the text of a recipe file with one operating point."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from pydantic import BaseModel

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS
from harness.experiment.recompute import SelectiveRecompute, canonical_text
from harness.resolve.recipe import IDENTITY, LEAVES, at_path

_LAYER_PATTERN = "model.moe.moe_layer_freq"


def recipe_text(
    spec: ExperimentSpec, *, title: str, source: str, comments: Mapping[str, str] | None = None, heading: str = ""
) -> str:
    """Return the text of a recipe file whose only point is ``spec``, without values that equal the defaults.

    ``comments``: by path, the text behind a setting. ``heading``: comment lines at the top.
    """
    texts = comments or {}
    tree = _tree(spec)
    model = tree.pop("model")
    assert isinstance(model, dict)
    point = {"task": spec.task, "gpu": spec.gpu, "compute_dtype": spec.compute_dtype, "num_gpus": spec.num_gpus}
    if spec.gpus_per_node != GPUS[spec.gpu].gpus_per_node:
        point["gpus_per_node"] = spec.gpus_per_node
    lines = [*(f"# {line}".rstrip() for line in heading.splitlines())]
    lines += [f"name: {scalar(spec.recipe)}", f"family: {scalar(spec.family)}", f"title: {scalar(title)}"]
    lines += ["sources:", f"  - {scalar(source)}", "", "model:", *_section(model, "  ", "model.", texts), "", "points:"]
    own = [f"{name}: {scalar(value)}" for name, value in {**point, "source": source}.items()]
    lines += [f"  - {own[0]}", *(f"    {line}" for line in own[1:]), *_section(tree, "    ", "", texts)]
    return "\n".join(lines) + "\n"


def _tree(spec: ExperimentSpec) -> dict[str, object]:
    """Return the settings that are not defaults, in sections, and always recompute, which every point names."""
    tree: dict[str, object] = {}
    for path, info in LEAVES.items():
        *sections, name = path.split(".")
        if path in IDENTITY or (sections and at_path(spec, ".".join(sections)) is None):
            continue
        value = _policy(spec) if path == "recompute" else at_path(spec, path)
        if value == info.get_default(call_default_factory=True) and not info.is_required():
            continue
        at = tree
        for section in sections:
            inner = at.setdefault(section, {})
            assert isinstance(inner, dict)
            at = inner
        at[name] = value
    return tree


def _policy(spec: ExperimentSpec) -> str:
    policy = spec.recompute
    return ",".join(policy.modules) if isinstance(policy, SelectiveRecompute) else canonical_text(policy)


def _section(values: Mapping[str, object], indent: str, prefix: str, comments: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        comment = f"  # {comments[path]}" if path in comments else ""
        if isinstance(value, dict):
            yield f"{indent}{name}:{comment}"
            yield from _section(value, f"{indent}  ", f"{path}.", comments)
        elif path == _LAYER_PATTERN and isinstance(value, tuple):
            yield f'{indent}{name}: "{layer_pattern(value)}"{comment}'
        else:
            yield f"{indent}{name}: {scalar(value)}{comment}"


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_/-]*")
_WORDS = ("true", "false", "null", "nan", "inf", "on", "off", "yes", "no", "y", "n")  # of YAML 1.1 and 1.2


def scalar(value: object) -> str:
    """Return a value in YAML's flow style, which every version of YAML reads alike."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        text = repr(value)
        return text if isinstance(value, int) or "." in text else text.replace("e", ".0e")
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(scalar, value))}]"
    entries = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    assert isinstance(entries, dict)
    return f"{{{', '.join(f'{scalar(name)}: {scalar(each)}' for name, each in entries.items())}}}"


def layer_pattern(layers: tuple[int, ...]) -> str:
    """Return one 0 or 1 per layer as ``[0]*3+[1]*58``."""
    return "+".join(f"[{kind}]*{len([*alike])}" for kind, alike in groupby(layers))
