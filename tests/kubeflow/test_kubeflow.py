"""`--launcher kubeflow` and `mbr-perf jobs` against an API on loopback, through a real kubectl."""

import json
import subprocess
from pathlib import Path

import pytest

from harness.cluster.kubernetes import state_of
from harness.launch.environment import this_host
from harness.launch.kubeflow_job import kubeflow_job
from harness.records.job import KubeflowOptions, read_job, read_submitted
from harness.records.store import read_run
from tests.cluster.conftest import job_record
from tests.kubeflow.conftest import DATA, IMAGE, PREFIX, RECIPE, condition, pod, problems_of, refusal

NEMO_RUN = json.loads((DATA / "kubeflow" / "nemo_run.json").read_text())
pytestmark = pytest.mark.usefixtures("impatient")


def body_of(answer):
    return json.loads(json.loads(answer.out)["plan"]["script"])


@pytest.mark.parametrize("release", ["2.1", "2.2"])
def test_a_dry_run_prints_what_the_crd_of_that_release_takes(run_job, results, release):
    answer = run_job("--dryrun", "--json", "--kubeflow_trainer", release, *IMAGE)
    body = body_of(answer)
    assert (answer.code, problems_of(body, release)) == (0, [])
    assert problems_of(body, {"2.1": "2.2", "2.2": "2.1"}[release])  # what tells the releases apart
    trainer = body["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["image"], trainer["command"][:3]) == (
        2, IMAGE[1], ["python3", "-m", "harness.cluster.task"],
    )  # fmt: skip
    assert not [
        each for each in trainer["env"] if each["name"] in ("PATH", "HOME")
    ]  # of the image, not of this machine
    assert not results.exists()


def test_the_body_is_nemo_runs_for_the_same_job(run_job, monkeypatch):
    """Other: NeMo-Run names the processes of a node; mbr-perf starts torchrun itself."""
    theirs = NEMO_RUN["body"]
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    answer = run_job(
        "--dryrun", "--json", "--kubeflow_trainer", "2.1", "--container_image", "image", "-ng", "16", "-gn", "8",
        gpu="h100",
    )  # fmt: skip
    ours = body_of(answer)
    assert theirs["spec"]["trainer"].pop("numProcPerNode") == 8
    (volume,) = ours["spec"]["podTemplateOverrides"][0]["spec"]["volumes"]
    (mount,) = ours["spec"]["podTemplateOverrides"][0]["spec"]["containers"][0]["volumeMounts"]
    volume["name"] = mount["name"] = "v"
    mount["mountPath"] = "/nemo_run"
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in ours["spec"]["trainer"]["env"]
    for body in (theirs, ours):
        body["metadata"].pop("name")
        body["spec"]["trainer"].pop("command")
        body["spec"]["trainer"].pop("env")
    assert ours == theirs


def test_a_job_of_ones_own_is_completed(run_job, tmp_path):
    file = tmp_path / "base.yaml"
    patch = "{name: node, template: {spec: {template: {spec: {tolerations: [{key: gpu, operator: Exists}]}}}}}"
    secret = "{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}"
    file.write_text(
        "metadata: {labels: {kueue.x-k8s.io/queue-name: night}}\n"
        f"spec:\n  trainer: {{env: [{secret}]}}\n  runtimePatches:\n  - manager: acme.com/team\n"
        f"    trainingRuntimeSpec: {{template: {{spec: {{replicatedJobs: [{patch}]}}}}}}\n"
    )
    body = body_of(run_job("--dryrun", "--json", "--kubeflow_job", file, *IMAGE))
    assert problems_of(body) == []
    assert body["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "night"}
    assert body["spec"]["trainer"]["env"][0]["name"] == "HF_TOKEN"
    assert [each["manager"] for each in body["spec"]["runtimePatches"]] == ["acme.com/team", "mbr-perf/results"]


def test_the_file_names_namespace_and_runtime_where_no_option_does(mbr_perf, run_job, tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text("metadata: {namespace: 1team}\nspec: {runtimeRef: {name: own, kind: TrainingRuntime}}\n")
    asked = ("--kubeflow_job", file, "--dryrun", "--json", *IMAGE)
    alone = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "-gn", "1", "--launcher", "kubeflow", "-t", "10", *asked)
    for answer, namespace in ((alone, "1team"), (run_job(*asked), "team")):
        body = body_of(answer)
        assert (problems_of(body), body["metadata"]["namespace"]) == ([], namespace)
        assert body["spec"]["runtimeRef"] == {"name": "own", "kind": "TrainingRuntime"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("metadata: mine\nspec: [a]", ["metadata is", "spec is"]),
        ("kind: Pod\napiVersion: v1", ["kind is", "apiVersion is"]),
        ("metadata: {name: a, namespace: 3}", ["metadata.name is", "metadata.namespace is"]),
        ("spec: {trainer: {image: a, numNodes: 7, command: [a], args: [a]}}",
         [f"spec.trainer.{key} is" for key in ("image", "numNodes", "command", "args")]),
        ("spec: {runtimeRef: a, trainer: {env: {a: b}, resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}}",
         ["spec.runtimeRef is", "spec.trainer.env is", "spec.trainer.resourcesPerNode.limits.nvidia.com/gpu is"]),
        ("[a]", ["base.yaml"]),
        ("metadata: {annotations: {x: .nan}}", ["base.yaml"]),
    ],
)  # fmt: skip
def test_what_the_file_cannot_say_is_refused_and_never_replaced(run_job, tmp_path, text, named):
    file = tmp_path / "base.yaml"
    file.write_text(text)
    answer = run_job("--dryrun", "--kubeflow_job", file, *IMAGE)
    assert (answer.code, [each for each in named if each not in answer.err]) == (2, [])
    assert answer.err.count("error: ") == len(named)


