"""Reads a recipe file strictly: header, model, shared settings, operating points. Each problem has its line."""

from collections.abc import Iterator
from pathlib import Path

from harness.errors import nearest
from harness.experiment.gpu import GPUS
from harness.resolve.options import read_layer_freq
from harness.resolve.reading import Document, Keys, in_words, path_text
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
from harness.resolve.recompute import (
    TOP_LEVEL_NAMES,
    Field,
    Policy,
    canonical_fields,
    policy_from_fields,
    read_recompute_text,
)
from harness.resolve.strict_yaml import Items, Node, PlainValue, Table, plain

_REFUSED = "refused"  # replaces a name that was refused already


def load_recipe(path: Path, label: str) -> Recipe:
    """Read and check a whole file; raises BadRequestError with every problem, each at its ``file:line``."""
    file = Document.open(path, label)
    recipe = _RecipeReader(file).recipe(path)
    file.problems.raise_if_any()
    assert recipe is not None  # a file without a recipe has problems
    return recipe


class _LayerReader:
    """Reads sections of a file (`model`, `parallelism`, ...) as flat layers of settings with lines."""

    def __init__(self, file: Document) -> None:
        self.file = file

    def setting(self, value: Value, keys: Keys, note: str = "") -> Setting:
        source = f"{self.file.label}:{self.file.line(keys)}"
        return Setting(value, source, path_text(keys), f"{source}: {note}" if note else "")

    def layer(self, keys: Keys, own_keys: tuple[str, ...] = ()) -> Layer:
        """Read all sections of a mapping; skip ``own_keys``, which the caller reads."""
        table = self.file.table(keys)
        if table is None:
            return {}
        self.file.require_known(keys, (*own_keys, *TOP_SECTIONS, *sorted(TOP_LEVEL_NAMES)))
        settings: dict[str, Setting] = {}
        for key in table.entries:
            if key in TOP_SECTIONS:
                settings.update(self.section(key, (*keys, key)))
        loose = [key for key in table.entries if key in TOP_LEVEL_NAMES]
        if loose and "recompute" in table.entries:
            self.file.refuse((*keys, loose[0]), f"recompute is given twice, as recompute and as {loose[0]}", "keep one")
        elif loose:
            settings.update(self.recompute_of(loose, keys, (*keys, loose[0])))
        return settings

    def section(self, name: str, keys: Keys) -> Layer:
        """Read one section: ``recompute`` is one leaf, ``env`` takes any name, the others follow the ExperimentSpec."""
        node = self.file.at(keys)
        if name == "recompute" and isinstance(node, Table):
            return self.recompute_of(list(node.entries), keys, keys)
        if name == "recompute":
            return self.recompute_text(plain(node) if node else None, keys)
        table = self.file.table(keys)
        if table is None:
            return {}
        return dict(self.env(table, keys) if name == "env" else self.leaves(table, name, keys))

    def leaves(self, table: Table, section: str, keys: Keys) -> Iterator[tuple[str, Setting]]:
        """Yield leaves of a modelled section by full path. Their values are checked where a whole spec is built."""
        self.file.require_known(keys, SECTION_MODELS[section].model_fields)
        label, where = self.file.label, path_text(keys)
        for key, node in table.entries.items():
            path = f"{section}.{key}"
            if path in SECTION_MODELS:
                nested = self.file.table((*keys, key))
                yield from self.leaves(nested, path, (*keys, key)) if nested else ()
            elif path in LEAVES:
                value = self.leaf_value(path, node, (*keys, key))
                yield path, Setting(value, f"{label}:{table.key_lines[key]}", f"{where}.{key}")

    def leaf_value(self, path: str, node: Node, keys: Keys) -> Value:
        """Read the value of one leaf; layer patterns may be written short."""
        value = plain(node)
        if path == "model.moe.moe_layer_freq" and isinstance(value, str):
            try:
                return read_layer_freq(value)
            except ValueError as error:
                self.file.refuse(keys, str(error), "write an integer, a list of 0 and 1, or [0]*3+[1]*58")
        return value

    def env(self, table: Table, keys: Keys) -> Iterator[tuple[str, Setting]]:
        """Yield environment variables: text, or whole numbers taken as text; null removes a variable."""
        for name, node in table.entries.items():
            value = plain(node)
            text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            if text is None or isinstance(text, str):
                yield f"env.{name}", self.setting(text, (*keys, name))
            else:
                self.file.refuse((*keys, name), f"must be text, is {in_words(value)}", "quote the value")

    def recompute_text(self, value: PlainValue, keys: Keys) -> Layer:
        """Read the policy of a text or a list."""
        settings: dict[str, Setting] = {}
        with self.file.problems.collecting():
            settings["recompute"] = self.setting(read_recompute_text(value, self.file.place(keys)), keys)
        return settings

    def recompute_of(self, names: list[str], keys: Keys, place: Keys) -> Layer:
        """Read the policy from fields of the mapping at ``keys``; ``place`` opens messages."""
        nodes = {name: self.file.at((*keys, name)) for name in names}
        written = [Field(name, plain(node), self.file.place((*keys, name))) for name, node in nodes.items() if node]
        policy: Policy | None = None
        with self.file.problems.collecting():
            fields = canonical_fields(written, self.file.problems)
            if fields is not None:
                policy, note = policy_from_fields(fields, self.file.place(place))
        return {"recompute": self.setting(policy, place, note)} if policy else {}


