"""The guides name every option, link to what exists, and show commands that mbr-perf takes and the answers that it gives.

A block ```` ```console ```` is a session: after `$` stands a command, below it what the command prints. The tests run the
commands of a guide in order, in a folder with the files of ``example``. `...` stands for any text of a line, and for any
lines where it stands alone. All other blocks are not run. ``RUN``, ``OTHER_RUN`` and ``SWEEP`` are folders of ``example``.
"""

import json
import re
import shlex
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import typer
import yaml

from harness.app import app, main
from harness.cli.bridge import spellings
from harness.experiment.software import ASSUMED_MEGATRON_CORE
from harness.imports.sides import read_side, side_of
from harness.launch.machine import installed_software
from harness.predict.shipped_traces import find_events
from tests.diagnose.conftest import FULL
from tests.imported_logs import EXPANDABLE, MEGATRON_LM, TABLE, bridge_values, job_log
from tests.snapshot_pickles import fragmented, holes, written

ROOT = Path(__file__).parents[1]
GUIDES = sorted(
    path for folder in (".", "recipes", "results", "scripts", "harness") for path in (ROOT / folder).glob("README.md")
) + sorted((ROOT / "harness").glob("*/**/README.md"))
COMMAND = typer.main.get_command(app)
# Features by the names of their folders; the guide of a feature lies in it.
FEATURES = ("run", "sweep", "nightly", "bisect", "history", "plan", "explain", "diagnose", "snapshot", "imports", "capture",
            "golden", "jobs", "results", "recipes")  # fmt: skip


def commands(command=COMMAND, name=""):
    inside = getattr(command, "commands", None)
    if inside:
        for word, inner in inside.items():
            yield from commands(inner, f"{name} {word}".strip())
    else:
        yield name, command