def test_a_variable_of_shell_and_file_is_there_once_as_the_file_has_it(run_job, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    file = tmp_path / "base.yaml"
    file.write_text("spec: {trainer: {env: [{name: NCCL_DEBUG, value: WARN}]}}\n")
    env = body_of(run_job("--dryrun", "--json", "--kubeflow_job", file, *IMAGE))["spec"]["trainer"]["env"]
    assert [each["value"] for each in env if each["name"] == "NCCL_DEBUG"] == ["WARN"]


@pytest.mark.parametrize(
    ("release", "text", "deadline"),
    [("2.2", "{}", 25 * 60), ("2.1", "{}", None), ("2.2", "spec: {activeDeadlineSeconds: 7}", 7)],
)
def test_kubernetes_ends_a_job_whose_pods_do_not(run_job, tmp_path, release, text, deadline):
    file = tmp_path / "base.yaml"
    file.write_text(text)
    asked = ("--kubeflow_trainer", release, "--kubeflow_job", file)
    assert body_of(run_job("--dryrun", "--json", *asked, *IMAGE))["spec"].get("activeDeadlineSeconds") == deadline


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--kubeflow_workdir_pvc", "My Claim"),
        ("--kubeflow_workdir_pvc", ""),
        ("--container_image", "bad image name"),
        ("--kubeflow_namespace", "Team"),
    ],
)
def test_a_value_that_kubernetes_cannot_take_is_refused_in_a_dry_run(run_job, option, value):
    answer = run_job("--dryrun", *IMAGE, option, value)
    assert (answer.code, f"{option} {value!r} " in answer.err) == (2, True)


def test_a_path_without_its_volume_and_a_wrong_runtime_are_refused(mbr_perf, run_job, tmp_path):
    small = ("-mr", RECIPE, "-g", "cpu", "-gn", "1", "--launcher", "kubeflow", "-t", "10", "--dryrun", *IMAGE)
    answer = mbr_perf("run", *small, "--kubeflow_workdir_pvc_path", "/nowhere")
    assert (answer.code, "--kubeflow_workdir_pvc_path needs" in answer.err) == (2, True)
    file = tmp_path / "base.yaml"
    file.write_text("spec: {runtimeRef: {name: No Such/Thing}}\n")
    answer = run_job("--dryrun", "--kubeflow_job", file, *IMAGE)
    assert (answer.code, "runtimeRef 'No Such/Thing'" in answer.err) == (2, True)


