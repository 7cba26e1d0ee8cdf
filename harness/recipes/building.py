"""A merged layer as an ExperimentSpec; what pydantic refuses is told at the line or option that said it."""

from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.user_buffers import METHOD_KEYS, NAMED, UserBuffers
from harness.recipes.problems import Problems, nearest
from harness.recipes.settings import LEAVES, SECTION_MODELS, Layer, Setting

_TYPES = "see recipes/README.md for types and ranges"


def build_spec(layer: Layer, place: str) -> ExperimentSpec:
    """The spec of a complete layer. ``place`` (``file:line: points[2]``) opens messages about what is missing.

    Raises BadRequestError with every wrong value at its own source.
    """
    try:
        return ExperimentSpec.model_validate(_nested(layer))
    except ValidationError as error:
        problems = Problems()
        for message, remedy in _explain(error, layer, place):
            problems.add(message, remedy)
        problems.raise_if_any()
        raise


def _nested(layer: Layer) -> dict[str, object]:
    tree: dict[str, object] = {"env": {}}
    for path, setting in layer.items():
        *sections, leaf = path.split(".")
        if path.startswith("env.") and setting.value is None:
            continue
        at: dict[str, object] = tree
        for name in sections:
            nested = at.setdefault(name, {})
            assert isinstance(nested, dict)
            at = nested
        at[leaf] = setting.value
    return tree


def _explain(error: ValidationError, layer: Layer, place: str) -> Iterator[tuple[str, str]]:
    """One message per wrong value: a union reports each of its arms, and one line about the value is enough."""
    seen: set[tuple[str, ...]] = set()
    for detail in error.errors():
        path = _leaf_path(detail)
        setting = layer.get(path)
        inner, value = _within(detail, path, setting)
        if (path, *inner) in seen:
            continue
        seen.add((path, *inner))
        arms = [d for d in error.errors() if _leaf_path(d) == path and _within(d, path, setting)[0] == inner]
        says = " or ".join(dict.fromkeys(phrase(d) for d in arms))
        if setting is not None and inner:
            place = ".".join((_opening(setting), *inner))
            if detail["type"] == "extra_forbidden":
                yield from _unknown_buffer_key(place, inner, setting)
            else:
                yield f"{place}: {says}, is {value!r}", _TYPES
        elif setting is not None:
            named = path == "kernels.tp_comm_overlap_cfg" and isinstance(setting.value, str)
            remedy = nearest(str(setting.value), NAMED, count=3) if named else _TYPES
            yield f"{_opening(setting)}: {says}, is {setting.value!r}", remedy
        elif detail["type"] == "missing":
            yield f"{place}.{path}: missing", f"write {path} in the recipe, or give it as an option"
        else:
            yield f"{place}.{path}: {says}{_options_in(path, layer)}", "change one of the values it names"


def _unknown_buffer_key(place: str, keys: tuple[str, ...], setting: Setting) -> Iterator[tuple[str, str]]:
    """What is wrong with an unknown GEMM, or with a key that the GEMM's method does not have.

    Nothing, if another method has the key and the GEMM refuses its method: that is reported at the method.
    """
    gemm, *inner = keys
    if not inner:
        gemms = tuple(UserBuffers.model_fields)
        close = nearest(gemm, gemms)
        yield f"{place}: no such GEMM", close if close.startswith("known") else f"{close} GEMMs: {', '.join(gemms)}"
        return
    assert isinstance(setting.value, dict)  # the key was found in it
    buffer = setting.value[gemm]
    assert isinstance(buffer, dict)
    (key,), method = inner, buffer.get("method")
    anywhere = dict.fromkeys(name for names in METHOD_KEYS.values() for name in names)
    known = METHOD_KEYS.get(str(method))
    if known is None and key not in anywhere:
        yield f"{place}: no such setting", nearest(key, anywhere)
    elif known is not None and key not in known:
        remedy = f"known: {', '.join(known)}" if key in anywhere else nearest(key, known)
        yield f"{place}: method '{method}' has no {key}", remedy


def _leaf_path(detail: ErrorDetails) -> str:
    parts = [str(part) for part in detail["loc"]]
    for size in range(len(parts), 0, -1):
        path = ".".join(parts[:size])
        if path in LEAVES or path in SECTION_MODELS or path.startswith("env."):
            return path
    return ".".join(parts)


def _within(detail: ErrorDetails, path: str, setting: Setting | None) -> tuple[tuple[str, ...], object]:
    """Keys of a mapping that lead from its leaf to the wrong value, and that value."""
    value: object = setting.value if setting else None
    keys: list[str] = []
    for part in detail["loc"][path.count(".") + 1 :]:
        if isinstance(value, dict) and part in value:
            keys.append(str(part))
            value = value[part]
    return tuple(keys), value


def phrase(detail: ErrorDetails) -> str:
    """What the value must be, in words; every pattern of a spec is that of a name."""
    if detail["type"] == "string_pattern_mismatch":
        return "must be lower-case letters, digits, '.', '_' or '-', 64 at most, a letter or digit first"
    if detail["type"] == "union_tag_invalid":
        return f"method must be {detail['ctx']['expected_tags']}"
    if detail["type"] == "union_tag_not_found":
        return "method is missing"
    if detail["type"] == "missing":
        return f"{detail['loc'][-1]} is missing"
    if detail["type"] == "model_type":
        return "must be a mapping"
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "must be", 1)


def _opening(setting: Setting) -> str:
    return f"{setting.source}: {setting.where}" if setting.where else setting.source


def _options_in(section: str, layer: Layer) -> str:
    """Names the options that touched a section, because they are the likely cause of a mismatch within it."""
    options = {s.source for path, s in layer.items() if path.startswith(f"{section}.") and s.from_command_line}
    return f" (given: {', '.join(sorted(options))})" if options else ""


def sources_of(spec: ExperimentSpec, layer: Layer) -> dict[str, str]:
    """Who said each leaf: ``default``, ``file:line`` or the option."""
    sources: dict[str, str] = {}
    for path in LEAVES:
        section = path.rpartition(".")[0]
        if path == "env":
            sources.update({f"env.{name}": layer[f"env.{name}"].source for name in spec.env})
        elif section in ("model.moe", "model.mla") and getattr(spec.model, section.rpartition(".")[2]) is None:
            sources[section] = "default"
        else:
            sources[path] = layer[path].source if path in layer else "default"
    return sources
