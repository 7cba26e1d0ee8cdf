"""torchrun's port listens on every interface: whoever reaches it can make nobody unpickle anything."""

import subprocess
import sys
import threading

import pytest

from harness.launch.plan import free_port
from tests.launch.conftest import FOLDER, inherited, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.train, pytest.mark.slow]


def attack(port, marker):
    command = [sys.executable, str(FOLDER / "store_attack.py"), str(port), str(marker)]
    subprocess.run(command, check=True, timeout=60)


def test_an_attack_on_the_port_runs_nothing_and_the_run_goes_on(make_plan, tmp_path):
    plan = make_plan(str(FOLDER / "attacked_rank.py"), str(tmp_path / "run"), env=inherited())
    ranks, marker = plan.run_dir / "ranks", tmp_path / "ran"

    def attack_once_it_listens():
        if wait_until((ranks / "ready").exists, 60.0):
            attack(plan.rendezvous.master_port, marker)
            (ranks / "attacked").touch()

    attacker = threading.Thread(target=attack_once_it_listens)
    attacker.start()
    outcome = run(plan)
    attacker.join()
    assert (ranks / "attacked").exists()
    assert outcome.status == "ok", plan.launcher_log.read_text()
    assert not marker.exists()


@pytest.mark.long
def test_the_attack_works_on_the_rendezvous_that_is_not_used(tmp_path):
    port, marker = free_port(), tmp_path / "ran"
    rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=attacked")
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nnodes=1:2", "--no-python", "sleep", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        try:
            attack(port, marker)
            assert wait_until(marker.exists, 60.0)
        finally:
            agent.terminate()
            agent.wait(30)
