"""A real Slurm on this machine: one controller, two virtual nodes, loopback only, in a folder of its own."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from harness.launch.processes import Process, identify, is_alive
from harness.records.collect import read_heartbeats
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "native" / "mini_slurm.sh"
HOME = Path(tempfile.gettempdir()) / f"mbr-perf-slurm-{os.getuid()}"
NEEDED = ("sbatch", "srun", "scontrol", "slurmctld", "slurmd", "munged")
SMALL = (
    "-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "-ng", "2", "--num_layers", "2", "-sl", "64",
    "--set", "model.hidden_size=64", "--set", "model.ffn_hidden_size=128", "--set", "model.vocab_size=256",
)  # fmt: skip
SUBMITTED = ("--launcher", "slurm", "--time_limit", "20")


class Cluster:
    """A throw-away cluster. Everything that it starts carries the path of its configuration in its environment."""

    def __init__(self, folder, **settings):
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.shell = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.shell |= {"SLURM_CONF": str(self.conf)}
        for _ in range(5):
            ports = {"PORT0": str(free_ports()), "NODES": "2", "KILL_WAIT": "30"}
            started = subprocess.run(
                ["bash", SCRIPT, "start", folder], env=os.environ | ports | settings, capture_output=True, text=True,
                timeout=60, check=False,
            )  # fmt: skip
            if started.returncode == 0:
                return
            self.stop()
        raise AssertionError(f"no Slurm could be started:\n{started.stdout}{started.stderr}{self._logs()}")

    def call(self, *words):
        """What a command of Slurm answers; empty where it fails."""
        done = subprocess.run(
            [str(word) for word in words], env=self.shell, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def mbr_perf(self, *words, shell=None):
        """One command to its end, as somebody at this cluster would type it."""
        return subprocess.run(
            self.command(*words), env=self.shell | (shell or {}), cwd=ROOT, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    def begin(self, *words):
        """The same, still running."""
        return subprocess.Popen(
            self.command(*words), env=self.shell, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @staticmethod
    def command(*words):
        return [sys.executable, "-m", "harness.app", *(str(word) for word in words)]

    def job(self, job_id):
        """What the controller says of a job: ``JobState``, ``Reason``, ``ExitCode``, ``Restarts``."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "-o", "show", "job", job_id)))

    def ended(self, job_id):
        """The same once the job has ended: Slurm says so a moment after its processes are gone."""
        under_way = ("PENDING", "RUNNING", "COMPLETING")
        return eventually(lambda: self._unless(self.job(job_id), under_way), "the end of the job")

    @staticmethod
    def _unless(job, states):
        return None if job.get("JobState", states[0]) in states else job

    def start_controller(self):
        """Anew, with what it had written down."""
        subprocess.run(["/usr/sbin/slurmctld", "-f", self.conf], env=self.shell, check=True, timeout=30)

    def kill(self, daemon):
        """SIGKILL to ``slurmctld`` or ``slurmd.n2``."""
        pid = int((self.folder / "run" / f"{daemon}.pid").read_text())
        os.kill(pid, signal.SIGKILL)

    def tidy(self):
        """Cancel what a test left, and wait until the nodes are free."""
        jobs = self.call("squeue", "--noheader", "--format=%A").split()
        if jobs:
            self.call("scancel", *jobs)
            eventually(lambda: self.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], "idle nodes")

    def stop(self):
        """End everything that was started there, whoever started it."""
        subprocess.run(["bash", SCRIPT, "stop", self.folder], capture_output=True, timeout=60, check=False)
        end_processes_of(self.conf)

    def _logs(self):
        return "".join(f"\n{log}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("log/*.log")))


def free_ports():
    """A number from which the controller and both nodes have free ports."""
    while True:
        first = random.randrange(20000, 31000)
        with suppress(OSError):
            for port in (first, first + 101, first + 102):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


def end_processes_of(conf):
    """SIGKILL to processes of this user in whose environment that configuration stands, jobs and ranks among them."""
    mark = f"SLURM_CONF={conf}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def end_leftovers():
    """Clusters of test sessions that were killed."""
    for folder in HOME.iterdir():
        pid, ticks, _ = folder.name.split("-")
        if not is_alive(Process(int(pid), int(ticks))):
            end_processes_of(folder / "slurm.conf")
            shutil.rmtree(folder, ignore_errors=True)


def eventually(what, name, within_s=60.0):
    """The first true answer. The test fails, with ``name``, where none comes."""
    return wait_until(what, within_s) or pytest.fail(f"{name}: not within {within_s:g} s")


@pytest.fixture(scope="session")
def new_cluster():
    """Starts clusters that end with the session, however it ends: what a killed one left, the next one ends."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
    HOME.mkdir(mode=0o755, exist_ok=True)
    end_leftovers()
    me, started = identify(os.getpid()), []

    def start(**settings):
        folder = HOME / f"{me.pid}-{me.start_ticks}-{len(started)}"
        started.append(folder)
        return Cluster(folder, **settings)

    yield start
    for folder in started:
        end_processes_of(folder / "slurm.conf")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", name="_shared_cluster")
def _shared(new_cluster):
    cluster = new_cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def slurm(_shared_cluster):
    """The cluster of this session, its nodes free."""
    yield _shared_cluster
    _shared_cluster.tidy()


@pytest.fixture
def own_slurm(new_cluster):
    """A cluster for one test, which may break it."""
    cluster = new_cluster()
    yield cluster
    cluster.stop()


class Results:
    """The results folder of a test, as its reader finds it."""

    def __init__(self, folder):
        self.folder = folder
        self.option = ("--results_dir", folder)

    @property
    def jobs(self):
        return sorted((self.folder / "jobs").glob("*"))

    @property
    def runs(self):
        return sorted((self.folder / "runs").glob("*"))

    def run(self, *more):
        """`mbr-perf run` of a small model over two nodes by a job, into this folder."""
        return ("run", *SMALL, "-gn", "1", *SUBMITTED, *self.option, *more)

    def job_id(self):
        """Of the only job, once it is submitted."""
        path = eventually(lambda: list((self.folder / "jobs").glob("*/submitted.json")), "a submitted job")[0]
        return str(json.loads(path.read_text())["job_id"])

    def with_steps(self, num_steps=2, num_ranks=2):
        """The run folder once every rank has reported so many steps."""

        def advanced():
            for folder in self.runs:
                ranks = [
                    read_heartbeats(folder / "ranks" / f"rank_{r:03d}.progress.jsonl")[0] for r in range(num_ranks)
                ]
                if all(sum(beat.seconds is not None for beat in beats) >= num_steps for beats in ranks):
                    return folder
            return None

        return eventually(advanced, "steps of every rank", 400)

    @staticmethod
    def rank_pids(run_dir):
        """By rank, the processes that train into that folder."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                variables = (folder / "environ").read_bytes().split(b"\0")
                rank = next(variable for variable in variables if variable.startswith(b"RANK="))
                if words[-2:] == [str(run_dir).encode(), b""]:
                    found[int(rank.removeprefix(b"RANK="))] = int(folder.name)
        return found


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")
