"""Where Markdown goes that a command is asked for: a file, or with ``-`` stdout."""

from pathlib import Path


def leave_markdown(target: str, text: str) -> None:
    """Print the text, or write it whole. BadRequestError where the file cannot be written."""
    from harness.errors import BadRequestError
    from harness.records.atomic import write_atomically
    from harness.report.console import visible

    if target == "-":
        print(visible(text), end="")
        return
    try:
        write_atomically(Path(target), text)
    except OSError as error:
        raise BadRequestError(
            f"--markdown {target}: cannot be written: {error.strerror}", remedy="all else is done"
        ) from error
