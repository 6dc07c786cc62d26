"""The chat page in a headless browser: Playwright with the system's Chromium, if both are there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served

pytestmark = pytest.mark.slow

EVIL = (
    "<img src=x onerror=alert(1)> <script>alert(1)</script> [a](javascript:alert(1)) <svg/onload=alert(1)>\n\n"
    "```\n<script>alert(2)</script>\n```\n"
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {"long": "x " * 1500, "evil": EVIL, "plain": "Hello **there**"}
    with Served(scripts=scripts, app={"ui": True}, n_ctx=4096) as server:
        yield server


@pytest.fixture
def tab(served: Served) -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a browser: apt install chromium")
    with api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 760})
        tab.wrong = []
        tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
        tab.on("console", lambda message: message.type == "error" and tab.wrong.append(message.text))
        tab.on("dialog", lambda dialog: (tab.wrong.append("a script ran"), dialog.dismiss()))
        tab.goto(f"{served.live.url}/chat")
        yield tab
        assert tab.wrong == []
        browser.close()


def say(tab: Any, text: str) -> None:
    """Send a message and wait for the end of the answer."""
    n = tab.locator(".assistant").count()
    tab.fill("#input", text)
    tab.keyboard.press("Enter")
    tab.wait_for_function(f"document.querySelectorAll('.assistant').length > {n}")
    tab.wait_for_selector("#send:visible")


def test_chat_edit_regenerate_reload(tab: Any) -> None:
    say(tab, "say plain")
    assert tab.locator(".assistant strong").inner_text() == "there"
    say(tab, "plain again")
    tab.reload()
    assert tab.locator(".assistant").count() == 2
    tab.get_by_text("Regenerate").click()
    tab.wait_for_selector("#send:visible")
    assert tab.locator(".message").count() == 4
    tab.get_by_text("Edit").nth(1).click()
    assert tab.input_value("#input") == "plain again" and tab.locator(".message").count() == 2


def test_stop(tab: Any) -> None:
    tab.fill("#input", "a long one")
    tab.click("#send")
    tab.wait_for_selector(".assistant .body")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("#send:visible")
    assert "stopped after" in tab.locator(".assistant .tools").inner_text()
    assert len(tab.locator(".assistant .body").inner_text()) < 3000


def test_markup_is_text(tab: Any) -> None:
    say(tab, "be evil")
    for _ in range(2):  # the second time after a reload
        assert tab.locator("#messages :is(img, script, svg, a[href^=javascript])").count() == 0
        shown = tab.locator(".assistant .body").inner_text()
        assert "<img src=x onerror=alert(1)>" in shown and "<script>alert(2)</script>" in shown
        tab.reload()
        tab.wait_for_selector(".assistant")


def test_dark_and_phone(tab: Any) -> None:
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.click("#theme")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
    tab.set_viewport_size({"width": 390, "height": 760})
    say(tab, "say plain")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.click("#menu")
    tab.wait_for_timeout(300)
    assert tab.locator("#new").bounding_box()["x"] >= 0
