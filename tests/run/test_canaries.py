"""Secrets of the shell, of command lines, of exceptions and of foreign logs: none of them is in anything that is written."""

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from harness.records.rank import Failure
from harness.records.store import read_run
from tests.diagnose.test_diagnose import iteration, traceback
from tests.jobs.test_slurm import RECIPE, ROOT
from tests.nightly.night_recordings import Stage

TOKEN = "hf_CANARYcanary0123456789"
SHELL = {
    "HF_TOKEN": TOKEN,
    "WANDB_API_KEY": "CANARYwandb0123456789",
    "OPENAI": "sk-CANARYcanary0123456789",
    "AWS_ACCESS_KEY_ID": "AKIACANARY0123456789",
    "NCCL_CANARY": TOKEN,  # ranks inherit NCCL_*, and records name them
}
FAILURE_TEXT = (
    f"RuntimeError: GET https://me:CANARYpassword@hub/x, Authorization: Bearer CANARYbearer0123, HF_TOKEN=CANARYvalue, "
    f"password: 'my CANARYquoted; phrase', {TOKEN} sk-CANARYcanary0123456789 AKIACANARY0123456789 --api-key CANARYargument "
    "GITHUB_PAT=CANARYpat accessToken=a,CANARYaccess https://b.s3/x?X-Amz-Credential=CANARYid&X-Amz-Signature=CANARYsigned "
    "https://b.blob/x?sv=1&sig=CANARYsas%3D AIzaCANARYcanary0123456789 https://discord.com/api/webhooks/1/CANARYdiscord "
    "https://a.webhook.office.com/webhookb2/CANARY@x/IncomingWebhook/CANARY curl -s -u me:CANARYcurl https://x "
    "wandb login --relogin CANARYlogin0123 NETRC_AUTH=CANARYauth SESSION_COOKIE=CANARYcookie A_JWT=CANARYjwt "
    "TEAMS_WEBHOOK=CANARYhook X-Amz-Signature%3DCANARYencoded https://b.blob/x?sv=1\\u0026sig=CANARYescaped curl -su me:CANARYu "
    "wandb login --host https://w CANARYhost HF_TOKEN => CANARYpair https:\\/\\/discord.com\\/api\\/webhooks\\/1\\/CANARYslash "
    "Cookie: session=CANARYsession; other=CANARYother"
)


@pytest.fixture(autouse=True)
def _canaries(monkeypatch):
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)


def holders(*folders):
    """Files below that hold a canary, or are named by one."""
    files = [
        (path, str(path.relative_to(folder))) for folder in folders for path in folder.rglob("*") if path.is_file()
    ]
    assert files
    return [
        path for path, name in files if b"CANARY" in path.read_bytes().replace(b"NCCL_CANARY", b"") or "CANARY" in name
    ]


def silent(answer, code=0):
    """The answer, in which no canary is."""
    assert answer.code == code, answer.err
    assert "CANARY" not in (answer.out + answer.err).replace("NCCL_CANARY", "")
    return answer


