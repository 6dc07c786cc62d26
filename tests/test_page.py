"""The chat page: its files, headers and place; what it does in a browser is among the slow tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

import pytest
from served import Served

from ggfw.server.page import KINDS, NAMES


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script="Hello there", app={"ui": True}) as server:
        yield server


def test_browsers_get_the_page_and_others_one_line(served: Served) -> None:
    page = served.http.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html") and "<title>ggfw</title>" in page.text
    assert served.http.get("/").text == "Ollama is running"
    assert served.http.get("/chat").text == page.text
    assert served.http.head("/chat").status_code == 200


def test_caches_are_told_what_an_answer_depends_on(served: Served) -> None:
    for origin in ({}, {"Origin": "http://localhost:3000"}, {"Origin": "http://example.com"}):
        for accept in ("text/html", "*/*"):
            answer = served.http.get("/", headers={"Accept": accept, **origin})
            if answer.status_code == 200:
                assert answer.headers["vary"] == "Accept, Origin"
        answer = served.http.get("/v1/models", headers=origin)
        assert answer.headers["vary"] == "Origin"
        assert answer.status_code == (403 if "example" in str(origin) else 200)


def test_every_file_is_there_under_a_strict_policy(served: Served) -> None:
    assert {"index.html", "style.css", "app.js", "icon.svg"} <= NAMES
    for name in NAMES:
        file = served.http.get(f"/ui/{name}")
        assert file.status_code == 200 and file.headers["content-type"] == KINDS[PurePath(name).suffix]
        policy = file.headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        )
        assert "script-src 'self'" in policy and "require-trusted-types-for 'script'" in policy
        assert file.headers["x-frame-options"] == "DENY"
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.headers["referrer-policy"] == "no-referrer"
    for name in ("..%2f__init__.py", "__init__.py", "nothing.js"):
        assert served.http.get(f"/ui/{name}").status_code == 404


def test_the_page_asks_nobody_else_and_needs_no_inline_code(served: Served) -> None:
    for name in NAMES:
        text = served.http.get(f"/ui/{name}").text
        assert not re.search(r"(src|href|from|fetch\()\s*=?\s*[\"'`]?(https?:)?//", text), name
        for markup in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "DOMParser",
        ):
            assert markup not in text, name
    page = served.http.get("/chat").text
    assert not re.search(r"\son\w+=|style=|<script>|<style>", page)


def test_a_browser_that_has_a_file_gets_it_no_second_time(served: Served) -> None:
    tag = served.http.get("/ui/app.js").headers["etag"]
    again = served.http.get("/ui/app.js", headers={"If-None-Match": tag})
    assert again.status_code == 304 and not again.content
    assert served.http.get("/ui/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_every_module_that_is_imported_is_there(served: Served) -> None:
    for name in NAMES:
        text = served.http.get(f"/ui/{name}").text
        for other in re.findall(r"from \"\./([^\"]+)\"", text):
            assert other in NAMES, f"{name} imports {other}"
    page = served.http.get("/chat").text
    assert set(re.findall(r"\"ui/([^\"]+)\"", page)) <= NAMES


def test_no_page_without_ui() -> None:
    with Served() as server:
        assert server.http.get("/chat").status_code == 404
        assert server.http.get("/", headers={"Accept": "text/html"}).text == "Ollama is running"


def test_the_page_needs_no_key_and_the_api_does() -> None:
    with Served(app={"ui": True, "api_keys": "secret"}) as server:
        assert server.http.get("/chat").status_code == server.http.get("/ui/app.js").status_code == 200
        assert server.http.get("/v1/models").status_code == 401
