"""Reads a recipe file strictly: header, model, shared settings, operating points. Each problem has its line."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from harness.errors import nearest
from harness.experiment.gpu import GPUS
from harness.records.faults import in_words
from harness.records.reading import Document, path_text
from harness.records.refusing import Keys
from harness.records.strict_yaml import read_yaml
from harness.records.trace import file_stamp
from harness.resolve.options import read_layer_freq
from harness.resolve.recipe import (
    LEAVES,
    SECTION_MODELS,
    TOP_SECTIONS,
    Layer,
    OperatingPoint,
    PointKey,
    Recipe,
    RecipeHeader,
    Setting,
    Value,
    build_spec,
    merge,
)
from harness.resolve.recompute import read_recompute_text

_REFUSED = "refused"  # replaces a name that was refused already
_OF_HEADER, _OF_POINT = tuple(RecipeHeader.model_fields), tuple(PointKey.model_fields)


def load_recipe(path: Path, label: str) -> Recipe:
    """Read and check a whole file; raises BadRequestError with every problem, each at its ``file:line``."""
    return _loaded(path, label, file_stamp(path))


@lru_cache(maxsize=8)
def _loaded(path: Path, label: str, _stamp: str) -> Recipe:
    """Read a file once: the cells of a sweep share it. Another stamp of the file is another file."""
    file = read_yaml(path, label)
    return file.problems.having(_Reader(file).recipe(path))


class _Reader:
    """One pass over a recipe file. Sections (`model`, `parallelism`, ...) become flat layers of settings with lines."""

    def __init__(self, file: Document) -> None:
        self.file = file
        self.header: RecipeHeader | None = None
        self.shared: Layer = {}
        self.profiles: dict[str, Layer] = {}

    def recipe(self, path: Path) -> Recipe | None:
        root = self.file.table((), (*_OF_HEADER, "model", "defaults", "profiles", "points"))
        if self.file.problems.found and not root:
            return None
        self.header = self.file.read(RecipeHeader, (), {name: root[name] for name in _OF_HEADER if name in root})
        if "model" not in root:
            self.file.refuse(("model",), "missing", "describe the model")
        self.shared = merge(self.section("model", ("model",)), self.layer(("defaults",)))
        self.profiles = {name: self.layer(("profiles", name)) for name in self.file.table(("profiles",))}
        points = self.points()
        return Recipe(self.header, path, self.file.label, points) if self.header else None

    def points(self) -> tuple[OperatingPoint, ...]:
        listed = self.file.at(("points",))
        if not isinstance(listed, tuple) or not listed:
            self.file.refuse(("points",), "at least one operating point is needed", "write a list")
            return ()
        points: dict[str, OperatingPoint] = {}
        for point in (point for place in range(len(listed)) for point in self.point(("points", place))):
            first = points.setdefault(point.title, point)
            if first is not point:
                message = f"{point.place}: the same task, GPU, precision and number of GPUs as {first.place}"
                self.file.problems.add(message, "give one of them a variant")
        return tuple(points.values())

    def point(self, keys: Keys) -> Iterator[OperatingPoint]:
        """Yield the point, once per task: ``task`` may be a list."""
        own, table = self.layer(keys, _OF_POINT), self.file.table(keys)
        fields = {name: value for name, value in table.items() if name in _OF_POINT}
        tasks = fields.get("task")
        for task in (tasks if isinstance(tasks, tuple) and tasks else (tasks,)) if table else ():
            key = self.file.read(PointKey, keys, fields if task is None else {**fields, "task": task})
            unknown = [name for name in key.profiles if name not in self.profiles] if key else []
            for name in unknown:
                self.file.refuse((*keys, "profile"), f"no such profile '{name}'", nearest(name, self.profiles))
            if key is None or unknown:
                continue
            profiles = (self.profiles[name] for name in key.profiles)
            layer = merge(self.shared, *profiles, own, self.identity(key, keys))
            with self.file.problems.collecting():
                build_spec(layer, self.file.place(keys))
            yield OperatingPoint(key, layer, self.file.place(keys))

    def identity(self, key: PointKey, keys: Keys) -> Layer:
        header, nodes = self.header, key.gpus_per_node
        names = ("task", "gpu", "compute_dtype", "num_gpus", *(("gpus_per_node",) if nodes else ()))
        return {
            "recipe": self.setting(header.name if header else _REFUSED, ("name",)),
            "family": self.setting(header.family if header else _REFUSED, ("family",)),
            "gpus_per_node": Setting(GPUS[key.gpu].gpus_per_node, "default"),
            **{name: self.setting(getattr(key, name), (*keys, name)) for name in names},
        }

    def setting(self, value: Value, keys: Keys) -> Setting:
        return Setting(value, f"{self.file.label}:{self.file.line(keys)}", path_text(keys))

    def layer(self, keys: Keys, own_keys: tuple[str, ...] = ()) -> Layer:
        """Read all sections of a mapping; skip ``own_keys``, which the caller reads."""
        table = self.file.table(keys, (*own_keys, *TOP_SECTIONS))
        return merge(*(self.section(name, (*keys, name)) for name in table if name in TOP_SECTIONS))

    def section(self, name: str, keys: Keys) -> Layer:
        """Read one section: ``recompute`` is one leaf, ``env`` takes any name, the others follow the ExperimentSpec."""
        if name == "recompute":
            return self.recompute(keys)
        return dict(self.env(keys) if name == "env" else self.leaves(name, keys))

    def leaves(self, section: str, keys: Keys) -> Iterator[tuple[str, Setting]]:
        """Yield leaves of a modelled section by full path. Their values are checked where a whole spec is built."""
        for key, value in self.file.table(keys, SECTION_MODELS[section].model_fields).items():
            path, inner = f"{section}.{key}", (*keys, key)
            if path in SECTION_MODELS:
                yield from self.leaves(path, inner)
            elif path == "model.moe.moe_layer_freq" and isinstance(value, str):
                with self.file.collecting(inner):
                    yield path, self.setting(read_layer_freq(value), inner)
            elif path in LEAVES:
                yield path, self.setting(value, inner)

    def env(self, keys: Keys) -> Iterator[tuple[str, Setting]]:
        """Yield environment variables: text, or whole numbers taken as text; null removes a variable."""
        for name, value in self.file.table(keys).items():
            text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            if text is None or isinstance(text, str):
                yield f"env.{name}", self.setting(text, (*keys, name))
            else:
                self.file.refuse((*keys, name), f"must be text, is {in_words(value)}", "quote the value")

    def recompute(self, keys: Keys) -> Layer:
        """Read the policy of a text or a list of modules."""
        settings = dict[str, Setting]()
        with self.file.problems.collecting():
            settings["recompute"] = self.setting(read_recompute_text(self.file.at(keys), self.file.place(keys)), keys)
        return settings
