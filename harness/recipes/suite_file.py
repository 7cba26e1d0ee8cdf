"""Reads suite files, each case as a request over a recipe."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.recipes.axes import RECOMPUTE_OPTIONS
from harness.recipes.file_reader import OptionValue
from harness.recipes.find import SUITES, NamedFiles
from harness.recipes.problems import Problems
from harness.recipes.recipe import Request
from harness.recipes.strict_yaml import Items, Node, read_yaml
from harness.recipes.suite import Suite, SuiteCase, case_name, recompute_of, require_safe
from harness.recipes.suite_settings import SETTINGS, Said, SettingsReader


def request_of(options: dict[str, OptionValue]) -> Request:
    """A request that says what ``options`` of a file say, and nothing else."""
    return Request(**{"model_recipe_name": "", "gpu": "", **options})  # type: ignore[arg-type]


def laid_over(base: Request, given: Request) -> Request:
    """``base`` with what ``given`` says over it, option by option.

    Recompute is one value: whoever says anything about it says all. ``env`` and ``set_values`` meet name by name.
    """
    said = {name: value for name, value in vars(given).items() if value not in (None, "", ())}
    if any(name in said for name in RECOMPUTE_OPTIONS):
        base = replace(base, **dict.fromkeys(RECOMPUTE_OPTIONS))  # type: ignore[arg-type]
    for name in ("env", "set_values"):
        said[name] = _assignments(getattr(base, name), getattr(given, name))
    return replace(base, **said)


def _assignments(base: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    names = {text.partition("=")[0].strip() for text in given}
    return (*(text for text in base if text.partition("=")[0].strip() not in names), *given)


_FILES = NamedFiles(SUITES, "suite", "suite")
_KEYS = ("title", "source", "defaults", "cases")
_CASE_KEYS = ("name", *SETTINGS, "expected")


def read_suite(name_or_path: str, directory: Path | None = None) -> Suite:
    """The suite of that name in ``suites/`` of the recipe directory, or at that path.

    A path has a separator or ends in .yaml or .yml. Requests carry ``directory`` as their ``recipes_dir``.
    BadRequestError with every problem, each at its ``file:line``.
    """
    path, label = _FILES.find(name_or_path, directory)
    root, problems = read_yaml(path, label), Problems()
    read = _Reader(label, problems, directory).suite(root, path.stem)
    problems.raise_if_any()
    assert read is not None  # a file without a suite has problems
    return read


def suite_files(directory: Path | None = None) -> tuple[Path, ...]:
    """All suites of the recipe directory, by name."""
    return _FILES.all(directory)


class _Reader(SettingsReader):
    """One pass over the tree of a suite file."""

    def suite(self, root: Node, name: str) -> Suite | None:
        table = self.table(root, "the file")
        if table is None:
            return None
        self.require_known(table, _KEYS)
        for key in ("title", "cases"):
            if key not in table.entries:
                self.refuse(table.line, f"{key}: missing", f"add {key}")
        cases = self.cases(table.entries.get("cases"), self.defaults(table.entries.get("defaults")))
        return Suite(name=name, title=self.text(table, "title"), source=self.text(table, "source"), cases=cases)

    def defaults(self, node: Node | None) -> Said:
        table = self.table(node, "defaults") if node is not None else None
        if table is None:
            return Said()
        self.require_known(table, SETTINGS, "defaults.")
        return self.said(table, "defaults")

    def cases(self, node: Node | None, defaults: Said) -> tuple[SuiteCase, ...]:
        """Every case of the list. Those that are told right are held against each other."""
        if node is None:
            return ()
        if not isinstance(node, Items) or not node.nodes:
            self.refuse(node.line, "cases: must be a list of at least one case", "- request: {model_recipe_name: ...}")
            return ()
        is_sound = not self.problems.found
        cases: list[SuiteCase] = []
        seen: dict[object, int] = {}
        for place, item in enumerate(node.nodes):
            num_problems = len(self.problems.found)
            read = tuple(self.case(item, defaults, f"cases[{place}]"))
            if is_sound and len(self.problems.found) == num_problems:
                self.require_new(read, seen, item.line, f"cases[{place}]")
            cases += read
        return tuple(cases)

    def require_new(self, cases: tuple[SuiteCase, ...], seen: dict[object, int], line: int, where: str) -> None:
        """Refuse a name or a request that an earlier case has; ``seen`` is keyed by both."""
        for case in cases:
            for what, key, fix in (
                (f"name: {case.name!r} is", case.name.casefold(), "give each its own name"),
                ("request: the same as", _identity(case.request), "keep one of them"),
            ):
                if key in seen:
                    of = f"that of the case on line {seen[key]}"
                    self.refuse(line, f"{where}.{what} {of}", fix)
                seen.setdefault(key, line)

    def case(self, node: Node, defaults: Said, where: str) -> Iterator[SuiteCase]:
        """The case, or one for each recompute setting of a list."""
        table = self.table(node, where)
        if table is None:
            return
        self.require_known(table, _CASE_KEYS, f"{where}.")
        own, name = self.said(table, where), self.text(table, "name", f"{where}.")
        expected = self.expected(table, f"{where}.")
        if not own.options.get("model_recipe_name", defaults.options.get("model_recipe_name")):
            fix = "name a recipe here, or one for all under defaults"
            self.refuse(table.line, f"{where}.request.model_recipe_name: missing", fix)
        for options in [{**own.options, "recompute": text} for text in own.recompute] or [own.options]:
            request = laid_over(request_of(defaults.options), request_of(options))
            yield SuiteCase(
                name=self.name(name, request, table.line, where, is_listed=bool(own.recompute)),
                request=replace(request, recipes_dir=self.directory),
                repeats=own.repeats or defaults.repeats or 1,
                thresholds={**defaults.thresholds, **own.thresholds},
                owner=(defaults.owner if own.owner is None else own.owner) or "",
                expected=expected,
                is_golden_required=_required(own, defaults),
                timeout_s=own.timeout_s or defaults.timeout_s,
            )

    def name(self, given: str, request: Request, line: int, where: str, *, is_listed: bool) -> str:
        """The given name, with the setting where it is one of a list; else one made from the request."""
        name = ""
        with self.collecting(line, f"{where}.request: "):
            recompute = recompute_of(request)
            name = case_name(given, request, recompute if is_listed or not given else None)
        with self.collecting(line, f"{where}."):
            require_safe(name or "_")
        return name


def _required(own: Said, defaults: Said) -> bool:
    said = defaults.is_golden_required if own.is_golden_required is None else own.is_golden_required
    return True if said is None else said


def _identity(request: Request) -> Request:
    """Equal for requests that ask for the same thing in other words."""
    silent = dict.fromkeys(RECOMPUTE_OPTIONS)
    assigned = {name: tuple(sorted(getattr(request, name))) for name in ("env", "set_values")}
    return replace(request, **{**silent, **assigned, "recompute": recompute_of(request)})  # type: ignore[arg-type]
