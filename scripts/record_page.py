"""Records a visit to the web UI of a finished run of Adversarial Taboo as an animated WebP that loops.

    python scripts/record_page.py runs/demo docs/page.webp

It serves the run with ``spag web``, looks at its results and at games in Chromium, and plays a game against its last
model, whose replies are waited for. Needs Playwright and Debian's ``chromium``.
"""

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 960, 600
QUALITY = 80
REPLY_MS = 180_000
WORD = "river"
SAYS = (
    "What do you like to do outside in summer?",
    "And where does all that water come from?",
    "I walked along one to the sea last week.",
)
"""What the visitor says as the attacker, as long as the game goes on."""
Frames = list[tuple[Image.Image, float]]


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Serve a run and yield its address."""
    command = [sys.executable, "-m", "spag", "web", str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                if found := re.search(r"http://[\w.:]+", line):
                    yield found[0]
                    return
            raise RuntimeError("spag web did not start")
        finally:
            server.terminate()


def visit(page: Page, address: str) -> Iterator[float]:
    """Go through the pages. Yields for how many seconds each view is shown, once it is there."""
    page.goto(address)
    yield 3.5
    page.get_by_role("heading", name="Arena").evaluate("heading => heading.scrollIntoView()")
    yield 3.5
    page.goto(f"{address}/games")
    page.get_by_label("Attacker played by").select_option(label=_last_model(page, "Attacker played by"))
    page.wait_for_url("**/games?*")
    page.get_by_label("Outcome").select_option("attacker_wins")
    page.wait_for_url("**outcome=attacker_wins**")
    yield 3
    page.locator(".games .task").first.click()
    page.locator("#u1").wait_for()
    yield 4
    page.goto(f"{address}/play")
    page.get_by_role("radio", name="Attacker").check()
    page.get_by_label("Your own task, as attacker").fill(WORD)
    page.get_by_label("Play against").select_option(label=_last_model(page, "Play against"))
    yield 2.5
    page.get_by_role("button", name="Start").click()
    yield from play(page)


def _last_model(page: Page, field: str) -> str:
    names = page.get_by_label(field).locator("option").all_inner_texts()
    return max(name for name in names if name.startswith("spag-"))


def play(page: Page) -> Iterator[float]:
    for turn, said in enumerate(SAYS):
        page.get_by_label("Your utterance").fill(said)
        yield 1.5
        page.keyboard.press("Enter")
        page.locator(f"#u{2 * turn + 2}").wait_for(timeout=REPLY_MS)
        if page.locator(".verdict").count():
            yield 5
            return
        yield 2.5
    page.locator(".verdict").wait_for(timeout=REPLY_MS)
    yield 5


def frames(run: Path) -> Frames:
    found: Frames = []
    with served(run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for seconds in visit(page, address):
            page.wait_for_timeout(300)  # for what moves to come to rest
            found.append((Image.open(io.BytesIO(page.screenshot())).convert("RGB"), seconds))
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("picture", type=Path, help="the WebP to write")
    given = parser.parse_args()
    [(first, _), *others] = shown = frames(given.run)
    durations = [round(1000 * seconds) for _, seconds in shown]
    first.save(given.picture, save_all=True, append_images=[image for image, _ in others], duration=durations, loop=0,
               quality=QUALITY, method=6)  # fmt: skip


if __name__ == "__main__":
    main()
