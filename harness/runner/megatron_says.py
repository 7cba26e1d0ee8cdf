"""The dry run of the installed megatron-core, as a finding beside our own."""

import json
import subprocess

from harness.launch.environment import Host
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import Finding
from harness.spec.software import Software

TIMEOUT_S = 60.0


def megatron_finding(spec: ExperimentSpec, software: Software, host: Host) -> Finding | None:
    """What the real `TransformerConfig` says of ``spec``; None when it accepts it.

    A note when it cannot be asked: nothing is claimed on its behalf.
    """
    if software.megatron_core is None or software.torch is None:
        return _unasked("megatron-core is not installed here")
    command = (host.python, "-m", "harness.engine.config_probe")
    try:
        asked = subprocess.run(
            command, input=spec.model_dump_json(), env=dict(host.shell), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _unasked(f"megatron-core did not answer within {TIMEOUT_S:g} s")
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["no message"]
        return _unasked(f"asking megatron-core failed: {last[0][:300]}")
    answer = json.loads(asked.stdout.splitlines()[-1])
    if answer["accepted"]:
        return None
    if _for_want_of_transformer_engine(answer) and software.transformer_engine is not None:
        return _unasked("it stops because transformer-engine is not installed on this machine")
    meaning = f": {answer['meaning']}" if answer["meaning"] else ""
    return Finding(
        id="MCORE",
        severity="error",
        message=f"megatron-core {software.megatron_core} refuses this configuration{meaning}",
        fix=f"see {answer['place']} of megatron-core; findings above name the setting where a rule knows it",
        mcore_text=f"{answer['kind']}: {answer['text']}",
    )


def _for_want_of_transformer_engine(answer: dict[str, str]) -> bool:
    return any(word in answer["text"] for word in ("NoneType", "ransformer-engine", "ransformer Engine", "TE >="))


def _unasked(why: str) -> Finding:
    return Finding(
        id="MCORE",
        severity="note",
        message=f"megatron-core's own configuration was not built: {why}",
        fix="run the check where the job will run",
    )
