"""Draw the pictures of the Python API page: `python docs/draw_figures.py`, with a Chromium and Pillow.

Each figure of a recorded run of two H200s, light and dark, as a PNG in `docs/figures/`.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import stepscope
from stepscope.api.figures import FIGURES

_DOCS = Path(__file__).parent
_RUN = _DOCS.parent / "tests/benchmarks/labelled_runs/recorded/several/hf_fsdp_python"
_WIDTH, _HEIGHT, _COLOURS = 720, 400, 64


def main() -> None:
    """Write all pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no Chromium: install one")
    folder = _DOCS / "figures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as copy, sync_playwright() as playwright:
        run = stepscope.load(shutil.copytree(_RUN, Path(copy) / "run"))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--use-gl=swiftshader"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": 800})
        for name in FIGURES:
            for theme in ("light", "dark"):
                drawn = run.figure(name, theme)
                drawn.update_layout(width=_WIDTH, height=drawn.layout.height or _HEIGHT)
                page.set_content(drawn.to_html(include_plotlyjs=True, config={"displayModeBar": False}))
                page.locator(".main-svg").first.wait_for()
                page.wait_for_timeout(500)  # WebGL draws after the first frame
                picture = io.BytesIO(page.locator(".plotly-graph-div").screenshot())
                Image.open(picture).quantize(_COLOURS).save(folder / f"{name}-{theme}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
