"""The page in a real browser: no error, no request, nothing blank, nothing wider than the screen."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from tests.report.fixture import cartpole_report, pendulum_report
from worldmodel.report import verdict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH: the page is not tried in a browser")

REPORTS = {"run": cartpole_report, "bare": pendulum_report}

# Put at the end of a copy of the page: writes what only a browser knows into the document.
PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const painted = [...document.querySelectorAll("canvas")].map((c) =>
    new Set(c.getContext("2d").getImageData(0, 0, c.width, c.height).data).size > 3);
  const small = [...document.querySelectorAll("p, td, th, li, figcaption")].filter((e) =>
    parseFloat(getComputedStyle(e).fontSize) < 12).length;
  document.body.dataset.probe = JSON.stringify({
    painted, small, wide: document.documentElement.scrollWidth - innerWidth,
    play: document.getElementById("play").textContent, clock: document.getElementById("clock").textContent,
    focusable: document.getElementById("play").tabIndex, requests: performance.getEntriesByType("resource")
      .filter((r) => !r.name.startsWith("data:")).map((r) => r.name),
  });
}, 800));
</script>"""


def _chromium(folder, page, *arguments):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", *arguments]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(params=REPORTS)
def written(request, tmp_path):
    """A scratch folder, a page, and the report it was made from."""
    return tmp_path, request.getfixturevalue(request.param) / "report.html", REPORTS[request.param]()


def _console(stderr):
    return [line for line in stderr.splitlines() if ":CONSOLE" in line or "Refused to" in line]


def _probe(folder, page, width, *arguments):
    copy = folder / "probed.html"
    copy.write_text(page.read_text("utf-8").replace("</body>", PROBE + "</body>"), "utf-8")
    done = _chromium(folder, copy, "--virtual-time-budget=3000", f"--window-size={width},900", "--dump-dom", *arguments)
    found = re.search(r'<body[^>]* data-probe="([^"]*)"', done.stdout)
    assert found, "the page never finished loading"
    return done, json.loads(html.unescape(found.group(1)))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(written, width):
    folder, page, report = written
    done, seen = _probe(folder, page, width)
    assert _console(done.stderr) == []
    assert seen["requests"] == []
    assert seen["painted"] == [True, True]
    assert seen["wide"] <= 0 and seen["small"] == 0
    assert (seen["play"], seen["focusable"]) == ("Pause", 0)
    assert re.match(r"step \d+ of \d+", seen["clock"])
    assert verdict(report) in html.unescape(done.stdout)


def test_no_motion_where_the_reader_wants_none(written):
    folder, page, _ = written
    _, seen = _probe(folder, page, 1280, "--force-prefers-reduced-motion")
    assert seen["play"] == "Play"
    assert seen["painted"] == [True, True]


def test_the_console_is_watched(run, tmp_path):
    # The check above could not fail if the browser kept its console to itself.
    broken = tmp_path / "broken.html"
    broken.write_text((run / "report.html").read_text("utf-8").replace('id="seek"', 'id="lost"', 1), "utf-8")
    assert _console(_chromium(tmp_path, broken, "--virtual-time-budget=500", "--dump-dom").stderr)


def test_the_screenshot_is_not_blank(written):
    folder, page, _ = written
    shot = folder / "shot.png"
    _chromium(folder, page, "--virtual-time-budget=2000", f"--screenshot={shot}", "--window-size=1280,3000")
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert pixels.shape == (3000, 1280, 3)
    for band in np.split(pixels, 6):
        assert band.std() > 8
