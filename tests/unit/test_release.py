"""What is shipped, made from what .dockerignore leaves in: wheel, source archive, and what the images are built of."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import openrlhf_rpo

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def run(command: list[object], cwd: Path, status: int = 0) -> str:
    """What a command prints, without what this environment adds to Python's path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


# ── What .dockerignore leaves in ──

IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def left_out(path: Path) -> bool:
    """Docker's rules, as far as the file uses them: from the root, ``*`` within a name, ``**/`` at any depth."""
    assert not any("!" in rule or "**" in rule.removeprefix("**/") for rule in IGNORED)
    parts = path.relative_to(ROOT).parts
    heads = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    anywhere = [rule.removeprefix("**/") for rule in IGNORED if rule.startswith("**/")]
    return any(head in IGNORED for head in heads) or any(fnmatchcase(part, rule) for part in parts for rule in anywhere)


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as ``docker build`` would get it."""
    copy = tmp_path_factory.mktemp("context")

    def ignore(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if left_out(Path(folder, name))}

    return Path(shutil.copytree(ROOT, copy, ignore=ignore, dirs_exist_ok=True))


def test_an_image_gets_every_file_of_the_repository_and_nothing_that_git_ignores(context):
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    files = {str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()}
    tracked = set(run(["git", "ls-files"], ROOT).splitlines())
    assert {name for name in tracked - files if (ROOT / name).exists()} == set()
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True)
    assert (ignored.stdout, ignored.returncode) == ("", 1)


@pytest.mark.parametrize("junk", [".venv/x.py", "a/__pycache__/x.py", "runs/a/x", "openrlhf_rpo.egg-info/x", "a/b.db-wal"])
def test_what_is_made_here_stays_behind(junk):
    assert left_out(ROOT / junk)
    assert not left_out(ROOT / "openrlhf_rpo" / "runs.py") and not left_out(ROOT / "examples" / "build")


# ── Dockerfile ──

STEPS = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def test_everything_that_the_images_copy_is_there(context):
    copied = [word for step in STEPS if step.startswith("COPY") for word in step.split()[2:-1]]
    assert len(copied) >= 10
    assert [name for name in copied if not (context / name).exists()] == []


def test_the_packages_that_the_images_install_exist():
    """Here: in the archives of this host, if it is a Debian or Ubuntu that knows them."""
    lines = [re.search(r"apt-get install (.*?) &&", step) for step in STEPS if "apt-get install" in step]
    wanted = {word for line in lines for word in line[1].split() if not word.startswith("-")}
    assert len(lines) == 2 and "libnuma1" in wanted
    if not shutil.which("apt-cache"):
        pytest.skip("no Debian or Ubuntu")
    said = subprocess.run(["apt-cache", "show", "--no-all-versions", *wanted], capture_output=True, text=True).stdout
    known = set(re.findall(r"^Package: (\S+)$", said, re.MULTILINE))
    if not known:
        pytest.skip("this host has no package lists")
    assert known >= wanted


def test_what_the_images_pin_is_what_the_rest_pins():
    """flash-attn as in the ``gpu`` extra, pip as in the lock of a CPU, the same Python as its."""
    text, setup, lock = ((ROOT / name).read_text() for name in ("Dockerfile", "setup.py", "requirements/cpu.lock"))
    pins = dict(re.findall(r"([a-z-]+)==([\d.]+)", text))
    assert f'"flash-attn=={pins["flash-attn"]}"' in setup and f"\npip=={pins['pip']}\n" in lock
    assert pins["flash-attn"] in (ROOT / "docs/quickstart.md").read_text()
    assert "ARG PYTHON=python:3.11." in text and "python3.11" in (ROOT / "tools" / "setup_env.sh").read_text()


def test_the_lock_of_a_gpu_host_has_what_the_extra_pins_and_what_builds_flash_attention():
    """That it is complete and resolves, `make lint` asks the package index."""
    setup, lock = ((ROOT / name).read_text() for name in ("setup.py", "requirements/gpu.lock"))
    pins = dict(line.split("==") for line in lock.splitlines() if not line.startswith("#"))
    extra = dict(re.findall(r'"([a-z-]+)(?:\[[a-z]+\])?==([\d.]+)"', setup))
    assert {name: pins.get(name) for name in extra} == extra | {"flash-attn": None}
    assert {"torch", "setuptools", "wheel", "packaging", "ninja", "psutil", "einops"} <= pins.keys()


def venv(folder: Path) -> Path:
    """An empty environment that finds this one's packages behind its own; its Python."""
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *words: object) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--no-deps", "--no-build-isolation", "--no-index", *words], python.parent)