def anchor_of(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(path):
    return {anchor_of(title) for title in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_has_its_guide(feature):
    guide = ROOT / "harness" / feature / "README.md"

    assert guide.exists()
    assert f"(harness/{feature}/README.md)" in (ROOT / "README.md").read_text()


def test_every_option_is_named_in_a_guide():
    text = "\n".join(path.read_text() for path in GUIDES)
    options = {option for _, command in commands() for parameter in command.params for option in parameter.opts}

    unnamed = [
        option for option in sorted(options) if option.startswith("--") and not re.search(rf"{option}(?![\w])", text)
    ]

    assert unnamed == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_exists(guide):
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", guide.read_text()):
        assert target.startswith("http") or (guide.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", guide.read_text()):
        if not target.startswith("http"):
            assert anchor in anchors(guide.parent / target if target else guide), f"{target}#{anchor}"


@pytest.mark.parametrize("guide", [*GUIDES, ROOT / "tests" / "README.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_guide_of_three_sections_begins_with_its_contents(guide):
    text = re.sub(r"^```.*?^```$", "", guide.read_text(), flags=re.MULTILINE | re.DOTALL)
    before, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    titles = [section.splitlines()[0] for section in sections] if len(sections) >= 3 else []

    assert [title for title in titles if f"](#{anchor_of(title)})" not in before] == []


def blocks(guide, *kinds):
    """The blocks of these kinds; all are read, so that the end of one is never the beginning of another."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind in kinds]


def shown(guide):
    """Every line inside a block that runs mbr-perf."""
    for block in blocks(guide, "", "console"):
        lines = (line.removeprefix("$ ") for line in block.replace("\\\n", "").splitlines())
        yield from (line for line in lines if line.removeprefix("scripts/").startswith("mbr-perf "))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_a_guide_shows_exist_with_their_options(guide):
    by_name = dict(commands())
    for line in shown(guide):
        words = shlex.split(line.partition(" #")[0])[1:]
        name = next((name for name in (" ".join(words[:2]), f"{words[0]} show", words[0]) if name in by_name), None)
        assert name, line
        known = {option for parameter in by_name[name].params for option in parameter.opts} | {*spellings()}
        given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        assert [option for option in given if option not in known] == [], line


def sessions(guide):
    """Every command of the guide's sessions with the lines that the guide shows below it."""
    for block in blocks(guide, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = re.sub(r"\A((?:.*\\\n)+)", lambda head: head[1].replace("\\\n", ""), part).partition(
                "\n"
            )
            yield command, [line for line in shown.splitlines() if line]


def difference(shown, printed):
    """The first line that is shown and not printed, or printed and not shown; None where they agree."""
    at, skips = 0, False
    for line in shown:
        if line == "...":
            skips = True
            continue
        pattern = re.escape(line).replace(r"\.\.\.", ".*")
        rest = range(at, len(printed) if skips else min(at + 1, len(printed)))
        found = next((n for n in rest if re.fullmatch(pattern, printed[n])), None)
        if found is None:
            return f"not printed here: {line}"
        at, skips = found + 1, False
    return None if skips or at == len(printed) else f"not shown: {printed[at]}"


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (["a 1", "b 2", "c 3"], None),
        (["a ...", "...", "c 3"], None),
        (["...", "b 2", "..."], None),
        (["a 1", "c 3"], "not printed here: c 3"),
        (["...", "c 3", "b 2"], "not printed here: b 2"),
        (["a 1", "b 2"], "not shown: c 3"),
        (["a 1", "b 2", "c 3", "d"], "not printed here: d"),
    ],
)
def test_what_a_session_shows_is_what_was_printed(shown, found):
    assert difference(shown, ["a 1", "b 2", "c 3"]) == found


@pytest.fixture(scope="session", name="example")
def _example(tmp_path_factory):
    """Logs with the published figures of Llama 3 70B on 32 H100, one of a slower job, and the results of recorded CPU ranks."""
    folder = tmp_path_factory.mktemp("guides")
    jobs = {job.label: job for job in TABLE}
    published = jobs[f"core_attn {EXPANDABLE}"]
    logs = {
        "oom.log": jobs["core_attn"], "mlp.log": jobs["mlp"], "core_attn.log": published,
        "train.log": replace(published, tflops=647.2),
    }  # fmt: skip
    for name, job in logs.items():
        # The slower job is of the next night: of two at the same time neither would be the last.
        (folder / name).write_text(
            job_log(job).replace("2026-08-01", "2026-08-02" if name == "train.log" else "2026-08-01")
        )
    (folder / "full.log").write_text(f"[rank3]: {FULL}\n")
    written(folder / "oom.pickle", fragmented().snapshot())
    written(folder / "holes.pickle", holes().snapshot())
    with tarfile.open(ROOT / "tests" / "data" / "bridge" / "containers_067f987.tar.xz") as archive:
        member = archive.extractfile("llama3_70b_pretrain_64gpu_h100_bf16.yaml")
        assert member is not None
        (folder / "run_config.yaml").write_bytes(member.read())
    kept = yaml.safe_load((ROOT / "scripts" / "audit-bridge-recipes.d" / "model_configs.yaml").read_text())
    (folder / "Meta-Llama-3-70B").mkdir()
    model = kept["shared"]["llama"] | kept["models"]["meta-llama/Meta-Llama-3-70B"]
    (folder / "Meta-Llama-3-70B" / "config.json").write_text(
        json.dumps({k: v for k, v in model.items() if k != "like"})
    )
    (folder / "train.sh").write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MEGATRON_LM}\n")
    (folder / "run.sh").write_text(
        "for tp in 1 2; do torchrun pretrain_gpt.py --tensor-model-parallel-size $tp; done\n"
    )
    shutil.copytree(ROOT / "recipes" / "examples", folder / "recipes" / "examples")
    shutil.copytree(ROOT / "tests" / "data" / "sweeps" / "cpu_oom", folder / "results" / "sweeps" / "cpu_oom")
    (folder / "golden.json").write_text(json.dumps(bridge_values(read_side(side_of(str(folder / "core_attn.log")))[0])))
    options = shlex.split("-mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32 --recompute_modules core_attn")
    for name, log in (("OTHER_RUN", "core_attn.log"), ("RUN", "train.log")):
        with pytest.raises(SystemExit):
            main(["import", "--log", str(folder / log), *options, "--results_dir", str(folder / name)])
        (run,) = (folder / name / "runs").iterdir()
        shutil.copytree(run, folder / "results" / "runs" / run.name)
        (folder / name / "id").write_text(run.name)
    return folder


def words(command, folder):
    """The arguments of a command line; results lie in the folder, whatever the checkout holds."""
    places = {name: (folder / name / "id").read_text() for name in ("RUN", "OTHER_RUN")} | {"SWEEP": "cpu_oom"}
    given = [places.get(word, word) for word in shlex.split(command, comments=True)][1:]
    by_name = dict(commands())
    name = next(name for name in (" ".join(given[:2]), f"{given[0]} show", given[0]) if name in by_name)
    takes = {option for parameter in by_name[name].params for option in parameter.opts}
    return [*given, *(["--results_dir", "results"] if "--results_dir" in takes else [])]


def parametrized():
    """Guides with sessions. Those that predict start torch; that of plan shows a step replayed from known requests."""
    installed = installed_software()
    has_requests = bool(find_events(installed.megatron_core or ASSUMED_MEGATRON_CORE, installed))
    why = f"mbr-perf brings no requests for memory of megatron-core {installed.megatron_core}"
    for guide in GUIDES:
        name = str(guide.relative_to(ROOT))
        if list(sessions(guide)):
            predicts = name in (
                "README.md",
                "harness/plan/README.md",
                "harness/diagnose/README.md",
                "harness/nightly/README.md",
                "harness/imports/README.md",
                "harness/foreign/README.md",
            )
            marks = [pytest.mark.train, pytest.mark.slow] if predicts else []
            needs = [pytest.mark.skipif(not has_requests, reason=why)] if name == "harness/plan/README.md" else []
            yield pytest.param(guide, id=name, marks=[*marks, *needs])


@pytest.mark.parametrize("guide", list(parametrized()))
def test_the_outputs_of_a_guide_are_those_of_today(guide, example, mbr_perf, tmp_path, tmp_path_factory, monkeypatch):
    folder = shutil.copytree(example, tmp_path / "folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "traces"))
    monkeypatch.chdir(folder)
    code = None
    for command, shown_lines in sessions(guide):
        assert set(shown_lines) - {"..."}, f"$ {command}: shows nothing"
        if command == "echo $?":
            assert shown_lines == [str(code)]
            continue
        answer = mbr_perf(*words(command, folder))
        code = answer.code
        printed = [line.rstrip() for line in (answer.out or answer.err).splitlines() if line.strip()]

        assert difference(shown_lines, printed) is None, "\n".join([f"$ {command}", *printed])


def test_guides_of_features_show_an_output():
    without = [feature for feature in FEATURES if not list(sessions(ROOT / "harness" / feature / "README.md"))]

    assert without == ["bisect", "jobs"]  # their commands need a repository and Slurm
