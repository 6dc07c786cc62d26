"""The socket that ``ggfw serve`` listens on: of the internet, or of Unix."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ggfw.cli.address import Address
from ggfw.errors import InvalidRequest

__all__ = ["listening"]

#: Connections that may wait to be taken.
_BACKLOG = 256


@contextlib.contextmanager
def listening(
    host: str, port: int, unix: str | None, *, port_given: bool
) -> Iterator[tuple[socket.socket, str]]:
    """Open the socket, and give it with its URL; close it at the end, and remove that of Unix.

    Args:
        host: as the user wrote it; see :class:`ggfw.cli.address.Address`.
        port: where ``host`` names none.
        unix: path of a Unix socket instead.
        port_given: whether the user typed the port, which then wins.

    Raises:
        InvalidRequest: nobody can listen there; one sentence.
    """
    address = Address("unix", path=unix) if unix else Address.parse(host)
    if address.scheme == "https":
        raise InvalidRequest(
            f"{host!r:.200} asks for TLS, which this server does not speak; put a proxy in front of it",
            "host",
        )
    if address.scheme == "unix":
        with _unix(Path(address.path).expanduser()) as (sock, path):
            yield sock, f"unix://{path}"
        return
    if address.path:
        raise InvalidRequest(f"{host!r:.200} has a path; a server listens on a host and a port only", "host")
    number = port if port_given or address.port is None else address.port
    with _internet(address.host, number) as sock:
        name, number = sock.getsockname()[:2]
        yield sock, f"http://{f'[{name}]' if ':' in name else name}:{number}"


def _internet(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError, OverflowError) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        raise InvalidRequest(
            f"cannot listen on {host} port {port}: {why}; choose others with --host and --port", "port"
        ) from exc


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[tuple[socket.socket, Path]]:
    """A Unix socket that only its owner may use. One that a dead server left behind is replaced."""
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidRequest("this system has no Unix sockets; use --host and --port", "unix")
    path = path.absolute()
    _check_free(path)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            # Made under another name, so that nobody can use it before its permissions are set.
            sock.bind(str(fresh))
            os.chmod(fresh, 0o600)
            sock.listen(_BACKLOG)
            os.replace(fresh, path)
        except (OSError, ValueError) as exc:
            with contextlib.suppress(OSError):
                fresh.unlink()
            why = getattr(exc, "strerror", None) or str(exc)
            raise InvalidRequest(f"cannot listen on the Unix socket {path}: {why}", "unix") from exc
        own = os.stat(path).st_ino
        try:
            yield sock, path
        finally:
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ino == own:
                    path.unlink()
    finally:
        sock.close()


def _check_free(path: Path) -> None:
    """Check that nobody answers at ``path`` and that it holds nothing but a socket.

    Raises:
        InvalidRequest: a server answers there, or it is something else.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidRequest(
            f"{path} is there already and is no socket; choose another path with --unix", "unix"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as exc:
            raise InvalidRequest(f"{path} cannot be replaced: {exc.strerror or exc}", "unix") from exc
    raise InvalidRequest(
        f"a server answers on {path} already; stop it, or choose another path with --unix", "unix"
    )
