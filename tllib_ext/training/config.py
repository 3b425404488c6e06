"""The one list of what a run can be told: the Python call, the command line, YAML files and ``config.json`` derive from it."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from tllib_ext.split import LabelSplit
from tllib_ext.training.setting import (
    COUNT,
    DROP_RATE,
    FLAG,
    HPARAMS,
    NOT_NEGATIVE,
    NUMBER,
    POSITIVE,
    RATE,
    SEED,
    SPLIT,
    TEXT,
    THREADS,
    UNKNOWN_SHARE,
    WORKERS,
    check_fields,
    choice,
    setting,
)  # fmt: skip
from tllib_ext.training.settings_record import SettingsRecord
from tllib_ext.typing import Record

if TYPE_CHECKING:
    from tllib_ext.training.resolve import Resolved
    from tllib_ext.vision.datasets.builder import Data

__all__ = ["RunConfig", "SHORTHANDS"]

#: hyper-parameters given by a field of their own.
SHORTHANDS = ("drop_rate", "heads", "unknown_rule", "unknown_threshold")

_data = partial(setting, group="data")
_noise = partial(setting, group="label noise (simulated on the source)")
_method = partial(setting, group="method")
_backbone = partial(setting, group="backbone")
_training = partial(setting, group="training")
_output = partial(setting, group="output")
#: what changes where and how a run works, not what it computes.
_free: Any = {"essential": False}
#: and may not be set by a file that somebody else wrote.
_own: Any = {"essential": False, "in_files": False}


@dataclass(frozen=True)
class RunConfig(SettingsRecord):
    """Everything that defines one training run; frozen, checked when it is made. ``None`` is "the default for this data".

    ``RunConfig()`` is a run on the embedded data set. ``tllib-ext train --help-all`` explains every field: the flag
    ``--batch-size`` is the field ``batch_size``, ``--hp n=2`` is ``hparams={"n": 2}``.

    Examples::

        >>> config = RunConfig(root="data/office31", source="A", target="D", noise="pair", rate=0.2, hparams={"n": 2})
        >>> config.batch_size, config.steps
        (36, None)
        >>> config.words()
        ['data/office31', '--source', 'A', '--target', 'D', '--noise', 'pair', '--hp', 'n=2']
        >>> RunConfig(rate=1.5)
        Traceback (most recent call last):
        ...
        tllib_ext.errors.UserError: rate=1.5: expected a number in [0, 1)
    """

    root: Optional[str] = _data(
        None, TEXT, "data folder; without it the embedded glyphs are drawn and used", "root", metavar="DIR", basic=True, **_free
    )
    data: str = _data(
        "auto",
        TEXT,
        "Office31, OfficeHome, VisDA2017, DomainNet (tllib's layout), tllib:NAME (tllib's own class), Glyphs,\n"
        "folder (DIR/domain/class/image), features (DIR/domain.npz); default: recognised from DIR",
        "-d",
        metavar="NAME",
        basic=True,
    )
    source: Optional[str] = _data(
        None, TEXT, "source: a name, tllib's letter or any beginning (A, amazon, ama)", "-s", metavar="DOMAIN", basic=True
    )
    target: Optional[str] = _data(
        None, TEXT, "target: the same; without class folders it is unlabelled", "-t", metavar="DOMAIN", basic=True
    )
    target_unlabelled: bool = _data(
        False, FLAG, "own folders: all images below the target's folder are unlabelled; default: by its subfolders' names"
    )
    split: Optional[Union[str, LabelSplit]] = _data(
        None,
        SPLIT,
        "shared/source private/target private classes, or Office31:open, …; default: the benchmark's",
        metavar="a/b/c",
    )
    image_size: Optional[int] = _data(
        None, COUNT, "the network sees crops of N x N of images resized to 8/7 N (default: 224 of 256)", metavar="N"
    )
    target_aug: str = _data(
        "eval", choice("eval", "train"), "augmentation of target training images; the authors' code has none in effect"
    )
    cache: str = _data(
        "auto", choice("auto", "off", "ram", "disk"),
        "keep decoded images: in memory, or in a file for the next runs too; auto: ram below 1 GiB,\n"
        "disk below 16 GiB where there is room ($TLLIB_EXT_CACHE, default ~/.cache/tllib_ext)", **_free,
    )  # fmt: skip
    download: bool = _data(
        True, FLAG, "never download absent weights or data sets (also: TLLIB_EXT_OFFLINE=1)", "--no-download", basic=True, **_free
    )
    check: bool = _data(False, FLAG, "open every image before training and list all that cannot be used", **_free)
    on_bad_image: str = _data(
        "stop", choice("stop", "skip"), "stop with exit code 2, or check all images and train without the unreadable ones"
    )
    allow_outside: bool = _data(False, FLAG, "let list files name images outside of DIR", in_files=False)

    labels: Optional[str] = _data(
        None, TEXT, "given source labels from a CSV file: path or index of the image, labels, and the true ones (clean) if known",
        metavar="FILE",
    )  # fmt: skip
    labels_column: Optional[str] = _data(
        None, TEXT, "its column of labels; several columns, A,B,C, are annotators of whom the majority counts", metavar="NAME"
    )

    noise: Optional[str] = _noise(
        None, TEXT, "none, pair, symmetric, … (tllib-ext list noises), or a transition matrix in a .npy or .csv file",
        metavar="KIND", basic=True,
    )  # fmt: skip
    rate: float = _noise(0.2, RATE, "expected share of wrong labels", metavar="RATE", basic=True)
    noise_options: Mapping[str, object] = _noise(
        {}, HPARAMS, "options of the kind of noise, e.g. --noise-hp temperature=10", "--noise-hp", metavar="NAME=VALUE"
    )
    long_tail: Optional[float] = _noise(
        None, POSITIVE, "subsample the source before the noise: the smallest class has R of the largest one's images", metavar="R"
    )
    noise_mode: str = _noise(
        "iid", choice("iid", "exact"), "iid: the authors' draw, bit for bit; exact: exactly round(rate x n) labels of each class"
    )
    noise_seed: int = _noise(0, SEED, "seed of the draw, apart from --seed", metavar="N")

    method: str = _method("divergence", TEXT, "name of the method; tllib-ext list shows all", "-m", metavar="NAME", basic=True)
    preset: Optional[str] = _method(
        None, TEXT, "named set of hyper-parameters, such as paper (the text, literally); default: the method's first",
        metavar="NAME",
    )  # fmt: skip
    hparams: Mapping[str, object] = _method(
        {}, HPARAMS, "hyper-parameters of the method, e.g. --hp eta=0.1 n=2; --list-hp lists them", "--hp",
        metavar="NAME=VALUE", basic=True,
    )  # fmt: skip
    labels_by: str = _method(
        "given",
        choice("given", "small-loss", "confident", "label-model"),
        "treatment of the source labels in front of the method: as given; without those of large loss (--rate);\n"
        "without those that confident learning flags; corrected and weighted by the label model",
    )
    drop_rate: Optional[Union[float, str]] = _method(
        None, DROP_RATE, "share of each source batch to drop as wrongly labelled, or auto to estimate it; default: --rate",
        metavar="RATE",
    )  # fmt: skip
    heads: Optional[int] = _method(None, COUNT, "number of classifier heads (default: 2)", metavar="N")
    unknown_rule: Optional[str] = _method(
        None, choice("entropy", "confidence", "target-model"), "for methods without a detector of their own"
    )  # fmt: skip
    unknown_threshold: Optional[float] = _method(
        None, NUMBER, "of that rule: share of log K, least confidence, or posterior of unknown", metavar="T"
    )
    unknown_share: Optional[Union[float, str]] = _method(
        None,
        UNKNOWN_SHARE,
        "what you know of the share of unknown images, for mixture, credo and --unknown-rule target-model:\n"
        "a number from 0 to 1, which is then respected, or few, some, many; default: estimated",
        metavar="SHARE",
    )

    arch: Optional[str] = _backbone(
        None,
        TEXT,
        "resnet50 (default), other torchvision ResNets, resnet50_v1 (original strides, for own weights),\n"
        "mobilenet_v2, small_cnn, dinov2-small, convnext-tiny, tllib:NAME, timm:NAME",
        "-a",
        metavar="NAME",
        basic=True,
    )
    weights: str = _backbone("default", TEXT, "default (pretrained), none, or a state-dict file", metavar="W")
    scratch: bool = _backbone(False, FLAG, "train from random weights, same as --weights none")
    train_from: Optional[str] = _backbone(
        None,
        TEXT,
        "first stage that is trained, e.g. layer4 of a ResNet: what is below it is computed once and kept on disk;\n"
        "head: a bottleneck on frozen features, minutes on a laptop; all: the whole backbone (default)",
        metavar="STAGE",
        basic=True,
    )
    freeze_backbone: bool = _backbone(False, FLAG, "the same as --train-from head", basic=True)
    views: int = _backbone(
        1, COUNT, "views of each image kept below such a stage: the centre, it flipped, then fixed random crops", metavar="N"
    )
    backbone_norm: Optional[str] = _backbone(
        None,
        choice("batch", "fixed"),
        "batch norms of what is trained of the backbone: statistics of each batch (default with all), or\n"
        "those of the pretraining, fixed (default from a stage on)",
    )
    bottleneck_dim: int = _backbone(512, COUNT, "width of that bottleneck", metavar="N")
    bottleneck_norm: str = _backbone("batch", choice("batch", "none"), "normalisation of that bottleneck")
    bottleneck_lr_mult: float = _backbone(0.1, POSITIVE, "learning rate of that bottleneck, times --lr", metavar="X")

    steps: Optional[int] = _training(
        None, COUNT, "iterations; default: 5001 (images), 1000 (features), 300 (glyphs)", metavar="N", basic=True
    )
    batch_size: int = _training(36, COUNT, "images per domain and step", "-b", metavar="N")
    lr: float = _training(0.01, POSITIVE, "learning rate of the heads", metavar="LR")
    lr_mult_backbone: float = _training(0.1, POSITIVE, "learning rate of a trained backbone, times --lr", metavar="X")
    lr_warmup: Optional[int] = _training(
        None, COUNT, "the learning rates grow to their values over N steps", "--lr-warmup", "--warmup", metavar="N"
    )
    momentum: float = _training(0.9, RATE, "of SGD", metavar="M")
    weight_decay: float = _training(5e-4, NOT_NEGATIVE, "of SGD", metavar="W")
    workers: int = _training(2, WORKERS, "threads that decode images", "-j", metavar="N", **_free)
    threads: Optional[int] = _training(
        None, THREADS, "threads of PyTorch on a CPU; default: all cores that affinity and CPU quota allow (1 in a grid)",
        metavar="N", **_free,
    )  # fmt: skip
    hold_out: float = _training(
        0.0, RATE, "share of the source images of each label that is kept back from training, for validators", metavar="SHARE"
    )
    seed: int = _training(0, SEED, "of the initial weights, batches and augmentation", metavar="N", basic=True)
    device: str = _training("auto", TEXT, "auto, cpu, cuda, cuda:1, mps", metavar="NAME", **_free)
    deterministic: bool = _training(
        False, FLAG, "the same bytes on CUDA too: only deterministic kernels, slower (a CPU run needs no flag)"
    )
    precision: str = _training(
        "auto", choice("auto", "fp32", "tf32", "bf16", "fp16"),
        "auto: bf16 on CUDA that has it, else fp16; fp32 on a CPU. Losses are always fp32",
    )  # fmt: skip
    batch_norm: str = _training(
        "global", choice("global", "local"),
        "under torchrun, over the images of all processes: the same result on any number of them;\n"
        "or over each one's own: less to exchange, another result",
    )  # fmt: skip
    compile: bool = _training(
        False, FLAG, "torch.compile on the backbone: equal up to rounding; takes minutes to start and pays in long runs"
    )
    checkpoint_activations: bool = _training(
        False, FLAG, "keep a third of a trained backbone's activations and compute the others twice: equal results", **_free
    )
    accumulate: int = _training(
        1, COUNT, "back-propagate a batch through the backbone in N parts; selections are over the whole batch", metavar="N"
    )
    eval_every: Optional[int] = _training(None, COUNT, "evaluate every N steps; default: ten times per run", metavar="N")
    checkpoint_every: Optional[int] = _training(
        None, COUNT, "save every N steps; default: ten times per run", metavar="N", **_free
    )
    checkpoint_minutes: float = _training(
        15.0, POSITIVE, "and whenever M minutes have passed since the last checkpoint", metavar="M", **_free
    )
    keep: int = _training(1, COUNT, "keep the last N checkpoints", metavar="N", **_free)
    resume: bool = _training(
        False, FLAG, "refuse to start a new run in --log FOLDER (an unfinished run continues by itself)", **_free
    )
    on_nonfinite: str = _training(
        "stop", choice("stop", "skip"),
        "a NaN or infinite loss: stop with exit code 3, or drop the step (up to 1 % of them)", **_free,
    )  # fmt: skip

    log: Optional[str] = _output(
        None, TEXT, "run folder; default: runs/<data>_<source>2<target>_<noise>_<method>_seed<N>", metavar="FOLDER",
        basic=True, **_own,
    )  # fmt: skip
    overwrite: bool = _output(False, FLAG, "replace a finished run in --log FOLDER", **_own)
    answers: Optional[int] = _output(
        None, COUNT, "after training, simulate a person who answers N questions about target images by their labels;\n"
        "the answered images count in no metric (tllib-ext ask and answer are for people)", metavar="N",
    )  # fmt: skip
    no_answers: bool = _output(
        False, FLAG, "keep nothing for answers in the run folder: 256 numbers of 2 bytes per target image", **_free
    )
    no_report: bool = _output(
        False, FLAG, "write no plots and no report.html (tllib-ext report makes them later)", **_free)  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    def method_options(self) -> Record:
        """Hyper-parameters as given: :attr:`hparams` and the fields that are shorthands of some."""
        given = {name: getattr(self, name) for name in SHORTHANDS}
        return {**self.hparams, **{name: value for name, value in given.items() if value is not None}}

    def resolve(self, data: Optional["Data"] = None) -> "Resolved":
        """A configuration with every default filled in for its data and method; this one stays as it is.

        Args:
            data (Data, optional): both domains, from :func:`~tllib_ext.training.resolve.open_run_data`
        """
        from tllib_ext.training.resolve import resolve

        return resolve(self, data)
