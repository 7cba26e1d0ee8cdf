"""A rank that heartbeats like the real one and then does what its arguments say: MODE [RANK that does it]."""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
run_dir, mode, *which = sys.argv[1:]
chosen = not which or rank == int(which[0])
ranks = Path(run_dir) / "ranks"
log = os.open(Path(run_dir) / "logs" / f"rank_{rank:03d}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)
faulthandler.register(signal.SIGUSR1)
(ranks / f"pid_{rank}").write_text(str(os.getpid()))
beats = (ranks / f"rank_{rank:03d}.progress.jsonl").open("a", buffering=1)


def beat(**fields):
    beats.write(json.dumps({"time_s": time.time(), **fields}) + "\n")


def step(index):
    time.sleep(0.5 if mode == "slow" else 0.02)
    beat(phase="step", step=index, seconds=0.02, loss=1.0)


def blocked_for_ever():
    time.sleep(600)


beat(phase="start")
for index in range(3):
    step(index)
if chosen and mode == "exit3":
    sys.exit(3)
if chosen and mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if chosen and mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode not in ("ok", "slow", "lingers", "recorded") and chosen:
    blocked_for_ever()
for index in range(3, 5 if mode in ("ok", "slow", "lingers", "recorded") else 1000):
    step(index)
beat(phase="finish")
if mode == "recorded":
    (ranks / f"rank_{rank:03d}.json").write_text("{}")
if mode in ("lingers", "recorded") and chosen:
    blocked_for_ever()
