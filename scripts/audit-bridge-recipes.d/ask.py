"""Which Megatron-Bridge function each of our operating points names as its source, and how it is run there."""

import re
from dataclasses import dataclass

from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import OperatingPoint
from harness.resolve.recipe_file import load_recipe

_MODULE = re.compile(r"src/(megatron/bridge/\S+)\.py")
_FUNCTION = re.compile(r"\b(\w+_config)\b")


@dataclass(frozen=True)
class BridgePoint:
    """One of our points with its Bridge function."""

    name: str  # recipe.task.gpu.precision.gpus[.variant]
    point: OperatingPoint
    module: str
    function: str

    @property
    def performance(self) -> bool:
        """Return whether it is a performance recipe, which run_script.py runs, and not one of Bridge's library."""
        return self.module.startswith("megatron.bridge.perf_recipes.")

    @property
    def file(self) -> str:
        """Return the file of its configuration. Library recipes have their own folder, for names repeat."""
        name = f"{self.function.removesuffix('_config')}.yaml"
        return name if self.performance else f"library/{name}"

    @property
    def request(self) -> dict[str, object]:
        key = self.point.key
        return {
            "file": self.file, "module": self.module, "function": self.function, "gpu": key.gpu, "num_gpus": key.num_gpus,
            "precision_aware_adam": self.performance and key.compute_dtype == "bf16",
        }  # fmt: skip


def bridge_points() -> tuple[BridgePoint, ...]:
    """Return every shipped point whose source names a Bridge function, in the order of the files."""
    found: list[BridgePoint] = []
    for file in all_recipe_files(recipes_dir()):
        recipe = load_recipe(file.path, file.label)
        for point in recipe.points:
            module, function = _MODULE.search(point.key.source), _FUNCTION.search(point.key.source)
            if module and function:
                key = point.key
                parts = (recipe.header.name, key.task, key.gpu, key.compute_dtype, str(key.num_gpus), key.variant)
                name = ".".join(filter(None, parts))
                found.append(BridgePoint(name, point, module[1].replace("/", "."), function[1]))
    return tuple(found)