@pytest.mark.parametrize(
    "asked",
    [
        ("run", "-mr", "llama3_8b", "-E", f"HUB={TOKEN}"),
        ("run", "-mr", "llama3_8b", "--set", "env.PROXY=http://me:CANARYpassword@proxy"),
        ("run", "-mr", "llama3_8b", "-E", 'CONN=host=a;password="the CANARY, too"'),
        ("run", "-mr", f"/data/{TOKEN}.yaml"),
        ("sweep", "-mr", "llama3_8b", "--over", f"env.HUB=none,{TOKEN}"),
        ("sweep", "-mr", "llama3_8b", "-E", f"HUB={TOKEN}", "--over", "recompute=none; mlp"),
        ("run", "-mr", "llama3_8b", "--ab", f"env.HUB={TOKEN}"),
    ],
)
def test_a_secret_that_would_be_recorded_is_refused_and_not_repeated(mbr_perf, tmp_path, asked):
    message = silent(mbr_perf(*asked, "-g", "cpu", "--results_dir", tmp_path / "results"), code=2)
    assert "looks like a secret" in message.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("run", "-E", f"HUB={TOKEN}", "--timeout", "-1", "-tp", "3"), ("HUB contains", "--timeout -1", "P03: ")),
        (("run", "--set", f"env.HUB={TOKEN}", "-c", "bf61"), ("HUB contains", "bf61")),
        (("run", "-E", "HF_TOKEN=CANARY1", "-E", "HF_TOKEN=CANARY2", "-c", "bf61"), ("HF_TOKEN", "bf61")),
        (("run", "-E", TOKEN, "-c", "bf61"), ("no '='", "bf61")),
        (("run", "-mr", f"/data/{TOKEN}/a.yaml", "-E", "A_TOKEN=CANARY"), ("/data/***/a.yaml: ", "A_TOKEN has")),
        (("run", "-E", f"HUB={TOKEN}", "--launcher", "torchrum", "-tp", "3"), ("HUB contains", "torchrum", "P03: ")),
        (("run", "-E", f"HUB={TOKEN}", "--ab", f"env.HUT={TOKEN}"), ("HUB contains", "HUT contains")),
        (("run", "-E", f"HUB={TOKEN}", "-tp", "3", "--launcher", "slurm", "--time_limit", "10"), ("HUB contains", "P03: ")),
        (("check", "-E", f"HUB={TOKEN}", "-tp", "3"), ("HUB contains", "P03: ")),
        (("sweep", "-E", f"HUB={TOKEN}", "--over", "tpp=1"), ("HUB contains", "tpp: ")),
        (("sweep", "-E", f"HUB={TOKEN}", "-tp", "3", "--over", "recompute=none; mlp"), ("HUB contains", "P03: ")),
    ],
)  # fmt: skip
def test_a_secret_is_reported_together_with_all_else_that_is_wrong(mbr_perf, tmp_path, asked, message):
    command, *words = asked
    recipe = () if "-mr" in words else ("-mr", "llama3_8b")
    where = () if command == "check" else ("--results_dir", tmp_path / "results")
    answer = silent(mbr_perf(command, *recipe, *words, "-g", "cpu", *where), code=2)
    assert [each for each in message if each not in answer.err] == [], answer.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "typed", [("doctor", TOKEN), ("doctor", "HF_TOKEN=CANARYvalue"), (TOKEN,), ("run", f"--{TOKEN}")]
)
def test_a_secret_in_a_command_line_that_cannot_be_parsed_is_not_repeated(mbr_perf, typed):
    assert "***" in silent(mbr_perf(*typed, "--json"), code=2).err


@pytest.mark.slow
def test_the_shell_is_in_nothing_that_runs_and_their_reports_leave(mbr_perf, replay, run, tmp_path):
    results = tmp_path / "results"
    silent(replay("ok"))
    silent(replay("oom", "--json"), code=4)
    silent(mbr_perf("history", "add", *(results / "runs").iterdir(), "--results_dir", results))
    (failed,) = (path for path in (results / "runs").iterdir() if read_run(path).status == "oom")
    silent(mbr_perf("diagnose", failed, "--json"))
    signed = ("--reason", FAILURE_TEXT, "--golden_dir", results / "golden")
    silent(mbr_perf("golden", "promote", run("measured"), *signed))
    assert "Authorization: Bearer ***" in next((results / "golden").rglob("*.json")).read_text()
    assert holders(results) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["plain", TOKEN])
def test_neither_the_shell_nor_a_folder_is_in_what_a_night_leaves(mbr_perf, tmp_path, folder):
    """But the plan of a night, which is read back to resume it, must name the folders that it reads."""
    root = tmp_path / folder
    root.mkdir()
    stage = Stage(root, {"a": "request: {recompute: mlp}", "b": "request: {recompute: none}"})
    stage.record("a", 0)
    stage.record("b", 0, failure=Failure(kind="error", message=FAILURE_TEXT, phase="forward_backward", step=1))
    left = tmp_path / "left"
    left.mkdir()
    outputs = [
        ("--junit", "j.xml"),
        ("--html", "pages"),
        ("--step_summary", "s.md"),
    ]
    answer = mbr_perf(*stage.arguments(*(word for name, file in outputs for word in (name, left / file))))
    assert answer.code == 3
    silent(replace(answer, out=answer.out.replace(str(root), ""), err=answer.err.replace(str(root), "")), code=3)
    assert "Bearer ***" in (left / "j.xml").read_text()
    assert any("Bearer ***" in page.read_text() for page in (left / "pages").rglob("*.html"))
    history = mbr_perf("history", "b", "--csv", "--results_dir", root / "results")
    assert history.code == 0
    assert "CANARY" not in (history.out + history.err).replace(str(root), "")
    [plan] = root.glob("results/nights/*/night.json")
    assert holders(left, root) == ([plan] if folder == TOKEN else [])


