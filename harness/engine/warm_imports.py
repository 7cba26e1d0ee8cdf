"""Every module that an agent and a rank import, by the time the rank has trained: what a warm parent imports once.

A test compares: what a rank still imports by itself costs every launch anew.
"""

import torch.distributed.run  # noqa: F401

import harness.engine.agent
import harness.engine.rank_run  # noqa: F401
