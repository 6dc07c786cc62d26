"""String arrays of a GGUF header: finding the borders of many strings quickly, and decoding them at once.

A string is a u64 length and its bytes. Where the next one starts is known only after reading the length, so the obvious
loop costs a Python iteration per string: a tenth of a second for a large vocabulary with merges. Lengths below 256 have
seven zero bytes, which text almost never has, so the places with seven zeros are found with NumPy, and the chain
``next = here + 8 + length`` is then *verified* over all of them; whatever does not fit goes through the plain loop.
The result is therefore always that of the plain loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

Fail = Callable[[str, int], NoReturn]

_WINDOW = 1 << 20  # bytes looked at per vectorised round; bounds temporary memory
_SHORT_RUN = 64  # a run shorter than this did not pay for its NumPy calls
_WALK = 256  # strings walked one by one before the next vectorised attempt
_u64_at = struct.Struct("<Q").unpack_from


def scan_strings(data: NDArray[np.uint8], start: int, count: int, fail: Fail) -> NDArray[np.int64]:
    """Find where each string of an array begins.

    Args:
        data: the whole file, uint8.
        start: byte of the first string's length field.
        count: number of strings; the caller has checked that ``8 * count`` bytes exist.
        fail: called with (problem, byte) when a string does not fit in the file.

    Returns:
        int64 array of ``count + 1`` byte offsets: of each length field, and of the first byte after the last string.
    """
    size, raw = len(data), data.data
    heads = np.empty(count + 1, np.int64)
    done, position = 0, start
    places = follow = np.empty(
        0, np.int64
    )  # candidate length fields in the window, and where each says the next is
    window_end = start
    while done < count:
        if position + 8 > window_end:
            window_end = min(size, position + _WINDOW)
            places = _short_length_fields(data, position, window_end)
            follow = places + 8 + data[places]
        first = int(np.searchsorted(places, position))
        run = 0
        if first < len(places) and places[first] == position:
            run = min(_run_length(places, follow, first), count - done)
            heads[done : done + run] = places[first : first + run]
            done += run
            position = int(follow[first + run - 1])
            if position > size:
                fail(f"string {done - 1} of {count} runs past the end of the file", int(heads[done - 1]))
        if run < _SHORT_RUN:
            walked: list[int] = []
            for number in range(done, min(count, done + _WALK)):
                if position + 8 > size:
                    fail(f"string {number} of {count} has no room for its length", position)
                (length,) = _u64_at(raw, position)
                if length > size - position - 8:
                    fail(
                        f"string {number} of {count} says {length} bytes, but {size - position - 8} are left",
                        position,
                    )
                walked.append(position)
                position += 8 + length
            heads[done : done + len(walked)] = walked
            done += len(walked)
    heads[count] = position
    return heads


def _run_length(places: NDArray[np.int64], follow: NDArray[np.int64], first: int) -> int:
    """How many candidates from ``first`` on follow one another; looked at piece by piece, for a run may be short and
    the window long."""
    at, step = first, 4 * _SHORT_RUN
    while at < len(places) - 1:
        stop = min(at + step, len(places) - 1)
        breaks = follow[at:stop] != places[at + 1 : stop + 1]
        if breaks.any():
            return at + int(breaks.argmax()) + 1 - first
        at, step = stop, 4 * step
    return len(places) - first


def _short_length_fields(data: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.int64]:
    """Offsets p in [start, stop - 8] whose seven following bytes are zero: u64 values below 256 may stand there."""
    if stop - start < 8:
        return np.empty(0, np.int64)
    zero = data[start + 1 : stop] == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    return np.flatnonzero(seven) + start


def decode_strings(data: NDArray[np.uint8], heads: NDArray[np.int64]) -> list[str]:
    """Decode all strings whose borders ``scan_strings`` found.

    Bytes that are not UTF-8 become lone surrogates (``surrogateescape``), so no two different strings become equal and
    ``s.encode("utf-8", "surrogateescape")`` gives the bytes back.
    """
    count = len(heads) - 1
    if count == 0:
        return []
    begin = int(heads[0])
    blob = np.array(data[begin : int(heads[-1])])  # a copy: the length fields are overwritten below
    at = heads[:-1] - begin
    for k in range(8):
        blob[at + k] = 0
    if np.count_nonzero(blob) == len(blob) - 8 * count:
        # No string holds a NUL: eight NULs separate, one decode and one split do all the work.
        return blob.tobytes().decode("utf-8", "surrogateescape").split("\0" * 8)[1:]
    return [raw.decode("utf-8", "surrogateescape") for raw in raw_strings(data, heads)]


def raw_strings(data: NDArray[np.uint8], heads: NDArray[np.int64]) -> list[bytes]:
    """The bytes of all strings whose borders ``scan_strings`` found."""
    begin = int(heads[0])
    blob = data[begin : int(heads[-1])].tobytes()
    at = (heads - begin).tolist()
    return [blob[a + 8 : b] for a, b in zip(at, at[1:], strict=False)]
