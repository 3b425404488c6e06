"""Installation of tllib_ext: lower bounds here, the tested versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "tllib_ext/__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
TEST = ["pytest>=7.4", "hypothesis>=6.80", "pytest-xdist>=3.3", "pytest-cov>=5.0", "ruff>=0.6", "mypy>=1.11",
        "tensorboard>=2.15", "nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29", "pandas>=2.0"]  # fmt: skip

setup(
    name="tllib_ext",
    version=VERSION[1],
    description="Noisy universal domain adaptation for TLlib: wrong labels here, unknown classes there",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the tllib_ext authors",
    license="MIT",
    license_files=["LICENSE"],
    keywords="domain-adaptation transfer-learning noisy-labels open-set pytorch",
    project_urls={"TLlib": "https://github.com/thuml/Transfer-Learning-Library", "Paper": "https://arxiv.org/abs/2104.00246"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    # The pinned numpy has no wheel for 3.10 and older; no other Python than 3.11 was tried.
    python_requires=">=3.11",
    package_dir={"": "."},  # a static path in an editable installation: editors and mypy do not follow an import hook
    packages=find_packages(include=["tllib_ext", "tllib_ext.*"]),
    package_data={"tllib_ext": ["py.typed", "vision/models/weights/*.safetensors", "experiments/data/*", "report/templates/*"]},
    entry_points={"console_scripts": ["tllib-ext = tllib_ext.cli.main:main"]},
    # Every bound was tried: the tests of losses, labels, methods, evaluation, data, report, estimator and resume pass with
    # exactly these versions together (Python 3.11, torch 2.4.0).
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",
        "numpy>=1.24",
        "scikit-learn>=1.6",
        "scipy>=1.10",
        "matplotlib>=3.7",
        "Pillow>=10.0",
        "tqdm>=4.65",
        "tensorboardX>=2.6",
        "prettytable>=3.8",
        "PyYAML>=6.0",
        "safetensors>=0.4",
        "jinja2>=3.1",
        "filelock>=3.30",
    ],
    extras_require={
        "test": TEST,
        "docs": ["sphinx>=7.2", "myst-parser>=2.0", "furo>=2023.9", "latex2mathml>=3.77", "sphinx-copybutton>=0.5.2"],
        "timm": ["timm>=0.9"],
        # In no package index; therefore this package could not be uploaded to one with this extra.
        "tllib": ["tllib @ git+https://github.com/thuml/Transfer-Learning-Library"],
        "compare": ["cleanlab>=2.5"],
        "heif": ["pillow-heif>=0.16"],
        "dev": TEST,
    },
)
