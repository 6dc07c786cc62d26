"""How bodies come in from the network."""

from __future__ import annotations

from sanic.exceptions import BadRequest
from sanic.http import Http
from sanic.server.protocols.http_protocol import HttpProtocol

#: Pieces that a body may have whatever their size; of more than these, so many bytes each are expected on average. Each
#: chunk costs a microsecond of reading and some 60 bytes of memory beside its own.
FREE_PIECES, BYTES_PER_PIECE = 10_000, 64


class PiecewiseHttp(Http):  # type: ignore[misc]
    """Sanic's reader of requests, for which a body may not be millions of chunks of a byte each."""

    __slots__ = ("n_pieces",)

    def init_for_request(self) -> None:
        """Begin with the next request of a connection."""
        super().init_for_request()
        self.n_pieces = 0

    async def read(self) -> bytes | None:
        """The next piece of a body; None at its end.

        Raises:
            BadRequest: its chunks are too small, or malformed.
            PayloadTooLarge: it is longer than bodies may be.
        """
        data: bytes | None = await super().read()
        self.n_pieces += 1
        if self.n_pieces > FREE_PIECES and self.request_bytes < self.n_pieces * BYTES_PER_PIECE:
            self.keep_alive = False  # what is left is not read
            raise BadRequest(
                f"the body comes in chunks of {self.request_bytes // self.n_pieces} bytes on average; where there are "
                f"more than {FREE_PIECES}, they must have {BYTES_PER_PIECE}"
            )
        return data


class Protocol(HttpProtocol):  # type: ignore[misc]
    """Sanic's, with that reader."""

    HTTP_CLASS = PiecewiseHttp
