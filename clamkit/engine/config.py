"""What a run is: one validated, frozen set of fields. Unknown keys and impossible values raise."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from clamkit.errors import ClamkitError, check_known
from clamkit.methods.specs import METHODS

MODELS = (
    *("tiny_resnet", "resnet18", "resnet50", "tiny_vit", "vit_small", "vit_base"),
    *("fastnet_small", "fastnet", "fastnet_wide"),
)
WITHOUT_EFFECT = {"data_dir", "keep_logits"}  # where it finds its data and what it keeps do not make another run
STRENGTHS = {"crop": "crop_lower_bound", "jitter": "jitter_strength"}  # the field that says how strong


@dataclass(frozen=True)
class Protocol:
    """What the paper leaves open or the released code does otherwise; the method's part is in `clamkit.methods`."""

    accuracy_from: str
    schedule: str
    imagenet_statistics: bool  # normalise by ImageNet's mean and std, grey images repeated to three channels
    orthogonal_init: bool


PROTOCOLS = {
    "paper": Protocol("epoch", "onecycle", imagenet_statistics=False, orthogonal_init=False),
    "released": Protocol("pass", "constant", imagenet_statistics=True, orthogonal_init=True),
}


class RunConfig(BaseModel):
    """One training run. The defaults are the small CPU recipe on the embedded data.

    >>> RunConfig(method="clam_kl", tau=0.1, crop_lower_bound=0.3, seed=1).epochs
    15
    >>> RunConfig(method="clamm")
    Traceback (most recent call last):
        ...
    clamkit.errors.ClamkitError: unknown method 'clamm'. Did you mean 'clam'?...
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    dataset: str = Field("fashion_mnist_mini", description="a known name, an .npz file, an image folder or a CSV file")
    data_dir: str | None = Field(None, description="where to look first for the dataset")
    skip_bad_images: bool = Field(False, description="leave image files out that do not decode or are missing")
    per_class: int | None = Field(None, ge=1, description="training images of each class to use; default all")
    holdout: int = Field(0, ge=0, description="images of each class kept out of training, the same for every seed")

    method: str = Field("clam", description="one of " + ", ".join(METHODS))
    protocol: Literal["paper", "released"] = Field("paper", description="where paper and released code differ, which")
    accuracy_from: Literal["epoch", "pass", "clean", "holdout"] | None = Field(
        None,
        description="what the min player looks at: counted while training, a second pass, an unaugmented pass, "
        "held-out images",
    )
    acts_on: Literal["loss", "sampling"] = Field(
        "loss", description="what the weights act on: the loss of a class, or how often its images are drawn"
    )
    tau: float = Field(1.0, ge=0, description="step of CLAM and max-min; scale of the margins of tla, logit_adjusted")
    u_min: float | None = Field(None, ge=0, description="CLAM's smallest class weight (sum 1); default 1/(2n)")
    ratio: float | None = Field(None, ge=1, description="clam_ratio: largest over smallest weight; default 4")
    projection: Literal["euclidean", "kl", "clip", "released"] | None = Field(
        None, description="of clam and clam_ratio; default euclidean"
    )
    start_epoch: int | None = Field(None, ge=0, description="epochs without a move of the weights; default by protocol")
    gamma: float | None = Field(None, ge=0, description="focal, pw, tce, cfol; default: the paper's, as in all below")
    theta: float | None = Field(None, ge=0, description="pw")
    alpha: float | None = Field(None, ge=0, le=1, description="ggf, apstar, tla")
    w_min: float | None = Field(None, ge=0, le=1, description="ggf")
    frequency: int | None = Field(None, ge=1, description="ggf: every f-th epoch")
    rank_by: Literal["accuracy", "loss"] | None = Field(None, description="ggf; default accuracy")
    eta: float | None = Field(None, gt=0, description="step size: group_dro 0.01; cfol 1/(training images)")
    beta: float | None = Field(None, ge=0, lt=1, description="class_balanced")
    class_weights: tuple[float, ...] | str | None = Field(
        None, description="fixed: numbers (1,1,2.5), a .json or .npy file of them, or the folder of a finished run"
    )
    weights_of: Literal["mean", "last"] | None = Field(None, description="fixed: of a run's epochs; default mean")

    augmentation: Literal["crop", "jitter"] = Field("crop", description="random resized crop, or colour jitter")
    crop_lower_bound: float = Field(0.3, gt=0, le=1, description="smallest share of the area a crop keeps; 1: no crop")
    crop_bounds: tuple[float, ...] | Literal["weights"] | None = Field(
        None, description="crop_lower_bound of each class (0.3,0.5,…); or set by the weights, the loss plain"
    )
    whole_views: float = Field(0.0, ge=0, lt=1, description="share of each class's training images shown whole")
    jitter_strength: float = Field(0.3, ge=0, le=1, description="of brightness, contrast and saturation; 0: none")
    flip: bool = Field(True, description="mirror half of the training images")
    mirror_test: bool = Field(False, description="predict by the mean logits of an image and its mirror image")

    model: str = Field("tiny_resnet", description="one of " + ", ".join(MODELS))
    stem: Literal["imagenet", "small"] = Field(
        "small", description="for large or small images: ResNets begin with 7×7 stride 2 or 3×3, ViTs cut 16 or 4 px"
    )
    image_size: int | None = Field(None, ge=8, le=1024, description="training resolution; default: as the data is")
    epochs: int = Field(15, ge=1, description="15 are enough for the embedded data to settle")
    batch_size: int = Field(128, ge=1, description="as the released code")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="peak learning rate of SGD; as the released code")
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum; as the released code")
    weight_decay: float = Field(5e-4, ge=0, description="as the released code on CIFAR-100; 1e-3 on other small sets")
    schedule: Literal["onecycle", "constant", "triangle"] | None = Field(None, description="default by protocol")
    bias_lr: float = Field(1.0, gt=0, description="rate of the biases, as a multiple of lr; fastnets like 64")
    lookahead: float = Field(0.0, ge=0, lt=1, description="every 5 steps the network moves back to its running mean")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of the cross entropy; released ImageNet code: 0.1")
    amp: bool | Literal["auto"] = Field(
        False, description="mixed precision: bfloat16, or float16 on a GPU that lacks it; auto: where it is faster"
    )
    compile: bool = Field(False, description="torch.compile the model: pays for long runs on a GPU")
    keep_logits: bool = Field(True, description="logits of test and held-out images; 100 MB at ImageNet's size")
    seed: int = Field(0, ge=0, description="fixes initialisation, order and augmentation")

    def __init__(self, **fields: Any):
        for key in fields:
            check_known("setting", key, type(self).model_fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            by_field = groupby(error.errors(), lambda one: one["loc"][:1])
            raise ClamkitError(" ".join(_sentence(list(errors)) for _, errors in by_field)) from None

    @field_validator("method", "model")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        check_known(str(info.field_name), value, METHODS if info.field_name == "method" else MODELS)
        return value

    @field_validator("class_weights", "crop_bounds", mode="before")
    @classmethod
    def _for_each_class(cls, value: Any, info: ValidationInfo) -> tuple[float, ...] | str | None:
        """Numbers of any kind as a tuple, also from text such as "1, 2.5"; other text is a path, or 'weights'."""
        words = "the path of a file or of a finished run" if info.field_name == "class_weights" else "'weights'"
        if hasattr(value, "keys"):
            from clamkit.checks import in_class_order  # needs numpy, which a config else does not

            value = in_class_order(value, len(value), str(info.field_name))
        value = value.tolist() if hasattr(value, "tolist") else value
        with suppress(TypeError, ValueError, OverflowError):
            return tuple(map(float, value.strip("()[] ").split(",") if isinstance(value, str) else value))
        if value is None or (isinstance(value, str) and (info.field_name == "class_weights" or value == "weights")):
            return value
        raise ClamkitError(f"{info.field_name}={value!r} is not allowed: give a number for each class, or {words}.")

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        bounds = self.crop_bounds
        if isinstance(bounds, tuple) and not (bounds and all(0 < bound <= 1 for bound in bounds)):
            raise ClamkitError(f"crop_bounds={bounds} is not allowed: give shares of the area, above 0 and at most 1.")
        if (self.crop_bounds or self.whole_views) and self.augmentation != "crop":
            name = "crop_bounds" if self.crop_bounds else "whole_views"
            raise ClamkitError(f"{name} are of crops: with augmentation={self.augmentation!r} nothing is cropped.")
        if self.whole_views and isinstance(bounds, tuple) and max(bounds) == 1:
            why = "a bound of 1 in crop_bounds shows all images of its class whole"
            raise ClamkitError(f"whole_views={self.whole_views} is the share of every class, but {why}: give others.")
        own = METHODS[self.method]
        if self.acts_on == "sampling" and (own.acts_on == "logits" or (own.acts_on, own.every) == ("loss", "batch")):
            raise ClamkitError(f"acts_on='sampling' does not go with method {self.method!r}, whose loss is its own.")
        if self.crop_bounds == "weights" and self.draws_by_weights:
            raise ClamkitError("crop_bounds='weights' and acts_on='sampling': the weights act on one of them.")
        if self.mirror_test and not self.flip:
            raise ClamkitError("mirror_test=True goes with flip=True: the network has seen no mirror images.")
        if self.accuracy_from == "holdout" and not self.holdout:
            raise ClamkitError("accuracy_from='holdout' needs held-out images: give holdout=, how many of each class.")
        return self

    def method_settings(self) -> dict[str, Any]:
        """The fields this method listens to."""
        return {key: getattr(self, key) for key in METHODS[self.method].settings}

    def chosen(self, name: Literal["accuracy_from", "schedule"]) -> str:
        """A field's value, or the protocol's where none was given."""
        return getattr(self, name) or getattr(PROTOCOLS[self.protocol], name)

    @property
    def draws_by_weights(self) -> bool:
        """Whether the weights act on how often a class is drawn: asked for, or so by the method."""
        return self.acts_on == "sampling" or METHODS[self.method].acts_on == "sampling"

    @property
    def weighs_loss(self) -> bool:
        """Whether the weights act on the loss: not where they act on the draw or on the crops."""
        return not (self.draws_by_weights or self.crop_bounds == "weights")

    @property
    def strength(self) -> float:
        return getattr(self, STRENGTHS[self.augmentation])

    @property
    def idle(self) -> set[str]:
        """The settings of other methods and of the other augmentation: whatever they say, it has no effect."""
        settings = {key for method in METHODS.values() for key in method.settings} | {*STRENGTHS.values()}
        return settings - {*METHODS[self.method].settings, STRENGTHS[self.augmentation]}

    def identity(self) -> dict[str, Any]:
        """What makes this run this run: the fields that differ from the defaults and have an effect.

        Fields added to the kit later do not change the identity of older runs.
        """
        idle = self.idle | WITHOUT_EFFECT
        return {k: v for k, v in self.model_dump(exclude_defaults=True).items() if k not in idle}

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:10]

    def folder(self) -> Path:
        """<dataset>/<method>/<augmentation>-<value>/seed<k>-<hash>, relative to the runs folder and always below it."""
        dataset = Path(self.dataset).stem if Path(self.dataset).name != self.dataset else self.dataset
        dataset = re.sub(r"[^\w .+-]", "_", dataset)[:60].strip(". ") or "data"  # for people; the hash tells apart
        return Path(dataset, self.method, f"{self.augmentation}-{self.strength:g}", f"seed{self.seed}-{self.hash()}")


def _sentence(errors: list[Any]) -> str:
    """The pydantic errors of one field as a sentence: what was given, what is allowed."""
    if errors[0]["type"] == "value_error":
        return str(errors[0]["ctx"]["error"])
    name = "".join(map(str, errors[0]["loc"][:1])) or "config"
    allowed = " or ".join(error["msg"].split(", unable")[0] for error in errors)
    allowed = allowed.replace("Input should be", "it must be", 1).replace("Input should be ", "")
    return f"{name}={errors[0]['input']!r} is not allowed: {allowed}."
