"""Grids: the runs of a sweep, as YAML describes them."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clamkit import paths
from clamkit.engine.config import RunConfig
from clamkit.errors import ClamkitError, check_known, not_installed, unknown
from clamkit.lab.recipes import RECIPES, recipe

KEYS = ("notebook", "recipe", "fixed", "axes", "grids")
MAX_RUNS = 100_000
MAX_VALUES = 200_000  # in a file
DEFAULT_NOTEBOOK = "10_train_fashion_mnist"


@dataclass(frozen=True)
class Grid:
    """All combinations of the axes, each a run of one notebook; `fixed` holds for all. `parts` are further grids.

    What neither `fixed` nor an axis says is as in the `recipe` for the dataset.
    """

    name: str
    notebook: str
    axes: dict[str, list]
    fixed: dict[str, Any] = field(default_factory=dict)
    recipe: str = "small"
    parts: tuple[Grid, ...] = ()

    @classmethod
    def load(cls, grid: str | os.PathLike) -> Grid:
        """A grid of notebooks/sweeps by name, or any YAML file by path."""
        try:
            import yaml
        except ImportError:
            raise not_installed("pyyaml", "lab") from None

        class Once(yaml.SafeLoader):  # of a key that stands twice the first value would be lost without a word
            def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
                node = super().compose_mapping_node(anchor)
                if twice := [key for key, count in Counter(str(k.value) for k, _ in node.value).items() if count > 1]:
                    raise yaml.YAMLError(f"{twice[0]!r} stands twice in one mapping")
                return node

        path = Path(grid)
        if path.suffix in (".yaml", ".yml"):
            if not path.is_file():
                raise ClamkitError(f"there is no file {paths.shown(path)}: give a YAML file, or a grid by name.")
        else:
            path = paths.sweeps() / f"{grid}.yaml"
            if not path.is_file():
                raise unknown("grid", str(grid), [*(f.stem for f in paths.sweeps().glob("*.yaml")), "your own .yaml"])
        try:
            yaml.compose(text := path.read_text(encoding="utf-8"), Loader=Once)
            content = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # safe_load also meets dates and depths
            raise ClamkitError(f"{path} is not sound YAML: {error}") from error
        waiting, seen = [content], 0
        while waiting and seen <= MAX_VALUES:  # an alias counts each time; repeated in itself it would never end
            value, seen = waiting.pop(), seen + 1
            inside = [*value, *value.values()] if isinstance(value, dict) else value
            waiting += inside if isinstance(inside, list) else []
        if waiting:
            raise ClamkitError(f"{path} holds more than {MAX_VALUES:,} values, with its aliases (*name) written out.")
        return cls.parse(path.stem, content)

    @classmethod
    def parse(cls, name: str, content: Any) -> Grid:
        """A grid from what its YAML holds."""
        if not isinstance(content, dict) or not ("axes" in content or "grids" in content):
            raise ClamkitError(f"grid {name} must hold `axes: {{field: [values]}}`, or `grids:` with a list of such.")
        for key in content:
            check_known(f"key in grid {name}", key, KEYS)
        axes, fixed, grids = content.get("axes", {}), content.get("fixed") or {}, content.get("grids", [])
        for what, part in (("axes", axes), ("fixed", fixed)):
            if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
                raise ClamkitError(f"`{what}` of grid {name} is {part!r}: it must be a mapping from fields to values.")
        for key, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ClamkitError(f"axis {key!r} of grid {name} is {values!r}: it must be a list of values.")
            if key in fixed:
                raise ClamkitError(f"{key!r} is fixed in grid {name} and an axis too: it can be one of the two.")
        notebook, by = content.get("notebook", DEFAULT_NOTEBOOK), content.get("recipe", "small")
        check_known(f"recipe in grid {name}", by, RECIPES)
        if not isinstance(notebook, str) or not isinstance(grids, list) or not all(isinstance(g, dict) for g in grids):
            raise ClamkitError(f"grid {name}: `notebook` must be a name, and `grids` a list of grids.")
        parts = []
        for part in grids:
            own = part.get("fixed") or {}
            shared = {"notebook": notebook, "recipe": by, "fixed": fixed | own if isinstance(own, dict) else own}
            parts.append(cls.parse(name, shared | {key: part[key] for key in part if key != "fixed"}))
        grid = cls(name, notebook, axes, fixed, by, tuple(parts))
        if not 0 < (count := grid.count()) <= MAX_RUNS:
            raise ClamkitError(f"grid {name} has {count} runs: give `axes` fields and values for 1 to {MAX_RUNS} runs.")
        return grid

    def count(self) -> int:
        """Combinations: what is the same run counts each time."""
        return (math.prod(map(len, self.axes.values())) if self.axes else 0) + sum(part.count() for part in self.parts)

    def runs(self) -> dict[RunConfig, str]:
        """Each run and the notebook that makes it, in order; once, though two parts or idle values name it again."""
        found: dict[str, tuple[RunConfig, str]] = {}
        if self.axes:
            for values in itertools.product(*self.axes.values()):
                fields = self.fixed | dict(zip(self.axes, values, strict=True))
                dataset = fields.get("dataset", RunConfig.model_fields["dataset"].default)
                config = RunConfig(**(recipe(self.recipe, str(dataset)) | fields))
                found.setdefault(config.hash(), (config, self.notebook))
        for config, name in itertools.chain.from_iterable(part.runs().items() for part in self.parts):
            found.setdefault(config.hash(), (config, name))
        return dict(found.values())

    def with_recipe(self, name: str) -> Grid:
        """The same runs by another recipe."""
        return replace(self, recipe=name, parts=tuple(part.with_recipe(name) for part in self.parts))

    def configs(self) -> list[RunConfig]:
        return list(self.runs())
