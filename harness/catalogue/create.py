"""Writes a recipe file of a job: `mbr-perf recipes new`."""

from pathlib import Path

from harness.errors import BadRequestError
from harness.recipes.recipe import Request
from harness.recipes.recipe_file import load_recipe
from harness.recipes.resolve import resolve
from harness.recipes.writing import recipe_text
from harness.records.store import write_atomically

_SUFFIXES = (".yaml", ".yml")


def create_recipe(request: Request, path: Path) -> str:
    """Write the job of a request as a recipe file with one point, and return its text.

    BadRequestError if the file exists or cannot be written, or if the request is wrong; then nothing is written.
    """
    if path.suffix not in _SUFFIXES:
        raise BadRequestError(f"-o {path}: a recipe file ends in .yaml", remedy=f"-o {path}.yaml")
    if path.exists() or path.is_symlink():
        raise BadRequestError(f"-o {path}: exists already", remedy="name another file, or remove this one")
    resolved = resolve(request)
    source = " ".join(request.job_words)
    comments = {place: " ".join(each.split()) for place, each in resolved.sources.items() if each != "default"}
    notes = [note for note in resolved.notes if "usual" in note or "default" in note]
    heading = "\n".join((f"Written by mbr-perf recipes new from {source}; the comments name the sources.", *notes))
    source = " ".join(source.split())  # a path may hold line breaks
    text = recipe_text(resolved.spec, title=resolved.spec.recipe, source=source, comments=comments, heading=heading)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise BadRequestError(f"-o {path}: cannot be written: {error.strerror}", remedy="check the folder") from error
    load_recipe(path, str(path))
    return text