def test_all_wrong_options_are_named_at_once(run_job, mbr_perf, tmp_path):
    secret = tmp_path / "base.yaml"
    secret.write_text("spec: {trainer: {env: [{name: HF_TOKEN, value: hf_abcdefghijklmnopqrstuvwxyz0123456789}]}}\n")
    answer = run_job("--kubeflow_job", secret, "--pass_env", "HOME")
    assert answer.code == 2
    assert all(text in answer.err for text in ("needs an image", "--pass_env", "--kubeflow_job"))
    wrong = ("--partition", "batch", "--segment", "2", "--kubeflow_trainer", "1", "--kubeflow_namespace", "Team")
    answer = run_job(*wrong, "--pass_env", "HOME")
    named = ("--partition, --segment ", "--kubeflow_trainer '1'", "'Team'", "needs an image", "--pass_env")
    assert (answer.code, [text for text in named if text not in answer.err]) == (2, [])
    outside = run_job("--results_dir", "/elsewhere", *IMAGE)
    assert (outside.code, "/elsewhere" in outside.err) == (2, True)
    local = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "--kubeflow_namespace", "team")
    assert (local.code, "--kubeflow_namespace: only with --launcher kubeflow\n" in local.err) == (2, True)


def test_a_job_is_created_seen_and_deleted(api, run_job, job_dir, mbr_perf, results):
    answer = run_job("--detach", *IMAGE)
    job = read_job(job_dir())
    assert (answer.code, read_submitted(job_dir()).job_id, list(api.jobs)) == (0, job.name, [job.name])
    assert problems_of(api.jobs[job.name]) == []
    api.pods["p"] = pod(state={"waiting": {"reason": "ImagePullBackOff"}})
    status = json.loads(mbr_perf("jobs", "status", job.name, "--results_dir", results, "--json").out)["cluster_state"][
        0
    ]
    assert (status["kind"], status["reason"]) == ("queued", "ImagePullBackOff")
    cancelled = mbr_perf("jobs", "cancel", job.name, "--results_dir", results)
    assert (cancelled.code, api.jobs) == (0, {})
    assert mbr_perf("jobs", "wait", job.name, "--timeout", "0", "--results_dir", results).code == 6
    api.pods.clear()
    waited = mbr_perf("jobs", "wait", job.name, "--results_dir", results)
    record = read_run(job.runs[0].run_dir)
    assert (waited.code, record.status, record.failure) == (130, "interrupted", "Kubernetes: DELETED")


def test_a_job_is_asked_about_where_it_was_submitted(api, run_job, job_dir, mbr_perf):
    run_job("--detach", *IMAGE)
    subprocess.run(("kubectl", "config", "use-context", "elsewhere"), check=True)
    assert mbr_perf("jobs", "wait", job_dir(), "--timeout", "0").code == 6
    assert mbr_perf("jobs", "cancel", job_dir()).code == 0
    assert (read_submitted(job_dir()).cluster, api.jobs) == ("a", {})


def test_a_job_that_failed_before_python_shows_the_log_of_its_pod(api, run_job, job_dir, mbr_perf):
    run_job("--detach", *IMAGE)
    job = read_job(job_dir())
    api.jobs[job.name]["status"] = {"conditions": [condition("Failed", "BackoffLimitExceeded")]}
    api.pods["p"] = pod(restartCount=1, state={"terminated": {"reason": "Error", "exitCode": 1}})
    api.logs["p"] = "python3: No module named harness\n"
    assert mbr_perf("jobs", "wait", job_dir()).code == 3
    failure = read_run(job.runs[0].run_dir).failure
    assert {log.name for log in Path(job.job_dir, "logs").iterdir()} == {"p.out", "p.previous.out"}
    assert failure.startswith("Kubernetes: Failed (Error, exit code 1)") and "No module named harness" in failure


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [(403, "Forbidden", "refused the job"), (404, "NotFound", "refused the job"), (401, "Unauthorized", "logged in")],
)
def test_a_dry_run_refuses_a_wrong_request_before_anything_is_written(api, run_job, results, code, reason, says):
    api.failing = [refusal(code, reason, "no")]
    answer = run_job(*IMAGE)
    assert (answer.code, says in answer.err, results.exists()) == (2, True, False)
    assert "dryRun=All" in api.asked[0][1]


def test_a_job_that_is_refused_later_leaves_no_run(api, run_job, results):
    api.failing = [TAKEN, refusal(403, "Forbidden", "no")]
    assert (run_job(*IMAGE).code, list((results / "runs").iterdir())) == (2, [])