class _RecipeReader:
    """One pass over the tree of a recipe file."""

    def __init__(self, file: Document) -> None:
        self.file, self.layers = file, _LayerReader(file)

    def recipe(self, path: Path) -> Recipe | None:
        table = self.file.table(())
        if table is None:
            return None
        own = tuple(RecipeHeader.model_fields)
        self.file.require_known((), (*own, "model", "defaults", "profiles", "points"))
        header = self.file.read(RecipeHeader, (), _only(table, own))
        if "model" not in table.entries:
            self.file.refuse(("model",), "missing", "describe the model")
        model = self.layers.section("model", ("model",))
        shared = merge(model, self.layers.layer(("defaults",)))
        names = self.file.table(("profiles",))
        profiles = {name: self.layers.layer(("profiles", name)) for name in (names.entries if names else ())}
        points = self.points(header, shared, profiles)
        return Recipe(header, path, self.file.label, points) if header else None

    def points(
        self, header: RecipeHeader | None, shared: Layer, profiles: dict[str, Layer]
    ) -> tuple[OperatingPoint, ...]:
        node = self.file.at(("points",))
        if not isinstance(node, Items) or not node.nodes:
            self.file.refuse(("points",), "at least one operating point is needed", "write a list")
            return ()
        points: dict[str, OperatingPoint] = {}
        for index in range(len(node.nodes)):
            for point in self.point(("points", index), header, shared, profiles):
                first = points.setdefault(point.title, point)
                if first is not point:
                    message = f"{point.place}: the same task, GPU, precision and number of GPUs as {first.place}"
                    self.file.problems.add(message, "give one of them a variant")
        return tuple(points.values())

    def point(
        self, keys: Keys, header: RecipeHeader | None, shared: Layer, profiles: dict[str, Layer]
    ) -> Iterator[OperatingPoint]:
        """Yield the point, once per task: ``task`` may be a list."""
        table = self.file.table(keys)
        if table is None:
            return
        names = tuple(PointKey.model_fields)
        own, fields = self.layers.layer(keys, names), _only(table, names)
        tasks = fields.get("task")
        for task in tasks if isinstance(tasks, tuple) and tasks else (tasks,):
            key = self.file.read(PointKey, keys, fields if task is None else {**fields, "task": task})
            if key is None or not self.has_profiles(key, keys, profiles):
                continue
            layer = merge(shared, *(profiles[name] for name in key.profiles), own, self.identity(key, header, keys))
            with self.file.problems.collecting():
                build_spec(layer, self.file.place(keys))
            yield OperatingPoint(key, layer, self.file.place(keys))

    def has_profiles(self, key: PointKey, keys: Keys, profiles: dict[str, Layer]) -> bool:
        unknown = [name for name in key.profiles if name not in profiles]
        for name in unknown:
            self.file.refuse((*keys, "profile"), f"no such profile '{name}'", nearest(name, profiles))
        return not unknown

    def identity(self, key: PointKey, header: RecipeHeader | None, keys: Keys) -> Layer:
        """Return the leaves that the header and the key of the point set."""
        setting, nodes = self.layers.setting, key.gpus_per_node
        own = {
            name: setting(getattr(key, name), (*keys, name)) for name in ("task", "gpu", "compute_dtype", "num_gpus")
        }
        return {
            "recipe": setting(header.name if header else _REFUSED, ("name",)),
            "family": setting(header.family if header else _REFUSED, ("family",)),
            **own,
            "gpus_per_node": setting(nodes, (*keys, "gpus_per_node"))
            if nodes
            else Setting(GPUS[key.gpu].gpus_per_node, "default"),
        }


def _only(table: Table, names: tuple[str, ...]) -> dict[str, object]:
    return {name: plain(node) for name, node in table.entries.items() if name in names}
