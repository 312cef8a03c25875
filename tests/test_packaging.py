"""What is released: the source archive, the wheel built from it, and what installing that gives."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from pgcdc_cli import __version__

PROJECT = Path(__file__).parents[1]
NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}


def build(kind, project, folder):
    """Build without isolation, as a packager without network does."""
    line = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(line, cwd=project, env=os.environ | NO_NETWORK, check=True, capture_output=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder in the source archive."""
    folder = tmp_path_factory.mktemp("source")
    build("sdist", PROJECT, folder)
    with tarfile.open(folder / f"pgcdc_cli-{__version__}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"pgcdc_cli-{__version__}"


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build("wheel", source, folder)
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel; its dependencies are those of this environment."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    line = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(line, check=True, env=os.environ | NO_NETWORK)
    [packages] = place.glob("lib/python*/site-packages")
    # Only the path: .pth files in that folder, and so editable installs, are not read.
    (packages / "depends.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def test_the_source_has_all_that_is_in_the_project_and_no_more(source):
    parts = {path.relative_to(source).parts[0] for path in source.iterdir()}
    assert parts >= {"pyproject.toml", "README.md", "LICENSE", "pgcdc_cli", "tests", "docs", ".ci", "man"}
    assert {part for part in parts if part.startswith(".")} == {".ci", ".dockerignore", ".gitignore"}
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert not [file for file in files if "__pycache__" in file.parts or "cache" in file.suffix]
    if (PROJECT / ".git").exists():
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True)
        named = {Path(name) for name in tracked.stdout.decode().split("\0") if name}
        assert {name for name in named if (PROJECT / name).exists()} <= files


def test_the_wheel_is_small_and_for_every_machine(wheel):
    assert wheel.name == f"pgcdc_cli-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 1_000_000


def test_the_wheel_has_the_package_and_what_a_shell_and_man_look_for(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    kept = {path.relative_to(PROJECT) for path in (PROJECT / "pgcdc_cli").rglob("*") if path.is_file()}
    assert {str(path) for path in kept if "__pycache__" not in path.parts} == {
        name for name in held if name.startswith("pgcdc_cli/")
    }
    assert {"pgcdc_cli/py.typed", "pgcdc_cli/spark/pgcdc_merge/main.py", "pgcdc_cli/spark/merge.py"} <= held
    data = f"pgcdc_cli-{__version__}.data/data/share/"
    assert {name.removeprefix(data) for name in held if name.startswith(data)} == {
        *(f"man/man1/{page.name}" for page in (PROJECT / "man").iterdir()),
        "bash-completion/completions/pgcdc",
        "fish/vendor_completions.d/pgcdc.fish",
        "zsh/site-functions/_pgcdc",
    }


def test_the_wheel_names_its_extras(wheel):
    metadata = zipfile.ZipFile(wheel).read(f"pgcdc_cli-{__version__}.dist-info/METADATA").decode()
    extras = {line.split()[1] for line in metadata.splitlines() if line.startswith("Provides-Extra: ")}
    assert extras >= {"demo", "metrics", "spark"}


def test_an_image_is_given_what_the_package_is_built_from(wheel, tmp_path):
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    names = [line.removeprefix("!/") for line in ignored if line.startswith("!")]
    assert ignored[1] == "*"
    (tmp_path / "given").mkdir()
    for name in names:
        kept = PROJECT / name
        copy = shutil.copytree if kept.is_dir() else shutil.copy
        copy(kept, tmp_path / "given" / name)
    build("wheel", tmp_path / "given", tmp_path)
    [built] = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(built).namelist() == zipfile.ZipFile(wheel).namelist()


def test_what_is_installed_runs(installed):
    def run(program, *arguments):
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        line = [installed / "bin" / program, *arguments]
        return subprocess.run(line, cwd=installed, env=clean, check=True, capture_output=True, text=True)

    assert json.loads(run("pgcdc", "--version", "--json").stdout)["pgcdc"] == __version__
    where = Path(run("python", "-c", "import pgcdc_cli; print(pgcdc_cli.__file__)").stdout)
    assert where.is_relative_to(installed)
    assert (installed / "share" / "man" / "man1" / "pgcdc.1").exists()
