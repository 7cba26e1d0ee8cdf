"""What is resumed runs with the software that it began with."""

from harness.errors import BadRequestError
from harness.spec.software import Software


def require_same_software(before: Software, now: Software, what: str) -> None:
    """BadRequestError naming each package that is another now; ``what`` is resumed: a sweep, a night."""
    changed = [
        f"{name} {version or 'absent'}, now {getattr(now, name) or 'absent'}"
        for name, version in vars(before).items()
        if getattr(now, name) != version
    ]
    if changed:
        raise BadRequestError(
            f"--resume: the {what} began with {'; '.join(changed)}: its runs would not be comparable",
            remedy=f"resume it with the software it began with, or start a new {what}",
        )
