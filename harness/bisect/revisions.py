"""The revisions of a repository: their order, a copy of megatron-core at each, and what a commit changed."""

import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

from harness.bisect.values import Revision
from harness.errors import BadRequestError
from harness.records.quoting import quoted_error
from harness.show.page import on_one_line

PACKAGE, SUBMODULE = "megatron", "3rdparty/Megatron-LM"
_VERSION = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE)\s*=\s*['\"]?([\w.]*)['\"]?\s*$", re.MULTILINE)
_ABOUT = re.compile(r"recomput|checkpoint|offload|memory|alloc|buffer|cuda_graph", re.IGNORECASE)
_PIN = re.compile(r"^[\w.-]+(\[[\w,.-]*\])?\s*(==|===|@)\s*\S", re.MULTILINE)
_OTHER_FILE = re.compile(r"^[ \t]*(?:-[rc]|--(?:requirement|constraint)\b).*", re.MULTILINE)
_MOST_LINES = 20
_CHECKOUT = "name a checkout of Megatron-LM or Megatron-Bridge with --repo, or a file that pins versions with --pins"
_PATIENCE_S = 300.0


def git(repo: Path, *arguments: str) -> bytes:
    """Return what git answers. BadRequestError with git's reason if it fails."""
    command = ("git", "-C", str(repo), "--no-pager", *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequestError(f"git does not answer: {error}", remedy="install git") from error
    if done.returncode:
        raise BadRequestError(f"{repo}: git {arguments[0]}: {quoted_error(done.stderr)}", remedy="name a git checkout")
    return done.stdout


def core_of(repo: Path, sha: str) -> tuple[Path, str]:
    """Return the repository and commit of megatron-core, maybe of a submodule. BadRequestError: not checked out."""
    link = git(repo, "ls-tree", sha, SUBMODULE).decode().split()
    if link[1:2] != ["commit"]:
        return repo, sha
    if not (repo / SUBMODULE / ".git").exists():
        remedy = f"git -C {repo} submodule update --init {SUBMODULE}"
        raise BadRequestError(f"{repo / SUBMODULE}: the submodule is not checked out", remedy=remedy)
    return repo / SUBMODULE, link[2]


def find_revisions(repo: Path, good: str, bad: str, pins: str | None = None) -> tuple[Revision, ...]:
    """Return good, the later first-parent commits that change the package or ``pins``, and bad. BadRequestError."""
    if not repo.is_dir():
        raise BadRequestError(f"--repo {repo}: no such folder", remedy=_CHECKOUT)
    git(repo, "rev-parse", "--git-dir")  # ends with git's reason where it reads no repository
    ends = [_sha(repo, option, name) for option, name in (("--good", good), ("--bad", bad))]
    if git(repo, "rev-list", "--max-count=1", ends[0], f"^{ends[1]}"):
        remedy = "name an earlier and a later commit of one branch, or swap them"
        raise BadRequestError(f"--good {good} is no ancestor of --bad {bad}", remedy=remedy)
    for option, sha in (("--good", ends[0]), ("--bad", ends[1])):
        if pins:
            pins_at(repo, sha, pins)
            continue
        core, at = core_of(repo, sha)
        if not git(core, "ls-tree", at, f"{PACKAGE}/core/__init__.py"):
            raise BadRequestError(f"{option} {sha[:10]}: no {PACKAGE}/core in {repo}", remedy=_CHECKOUT)
    paths = [pins] if pins else [f"{PACKAGE}/", SUBMODULE]
    listed = _listed(repo, "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}", "--", *paths)
    if not listed:
        raise BadRequestError(
            f"no commit from --good {good} to --bad {bad} changes {paths[0]}", remedy="name other revisions"
        )
    return (*_listed(repo, "--max-count=1", ends[0]), *listed)


def pins_at(repo: Path, sha: str, file: str) -> str:
    """Return the requirements of a revision, a line each. BadRequestError if the file pins none, or is not there."""
    where = f"--pins {file} at {sha[:10]}"
    if not git(repo, "ls-tree", sha, "--", file):
        raise BadRequestError(f"{where}: no such file", remedy=f"name a file that git -C {repo} ls-files lists")
    text = git(repo, "show", f"{sha}:./{file}").decode(errors="replace")
    if file.endswith(".toml"):
        try:
            text = "\n".join(tomllib.loads(text)["project"]["dependencies"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequestError(f"{where}: no project.dependencies: {error}", remedy="name another file") from error
    elif other := _OTHER_FILE.search(text):
        number = text.count("\n", 0, other.start()) + 1
        raise BadRequestError(f"{where}:{number}: {other[0].strip()}: reads another file", remedy="write its pins here")
    if not _PIN.search(text):
        raise BadRequestError(f"{where}: pins no version", remedy="pin with NAME==VERSION, e.g. megatron-core==0.16.1")
    return text


def _sha(repo: Path, option: str, name: str) -> str:
    try:
        return git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except BadRequestError as error:
        raise BadRequestError(
            f"{option} {name}: no commit of {repo}", remedy="name a commit, a tag or a branch"
        ) from error


def _listed(repo: Path, *which: str) -> list[Revision]:
    text = git(repo, "log", "--no-show-signature", "--format=%H%x09%s", *which).decode(errors="replace")
    commits = (line.partition("\t") for line in text.split("\n") if line)
    return [Revision(sha=sha, subject=on_one_line(subject.strip())[:120]) for sha, _, subject in commits]


def version_at(repo: Path, sha: str) -> str:
    """Return the release that the revision states, with its commit: ``0.16.1+g1a2b3c4d5e``."""
    text = git(repo, "show", f"{sha}:{PACKAGE}/core/package_info.py").decode(errors="replace")
    parts = dict(_VERSION.findall(text))
    numbers = ".".join(parts.get(name, "0") for name in ("MAJOR", "MINOR", "PATCH"))
    return f"{numbers}{parts.get('PRE_RELEASE', '')}+g{sha[:10]}"


def copied(repo: Path, sha: str, folder: Path) -> str:
    """Copy megatron-core of the revision into ``folder``, for the import path; return its version. BadRequestError."""
    repo, sha = core_of(repo, sha)
    version = version_at(repo, sha)
    if not (folder / PACKAGE).is_dir():
        half = folder.with_name(f"{folder.name}.half")
        half.mkdir(parents=True, exist_ok=True)
        archive = half / "package.tar"
        git(repo, "archive", f"--output={archive.absolute()}", sha, PACKAGE)
        with tarfile.open(archive) as packed:
            packed.extractall(half, filter="data")
        archive.unlink()
        about = half / f"megatron_core-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n")
        half.rename(folder)  # a killed bisect leaves no half a copy
    return version


def changed_lines(repo: Path, before: str, after: str, pins: str | None = None) -> tuple[str, ...]:
    """Return the changed lines about recompute and memory, or of ``pins``, with their files, at most 20."""
    found, file = list[str](), ""
    if pins is None:
        (repo, before), (_, after) = core_of(repo, before), core_of(repo, after)
    text = git(repo, "diff", "--unified=0", "--no-color", "--no-ext-diff", before, after, "--", pins or PACKAGE)
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif line[:1] in "+-" and not line.startswith("---") and (pins or _ABOUT.search(line)):
            found.append(f"{file}: {on_one_line(line)}")
    return tuple(found[:_MOST_LINES])