def test_a_webhook_without_dry_runs_refuses_nothing(api, run_job):
    api.failing = [refusal(400, "BadRequest", 'admission webhook "w" does not support dry run')]
    assert (run_job("--detach", *IMAGE).code, len(api.jobs)) == (0, 1)


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("variable", ["PATH", "KUBECONFIG"])
@pytest.mark.parametrize("command", ["run", "nightly"])
def test_without_kubectl_or_a_cluster_nothing_begins(mbr_perf, tmp_path, results, monkeypatch, command, variable):
    (tmp_path / "suite.yaml").write_text(
        f"defaults: {{golden: optional, request: {{model_recipe_name: {RECIPE}, gpu: cpu}}}}\n"
        "title: Two\ncases: [{name: first}, {name: second, request: {recompute: none}}]\n"
    )
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    asked = (tmp_path / "suite.yaml",) if command == "nightly" else ("-mr", RECIPE, "-g", "cpu")
    where = ("--launcher", "kubeflow", "--time_limit", "10", "--results_dir", results)
    answer = mbr_perf(command, *asked, *where, *IMAGE)
    says = {"PATH": "kubectl: not installed", "KUBECONFIG": "set KUBECONFIG"}[variable]
    assert (answer.code, says in answer.err, results.exists()) == (2, True, False), answer.err


def test_the_fields_of_another_release_are_refused_and_the_option_is_named(api, run_job, tmp_path):
    api.release = "2.1"
    answer = run_job(*IMAGE)
    assert (answer.code, "add --kubeflow_trainer 2.1" in answer.err, api.jobs) == (2, True, {})
    api.release = "2.2"
    own = tmp_path / "own.yaml"
    own.write_text("spec: {podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: a}}]}\n")
    answer = run_job("--kubeflow_job", own, *IMAGE)
    assert (answer.code, "correct the --kubeflow_job file" in answer.err) == (2, True)


BUSY = refusal(503, "ServiceUnavailable", "busy")
TAKEN = (201, {})


def test_a_submission_without_an_answer_is_looked_for_and_sent_again(api, run_job):
    api.failing = [TAKEN, *[BUSY] * 5]
    answer = run_job("--detach", *IMAGE)
    sent = [method for method, path in api.asked[1:] if path.startswith(PREFIX)]
    assert (answer.code, sent, len(api.jobs)) == (3, ["POST", *["GET"] * 4], 0)
    etcd = (500, {"kind": "Status", "status": "Failure", "code": 500, "message": "etcdserver: request timed out"})
    api.failing = [BUSY, etcd]
    assert (run_job("--detach", *IMAGE).code, len(api.jobs)) == (0, 1)


def test_a_submission_that_came_late_is_no_refusal(api, run_job, job_dir):
    unknown, late = refusal(404, "NotFound", "no"), refusal(409, "AlreadyExists", "there")
    api.failing = [TAKEN, refusal(500, "InternalError", "?"), unknown, late, (200, {})]
    answer = run_job("--detach", *IMAGE)
    assert (answer.code, read_submitted(job_dir()).job_id) == (0, read_job(job_dir()).name)


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [
        ({}, "queued", "Created"),
        ({"conditions": [condition("Suspended", "Suspended")]}, "queued", "Suspended"),
        ({"jobsStatus": [{"name": "node", "active": 1, "ready": 0}]}, "queued", "Created"),
        ({"jobsStatus": [{"name": "node", "active": 1, "ready": 1}]}, "running", "Running"),
        ({"conditions": [condition("Complete", "AllJobsCompleted")]}, "finished", "Complete"),
        ({"conditions": [condition("Failed", "DeadlineExceeded")]}, "timeout", "Failed"),
        ({"conditions": [condition("Failed", "FailedJobs")]}, "failed", "Failed"),
        ({"conditions": [condition("Suspended") | {"status": "False"}]}, "queued", "Created"),
    ],
)
def test_states(status, kind, word):
    found = state_of({"status": status})
    assert (found.kind, found.state) == (kind, word)


@pytest.mark.parametrize("release", ["2.1", "2.2"])
def test_a_confirming_job_prefers_other_nodes(release, results):
    options = KubeflowOptions(time_limit_minutes=10, container_image="image", trainer=release, exclude="gpu-1,gpu-2")
    record = job_record(results / "jobs" / "a", options=options)
    body = json.loads(kubeflow_job(record, this_host()).render())
    spec = body["spec"]
    if release == "2.1":
        pod = spec["podTemplateOverrides"][0]["spec"]
    else:
        (job,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = job["template"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("gpu-1", "gpu-2")
    ]
    assert (set(pod), problems_of(body, release)) == ({"affinity"}, [])
