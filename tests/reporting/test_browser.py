"""Reports in a real browser: nothing goes wrong, nothing is asked for, everything that can be pressed works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnlearn import report
from tests.reporting._browser import Browser
from tests.reporting.conftest import made_up
from tests.reporting.test_report import HOSTILE, hostile_solution

pytestmark = pytest.mark.browser


def quiet(browser: Browser, page: Path) -> None:
    """No error, no warning, and no request but the one for the file itself."""
    browser.settle()
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:image/png")] == [page.as_uri()]


@pytest.mark.parametrize("kind", ["recovered", "noisy", "residual", "extracted", "trained", "leak"])
def test_real_results_open_without_errors_or_requests(browser, results, kind: str, tmp_path: Path) -> None:
    page = report(results[kind], tmp_path / "report.html")
    browser.size(1280, 900)
    browser.media()
    browser.open(page)
    quiet(browser, page)
    assert browser.js("document.documentElement.classList.contains('js')")
    assert browser.js("document.querySelector('h1').textContent.length") > 20
    broken = (
        "[...document.querySelectorAll('.canvas svg')].filter(s => !s.getBoundingClientRect().width).length"
    )
    hidden = "document.querySelectorAll('.panel:not(.chosen) .canvas svg').length"
    assert browser.js(broken) == browser.js(hidden)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_runs_nothing(browser, text: str, tmp_path: Path) -> None:
    page = report(hostile_solution(text), tmp_path / "report.html")
    browser.open(page)
    quiet(browser, page)
    shown = text.replace("\x00", "").strip()
    assert browser.js("document.querySelector('.claims .code').textContent").strip() == shown
    assert browser.js("document.images.length") == 0


def test_the_policy_forbids_the_network_and_other_scripts(browser, page: Path) -> None:
    browser.open(page)
    browser.js("fetch('http://127.0.0.1:9/').catch(() => { window.refused = true; })")
    browser.js(
        "document.body.appendChild(document.createElement('script')).textContent = 'window.ran = true'"
    )
    browser.js("document.body.appendChild(new Image()).src = 'http://127.0.0.1:9/x.png'")
    browser.settle(0.5)
    assert browser.js("window.refused") is True
    assert browser.js("window.ran") is None
    assert any("Content Security Policy" in error for error in browser.errors)


def test_the_head_switcher(browser, page: Path) -> None:
    browser.open(page)
    shown = "[...document.querySelectorAll('.panel')].filter(p => p.offsetHeight).map(p => p.querySelector('h3').textContent)"
    assert browser.js(shown) == ["Head 0"]
    browser.js("document.getElementById('tab-2').click()")
    assert browser.js(shown) == ["Head 2"]
    assert browser.js("document.getElementById('tab-2').getAttribute('aria-selected')") == "true"
    browser.js("document.getElementById('tab-2').focus()")
    for key, head in (
        ("ArrowRight", "Head 0"),
        ("ArrowLeft", "Head 2"),
        ("Home", "Head 0"),
        ("End", "Head 2"),
    ):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        assert browser.js(shown) == [head]
    browser.js(
        "(() => { const i = document.querySelector('image.cells[data-names=head]'); const b = i.getBoundingClientRect();"
        "i.dispatchEvent(new MouseEvent('click', {clientX: b.left + 5, clientY: b.top + b.height / 2})); })()"
    )
    assert browser.js(shown) == ["Head 1"]
    quiet(browser, page)


def test_the_theme_button(browser, page: Path) -> None:
    browser.media(scheme="light")
    browser.open(page)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(colour)
    seen = []
    for _ in range(3):
        browser.js("document.getElementById('theme').click()")
        seen.append((browser.js("document.getElementById('theme').textContent"), browser.js(colour)))
    assert [text for text, _ in seen] == ["Theme: dark", "Theme: light", "Theme: auto"]
    assert seen[0][1] != light
    assert seen[1][1] == seen[2][1] == light
    browser.media(scheme="dark")
    assert browser.js(colour) == seen[0][1]
    browser.media(scheme="light")


def test_numbers_under_the_pointer_and_as_tables(browser, page: Path) -> None:
    browser.size(1280, 900)
    browser.open(page)
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    browser.move("rect.bar")
    assert browser.js(tip) == "1: 3"
    browser.move("circle.point")
    assert browser.js(tip) == "residual: 0.1 at 1"
    browser.move(".panel.chosen image.cells", 0.01, 0.01)
    first = browser.js(
        "JSON.parse(document.getElementById('result').textContent).layer.summary.maps[0].theta[0][0]"
    )
    assert browser.js(tip) == f"row 0, column 0: {json.dumps(first)}"
    browser.move("h1")
    assert browser.js(tip) == ""
    browser.js("document.querySelector('.phase details.numbers summary').click()")
    assert browser.js("document.querySelector('.phase details.numbers td').offsetHeight") > 0
    quiet(browser, page)


def test_large_tables_are_made_when_opened(browser, tmp_path: Path) -> None:
    from attnlearn import AttentionLayer

    solution = made_up(layer=AttentionLayer.random(2, 120, rank=4, seed=1), claims=())
    page = report(solution, tmp_path / "report.html")
    browser.open(page)
    rows = "document.querySelectorAll('.panel.chosen details.numbers[data-source] tr').length"
    assert browser.js(rows) == 0
    browser.js("document.querySelector('.panel.chosen details.numbers[data-source] summary').click()")
    browser.settle()
    assert browser.js(rows) == 97


def test_downloads_hold_the_result(browser, page: Path) -> None:
    browser.open(page)
    browser.js("window.made = []; URL.createObjectURL = blob => { made.push(blob); return '#'; }")
    browser.js("document.getElementById('download').click()")
    browser.js("document.querySelector('button.csv').click()")
    browser.js("Promise.all(made.map(blob => blob.text())).then(texts => { window.texts = texts; })")
    browser.settle()
    result, table = browser.js("window.texts")
    assert json.loads(result)["schema"] == "attnlearn/solution"
    assert table.splitlines()[0] == "singular value,size,noise floor"


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_on_a_phone(browser, results, width: int, tmp_path: Path) -> None:
    for kind in ("recovered", "trained", "leak"):
        page = report(results[kind], tmp_path / "report.html")
        browser.size(width, 800, mobile=width < 600)
        browser.open(page)
        assert browser.js("document.documentElement.scrollWidth") <= width
    browser.size(1280, 900)


def test_print_shows_every_head_and_no_buttons(browser, page: Path, tmp_path: Path) -> None:
    browser.open(page)
    browser.media(media="print", scheme="dark")
    assert browser.js("[...document.querySelectorAll('.panel')].every(p => p.offsetHeight > 0)")
    assert browser.js("[...document.querySelectorAll('button:not(.glance)')].every(b => !b.offsetHeight)")
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.js("[...document.querySelectorAll('.glance')].every(p => p.offsetHeight > 0)")
    browser.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser.media()


def test_screenshots_show_something(browser, page: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, which comes with matplotlib, is not installed")
    for scheme in ("light", "dark"):
        browser.size(1280, 900)
        browser.media(scheme=scheme)
        browser.open(page)
        browser.screenshot(tmp_path / "shot.png", full=False)
        colours = image.open(tmp_path / "shot.png").convert("RGB").getcolors(1 << 24)
        assert len(colours) > 100
        background = max(colours)[1]
        assert (sum(background) > 600) == (scheme == "light")
    browser.media()
