"""What a run is: one validated, frozen set of fields. Unknown keys and impossible values raise."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from clamkit.errors import ClamkitError, unknown
from clamkit.methods import METHODS
from clamkit.models import MODELS

ELSEWHERE = {"data_dir"}  # where a run finds its data does not make it another run
PAPERMILL_MARK = "# Parameters"  # the first line of the cell papermill injects


class RunConfig(BaseModel):
    """One training run. The defaults are the small CPU recipe on the embedded data."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    dataset: str = Field("fashion_mnist_mini", description="a known name, an .npz file or an image folder")
    data_dir: str | None = Field(None, description="where to look first for the dataset's files")
    method: str = Field("clam", description="one of " + ", ".join(METHODS))
    tau: float = Field(1.0, ge=0, description="step size of the CLAM methods; the paper's value")
    u_min: float | None = Field(None, ge=0, description="smallest class weight (sum 1); default 1/(2n), as the paper")
    augmentation: Literal["crop"] = Field("crop", description="random resized crop")
    crop_lower_bound: float = Field(0.3, gt=0, le=1, description="smallest share of the area a crop keeps; 1: no crop")
    flip: bool = Field(True, description="mirror half of the training images")
    model: str = Field("tiny_resnet", description="one of " + ", ".join(MODELS))
    stem: Literal["imagenet", "small"] = Field("small", description="first layer of the ResNets: 7×7 stride 2, or 3×3")
    image_size: int | None = Field(None, ge=8, le=1024, description="training resolution; default: as the data is")
    epochs: int = Field(15, ge=1, description="15 are enough for the embedded data to settle")
    batch_size: int = Field(128, ge=1, description="as the released code")
    lr: float = Field(0.1, gt=0, description="peak learning rate of SGD; as the released code")
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum; as the released code")
    weight_decay: float = Field(5e-4, ge=0, description="between the released 5e-4 and 1e-3")
    schedule: Literal["onecycle", "constant"] = Field("onecycle", description="onecycle settles in few epochs")
    seed: int = Field(0, ge=0, description="fixes initialisation, order and augmentation")

    def __init__(self, **fields: Any):
        for key in fields:
            if key not in type(self).model_fields:
                raise unknown("setting", key, type(self).model_fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ClamkitError(" ".join(map(_sentence, error.errors()))) from None

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        if value not in METHODS:
            raise unknown("method", value, METHODS)
        return value

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        if value not in MODELS:
            raise unknown("model", value, MODELS)
        return value

    def method_settings(self) -> dict[str, Any]:
        """The fields this method listens to."""
        return {key: getattr(self, key) for key in METHODS[self.method].takes}

    def identity(self) -> dict[str, Any]:
        """What makes this run this run: the fields that differ from the defaults and have an effect.

        Fields added to the kit later do not change the identity of older runs.
        """
        deaf = {key for method in METHODS.values() for key in method.takes} - set(METHODS[self.method].takes)
        return {k: v for k, v in self.model_dump(exclude_defaults=True).items() if k not in deaf | ELSEWHERE}

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:10]

    def folder(self) -> Path:
        """<dataset>/<method>/<augmentation>-<value>/seed<k>-<hash>, relative to the runs folder."""
        dataset = Path(self.dataset).stem if Path(self.dataset).name != self.dataset else self.dataset
        return Path(dataset, self.method, f"crop-{self.crop_lower_bound:g}", f"seed{self.seed}-{self.hash()}")

    @classmethod
    def from_notebook(cls, namespace: dict[str, Any]) -> RunConfig:
        """The config a notebook's parameter cell describes: pass `globals()`.

        `options` (a dict) may hold any further field. A parameter injected by papermill that is neither a field
        nor known to the notebook raises, where papermill itself only warns.
        """
        _check_injected(namespace)
        fields = {key: namespace[key] for key in cls.model_fields if key in namespace}
        return cls(**(fields | dict(namespace.get("options") or {})))


def _check_injected(namespace: dict[str, Any]) -> None:
    cells = [cell for cell in namespace.get("In", []) if cell.strip()]
    marked = [i for i, cell in enumerate(cells) if cell.startswith(PAPERMILL_MARK)]
    if not marked:
        return
    own = set().union(*(_assigned(cell) for cell in cells[: marked[0]]))
    for name in sorted(_assigned(cells[marked[0]]) - own):
        raise unknown("notebook parameter", name, own)


def _assigned(source: str) -> set[str]:
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a cell with magics
        return set()
    targets = [t for node in body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _sentence(error: dict) -> str:
    """One pydantic error as a sentence: what was given, what is allowed."""
    name = ".".join(map(str, error["loc"])) or "config"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    allowed = error["msg"].replace("Input should be", "it must be")
    return f"{name}={error['input']!r} is not allowed: {allowed}."
