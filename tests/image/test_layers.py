"""The layers of the Dockerfile, run without Docker: each stage in a Debian that has little more than its base image.

What a layer forgets (a package, a file that was not copied, a right) is missing here as it would be there. Needs root,
debootstrap and the network; ``OUTSIDE`` names the layers that are left out, and why.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]
ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
"""Of the cpu target's base; Ubuntu's packages have the same names."""
IN_BASE = {"cpu": "python3-dev python3-venv", "gpu": ""}
"""What else the base images have that the layers count on."""
CALLED = {"cpu": [], "gpu": ["rsync", "ssh", "wget"]}
"""What Ray's launcher and KubeRay call in a container (ray/autoscaler/_private/command_runner.py, KubeRay's probes)."""
OUTSIDE = {
    "-r requirements/gpu.lock": "wheels for Python 3.12 and CUDA, 9 GB; make lint resolves the lock",
    "FLASH_ATTN": "compiled with nvcc",
}
# A mount namespace of its own: what is mounted below the root ends with the command.
ENTER = """
set -e; root=$1 user=$2 places=$3; shift 3
for place in /dev /proc /etc/resolv.conf $places; do
    [ -e "$root$place" ] || { [ -d "$place" ] && mkdir -p "$root$place" || touch "$root$place"; }
    mount --rbind "$place" "$root$place"
done
exec chroot --userspec="$user" "$root" env -i "$@"
"""


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage: a word, and the rest."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    found: dict[str, list[tuple[str, str]]] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = found.setdefault(rest.rpartition(" ")[2], [])
        elif word and found:
            stage.append((word, re.sub(" +", " ", rest)))
    return found


def pip_settings() -> tuple[dict[str, str], list[str]]:
    """Where this machine's pip looks for packages, as variables, and those places that are folders here."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    names = ("index-url", "extra-index-url", "find-links", "cert")
    settings = dict(re.findall(rf"^[\w:]*\W({'|'.join(names)})='(.*)'$", listed.replace("\\n", " "), re.MULTILINE))
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items()}, [
        str(path.parent if path.name == "simple" else path)
        for path in map(Path, words)
        if path.is_absolute() and path.exists()
    ]


class Image:
    """A folder in which instructions are carried out as the docker command would."""

    def __init__(self, root: Path) -> None:
        self.root, self.user, self.folder = root, "0", "/"
        self.variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.arguments: dict[str, str] = {}
        self.pip, self.places = pip_settings()

    def take(self, word: str, rest: str) -> None:
        if word == "USER":
            self.user = rest
        elif word == "WORKDIR":
            self.folder = rest
            self.inside(".").mkdir(parents=True, exist_ok=True)
            os.chown(self.inside("."), int(self.user), int(self.user))
        elif word in ("ENV", "ARG"):
            for name, value in (pair.partition("=")[::2] for pair in shlex.split(rest)):
                given = value.replace("$PATH", self.variables["PATH"])
                (self.variables if word == "ENV" else self.arguments)[name] = given
        elif word == "COPY":
            self.copy(*shlex.split(rest))
        elif word == "RUN":
            self.run("sh", "-c", rest)
        elif word == "HEALTHCHECK":
            self.run(*json.loads(rest.partition("CMD ")[2]))
        else:
            assert word == "CMD", f"{word} is not carried out here"

    def inside(self, place: str) -> Path:
        return self.root / (Path(self.folder) / place).relative_to("/")

    def copy(self, owner: str, *places: str) -> None:
        user = int(owner.removeprefix("--chown="))
        *sources, into = places
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "--", *sources],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        assert listed, f"nothing to copy: {places}"
        for source in sources:
            below = ROOT / source
            for file in (ROOT / name for name in listed):
                if file != below and below not in file.parents or not file.is_file():
                    continue
                to = self.inside(into) / (file.relative_to(below) if below.is_dir() else file.name)
                for folder in reversed([p for p in to.parents if not p.exists()]):
                    folder.mkdir()
                    os.chown(folder, user, user)
                shutil.copy2(file, to)
                os.chown(to, user, user)

    def run(self, *command: str) -> None:
        home = "/root" if self.user == "0" else "/home/rpo"
        variables = {**self.pip, **self.arguments, **self.variables, "HOME": home}
        inside = ["sh", "-c", f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"]
        given = [f"{name}={value}" for name, value in variables.items() if value]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", self.root, f"{self.user}:{self.user}", " ".join(self.places)]
            + [*given, *inside],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        print(done.stdout)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}"


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Iterator[Path]:
    """A bare Debian."""
    program = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root and debootstrap")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount anything")
    root = tmp_path_factory.mktemp("image") / "bare"
    subprocess.run([program, "--variant=minbase", "--include=ca-certificates", SUITE, root], check=True)
    yield root
    shutil.rmtree(root.parent)


# What the cpu stage installs, .ci/run installs too.
@pytest.mark.parametrize("stage", [pytest.param("cpu", marks=pytest.mark.release), "gpu"])
def test_every_layer_finds_what_it_needs(bare, stage):
    root = bare.with_name(stage)
    subprocess.run(["cp", "-a", bare, root], check=True)
    image = Image(root)
    if IN_BASE[stage]:
        image.run("sh", "-c", f"apt-get update && apt-get install -y --no-install-recommends {IN_BASE[stage]}")
    for word, rest in stages()[stage]:
        if word == "HEALTHCHECK" and stage == "gpu":
            continue  # a GPU answers it
        if not any(part in rest for part in OUTSIDE) or word == "ARG":
            image.take(word, rest)
    image.run("sh", "-c", "PATH=.venv/bin:$PATH python -c 'import openrlhf_rpo'")
    for program in CALLED[stage]:
        image.run("sh", "-c", f"command -v {program}")
