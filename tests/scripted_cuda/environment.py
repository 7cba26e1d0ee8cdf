"""The environment of the scripted GPU: torch's CUDA build, both megatron-cores, transformer-engine with its extension compiled.

    environment.py        make what is missing (once: about 3 GB from PyPI, 20 minutes) and build the double; print the folder
    environment.py have   exit 0 if nothing is missing, else 1

Everything lies in `$XDG_CACHE_HOME/mbr-perf/cuda`, by default below `~/.cache`, about 7 GB; remove the folder at any time.
Only PyPI is asked, through pip. Needs Python 3.12 with its headers, gcc and g++; no GPU, no nvcc.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mbr-perf" / "cuda"
DOUBLE = HERE / "double"
PYTHON = ROOT / "venv" / "bin" / "python"
PACKAGES = ROOT / "venv" / "lib" / "python3.12" / "site-packages"
TORCH, TE, MCORE = "2.11.0", "2.11.0", {"0.16": "0.16.1", "0.19": "0.19.2"}
# Headers of CUDA that torch's own wheels lack, what transformer-engine imports without asking for it here, and the kernels
# of Qwen3-Next's gated delta nets.
BESIDE = (
    "nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*", "nvidia-ml-py", "einops", "onnx==1.23.1", "onnxscript==0.7.2", "ninja",
    "numpy", "packaging", "pydantic", "pyyaml", "rich", "scipy", "setuptools", "typer", "wheel", "fla-core==0.4.2",
)  # fmt: skip
ENVIRONMENT = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "TMPDIR": str(ROOT / "tmp")}
ENVIRONMENT = {k: v for k, v in ENVIRONMENT.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}


def run(*command: str | Path, check: bool = True) -> str:
    """Return what the command printed. If it fails, print its last words and exit with 3."""
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, env=ENVIRONMENT)
    if check and done.returncode:
        sys.stderr.write(f"{' '.join(map(str, command))[:200]}\n{(done.stdout + done.stderr)[-3000:]}\n")
        sys.exit(3)
    return done.stdout


def pip(*arguments: str | Path) -> None:
    """Install with the environment's own pip."""
    run(PYTHON, "-m", "pip", "install", "--quiet", "--no-cache-dir", *arguments)


def mcore_folder(release: str) -> Path:
    """Return the folder of a release of megatron-core, "0.16" or "0.19", for PYTHONPATH."""
    return ROOT / f"megatron-core-{MCORE[release]}"


def python_312() -> str:
    """Return a Python 3.12: $PYTHON, or one on PATH or in pyenv; exit with 2 if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for each in (os.environ.get("PYTHON"), "python3.12", *sorted(map(str, pyenv.glob("3.12.*/bin/python3.12")))):
        said = each and shutil.which(each) and run(each, "-c", "import sys; print(*sys.version_info[:2])", check=False)
        if each and said == "3 12\n":
            return each
    sys.stderr.write("no Python 3.12 as $PYTHON, on PATH or in pyenv\n")
    sys.exit(2)


def install() -> None:
    """Make the virtual environment."""
    if not PYTHON.exists():
        run(python_312(), "-m", "venv", ROOT / "venv")
    tested = (CHECKOUT / "scripts" / "constraints.txt").read_text()
    constraints = ROOT / "constraints.txt"
    constraints.write_text(re.sub(r"(?m)^(torch|megatron-core)==.*\n", "", tested))
    pip(f"torch=={TORCH}", *BESIDE, "-c", constraints)
    pip("--no-deps", f"transformer_engine=={TE}", f"transformer_engine_cu13=={TE}")
    for release in MCORE.values():
        pip("--no-deps", "--target", ROOT / f"megatron-core-{release}", f"megatron-core=={release}")


def source_of_te() -> Path:
    """Return the source of transformer-engine's extension, which has no wheel.

    pip cannot read the metadata of the source package without building it; it leaves what it unpacked in TMPDIR all the same.
    """
    target = ROOT / "te"
    if not (target / "csrc").is_dir():
        (ROOT / "tmp").mkdir(exist_ok=True)
        run(PYTHON, "-m", "pip", "download", "--no-deps", "--no-clean", "--no-build-isolation", "--no-binary=:all:",
            f"--dest={ROOT / 'tmp'}", f"transformer_engine_torch=={TE}", check=False)  # fmt: skip
        found = [each.parent for each in (ROOT / "tmp").glob("*/transformer[-_]engine[-_]torch*/csrc")]
        if not found:
            sys.stderr.write(f"pip left no source of transformer_engine_torch {TE} in {ROOT / 'tmp'}\n")
            sys.exit(3)
        shutil.copytree(found[0], target, dirs_exist_ok=True)
    return target


def compile_te() -> None:
    """Compile the extension: three translation units, because torch's headers cost more than its own sources do."""
    source, suffix = source_of_te(), ".cpython-312-x86_64-linux-gnu.so"
    of_extensions = sorted(source.glob("csrc/extensions/*.cpp"))
    units = (
        [*source.glob("csrc/*.cpp"), *source.glob("csrc/extensions/multi_tensor/*.cpp")],
        [each for each in of_extensions if each.name < "d"],
        [each for each in of_extensions if each.name >= "d"],
    )
    nvidia, common = PACKAGES / "nvidia", source / "common_headers"
    systems = [
        PACKAGES / "torch/include", PACKAGES / "torch/include/torch/csrc/api/include", nvidia / "cu13/include",
        nvidia / "cu13/include/cccl", nvidia / "cudnn/include", nvidia / "nccl/include",
        run(PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip(),
    ]  # fmt: skip
    flags = ["-O1", "-g0", "-w", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-DTORCH_API_INCLUDE_EXTENSION_H",
             "-DTORCH_EXTENSION_NAME=transformer_engine_torch", f"-I{common}", f"-I{common}/common",
             f"-I{common}/common/include", f"-I{source}/csrc", *(f"-isystem{each}" for each in systems)]  # fmt: skip

    def compile_unit(number: int) -> Path:
        unit = source / f"unit{number}.cpp"
        unit.write_text("".join(f'#include "{each}"\n' for each in units[number]))
        if not unit.with_suffix(".o").exists():
            run("g++", *flags, "-c", unit, "-o", source / f"unit{number}.part")
            (source / f"unit{number}.part").rename(unit.with_suffix(".o"))
        return unit.with_suffix(".o")

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, range(3)))
    libraries = (f"-L{PACKAGES}/torch/lib", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python")
    run("g++", "-shared", "-s", *objects, *libraries, "-o", PACKAGES / f"transformer_engine_torch{suffix}")
    metadata = PACKAGES / f"transformer_engine_torch-{TE}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: transformer_engine_torch\nVersion: {TE}\n")


