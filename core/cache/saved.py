"""A prefix's pages and recurrent state in a file, to go on with after a restart.

The file: MAGIC, eight bytes with the length of a header, the header (JSON), the pages of each pool, the state, and the
SHA-256 of everything before it. It is only good for the model, the cache type and the library version of its format
that wrote it, and says so otherwise. It is written beside its place and then moved there, so there is never half of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import CacheFileError
from ggfw.files import check_target, is_regular, open_without_waiting
from ggfw.records import dataclass

MAGIC = b"GGFWKV\x01\n"
_MOST_HEADER = 1 << 28
_DIGEST = 32


@dataclass
class SavedPrefix:
    """What a file holds.

    Args:
        facts: what the cache was made for; has to be equal where it is loaded.
        tokens: of the prefix.
        pages: per pool (n_pages, page_bytes) uint8: the last ones, as many as the row behind the prefix sees.
        state: (state_bytes,) uint8.
    """

    facts: dict[str, Any]
    tokens: list[int]
    pages: list[NDArray[np.uint8]]
    state: NDArray[np.uint8]

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write the file; gives its bytes.

        Raises:
            InvalidRequest: there is something else than a file.
            OSError: it cannot be written; what stood at ``path`` is untouched then.
        """
        header = json.dumps(
            {"facts": self.facts, "tokens": self.tokens, "pages": [list(p.shape) for p in self.pages],
             "state": int(self.state.size)},
            separators=(",", ":"),
        ).encode()  # fmt: skip
        target = Path(path)
        check_target(target)
        digest = hashlib.sha256()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                parts = (
                    MAGIC,
                    len(header).to_bytes(8, "little"),
                    header,
                    *(p.tobytes() for p in self.pages),
                    self.state.tobytes(),
                )
                for part in parts:
                    digest.update(part)
                    file.write(part)
                file.write(digest.digest())
                n_bytes = file.tell()
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return n_bytes

    @classmethod
    def read(cls, path: str | os.PathLike[str], facts: dict[str, Any]) -> SavedPrefix:
        """Read and check a file.

        Raises:
            CacheFileError: it is damaged, of another version, or of another model or cache.
            OSError: it cannot be read.
        """
        with open(path, "rb", opener=open_without_waiting) as file:
            if not is_regular(file.fileno()):
                raise CacheFileError(f"{path}: a saved cache was expected, but this is a pipe or a device")
            data = file.read()
        if data[: len(MAGIC)] != MAGIC:
            what = "of another version" if data[:6] == MAGIC[:6] else "not one"
            raise CacheFileError(f"{path}: a saved cache was expected, but this is {what}; save it again")
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise CacheFileError(f"{path}: the saved cache is damaged (its checksum is wrong); save it again")
        at = len(MAGIC) + 8
        n = int.from_bytes(data[at - 8 : at], "little")
        try:
            if n > min(_MOST_HEADER, len(data)):
                raise ValueError("its header is too long")
            header = json.loads(data[at : at + n])
            sizes = [size for pair in header["pages"] for size in pair] + [header["state"], *header["tokens"]]
            if not all(type(size) is int and 0 <= size < 2**31 for size in sizes):
                raise ValueError("it holds a number that is none of its kind")
            at += n
            body = np.frombuffer(data, np.uint8)[at:-_DIGEST]
            begin, pages = 0, []
            for n_pages, page_bytes in header["pages"]:
                pages.append(body[begin : begin + n_pages * page_bytes].reshape(n_pages, page_bytes))
                begin += n_pages * page_bytes
            state = body[begin : begin + header["state"]]
            if begin + state.size != body.size or state.size != header["state"]:
                raise ValueError("its length is wrong")
            tokens = header["tokens"]
            found = dict(header["facts"])
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise CacheFileError(f"{path}: the saved cache is damaged ({exc}); save it again") from exc
        for name, value in facts.items():
            if found.get(name) != value:
                raise CacheFileError(
                    f"{path}: the cache was saved for {name} {found.get(name)!r}, but here it is {value!r}; "
                    "save it again with this model and these options"
                )
        return cls(found, tokens, pages, state)
