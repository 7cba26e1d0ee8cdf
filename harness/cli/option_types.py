"""Options that many commands take in the same words."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
GoldenDir = Annotated[Path | None, typer.Option("--golden_dir", metavar="DIR", help="Default: results/golden.")]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results_dir", metavar="DIR", help="Where runs are kept. Default: results of the checkout, else ./results."
    ),
]
