"""The walk-throughs of docs/worked_example.py: what each trains, and its changes, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

METRIC = "eval_accuracy"


@dataclass(frozen=True)
class Step:
    """One change of a part."""

    title: str
    why: str
    aims: Sequence[str]  # the figures that it is meant to improve


@dataclass(frozen=True)
class Part:
    """Trainings that one `toolkit compare` measures, each a change of the one before."""

    folder: str  # its folder below that of the walk-through
    plain: Sequence[str]  # the settings of all trainings
    switches: Sequence[str]  # the values of switches; {plain} and {one_cycle} are the rates that the range test found
    changes: Sequence[Step]  # how each training after the first differs from the one before


@dataclass(frozen=True)
class Walk:
    """A walk-through: a page, a notebook, and the figures of both."""

    file: str  # the name of its files, without their endings
    title: str
    dataset: str  # in the catalog; also the name of the configuration
    lead: str  # what is trained, on {data} with {config}
    names: Mapping[str, str]  # the titles of the figures, in the order of the columns
    main: Part
    seeds: int = 3
    finder: Sequence[str] = ()  # the settings of the range test for the first change, if there is one
    transfer: Part | None = None
    pretraining: Sequence[str] = ()  # the settings of the training that `transfer` starts from
    transfer_lead: str = ""

    @property
    def config(self) -> str:
        """The path of its configuration."""
        return f"recipes/configs/reviews/{self.dataset}.yaml"


TEXT = Walk(
    file="worked_example",
    title="A worked example",
    dataset="customer_reviews",
    lead="A small pretrained encoder learns to classify {data}, from 576 examples in one epoch (`{config}`). The "
    "baseline is plain fine-tuning in float32 with the learning rate that `transformers` uses by default.",
    names={"train_peak": "peak memory", "step_seconds": "step", METRIC: "accuracy"},
    main=Part(
        folder="",
        plain=("data.max_train_samples=576", "seed=1"),
        switches=(
            "train.learning_rate=5e-5+train.warmup_steps=0,3e-4+train.warmup_steps=0.1",
            "train.train_sampling_strategy=random,group_by_length",
            "train.mixed_precision=no,bf16",
            'model.freeze=[],["*embeddings.*"]',
            "train.per_device_train_batch_size=16,4",
        ),
        changes=(
            Step(
                "Learning rate",
                "Few rows give few updates, so each must be larger than with the usual 5e-5; a warm-up keeps the first "
                "ones small.",
                (METRIC,),
            ),
            Step(
                "Length groups",
                "Texts of similar length share a batch, so less padding is computed.",
                ("train_peak", "step_seconds"),
            ),
            Step(
                "Precision",
                "Matrix products in bfloat16 are faster on hardware that supports them.",
                ("train_peak", "step_seconds"),
            ),
            Step(
                "Frozen embeddings",
                "Half of this model's parameters are word vectors, most of which a few rows hardly change. Frozen, "
                "they need neither gradients nor optimizer state.",
                ("train_peak", "step_seconds"),
            ),
            Step(
                "Micro-batches",
                "The 16 rows of a step are split into four parts: activations of 4 rows at a time, and the same update "
                "apart from dropout.",
                ("train_peak",),
            ),
        ),
    ),
)


def _without(classes: Sequence[str]) -> str:
    """Returns the setting that skips the images of some classes."""
    return f"task.label_map={{{', '.join(f'{name}: null' for name in classes)}}}"


CONSTANT = ("train.lr_scheduler_type=constant", "train.warmup_steps=0")
KEPT = ("checkpoint.save_steps=epoch", "checkpoint.load_best_model_at_end=true")

IMAGE_SWITCHES = (
    "train.learning_rate=5e-5,{plain},{one_cycle}+train.lr_scheduler_type=one_cycle,"
    "{plain}+train.num_train_epochs=30+train.early_stopping_patience=5",
    "task.image.random_crop=1.0+task.image.horizontal_flip=0.0,0.7+task.image.horizontal_flip=0.5",
    "train.mixed_precision=no,bf16",
)
IMAGE_CHANGES = (
    Step(
        "Rate finder",
        "A model from scratch needs another rate than the fine-tuning default. The "
        "[range test](lr_find.md) raises the rate while it trains once, and suggests one for each "
        "schedule.",
        (METRIC,),
    ),
    Step(
        "One cycle",
        "The rate rises to a high peak, and then falls far below its start. The peak is the range test's suggestion "
        "for `one_cycle`.",
        (METRIC,),
    ),
    Step(
        "Early stopping",
        "At most 30 epochs, fewer if five evaluations in a row are not better. A cycle that is stopped has "
        "not seen its low rates, so this step goes back to the constant rate of the range test. The best "
        "of more epochs on the same validation rows is partly luck.",
        (METRIC,),
    ),
    Step(
        "Augmentation",
        "Crops and flips show other images in each epoch. They make the training rows harder, which may "
        "take more epochs; early stopping allows them.",
        (METRIC,),
    ),
    Step(
        "Mixed precision",
        "Matrix products and convolutions in bfloat16 are faster on hardware that supports them.",
        ("train_peak", "step_seconds"),
    ),
)


def _of_images(
    dataset: str,
    file: str,
    title: str,
    more: str,
    size: Sequence[str],
    source: Sequence[str],
    target: Sequence[str],
    held_out: float,
    few: str,
) -> Walk:
    """Returns the walk-through of images.

    Args:
        dataset: in the catalog.
        file: the name of its files.
        title: of its page.
        more: what its page says beside the lead.
        size: settings of all trainings.
        source: classes to learn first.
        target: the other classes, which are transferred to.
        held_out: share of the images of these that are not trained on.
        few: the images that are.
    """
    pretrained = f"outputs/{file.replace('_', '-')}/pretrained"
    start = f"{pretrained}/model+model.from_config=null"
    longer = "train.num_train_epochs=10"
    return Walk(
        file=file,
        title=title,
        dataset=dataset,
        lead="A small ResNet learns to classify {data}, from scratch in five epochs (`{config}`). The baseline has the "
        "learning rate that `transformers` uses by default, constant, and neither augmentation nor mixed precision. "
        f"All trainings keep the best of their epochs.{more}",
        names={"train_peak": "peak memory", "step_seconds": "step", "train_seconds": "training", METRIC: "accuracy"},
        main=Part(
            folder="",
            plain=(*size, *CONSTANT, *KEPT, "train.num_train_epochs=5", "seed=1"),
            switches=IMAGE_SWITCHES,
            changes=IMAGE_CHANGES,
        ),
        seeds=5,
        finder=(*size, *CONSTANT, "task.image.random_crop=1.0", "task.image.horizontal_flip=0.0"),
        transfer_lead=f"{few} are learned in three epochs: from scratch, and from a model that has learned the "
        "other six classes. That model takes the place of one pretrained on millions of images, which would have to be "
        "downloaded (`model.name_or_path`).",
        pretraining=(*size, _without(target), f"output_dir={pretrained}"),
        transfer=Part(
            folder="transfer",
            plain=(
                *size,
                "train.learning_rate={plain}",
                *CONSTANT,
                _without(source),
                "data.validation_file=null",
                f"data.validation_split={held_out}",
                "train.global_batch_size=8",
                "train.num_train_epochs=3",
                "seed=1",
            ),
            switches=(f"model.name_or_path=null,{start},null+{longer},{start}+{longer}",),
            changes=(
                Step("Transfer", "All layers but the last one start from the model of the other classes.", (METRIC,)),
                Step("Ten epochs instead", "From scratch again, with more than three times the steps.", (METRIC,)),
                Step("Transfer again", "Ten epochs, from the model of the other classes.", (METRIC,)),
            ),
        ),
    )


FASHION = _of_images(
    "fashion",
    "worked_example_images",
    "A worked example with images",
    " `make worked-example WALK=cifar10` measures the same steps on the 45,000 training images of CIFAR-10, best on a "
    "machine with a GPU; no figures of them exist yet.",
    size=("task.image.size=40",),
    source=("trouser", "dress", "sandal", "sneaker", "bag", "ankle-boot"),
    target=("t-shirt", "pullover", "coat", "shirt"),
    held_out=0.8,
    few="Four kinds of tops with twelve images each",
)
CIFAR10 = _of_images(
    "cifar10",
    "worked_example_cifar10",
    "A worked example with CIFAR-10",
    "",
    size=(),
    source=("airplane", "automobile", "bird", "frog", "ship", "truck"),
    target=("cat", "deer", "dog", "horse"),
    held_out=0.99,
    few="Four kinds of mammals with 45 images each",
)

WALKS = {"text": TEXT, "images": FASHION, "cifar10": CIFAR10}
"""The walk-throughs, by the name that `--run` takes."""
