"""A Kubernetes API on loopback with a real kubectl before it: TrainJobs by the CRD's schema, pods, and their logs.

There is no cluster here, so the API is the double: it keeps jobs, and can run the command of each pod on this machine.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

DATA = Path(__file__).parents[1] / "data"
RECIPE = DATA / "replay" / "replayed.yaml"
IMAGE = ("--container_image", "registry/image:1")
SCHEMA = json.loads((DATA / "kubeflow" / "trainjob.json").read_text())
PREFIX = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs"
PODS = "/api/v1/namespaces/team/pods"
ELSEWHERE = "/elsewhere"
"""The path of another cluster, of the context of that name. It knows no job."""


def problems_of(body, release="2.2"):
    """What the CRD of a release of Trainer refuses in a TrainJob."""
    return [error.message for error in Draft202012Validator(SCHEMA[release]).iter_errors(body)]


class Api:
    """The API of a namespace ``team``. ``runs_pods``: a new job's commands run here, one for each node.

    ``sigterm_after_s``: from the deletion of a job until its pods get SIGTERM.
    """

    def __init__(self, folder):
        self.folder, self.release, self.runs_pods = folder, "2.2", False
        self.jobs, self.pods, self.logs, self.asked, self.failing = {}, {}, {}, [], []
        self.processes, self.sigterm_after_s = [], 0.0

    def answer(self, method, path, body):
        """The code and the document, or the text, of one request."""
        if path.startswith((ELSEWHERE, "/version")):  # some kubectl ask for the version first
            return refusal(404, "NotFound", "not found")
        self.asked.append((method, path))
        if self.failing:
            return self.failing.pop(0)
        path, _, query = path.partition("?")
        if path.startswith(PODS):
            name = path.removeprefix(f"{PODS}/").removesuffix("/log")
            assert not path.endswith("/log") or query.startswith("container=node")
            return 200, self.logs.get(name, "") if path.endswith("/log") else {
                "items": [*self.pods.values(), *self._started()]
            }
        if path != PREFIX:
            return self._of_one_job(method, path.removeprefix(f"{PREFIX}/"))
        if method == "GET":
            return 200, {"items": list(self.jobs.values())}
        assert query.endswith("fieldValidation=Strict")
        return self._created(json.loads(body), is_kept="dryRun=All" not in query)

    def _of_one_job(self, method, name):
        if name not in self.jobs:
            return refusal(404, "NotFound", f'trainjobs.trainer.kubeflow.org "{name}" not found')
        if method == "DELETE":
            threading.Timer(self.sigterm_after_s, self._end, [signal.SIGTERM]).start()
            return 200, self.jobs.pop(name)
        return 200, self._ended(self.jobs[name])

    def _created(self, body, is_kept):
        name = body["metadata"]["name"]
        if name in self.jobs:
            return refusal(409, "AlreadyExists", f'trainjobs.trainer.kubeflow.org "{name}" already exists')
        for problem in problems_of(body, self.release):
            extra = problem.partition("('")[2].partition("' w")[0].replace("', '", '", unknown field "spec.')
            return refusal(400, "BadRequest", f'strict decoding error: unknown field "spec.{extra}"')
        if not is_kept:
            return 201, body
        self.jobs[name] = body
        if self.runs_pods:
            self.start(body["spec"]["trainer"])
        return 201, body

    def start(self, trainer, ranks=None, machine="machine"):
        for rank in range(trainer["numNodes"]) if ranks is None else ranks:
            env = {each["name"]: each.get("value", f"{machine}-{rank}") for each in trainer["env"]}
            env |= {"PATH": os.environ["PATH"], "PET_NNODES": str(trainer["numNodes"]), "PET_NODE_RANK": str(rank)}
            env |= {"PET_MASTER_ADDR": "127.0.0.1", "HOME": str(self.folder)}
            with (self.folder / f"pod-{rank}.out").open("wb") as log:
                words = trainer["command"]
                self.processes.append(subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True))

    def _started(self):
        phases = ["Running" if process.poll() is None else "Succeeded" for process in self.processes]
        return [
            {"metadata": {"name": f"node-{place}"}, "status": {"phase": phase}} for place, phase in enumerate(phases)
        ]

    def _ended(self, body):
        codes = [process.poll() for process in self.processes]
        if codes and None not in codes:
            body["status"] = {"conditions": [condition("Failed" if any(codes) else "Complete", "JobsDone")]}
        return body

    def _end(self, number):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def stop(self):
        """End what still runs, with everything that it started."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def condition(word, reason=""):
    return {"type": word, "status": "True", "reason": reason}


def refusal(code, reason, message):
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return code, document | {"message": message}


class Handler(BaseHTTPRequestHandler):
    """Hands requests of kubectl to the API. It sends files in chunks."""

    def _any(self):
        answered = self.server.api.answer(self.command, self.path, self._body())
        code, document = answered
        text = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(document, str) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = _any  # noqa: N815 (names of http.server)

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *_):
        pass


@pytest.fixture
def api(tmp_path, monkeypatch):
    """The API, and a KUBECONFIG that leads there."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl not installed: apt-get install kubernetes-client")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.api = found = Api(tmp_path)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / "kubeconfig"
    contexts = [{"name": name, "context": {"cluster": name, "user": "a"}} for name in ("a", "elsewhere")]
    clusters = [
        {"name": name, "cluster": {"server": f"http://127.0.0.1:{server.server_port}{path}"}}
        for name, path in (("a", ""), ("elsewhere", ELSEWHERE))
    ]
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "a", "contexts": contexts, "clusters": clusters,
        "users": [{"name": "a", "user": {}}],
    }))  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield found
    found.stop()
    server.shutdown()
    server.server_close()


@pytest.fixture(name="results")
def _results(tmp_path):
    return tmp_path / "results"


@pytest.fixture(name="run_job")
def _run_job(mbr_perf, results):
    """`mbr-perf run --launcher kubeflow` of the small recipe, two nodes with a rank each."""

    def run(*arguments, gpu="cpu", command="run"):
        small = ("-mr", RECIPE, "-g", gpu, "-gn", "1", "--launcher", "kubeflow", "--kubeflow_namespace", "team")
        volume = ("--kubeflow_workdir_pvc", "shared", "--kubeflow_workdir_pvc_path", results.parent)
        return mbr_perf(command, *small, *volume, "--time_limit", "10", "--results_dir", results, *arguments)

    return run


@pytest.fixture(name="job_dir")
def _job_dir(results):
    """The folder of the only job."""
    return lambda: next((results / "jobs").iterdir())


def pod(**container):
    return {"metadata": {"name": "p"}, "status": {"phase": "Running", "containerStatuses": [container]}}
