"""Small copies of the known data sets, one picture per class, as the archives that are downloaded."""

import io
import tarfile
import zipfile
from functools import lru_cache

from PIL import Image

from tllib_ext.vision.datasets import DATASETS
from tllib_ext.vision.datasets.downloads import ARCHIVES


@lru_cache(maxsize=None)
def _picture(number, suffix, side):
    buffer = io.BytesIO()
    colour = (number * 37 % 256, number * 91 % 256, number * 151 % 256)
    Image.new("RGB", (side, side), colour).save(buffer, "png" if suffix == "png" else "jpeg")
    return buffer.getvalue()


def image_path(name, folder, label, i):
    """Where a data set has an image, below its root."""
    label_name = DATASETS.get(name).classes[label]
    images = "images/" if name == "Office31" else ""
    return f"{folder}/{images}{label_name}/{i}.{'png' if name == 'VisDA2017' else 'jpg'}"


@lru_cache(maxsize=None)
def drawn_archives(name, each=1, side=8, outside=False):
    """File name -> content of each archive; with ``outside`` each has an entry that leads out of its folder."""
    builder, archives, lists = DATASETS.get(name), {}, {}
    for archive in ARCHIVES[name][:-1]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            for label in range(len(builder.classes)):
                for i in range(each):
                    path = image_path(name, archive.folder, label, i)
                    content = _picture(label + i, path[-3:], side)
                    info = tarfile.TarInfo(path)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
                    lists.setdefault(archive.folder, []).append(f"{path} {label}\n")
            if outside:
                tar.addfile(tarfile.TarInfo("../../sprung"), io.BytesIO())
        archives[archive.file] = buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for domain, stem in builder.lists.items():
            folder, part = (domain.rpartition("_")[::2]) if name == "DomainNet" else (stem, "")
            lines = lists[folder]
            cut = len(lines) * 2 // 3
            lines = lines[:cut] if part == "train" else lines[cut:] if part == "test" else lines
            opened.writestr(f"image_list/{stem}.txt", "".join(lines))
    archives[ARCHIVES[name][-1].file] = buffer.getvalue()
    return archives
