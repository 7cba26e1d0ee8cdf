"""A diagnosis on a terminal."""

import io

import pytest

from harness.diagnose.judge import diagnose
from harness.diagnose.plan import Outlook
from harness.diagnose.show import diagnosis_page
from harness.diagnose.values import Change
from harness.show.terminal import Console, print_page
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_command_to_copy_is_on_one_line_at_any_width(case, width):
    outlook = Outlook(Change("mlp", 60 * GIB, 0.16), budget_bytes=74 * GIB)
    answer, out = diagnose(case(FRAGMENTED, expandable_segments=False), outlook=outlook), io.StringIO()

    print_page(Console(file=out, force_terminal=True, color_system=None, width=width), diagnosis_page(answer))

    lines = out.getvalue().splitlines()
    commands = [fix.command for fix in answer.fixes if fix.command]
    assert commands
    assert [line.strip() for line in lines if "mbr-perf run" in line] == commands
    (setting,) = [fix.setting for fix in answer.fixes if fix.setting]
    assert tuple(line.strip() for line in lines if line.strip().startswith("Megatron-")) == setting.lines
    assert all(len(line.rstrip()) <= width for line in lines if line.strip() not in (*commands, *setting.lines))
