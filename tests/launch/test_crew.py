"""A crew polls its processes rarely, and names stopped ones."""

import subprocess
import time

from harness.launch.crew import MAX_LOOKING, Crew


class Agent(subprocess.Popen[bytes]):
    """Counts the looks: each asks once whether it runs."""

    num_looks = 0

    def poll(self):
        self.num_looks += 1
        return super().poll()


def test_whoever_keeps_looking_looks_for_a_small_share_of_the_time():
    with Agent(("sleep", "60")) as agent:
        crew = Crew(agent)
        one_look_s = min(seconds(crew.look) for _ in range(5))
        agent.num_looks, began = 0, time.monotonic()
        while time.monotonic() < began + 0.5:
            crew.keep_looking()
        num_looks = agent.num_looks
        agent.kill()
    assert (
        1 <= num_looks <= 1 + 4 * MAX_LOOKING * 0.5 / one_look_s
    )  # four times as many where looks have become quicker


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began
