"""What mkdocs changes in a page, so that docs/ reads well on the site and in the repository.

GitHub resolves links to files outside docs/ and begins a list without a blank line before it; the site can do neither.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)[^)\s]*)\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs with each page's text."""
    return with_lists(without_outside_links(markdown, page.file.src_uri, config.repo_url))


def without_outside_links(markdown: str, page: str, repository: str | None) -> str:
    """Point links that leave docs/ into the repository; where its address is not known, leave their text alone.

    ``page``: the page's path in docs/.
    """

    def replaced(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
        if place.startswith("docs/"):
            return link[0]
        return f"[{link[1]}]({repository.rstrip('/')}/blob/main/{place})" if repository else link[1]

    return _LINK.sub(replaced, markdown)


def with_lists(markdown: str) -> str:
    """Put a blank line between a paragraph and a list that follows it at once, outside code."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        before = lines[-1] if lines else ""
        follows = before.strip() and not before.startswith((" ", "#", "|")) and not _ITEM.match(before)
        if not fenced and _ITEM.match(line) and follows and not _in_item(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_item(lines: list[str]) -> bool:
    """Whether the last lines are those of a list item that goes on without indentation."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False
