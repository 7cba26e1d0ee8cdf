"""Finds the old build that suspicious cases of a night are compared with."""

from pathlib import Path

from harness.errors import BadRequestError, NoOldBuildError
from harness.experiment.software import Software
from harness.launch.build import find_build
from harness.launch.environment import Host
from harness.nightly.values import SPEED
from harness.records.folders import results_dir
from harness.records.night import NIGHT, NIGHTS, Against, JudgedNight, NightPlan, read_judged
from harness.records.references import folders
from harness.records.strict_json import read_document
from harness.resolve.suite import Suite

LAST_GOOD = "last-good"
_OPTION = "--against"


def find_against(text: str, num_pairs: int, chosen: Suite, results: Path | None, host: Host) -> Against:
    """Return the old build. NoOldBuildError if there is none yet, BadRequestError if it cannot be used."""
    if text != LAST_GOOD:
        return Against(source=text, num_pairs=num_pairs, build=find_build(_OPTION, text, host))
    night = _last_good(chosen.name, {case.name for case in chosen.cases}, results_dir(results))
    source = f"{LAST_GOOD} ({night.night_id})"
    build = find_build(f"{_OPTION} {source}:", night.python, host)
    if changed := _changed(night, build.software):
        raise NoOldBuildError(
            f"{_OPTION} {source}: {night.python} has changed since: {'; '.join(changed)}",
            remedy=f"make an environment with the software of that night, and name it: {_OPTION} ENVIRONMENT",
        )
    return Against(source=source, num_pairs=num_pairs, build=build)


def _last_good(suite: str, cases: set[str], results: Path) -> NightPlan:
    """Return the newest night of these cases that judged times and passed. NoOldBuildError without one."""
    for folder in reversed(folders(results / NIGHTS)):
        try:
            plan = read_document(folder / NIGHT, NightPlan) if _is_good(read_judged(folder)) else None
        except BadRequestError:
            continue  # damaged
        if plan and plan.python and plan.suite == suite and cases <= {case.name for case in plan.cases}:
            return plan
    raise NoOldBuildError(
        f"{_OPTION} {LAST_GOOD}: no night of these cases of {suite} in {results} has judged a time and passed",
        remedy=f"name the environment of the old build: {_OPTION} ENVIRONMENT",
    )


def _is_good(night: JudgedNight | None) -> bool:
    if night is None or (night.exit_code, night.num_runs_missing) != (0, 0):
        return False
    judged = {(each.metric, each.verdict) for case in night.cases for each in case.comparison}
    return bool(judged & {(SPEED, "pass"), (SPEED, "improvement")})


def _changed(night: NightPlan, now: Software) -> list[str]:
    found = (
        f"{name} {version}, now {getattr(now, name) or 'absent'}"
        for then in night.software.values()
        for name, version in vars(then).items()
        if name in ("megatron_core", "torch", "python") and version and getattr(now, name) != version
    )
    return list(dict.fromkeys(found))
