"""Installation of tllib_ext: lower bounds here, the tested versions in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="tllib_ext",
    version="0.1.0",
    description="Noisy universal domain adaptation for TLlib: wrong labels here, unknown classes there",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["tllib_ext", "tllib_ext.*"]),
    package_data={"tllib_ext": ["vision/models/weights/*.safetensors", "experiments/data/*", "py.typed"]},
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",
        "numpy>=1.24",
        "scikit-learn>=1.3",
        "scipy>=1.10",
        "matplotlib>=3.7",
        "Pillow>=9.5",
        "tqdm>=4.65",
        "tensorboardX>=2.6",
        "prettytable>=3.8",
        "PyYAML>=6.0",
        "safetensors>=0.4",
    ],
    extras_require={
        "test": ["pytest>=7.4", "hypothesis>=6.80", "pytest-xdist>=3.3", "ruff>=0.6"],
        "docs": ["sphinx>=7.2", "myst-parser>=2.0", "furo>=2023.9", "latex2mathml>=3.77"],
        "timm": ["timm>=0.9"],
        "dev": ["pytest>=7.4", "hypothesis>=6.80", "pytest-xdist>=3.3", "ruff>=0.6", "mypy>=1.8", "tensorboard>=2.15"],
    },
)
