"""``scripts/gpu-check``: choose the environment first, then import the package. Standard library only up to there."""

import os
import sys
from pathlib import Path

import environment

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Answer --help and wrong usage at once, change over to the environment that fits, and start the sitting."""
    options = environment.parser().parse_args()
    try:
        python = environment.choose(os.environ, ROOT, rehearse=options.rehearse)
    except environment.UnfitError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if python != sys.executable:
        sys.stdout.flush()
        command = (python, str(Path(__file__).parent), *sys.argv[1:])
        os.execve(python, command, {**os.environ, "MBR_PERF_NO_SETUP": "1"})  # noqa: S606 (no shell, by argv)
    from sitting import sit

    return sit(options)


if __name__ == "__main__":
    sys.exit(main())
