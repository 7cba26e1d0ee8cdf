"""From the options of `mbr-perf sweep`, and a sweep file, to the one value that the logic takes."""

from harness.asking.options import JudgeOptions, LocalLaunchOptions, SweepNodes
from harness.asking.requests import experiment_request, gate_options, launch_words, nodes_said, require_nothing_else
from harness.asking.slurm_options import SlurmArrayOptions, slurm_request
from harness.batch.nodes import Follower, Meeting
from harness.errors import BadRequestError
from harness.recipes.problems import Problems
from harness.recipes.suite_file import laid_over, request_of
from harness.recipes.sweep_file import SweepFile, read_sweep_file
from harness.records.batches import SWEEP_FOLDERS
from harness.records.job import SlurmRequest
from harness.sweep.options import SweepOptions, SweptOptions
from harness.sweep.request import Over, SweepRequest, same_axis, split_over

_MAY_ACCOMPANY = frozenset({"resume", "max_minutes", "no_warm", "as_json", "results_dir"})
_RENEWED_S = 30.0  # nodes are started together; node 0 claims a sweep that it resumes within seconds


def sweep_request(
    asked: SweptOptions, how: SweepOptions, judge: JudgeOptions, launch: LocalLaunchOptions, nodes: SweepNodes
) -> SweepRequest:
    """All of `mbr-perf sweep` as one value; the command line wins over the file.

    BadRequestError for an unreadable file or ``--over``, and without a recipe.
    """
    file = read_sweep_file(how.file, asked.recipes_dir) if how.file is not None else None
    request = experiment_request(asked, judge)
    request = laid_over(request_of(file.request), request) if file else request
    if not request.model_recipe_name:
        raise BadRequestError("a sweep needs a recipe", remedy="-mr RECIPE, or --file SWEEP_FILE, or --resume SWEEP")
    return SweepRequest(
        asked=request,
        over=_over(file, how.over or ()),
        title=file.title if file else "",
        grid=how.grid or bool(file and file.grid),
        repeats=how.repeats if how.repeats is not None else file.repeats if file else 1,
        control=how.control if how.control is not None else (file.control or "") if file else "",
        max_minutes=how.max_minutes,
        prune=not how.no_prune,
        margin=how.margin,
        force=frozenset(asked.force or ()),
        launch=launch_words(launch).model_copy(
            update={name: getattr(nodes, name) for name in ("nnodes", "master_addr", "master_port")}
        ),
        gate=gate_options(judge).record,
        results_dir=launch.results_dir,
        sweep_dir=nodes.sweep_dir,
    )


def slurm_sweep_request(
    how: SweepOptions, launch: LocalLaunchOptions, nodes: SweepNodes, given: SlurmArrayOptions
) -> SlurmRequest | None:
    """What `--launcher slurm` asks for; None for another launcher. BadRequestError, all at once."""
    problems, asked = Problems(), None
    with problems.collecting():
        asked = slurm_request(launch.launcher, given, nodes_said(nodes, launch.replay_from))
    if launch.launcher == "slurm" and how.no_warm:
        problems.add("--no_warm cannot be said with --launcher slurm", "leave it out")
    if launch.launcher == "slurm" and how.max_minutes is not None and (given.array or how.resume is not None):
        remedy = "leave it out: --time_limit ends each task or the job"
        problems.add("--max_minutes with an array or a resumed sweep on Slurm", remedy)
    problems.raise_if_any()
    return asked


def follower(how: SweepOptions, launch: LocalLaunchOptions, nodes: SweepNodes) -> Follower:
    """Takes part in a sweep that node 0 leads. BadRequestError without the folder that both see."""
    folder = nodes.sweep_dir
    if how.resume is not None:
        folder = SWEEP_FOLDERS.folder_of(how.resume, launch.results_dir)
    if folder is None:
        raise BadRequestError(
            f"--node_rank {nodes.node_rank} needs the folder of the sweep",
            remedy="give every node the same --sweep_dir on a shared file system",
        )
    meeting = Meeting(nodes.master_addr, nodes.master_port)
    settle_s = _RENEWED_S if how.resume is not None else 0.0
    return Follower(folder, nodes.node_rank, meeting, is_warm=not how.no_warm, settle_s=settle_s)


def _over(file: SweepFile | None, texts: "list[str] | tuple[str, ...]") -> tuple[Over, ...]:
    """Axes of the file, then of the command line; one of the same name replaces the file's."""
    problems, given = Problems(), list[Over]()
    for text in texts:
        with problems.collecting():
            given.append(split_over(text))
    problems.raise_if_any()
    kept = [axis for axis in (file.over.items() if file else ()) if not any(same_axis(axis[0], g[0]) for g in given)]
    return (*kept, *given)


def require_only_resume(*groups: object) -> None:
    """BadRequestError naming every option that says again what a resumed sweep has decided already."""
    require_nothing_else("sweep", "--max_minutes, --no_warm, --results_dir and --json", groups, _MAY_ACCOMPANY)