def libraries_wanting() -> list[Path]:
    """Return the libraries whose calls of CUDA the double has to answer."""
    torch = [
        PACKAGES / "torch" / "lib" / f"lib{name}.so"
        for name in ("c10_cuda", "torch_cuda", "torch_cuda_linalg", "torch_python", "caffe2_nvrtc")
    ]
    return [*torch, *(PACKAGES / "transformer_engine").rglob("*.so"), *PACKAGES.glob("transformer_engine_torch*.so")]


def symbols(*options: str, of: list[Path]) -> set[str]:
    """Return names of functions that ``nm`` prints, without their versions."""
    lines = [line.split() for line in run("nm", *options, *of, check=False).splitlines()]
    return {line[-1].partition("@")[0] for line in lines if len(line) > 1 and line[-2] in "TWU"}


def unnamed(wanted: set[str]) -> str:
    """Return C for the functions that the double lacks: those of silent.txt do nothing, others print their name and fail."""
    silent = set((DOUBLE / "silent.txt").read_text().split())
    lines = ["int scripted_missing(const char *, int);"]
    for name in sorted(wanted):
        if name in silent:
            lines.append(f"int {name}(void) {{ return 0; }}")
        elif re.match("cu(?!File)(da)?[A-Z]|cublas|cudnn|nccl", name):
            lines.append(
                f'int {name}(void) {{ return scripted_missing("{name}", {801 if name.startswith("cu") else 3}); }}'
            )
    return "\n".join(lines) + "\n"


def double() -> Path:
    """Compile the double, once for each state of its sources; return its folder."""
    nvml, sources = CHECKOUT / "tests" / "native" / "fake_nvml.c", sorted(DOUBLE.glob("*.[ch]"))
    read = [*sources, nvml, DOUBLE / "silent.txt", Path(__file__)]
    folder = ROOT / f"double-{hashlib.sha256(b''.join(each.read_bytes() for each in read)).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    part = Path(tempfile.mkdtemp(dir=ROOT))
    nvidia = PACKAGES / "nvidia"
    headers = [nvidia / "cu13/include", nvidia / "cu13/include/cccl", nvidia / "cudnn/include", nvidia / "nccl/include"]
    flags = ["-fPIC", "-O1", "-Wall", "-Werror", *(f"-isystem{each}" for each in headers)]
    written = [each for each in sources if each.suffix == ".c" and each.stem != "nvml_more"]
    objects = [part / f"{each.stem}.o" for each in written]
    for source, target in zip(written, objects, strict=True):
        run("gcc", *flags, "-c", source, "-o", target)
    wanted = symbols("-D", "--undefined-only", of=libraries_wanting()) - symbols("--defined-only", of=objects)
    (part / "unnamed.c").write_text(unnamed(wanted))
    run(
        "gcc", "-shared", "-fPIC", *objects, part / "unnamed.c", "-o", part / "libscripted_cuda.so", "-ldl", "-lpthread"
    )
    for name in ("libcuda.so.1", "libcuda.so"):  # found under the driver's names, too
        (part / name).symlink_to("libscripted_cuda.so")
    run("gcc", "-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libnvidia-ml.so.1", nvml, DOUBLE / "nvml_more.c",
        "-o", part / "libnvidia-ml.so.1", "-lpthread")  # fmt: skip
    part.rename(folder)
    return folder


def state() -> str:
    """Return what the environment was made from; with other versions it is made again."""
    return " ".join((TORCH, TE, *MCORE.values(), *BESIDE))


def present() -> bool:
    """Return whether the environment is complete."""
    done = ROOT / "done"
    return done.is_file() and done.read_text() == state()


def make() -> None:
    """Make what is missing. A second process waits for the first."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if present():
            return
        sys.stderr.write(f"making {ROOT} (once: about 3 GB from PyPI; 20 minutes or more)\n")
        (ROOT / "tmp").mkdir(exist_ok=True)
        install()
        compile_te()
        shutil.rmtree(ROOT / "tmp")
        (ROOT / "done").write_text(state())


if __name__ == "__main__":
    if sys.argv[1:] == ["have"]:
        sys.exit(not present())
    make()
    print(double())
