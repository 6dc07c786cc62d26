"""Names that a server on this machine answers to: a page whose name was made to lead here gets nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from served import HI, Served

from ggfw.server.gate import is_own

OWN = ["", "localhost", "LOCALHOST:8080", "localhost.", "app.localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:8080",
       "::1", "host.docker.internal:8080"]  # fmt: skip
FOREIGN = ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "internal", "192.0.2.7",
           "localhost@evil.example", "[::1", "x" * 5000]  # fmt: skip


@pytest.mark.parametrize("host", OWN)
def test_own_names(host: str) -> None:
    assert is_own(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_names(host: str) -> None:
    assert not is_own(host)


def asked(
    served: Served, host: str, method: str = "GET", path: str = "/models", **more: Any
) -> httpx.Response:
    return served.http.request(method, path, headers={"Host": host, **more.pop("headers", {})}, **more)


def test_requests_under_a_foreign_name_are_refused() -> None:
    with Served(script="x", app={"ui": True}) as served:
        port = served.live.port
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", "app.localhost"):
            assert asked(served, host).status_code == 200
        body = {"messages": HI, "model": "fake"}
        for host in (f"evil.example:{port}", "evil.example"):
            for method, path in (("GET", "/models"), ("GET", "/health"), ("POST", "/v1/chat/completions"),
                                 ("POST", "/v1/messages"), ("POST", "/api/chat"), ("GET", "/nowhere")):  # fmt: skip
                more = {"json": body} if method == "POST" else {}
                response = asked(served, host, method, path, headers={"Origin": f"http://{host}"}, **more)
                assert response.status_code == 403, (path, response.text)
                assert "evil.example" in response.text and "--allow-host" in response.text
        assert not served.seen


def test_names_can_be_allowed_and_keys_are_enough() -> None:
    with Served(script="x", app={"hosts": ["Box.lan"]}) as served:
        assert asked(served, "box.lan:80").status_code == 200 and asked(served, "evil.lan").status_code == 403
    with Served(script="x", app={"hosts": "*"}) as served:
        assert asked(served, "evil.example").status_code == 200
    with Served(script="x", app={"api_keys": "k"}) as served:
        assert asked(served, "box.lan", headers={"X-Api-Key": "k"}).status_code == 200
        assert asked(served, "box.lan").status_code == 401


def test_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from ggfw.cli.serve import _hosts, serve_verb

    assert _hosts(("a", "b"), "name:8080") == ["a", "b", "name"]
    assert _hosts(("a", "*"), "127.0.0.1") == "*"
    assert "--allow-host" in CliRunner().invoke(serve_verb, ["--help"]).output


def test_unix_sockets_take_any_name(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from ggfw.server.gate import _over_loopback

    def request(name: Any) -> Any:
        return SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda what: name))

    assert not _over_loopback(request(str(tmp_path / "s"))) and not _over_loopback(request(None))
    assert _over_loopback(request(("127.0.0.1", 80))) and _over_loopback(request(("::1", 80, 0, 0)))
    assert not _over_loopback(request(("192.0.2.7", 80)))
