"""The documents as readers find them: lines that fit, links that lead somewhere, no command that installs another
project's package, and no name of ours that is gone.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [
    *PAGES,
    *(path for folder in ("examples", "src") for path in sorted((ROOT / folder).rglob("*")) if path.is_file()),
]
WIDTH = 100
# On PyPI, "spag" is a compiler tool of 2018; this project is spag-selfplay, and installs from a clone as ".".
FOREIGN_PACKAGE = re.compile(r"pip3? install(?: +[^\s;&|`#()]+)*? +['\"]?spag(?![\w-])")
TEST = re.compile(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?")
LINK = re.compile(r"\]\(([^()\s#]*)(#[^()\s]*)?\)")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are not code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def too_long(line: str) -> bool:
    """Whether a line of prose is too long and could be broken: tables, HTML and images cannot, nor can a single word
    such as a link.
    """
    words = line.lstrip("-*0123456789. ").split()
    return len(line) > WIDTH and len(words) > 1 and not line.startswith(("|", "<", "!["))


def dead_links(page: Path) -> Iterator[str]:
    for number, line in prose(page.read_text(encoding="utf-8")):
        for target, anchor in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            place = (page.parent / target).resolve() if target else page
            if not target.startswith(("http:", "https:")) and not (
                place.exists() and (not anchor or anchor in anchors(place))
            ):
                yield f"{page.name}:{number}: {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = [line.lstrip("# ") for _, line in prose(page.read_text(encoding="utf-8")) if line.startswith("#")]
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_and_links_lead_somewhere(page: Path) -> None:
    long = [
        f"{page.name}:{number}: {line}" for number, line in prose(page.read_text(encoding="utf-8")) if too_long(line)
    ]
    assert [*long, *dead_links(page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_imported_from_spag_exist(page: Path) -> None:
    code = "".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
    for line in ast.walk(ast.parse(code)):
        if isinstance(line, ast.ImportFrom) and (module := line.module or "").startswith("spag"):
            found = vars(import_module(module))
            assert [one.name for one in line.names if one.name not in found] == [], module


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for file, test in TEST.findall(page.read_text(encoding="utf-8")):
        path = ROOT / "tests" / file
        assert path.is_file() or file == "test_dilemma.py", file  # a reader's own, in docs/games.md
        assert not test or f"def {test}(" in path.read_text(encoding="utf-8"), test


def test_no_command_installs_the_other_spag() -> None:
    found = []
    for path in TEXTS:
        if path.suffix in {"", ".md", ".py", ".yaml", ".html", ".sbatch"}:
            found += [
                f"{path.relative_to(ROOT)}: {match[0]}"
                for match in FOREIGN_PACKAGE.finditer(path.read_text(encoding="utf-8"))
            ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_quote_brackets(page: Path) -> None:
    """zsh, the shell of macOS, would look for files of that name."""
    assert re.findall(r"--set [\w.]+=\[.*", page.read_text(encoding="utf-8")) == []


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    for command in (
        "pip install spag",
        "pip install 'spag[vllm]'",
        "pip3 install -q spag==0.1.0",
        "pip install torch 'spag[web]'",
    ):
        assert FOREIGN_PACKAGE.search(command), command
    for command in (
        "pip install '.[vllm]'",
        "pip install spag-selfplay",
        "pip install . && spag run demo",
        "pip install . # spag",
    ):
        assert not FOREIGN_PACKAGE.search(command), command
    page = tmp_path / "page.md"
    page.write_text(
        "# A b, c\n[a](#a-b-c) [b](page.md) [c](gone.md) [d](page.md#gone) `[e](x.md)`\n```\n[f](y.md)\n```\n"
    )
    assert list(dead_links(page)) == ["page.md:2: gone.md", "page.md:2: page.md#gone"]
    assert too_long("two " + 97 * "x") and too_long("- two " + 97 * "x")
    assert not too_long("- " + 120 * "x") and not too_long("| two " + 120 * "x") and not too_long("two " + 96 * "x")
