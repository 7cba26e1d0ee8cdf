"""The dry run of the installed megatron-core, as a finding beside our own."""

import subprocess
from collections.abc import Mapping

from pydantic import ValidationError

from harness.launch.environment import SAFE_PATH, Host
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen
from harness.spec.rules.finding import Finding
from harness.spec.software import Software

TIMEOUT_S = 60.0

# What megatron-core 0.16 says where it misses transformer-engine: the last is its comparison of no version with one.
_MISSING = ("ransformer-engine", "ransformer Engine", "TransformerEngine", "TE >=", "TE version", "'NoneType'")


class Answer(Frozen):
    """What ``harness.engine.config_probe`` prints: ``kind``, ``text`` and ``place`` of the exception unless accepted."""

    accepted: bool
    kind: str = ""
    text: str = ""
    meaning: str | None = None
    place: str | None = None
    without_transformer_engine: bool = False


def megatron_finding(
    spec: ExperimentSpec,
    software: Software,
    host: Host,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Finding:
    """What the real `TransformerConfig` says of ``spec`` under the ranks' variables ``env``.

    An error when it refuses, else a note. A note also when it cannot be asked, hangs or crashes: nothing is claimed on
    its behalf.
    """
    missing = [name for name, version in _needed(software) if version is None]
    if missing:
        return _unasked(f"{' and '.join(missing)} not installed here")
    command = (host.python, "-m", "harness.engine.config_probe")
    try:
        asked = subprocess.run(
            command, input=spec.model_dump_json(), env={**host.shell, **(env or {}), **SAFE_PATH}, capture_output=True, text=True,
            errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _unasked(f"megatron-core did not answer within {timeout_s:g} s")
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return _unasked(f"asking megatron-core ended with exit code {asked.returncode}: {last[0][:300]}")
    try:
        said = Answer.model_validate_json((asked.stdout.splitlines() or [""])[-1])
    except ValidationError:
        return _unasked(f"the answer cannot be read: {asked.stdout[:200]!r}")
    return _finding(said, str(software.megatron_core), software)


def _needed(software: Software) -> tuple[tuple[str, str | None], ...]:
    return ("megatron-core", software.megatron_core), ("torch", software.torch)


def _finding(said: Answer, version: str, software: Software) -> Finding:
    if said.accepted:
        but = " but for what transformer-engine decides, which is not installed here"
        message = f"megatron-core {version} accepts the configuration{but if said.without_transformer_engine else ''}"
        return Finding(id="MCORE", severity="note", message=message, fix="")
    if said.without_transformer_engine and software.transformer_engine and any(w in said.text for w in _MISSING):
        return _unasked("it stops because transformer-engine is not installed on this machine")
    meaning = f": {said.meaning}" if said.meaning else ""
    fix = (
        f"read {said.place} of megatron-core" if said.place else f"upgrade megatron-core {version}, or drop the setting"
    )
    return Finding(
        id="MCORE",
        severity="error",
        message=f"megatron-core {version} refuses this configuration{meaning}",
        fix=f"{fix}; where a rule knows the setting, its finding names it",
        mcore_text=f"{said.kind}: {said.text}".removesuffix(": "),
    )


def _unasked(why: str) -> Finding:
    return Finding(
        id="MCORE",
        severity="note",
        message=f"megatron-core's own configuration was not built: {why}",
        fix="run the check where the job will run",
    )
