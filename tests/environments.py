"""Second Python environments for the ranks: they see the packages of this one, and may change megatron-core."""

import os
import shutil
import site
import venv
from importlib.util import find_spec
from pathlib import Path


def environment(folder: Path, sleep_s: float | None = None) -> Path:
    """Make an environment and return its interpreter. ``sleep_s``: its megatron-core sleeps in every MLP."""
    venv.create(folder, symlinks=True)
    (own,) = folder.glob("lib/python3*/site-packages")
    folders = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (own / "others.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in folders))
    if sleep_s is not None:
        (installed,) = find_spec("megatron").submodule_search_locations
        shutil.copytree(installed, own / "megatron", copy_function=os.link)
        changed = own / "megatron" / "core" / "transformer" / "mlp.py"
        text = changed.read_text()
        changed.unlink()  # a link to the original
        begins = "    def forward(self, hidden_states"
        assert text.count(begins) == 1
        changed.write_text(text.replace(begins, f"    def forward(self, *args, **kwargs):\n        __import__('time').sleep({sleep_s})\n"
                                                f"        return self._forward(*args, **kwargs)\n\n    def _forward(self, hidden_states"))  # fmt: skip
    return folder / "bin" / "python"
