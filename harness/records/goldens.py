"""Finds golden values by settings, and writes them for review."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, closest, os_errors_reported
from harness.experiment.experiment import ExperimentSpec
from harness.records.folders import golden_dir
from harness.records.golden import GoldenRecord, golden_text, setting_differences
from harness.records.reading import read_text
from harness.records.redact import redact_shapes
from harness.records.store import write_atomically
from harness.records.strict_json import parse_json, read_document, read_each

MEND_GOLDEN = "restore the file from git, or write it again with mbr-perf golden promote RUN --reason ..."


@dataclass(frozen=True)
class GoldenSearch:
    """The golden for some settings. ``note``: why there is none, or what has changed since. ``is_damaged``: unread."""

    golden: GoldenRecord | None
    path: Path | None
    note: str = ""
    is_damaged: bool = False


def require_golden_dir(override: Path | None) -> None:
    """Raise BadRequestError if ``--golden_dir`` names no folder."""
    if override is not None and not override.is_dir():
        remedy = f"correct the name; for the first golden values: mkdir -p {shlex.quote(str(override))}"
        raise BadRequestError(f"--golden_dir {override}: no such folder", remedy=remedy)


def writable_golden_dir(override: Path | None = None) -> Path:
    """Return the folder to write goldens to: ``override``, the checkout's, or ``./results/golden``."""
    return golden_dir(override, default=Path("results/golden"))


def golden_path(folder: Path, spec: ExperimentSpec) -> Path:
    """``<folder>/<gpu>/<recipe>.<task>.<dtype>.<n>gpu.<recompute>.json``, or :func:`batch_path` where that exists."""
    batched = batch_path(folder, spec)
    return batched if batched.is_file() else folder / spec.gpu / f"{spec.slug}.json"


def promotion_path(folder: Path, spec: ExperimentSpec) -> Path:
    """Return where a golden is written: if the one of that name differs only in the batch, beside it."""
    path = golden_path(folder, spec)
    before = earlier_golden(path)
    different = setting_differences(before, spec, spec.fingerprint) if before else ()
    is_of_other_batch = bool(different) and all(each.name.startswith("batch.") for each in different)
    return batch_path(folder, spec) if is_of_other_batch else path


def batch_path(folder: Path, spec: ExperimentSpec) -> Path:
    """Return the golden's place with the batch in its name: ``<slug>.mbs1.gbs32.seq4096.json``."""
    batch = spec.batch
    sizes = f"mbs{batch.micro_batch_size}.gbs{batch.global_batch_size}.seq{batch.seq_length}"
    return folder / spec.gpu / f"{spec.slug}.{sizes}.json"


def find_golden(
    spec: ExperimentSpec, override: Path | None = None, sources: Mapping[str, str] | None = None
) -> GoldenSearch:
    """Find the golden, also one whose point has changed by no option of ``sources``. BadRequestError: a wrong file."""
    if override is not None and not override.exists():
        raise BadRequestError(f"--golden_values_path {override}: no such file or folder")
    if override is not None and override.is_file():
        return GoldenSearch(read_golden(override), override)
    path = golden_path(golden_dir(override), spec)
    if not path.is_file():
        return GoldenSearch(None, None, redact_shapes(f"no golden for these settings: {path} does not exist"))
    golden = read_golden(path)
    different = setting_differences(golden, spec, spec.fingerprint)
    if not different:
        return GoldenSearch(golden, path)
    listed = "; ".join(each.text for each in different)
    if sources and not any(_is_option(sources, name) for name in (*(each.name for each in different), "variant")):
        return GoldenSearch(golden, path, redact_shapes(f"the recipe point has changed since {path}: {listed}"))
    return GoldenSearch(
        None, None, redact_shapes(f"no golden for these settings: {path} is for other settings: {listed}")
    )


def _is_option(sources: Mapping[str, str], name: str) -> bool:
    while name not in sources and "." in name:
        name = name.rpartition(".")[0]
    return sources.get(name, "").startswith("-")


def read_golden(path: Path) -> GoldenRecord:
    """Read a golden file. BadRequestError names the file, the key, and a remedy."""
    try:
        return read_document(path, GoldenRecord)
    except BadRequestError as error:
        if path.is_file() and (path.suffix != ".json" or _is_another_document(path)):
            raise BadRequestError(
                f"{path}: is not a golden of mbr-perf: it has none of {', '.join(_MARKS)}",
                remedy="`mbr-perf compare NEW OLD` compares logs and the goldens of other programs",
            ) from error
        if isinstance(error, ManyProblemsError) and any(problem.remedy for problem in error.problems):
            raise
        raise BadRequestError(error.message, remedy=MEND_GOLDEN) from error


def earlier_golden(path: Path) -> GoldenRecord | None:
    """Read the golden that a promotion replaces. None: there is none, or it is damaged."""
    try:
        return read_golden(path)
    except BadRequestError:
        return None


_MARKS = ("kind", "recipe", "metrics", "promoted_at")


def _is_another_document(path: Path) -> bool:
    try:
        text = read_text(path, str(path), most_bytes=None)
        return not set(_MARKS) & parse_json(text, str(path)).keys()
    except BadRequestError:
        return False


def golden_file(name: str | Path, override: Path | None = None) -> Path | None:
    """Return the file ``name``, or the file with this path below :func:`golden_dir`, with or without ``.json``."""
    folder = golden_dir(override)
    return next((path for path in (Path(name), folder / name, folder / f"{name}.json") if path.is_file()), None)


def named_golden(name: str, override: Path | None = None) -> tuple[Path, GoldenRecord]:
    """Read the golden of :func:`golden_file`. BadRequestError suggests the nearest name."""
    path = golden_file(name, override)
    if path:
        return path, read_golden(path)
    folder = golden_dir(override)
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.glob("*/*.json"))]
    near = [f"did you mean {match!r}?" for match in closest(name, names)]
    raise BadRequestError(
        f"no golden {name!r}: it is neither a file nor a name below {folder}",
        remedy=near[0] if near else "mbr-perf golden list prints the names",
    )


def list_goldens(folder: Path) -> tuple[dict[Path, GoldenRecord], dict[Path, BadRequestError]]:
    """Read the goldens below ``folder`` by path; also return read errors. Empty if the folder does not exist."""
    return read_each(sorted(folder.glob("*/*.json")), GoldenRecord)


def write_golden(folder: Path, spec: ExperimentSpec, golden: GoldenRecord, path: Path | None = None) -> Path:
    """Write the golden to ``path`` or its usual place. BadRequestError if that fails; an old file is then kept."""
    path = path or golden_path(folder, spec)
    with os_errors_reported(f"{path}: cannot be written", "name a writable folder with --golden_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, golden_text(golden))
    return path
