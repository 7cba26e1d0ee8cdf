"""Judges a request under given software and environment, and deals the cases of the rule table to the tests."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from tests.experiment.rules.case import Case
from tests.experiment.rules.cases import CASES
from tests.experiment.rules.releases import RAISED_BY_CONFIG, installed_megatron_core, is_of_installed_release


class Asked(NamedTuple):
    spec: ExperimentSpec
    software: Software
    rank_env: dict[str, str] | None


# Names that are not fields of the request: the software and the environment of the ranks.
OUTSIDE = {"mcore": "megatron_core", "te": "transformer_engine", "gpu_found": "gpu", "apex": "apex"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[f"{case.rule}-{case.severity}-{i}" for i, case in enumerate(CASES)])
    if "config_case" in metafunc.fixturenames:
        raised = [case for case in CASES if case.rule in RAISED_BY_CONFIG and is_of_installed_release(case)]
        metafunc.parametrize("config_case", raised, ids=[f"{case.rule}-{i}" for i, case in enumerate(raised)])


@pytest.fixture(scope="session")
def installed_mcore() -> str:
    return installed_megatron_core()


@pytest.fixture(scope="session")
def raised_by_config() -> set[str]:
    return RAISED_BY_CONFIG


@pytest.fixture
def all_cases() -> list[Case]:
    return CASES


@pytest.fixture
def ask(request_for) -> Callable[[str, dict[str, Any]], Asked]:
    """The request, software and rank environment of a row; the software is that of a CPU or of a GPU node."""

    def asked(kind: str, changes: dict[str, Any]) -> Asked:
        te = None if kind.startswith("cpu") else "2.11.0"
        software = {"megatron_core": "0.16.1", "transformer_engine": te}
        software |= {field: changes[name] for name, field in OUTSIDE.items() if name in changes}
        fields = {name: value for name, value in changes.items() if name not in OUTSIDE and name != "rank_env"}
        return Asked(request_for(kind, **fields), Software(**software), changes.get("rank_env"))

    return asked


@pytest.fixture
def judge(ask) -> Callable[[str, dict[str, Any]], tuple[Finding, ...]]:
    def judged(kind: str, changes: dict[str, Any]) -> tuple[Finding, ...]:
        spec, software, rank_env = ask(kind, changes)
        return check(spec, software, env=rank_env)

    return judged
