"""Sections of a recipe file (`model`, `parallelism`, ...) as one flat layer of settings with lines."""

from collections.abc import Iterator

from harness.errors import BadRequestError
from harness.recipes.problems import Problems, nearest
from harness.recipes.recompute_section import (
    TOP_LEVEL_NAMES,
    Field,
    canonical_field,
    policy_from_fields,
    read_recompute_text,
)
from harness.recipes.set_values import read_layer_freq
from harness.recipes.settings import SECTION_MODELS, TOP_SECTIONS, Layer, Setting, Value, children
from harness.recipes.strict_yaml import Items, Node, PlainValue, Table, plain

_LONGEST_SHOWN = 80  # characters; a wrong file is not to be printed whole


class SectionReader:
    """Reads sections of the file ``label``; collects problems instead of stopping at the first."""

    def __init__(self, label: str, problems: Problems) -> None:
        self.label = label
        self.problems = problems

    def place(self, line: int, where: str) -> str:
        """``file:line: path``, the opening of every message."""
        return f"{self.label}:{line}: {where}"

    def table(self, node: Node, where: str) -> Table | None:
        """The node as a mapping, else a problem."""
        if isinstance(node, Table):
            return node
        self.problems.add(
            f"{self.place(node.line, where)}: must be a mapping, is {_kind(node)}", "write key: value pairs"
        )
        return None

    def layer(self, table: Table, where: str, own_keys: tuple[str, ...] = ()) -> Layer:
        """All sections of a mapping; ``own_keys`` belong to the caller and are passed over."""
        settings: dict[str, Setting] = {}
        loose: dict[str, Node] = {}
        for key, node in table.entries.items():
            path = f"{where}.{key}" if where else key
            line = table.key_lines[key]
            if key in own_keys:
                continue
            if key in TOP_LEVEL_NAMES:
                loose[key] = node
            elif key not in TOP_SECTIONS:
                known = (*own_keys, *TOP_SECTIONS, *sorted(TOP_LEVEL_NAMES))
                self.problems.add(f"{self.place(line, path)}: no such setting", nearest(key, known))
            else:
                settings.update(self.section(key, node, path, line))
        if loose:
            settings.update(self.loose_recompute(loose, table, where, given="recompute" in table.entries))
        return settings

    def section(self, name: str, node: Node, where: str, line: int) -> Layer:
        """One section: ``recompute`` is one leaf, ``env`` is open, the others follow the ExperimentSpec."""
        if name == "recompute":
            return self.recompute(node, where, line)
        table = self.table(node, where)
        if table is None:
            return {}
        return dict(self.env(table, where) if name == "env" else self.leaves(table, name, where))

    def leaves(self, table: Table, section: str, where: str) -> Iterator[tuple[str, Setting]]:
        """Leaves of a modelled section by full path."""
        for key, node in table.entries.items():
            line, path = table.key_lines[key], f"{section}.{key}"
            if key not in children(section):
                self.problems.add(
                    f"{self.place(line, f'{where}.{key}')}: no such setting", nearest(key, children(section))
                )
            elif path in SECTION_MODELS:
                nested = self.table(node, f"{where}.{key}")
                if nested is not None:
                    yield from self.leaves(nested, path, f"{where}.{key}")
            else:
                value = self.leaf_value(path, node, f"{where}.{key}")
                yield path, Setting(value, f"{self.label}:{line}", f"{where}.{key}")

    def leaf_value(self, path: str, node: Node, where: str) -> Value:
        """The value of one leaf; layer patterns may be written short."""
        value = plain(node)
        if path == "model.moe.moe_layer_freq" and isinstance(value, str):
            try:
                return read_layer_freq(value)
            except ValueError as error:
                self.problems.add(
                    f"{self.place(node.line, where)}: {error}", "write an integer, a list of 0 and 1, or [0]*3+[1]*58"
                )
        return value

    def env(self, table: Table, where: str) -> Iterator[tuple[str, Setting]]:
        """Environment variables: text, or whole numbers taken as text; null takes a variable away."""
        for name, node in table.entries.items():
            line, value = table.key_lines[name], plain(node)
            text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            if text is not None and not isinstance(text, str):
                self.problems.add(
                    f"{self.place(line, f'{where}.{name}')}: must be text, is {_kind(node)}", "quote the value"
                )
                continue
            yield f"env.{name}", Setting(text, f"{self.label}:{line}", f"{where}.{name}")

    def recompute(self, node: Node, where: str, line: int) -> Layer:
        """The policy of a ``recompute`` key."""
        place = self.place(line, where)
        with self.problems.collecting():
            if not isinstance(node, Table):
                return self._policy((read_recompute_text(plain(node), place), ""), line, where)
            fields = self.recompute_fields(node.entries, node.key_lines, where)
            if fields is not None:
                return self._policy(policy_from_fields(fields, place), line, where)
        return {}

    def loose_recompute(self, nodes: dict[str, Node], table: Table, where: str, *, given: bool) -> Layer:
        """The policy of recompute fields that stand beside the sections."""
        first = min(table.key_lines[name] for name in nodes)
        place = self.place(first, where)
        if given:
            self.problems.add(f"{place}: recompute is given twice, as recompute and as {next(iter(nodes))}", "keep one")
            return {}
        with self.problems.collecting():
            fields = self.recompute_fields(nodes, table.key_lines, where)
            if fields is not None:
                return self._policy(policy_from_fields(fields, place), first, f"{where}.{next(iter(nodes))}")
        return {}

    def recompute_fields(self, nodes: dict[str, Node], lines: dict[str, int], where: str) -> dict[str, Field] | None:
        """Fields under their canonical names; None when a name is unknown or one is spelled twice."""
        fields: dict[str, Field] = {}
        sound = True
        for name, node in nodes.items():
            place = self.place(lines[name], f"{where}.{name}" if where else name)
            try:
                canonical = canonical_field(name, place)
            except BadRequestError as problem:
                self.problems.add(problem.message, problem.remedy)
                sound = False
                continue
            if canonical in fields:
                self.problems.add(f"{place}: says the same as {fields[canonical].name}", "keep one of them")
                sound = False
            fields[canonical] = Field(name, plain(node), place)
        return fields if sound else None

    def _policy(self, read: tuple[Value, str], line: int, where: str) -> Layer:
        policy, note = read
        source = f"{self.label}:{line}"
        return {"recompute": Setting(policy, source, where, f"{source}: {note}" if note else "")}


def _kind(node: Node) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    value: PlainValue = node.value
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters"
    return "empty" if value is None else repr(value)
