"""Faults for the soak test, at random: files cut short and written over, a stopped process, a full disk, floods.

A second model, the victim, is served from a copy of its file, and its packed weights lie in a cache folder of their
own; what is done to them may cost the victim's requests an error, for as long as the fault lasts and `GRACE` seconds
more, and nobody else's. Linux only (signals, limits of another process).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from soak_clients import Outcome, Visitor, close

#: Seconds after the end of a fault within which requests to the victim may still fail: its file is looked at once a
#: second, the model is unloaded, and loaded anew from the restored file.
GRACE = 20.0
#: Bytes that a file may have while the disk is full.
FULL = 4096


class Faults:
    """Does harm to a server until it is told to stop.

    Args:
        pid: of the server.
        visitor: asks for it.
        original: the victim's file as it has to be.
        served: the copy that is served.
        cache: folder of the server's caches.
        name: by which the victim is asked for.
        seed: of everything it decides.
    """

    def __init__(
        self, pid: int, visitor: Visitor, original: Path, served: Path, cache: Path, name: str, seed: int
    ) -> None:
        self.pid, self.visitor, self.name = pid, visitor, name
        self.original, self.served, self.cache = original, served, cache
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.outcomes: list[Outcome] = []
        self._until = 0.0  # of the victim's excuse
        self._others = {path.name for path in self._packed()}

    @property
    def excused(self) -> bool:
        """Whether a request to the victim may fail now."""
        return time.monotonic() < self._until

    def excuse(self, outcome: Outcome, began: float) -> Outcome:
        """What came of a request to the victim: no fault of the server's where a fault of ours explains it.

        Args:
            outcome: what came of it.
            began: when it was sent (``time.monotonic``).
        """
        if outcome.fault and began < self._until:
            return Outcome(f"{outcome.act} (explained, {outcome.status})", 0, left=True)
        return outcome

    async def torment(self, until: float) -> None:
        """One fault after the other, with pauses."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.cut, self.write_over, self.replace, self.cut_packed, self.stop, self.fill_disk, self.flood, self.idle,
        ]  # fmt: skip
        while time.monotonic() < until:
            kind = self.rng.choice(kinds)
            await kind()
            self.done[kind.__name__] += 1
            await asyncio.sleep(self.rng.uniform(2, 8))
        self._restore()

    # -- the victim's files -----------------------------------------------------------------------------------------

    async def cut(self) -> None:
        """The model's file loses its end for some seconds."""
        await self._spoil(lambda: os.truncate(self.served, self.rng.choice([0, 4096, 10**6])))

    async def write_over(self) -> None:
        """Something else is written into the model's file."""

        def write() -> None:
            with self.served.open("r+b") as file:
                file.seek(self.rng.randrange(self.served.stat().st_size // 2))
                file.write(self.rng.randbytes(1 << 16))

        await self._spoil(write)

    async def _spoil(self, how: Callable[[], None]) -> None:
        self._until = float("inf")
        how()
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        self._restore()
        self._until = time.monotonic() + GRACE

    async def replace(self) -> None:
        """The model's file is replaced by one that is the same: what is mapped stays, and nobody may notice."""
        self._restore()

    def _restore(self) -> None:
        fresh = self.served.with_name(self.served.name + ".new")
        shutil.copyfile(self.original, fresh)
        fresh.replace(self.served)

    async def cut_packed(self) -> None:
        """The victim's packed weights lose their end while they are mapped."""
        for path in self._packed():
            if path.name not in self._others:
                self._until = float("inf")
                os.truncate(path, path.stat().st_size // 3)
        await asyncio.sleep(2)
        self._until = min(self._until, time.monotonic() + GRACE)

    def _packed(self) -> list[Path]:
        folder = self.cache / "ggfw" / "packed"
        return [path for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []

    # -- the process ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The process stands still for a while."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.rng.uniform(0.2, 3))
        finally:
            os.kill(self.pid, signal.SIGCONT)

    async def fill_disk(self) -> None:
        """Nothing can be written, while the victim is loaded and wants to store its packed weights."""
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (FULL, most))
        try:
            for path in self._packed():
                if path.name not in self._others:
                    path.unlink(missing_ok=True)
            await self.unload()
            began = time.monotonic()
            self.outcomes.append(self.excuse(await ask(self.visitor, self.name, "victim, disk full"), began))
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most, most))

    async def unload(self) -> None:
        """Have the victim unloaded."""
        body = json.dumps({"model": self.name, "keep_alive": 0}).encode()
        await self.visitor.exchange("POST", "/api/generate", body)

    # -- floods -----------------------------------------------------------------------------------------------------

    async def flood(self) -> None:
        """A hundred requests at once."""
        body = json.dumps({"prompt": "flood " * 20, "max_tokens": 8}).encode()
        asked = (self.visitor.exchange("POST", "/v1/completions", body) for _ in range(100))
        for status, text in await asyncio.gather(*asked):
            self.outcomes.append(Outcome("flood", status, (200, 429), text[:300]))

    async def idle(self) -> None:
        """Three hundred connections that say little or nothing."""
        writers = []
        try:
            for n in range(300):
                _, writer = await asyncio.open_connection(self.visitor.host, self.visitor.port)
                writers.append(writer)
                if n % 2:
                    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
            await asyncio.sleep(1)
            status, text = await self.visitor.exchange("GET", "/health", None)
            self.outcomes.append(Outcome("health beside idle connections", status, (200,), text[:300]))
        finally:
            for writer in writers:
                await close(writer)


async def ask(visitor: Visitor, name: str, act: str = "victim") -> Outcome:
    """Ask the victim for a few tokens."""
    stream = visitor.rng.random() < 0.5
    body = {
        "model": name,
        "prompt": visitor.words(2, 30),
        "max_tokens": visitor.rng.randint(1, 30),
        "stream": stream,
    }
    status, text = await visitor.exchange("POST", "/v1/completions", json.dumps(body).encode())
    trouble = ""
    if status == 200 and stream and ("data: [DONE]" not in text or '"error":{' in text):
        trouble = f"an error in the stream: …{text[-300:]!r}"
    return Outcome(act, status, (200,), text[:300], trouble)


async def visit_victim(
    faults: Faults, visitor: Visitor, until: float, note: Callable[[Outcome], None]
) -> None:
    """One request to the victim after the other, until the time is over."""
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            outcome = await ask(visitor, faults.name)
        except (asyncio.TimeoutError, OSError, EOFError) as error:
            outcome = Outcome("victim", 0, trouble=f"{type(error).__name__}: {error}")
        note(faults.excuse(outcome, began))
        if outcome.status != 200:
            await asyncio.sleep(visitor.rng.uniform(0.2, 1))
