"""A recipe file: header, model, shared settings, operating points; read strictly, every fault at its line."""

from pathlib import Path

from pydantic import ValidationError

from harness.experiment.gpu import GPUS, PRECISIONS
from harness.recipes.building import build_spec, phrase
from harness.recipes.problems import Problems, nearest
from harness.recipes.recipe import OperatingPoint, PointKey, Recipe, RecipeHeader
from harness.recipes.sections import SectionReader
from harness.recipes.settings import Layer, Setting, merge
from harness.recipes.strict_yaml import Items, Node, Scalar, Table, plain, read_yaml

_REFUSED = "refused"  # in place of a name that was refused already


def load_recipe(path: Path, label: str) -> Recipe:
    """Read and check a whole file; raises BadRequestError with every problem, each at its ``file:line``."""
    root = read_yaml(path, label)
    problems = Problems()
    reader = _RecipeReader(label, problems)
    recipe = reader.recipe(root, path)
    problems.raise_if_any()
    assert recipe is not None  # a file without a recipe has problems
    return recipe


class _RecipeReader:
    """One pass over the tree of a recipe file."""

    def __init__(self, label: str, problems: Problems) -> None:
        self.label = label
        self.problems = problems
        self.sections = SectionReader(label, problems)
        self.lines: dict[str, int] = {}  # of the file's own keys

    def recipe(self, root: Node, path: Path) -> Recipe | None:
        table = self.sections.table(root, "recipe")
        if table is None:
            return None
        self.lines = table.key_lines
        self.unknown_keys(table)
        header = self.header(table)
        shared = merge(self.model(table), self.shared(table, "defaults"))
        points = self.points(table, header, shared, self.profiles(table))
        return Recipe(header, path, self.label, points) if header else None

    def unknown_keys(self, table: Table) -> None:
        known = (*RecipeHeader.model_fields, "model", "defaults", "profiles", "points")
        for key in table.entries:
            if key not in known:
                self.problems.add(f"{self.label}:{table.key_lines[key]}: {key}: no such setting", nearest(key, known))

    def header(self, table: Table) -> RecipeHeader | None:
        fields = {key: plain(node) for key, node in table.entries.items() if key in RecipeHeader.model_fields}
        try:
            return RecipeHeader.model_validate(fields)
        except ValidationError as error:
            self.explain(error, table, "")
            return None

    def model(self, table: Table) -> Layer:
        if "model" not in table.entries:
            self.problems.add(f"{self.label}:1: model: missing", "describe the model")
            return {}
        return self.sections.section("model", table.entries["model"], "model", table.key_lines["model"])

    def shared(self, table: Table, key: str) -> Layer:
        if key not in table.entries:
            return {}
        nested = self.sections.table(table.entries[key], key)
        return self.sections.layer(nested, key) if nested else {}

    def profiles(self, table: Table) -> dict[str, Layer]:
        if "profiles" not in table.entries:
            return {}
        nested = self.sections.table(table.entries["profiles"], "profiles")
        layers: dict[str, Layer] = {}
        for name, node in nested.entries.items() if nested else ():
            profile = self.sections.table(node, f"profiles.{name}")
            if profile is not None:
                layers[name] = self.sections.layer(profile, f"profiles.{name}")
        return layers

    def points(
        self, table: Table, header: RecipeHeader | None, shared: Layer, profiles: dict[str, Layer]
    ) -> tuple[OperatingPoint, ...]:
        node = table.entries.get("points")
        if not isinstance(node, Items) or not node.nodes:
            line = node.line if node else 1
            self.problems.add(f"{self.label}:{line}: points: at least one operating point is needed", "write a list")
            return ()
        points: list[OperatingPoint] = []
        for index, item in enumerate(node.nodes):
            points += self.point(item, f"points[{index}]", header, shared, profiles)
        self.unique(points)
        return tuple(points)

    def point(
        self, node: Node, where: str, header: RecipeHeader | None, shared: Layer, profiles: dict[str, Layer]
    ) -> list[OperatingPoint]:
        """The point, once per task: ``task`` may be a list."""
        table = self.sections.table(node, where)
        if table is None:
            return []
        own = self.sections.layer(table, where, tuple(PointKey.model_fields))
        points: list[OperatingPoint] = []
        for key in self.keys(table, where, profiles):
            layer = merge(shared, *(profiles[name] for name in key.profiles), own)
            point = OperatingPoint(key, layer, f"{self.label}:{table.line}: {where}")
            points.append(self.with_identity(point, header, table, where))
        return points

    def keys(self, table: Table, where: str, profiles: dict[str, Layer]) -> list[PointKey]:
        fields = {name: plain(node) for name, node in table.entries.items() if name in PointKey.model_fields}
        tasks = fields.get("task")
        keys: list[PointKey] = []
        for task in tasks if isinstance(tasks, tuple) and tasks else (tasks,):
            try:
                key = PointKey.model_validate({**fields, "task": task} if task is not None else fields)
            except ValidationError as error:
                self.explain(error, table, where)
                continue
            if self.known_names(key, table, where, profiles):
                keys.append(key)
        return keys

    def known_names(self, key: PointKey, table: Table, where: str, profiles: dict[str, Layer]) -> bool:
        """Whether GPU type, precision and profile exist."""
        sound = True
        for field, value, known in (
            ("gpu", key.gpu, tuple(GPUS)),
            ("compute_dtype", key.compute_dtype, tuple(PRECISIONS)),
            *(("profile", name, tuple(profiles)) for name in key.profiles),
        ):
            if value not in known:
                line = table.key_lines[field]
                self.problems.add(
                    f"{self.label}:{line}: {where}.{field}: no such {field} '{value}'", nearest(value, known)
                )
                sound = False
        return sound

    def with_identity(
        self, point: OperatingPoint, header: RecipeHeader | None, table: Table, where: str
    ) -> OperatingPoint:
        """The point with its own leaves added, checked by building its ExperimentSpec once."""
        lines, key = table.key_lines, point.key

        def at(field: str, value: str | int) -> Setting:
            return Setting(value, f"{self.label}:{lines[field]}", f"{where}.{field}")

        identity = {
            "recipe": self.of_header("name", header.name if header else _REFUSED),
            "family": self.of_header("family", header.family if header else _REFUSED),
            "task": at("task", key.task),
            "gpu": at("gpu", key.gpu),
            "compute_dtype": at("compute_dtype", key.compute_dtype),
            "num_gpus": at("num_gpus", key.num_gpus),
            "gpus_per_node": at("gpus_per_node", key.gpus_per_node)
            if key.gpus_per_node
            else Setting(GPUS[key.gpu].gpus_per_node, "default"),
        }
        complete = OperatingPoint(key, merge(point.layer, identity), point.place)
        with self.problems.collecting():
            build_spec(complete.layer, complete.place)
        return complete

    def of_header(self, key: str, value: str) -> Setting:
        return Setting(value, f"{self.label}:{self.lines.get(key, 1)}", key)

    def unique(self, points: list[OperatingPoint]) -> None:
        first: dict[str, OperatingPoint] = {}
        for point in points:
            if point.title in first:
                self.problems.add(
                    f"{point.place}: the same task, GPU, precision and number of GPUs as {first[point.title].place}",
                    "give one of them a variant",
                )
            first.setdefault(point.title, point)

    def explain(self, error: ValidationError, table: Table, where: str) -> None:
        for detail in error.errors():
            field = str(detail["loc"][0])
            path = f"{where}.{field}" if where else field
            node = table.entries.get(field)
            if node is None:
                self.problems.add(f"{self.label}:{table.line}: {path}: missing", f"add {field}")
                continue
            value = repr(node.value) if isinstance(node, Scalar) else "a list or mapping"
            self.problems.add(f"{self.label}:{table.key_lines[field]}: {path}: {phrase(detail)}, is {value}")