def test_the_shell_is_in_nothing_that_slurm_is_given(mbr_perf, slurm, tmp_path):
    on_slurm = ("-mr", RECIPE, "-g", "cpu", "-gn", "1", "--launcher", "slurm", "--time_limit", "10", "--detach")
    silent(mbr_perf("run", *on_slurm, "--results_dir", tmp_path / "results"))
    assert holders(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("metadata: {annotations: {wandb_api_key: 0CANARY}}", "metadata.annotations.wandb_api_key"),
        ("metadata: {annotations: {acme.com/password: CANARY}}", "metadata.annotations.acme.com/password"),
        (f"metadata: {{labels: {{{TOKEN}: a}}}}", "metadata.labels.***"),
        ("spec: {trainer: {env: [{name: HF_TOKEN, value: CANARY}]}}", "spec.trainer.env"),
        ("spec: {initializer: {args: [--token, CANARYargument]}}", "spec.initializer.args"),
        ("spec: {initializer: {command: [sh, -c, 'curl -u me:CANARY https://x']}}", "spec.initializer.command"),
        (f"spec: {{initializer: {{model: {TOKEN}}}}}", "spec.initializer.model"),
    ],
)
def test_a_secret_in_a_train_job_is_refused_and_written_nowhere(mbr_perf, tmp_path, file, place):
    train_job, results = tmp_path / "base.yaml", tmp_path / "results"
    train_job.write_text(file)
    asked = ("--launcher", "kubeflow", "--time_limit", "10", "--container_image", "a", "--kubeflow_job", train_job)
    answer = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "-gn", "1", *asked, "--no_submit", "--results_dir", results)
    assert f"--kubeflow_job: {place} looks like a secret" in silent(answer, code=2).err
    assert not results.exists()


def test_references_to_secrets_and_ordinary_keys_are_no_secrets(mbr_perf, tmp_path):
    train_job = tmp_path / "base.yaml"
    train_job.write_text(
        "spec:\n  trainer: {env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]}\n"
        "  runtimePatches: [{manager: a/b, imagePullSecrets: [{name: regcred}], tolerations: [{key: gpu}],"
        " topologyKey: host, secretName: tls, tokenSecretName: a, max_tokens: '4096', automountToken: false}]\n"
    )
    asked = ("--launcher", "kubeflow", "--time_limit", "10", "--container_image", "a", "--kubeflow_job", train_job)
    assert mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "-gn", "1", *asked, "--dryrun").code == 0


def test_what_a_foreign_log_tells_is_repeated_without_its_secrets(mbr_perf, tmp_path):
    log, results = tmp_path / "log", tmp_path / "results"
    log.write_text(
        "\n".join([iteration(1), iteration(2), f"HF_TOKEN={TOKEN} NCCL_DEBUG=INFO", traceback(FAILURE_TEXT)]) + "\n"
    )
    for form in ((), ("--json",)):
        assert "Authorization: Bearer ***" in silent(mbr_perf("diagnose", log, *form)).out
    options = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32", "--recompute", "none")
    silent(mbr_perf("import", "--log", log, *options, "--results_dir", results), code=3)
    assert holders(results) == []
    (run_dir,) = (results / "runs").iterdir()
    assert "Authorization: Bearer ***" in json.loads((run_dir / "record.json").read_text())["failure"]


def test_an_archive_masks_what_a_program_printed_into_its_log(mbr_perf, replay, tmp_path):
    silent(replay("ok"))
    (run_dir,) = (tmp_path / "results" / "runs").iterdir()
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "logs" / "rank_000.log").write_text(FAILURE_TEXT)
    silent(mbr_perf("results", "archive", run_dir, "-o", tmp_path / "a.tar.gz"))
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        texts = [tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()]
    assert any(b"Bearer ***" in text for text in texts)
    assert not any(b"CANARY" in text.replace(b"NCCL_CANARY", b"") for text in texts)


@pytest.mark.train
@pytest.mark.slow
def test_neither_the_shell_nor_an_exception_of_a_rank_reaches_a_file_under_any_umask(tmp_path):
    """megatron-core imports apex where there is one; this one breaks the ranks. Nobody else may read what they leave."""
    (tmp_path / "packages").mkdir()
    apex = f"import os\nif 'RANK' not in os.environ:\n    raise ImportError\nraise RuntimeError({FAILURE_TEXT!r})\n"
    (tmp_path / "packages" / "apex.py").write_text(apex)
    results = tmp_path / "results"
    command = [sys.executable, "-m", "harness.app", "run", "-mr", "llama3_8b", "-g", "cpu", "--max_steps", "2"]
    command += ["--pass_env", "HF_TOKEN", "--results_dir", str(results), "--json"]
    env = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(command, cwd=ROOT, env=env, umask=0, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr
    assert "CANARY" not in (done.stdout + done.stderr).replace("NCCL_CANARY", "")
    assert holders(results) == []
    # On a slow machine, torchrun can stop the other rank before that rank writes its log.
    assert any("Bearer ***" in log.read_text() for log in results.rglob("rank_*.log"))
    (run_dir,) = (results / "runs").iterdir()
    modes = {path: path.stat().st_mode & 0o777 for path in [run_dir, *run_dir.rglob("*")]}
    assert {oct(mode) for mode in modes.values()} <= {"0o750", "0o700", "0o640", "0o600"}