USE = """
import openrlhf_rpo
from openrlhf_rpo.cache.store import PathCache
PathCache.open("sqlite:///made.db").close()
print(openrlhf_rpo.__file__)
"""


def use(python: Path, folder: Path) -> None:
    """What is installed below ``folder`` works: the command, and a cache made by its migrations."""
    command = python.with_name("openrlhf-rpo")
    assert "doctor" in run([command, "--help"], folder)
    assert run([command, "--version"], folder).strip() == openrlhf_rpo.__version__
    assert run([python, "-c", USE], folder).startswith(str(folder))
    assert (folder / "made.db").stat().st_size > 0


@pytest.mark.parametrize(("target", "words"), [("cpu", ["-e", "."]), ("gpu", [])])
def test_what_an_image_copies_before_it_installs_is_enough_to_install(context, tmp_path, target, words):
    """The layers of the packages are made from a few files, the code comes later: then the command is there."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    stage = text.split(f" AS {target}\n")[1].split("\nFROM ")[0]
    early, late = stage.split("COPY --chown=10001 . .")
    folder = tmp_path / "image"
    for line in re.findall(r"^COPY \S+ (.*)$", early, re.MULTILINE):
        *sources, where = line.split()
        for source in sources:
            place = folder / where / ("" if (context / source).is_dir() else Path(source).name)
            (shutil.copytree if (context / source).is_dir() else _copy)(context / source, place)
    python = venv(tmp_path / "venv")
    if words:
        install(python, *[word if word.startswith("-") else folder for word in words])
    shutil.copytree(context, folder, dirs_exist_ok=True)
    if "pip install" in late:
        assert "pip install --no-deps ./." in late
        install(python, folder)
    use(python, tmp_path)


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)


# ── Wheel and source archive ──


@pytest.fixture(scope="session")
def built(context: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, built from the copy."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(context, source, dirs_exist_ok=True)
    for kind in ("build_sdist", "build_wheel"):
        run([sys.executable, "-c", BUILD, kind, out], source)
    [wheel], [archive] = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def contents(wheel: Path) -> dict[str, str]:
    """name -> hash of every file; RECORD is hashes again."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.endswith("/RECORD")]
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in names}


def test_the_wheel_has_every_module_and_migration_and_nothing_else(built):
    names = {name for name in contents(built[0]) if ".dist-info/" not in name}
    package = ROOT / "openrlhf_rpo"
    wanted = {path for path in package.rglob("*") if path.is_file() and not left_out(path)}
    moved = {path for path in (ROOT / "alembic").rglob("*") if path.is_file() and not left_out(path)}
    assert names == {str(path.relative_to(ROOT)) for path in wanted} | {
        f"openrlhf_rpo/_alembic/{path.relative_to(ROOT / 'alembic')}" for path in moved
    }
    assert {"openrlhf_rpo/py.typed", "openrlhf_rpo/evaluation/lighteval.txt"} <= names


def test_the_source_archive_builds_the_same_wheel(built, tmp_path):
    wheel, archive = built
    run([sys.executable, "-m", "tarfile", "-e", archive, tmp_path], tmp_path)  # extractall() has no filter in 3.11.2
    [source] = tmp_path.iterdir()
    run([sys.executable, "-c", BUILD, "build_wheel", tmp_path], source)
    [again] = tmp_path.glob("*.whl")
    assert contents(again) == contents(wheel)


def test_the_version_stands_in_one_place(built):
    version = openrlhf_rpo.__version__
    assert all(version in path.name for path in built)
    tracked = [p for p in (ROOT / "openrlhf_rpo").rglob("*.py")] + [ROOT / "setup.py", ROOT / "pyproject.toml"]
    assert [p.name for p in tracked if f'"{version}"' in p.read_text()] == ["__init__.py"]


def test_an_installed_wheel_works_without_the_repository(built, tmp_path):
    python = venv(tmp_path / "venv")
    install(python, built[0])
    use(python, tmp_path)
    assert "it needs the repository" in run([python.with_name("openrlhf-rpo"), "demo"], tmp_path, status=1)
