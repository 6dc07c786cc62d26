"""What all runs of the fuzzers together have done: one small file, outside of git, to which every run adds.

Inputs that reached something new stay in ``.corpus`` of a target's folder, so that a run begins where the one before
ended, with another seed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Of several runs: summed up, and those of which the largest counts.
_SUMS = ("runs", "seconds", "cpu_seconds", "executions")
_MOST = ("edges", "features", "corpus", "grown_mib")


class Ledger:
    """The file, made with its folder when something is added.

    Args:
        path: of JSON: ``{target: {engine, runs, seconds, cpu_seconds, executions, edges, features, corpus, grown_mib,
            findings, first, last}}``; ``seconds`` of the wall, ``cpu_seconds`` of the fuzzer and what it started, MiB,
            times in UTC. ``edges`` to ``corpus`` are None where nobody counts them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """All entries; none where there is no file.

        Raises:
            ValueError: it is no such file.
        """
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        if not isinstance(found, dict):
            raise ValueError(f"{self.path} holds no report of fuzzers; move it away")
        return found

    def add(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add what :func:`fuzz.driver.fuzz` said of a run; gives the target's entry. Several processes may add."""
        if "skipped" in result:
            return self.read().get(result["target"], {})  # type: ignore[no-any-return]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        new = {
            "runs": 1,
            **{k: v for k, v in result.items() if k != "target"},
            **(result.get("coverage") or {}),
        }
        with self._locked():
            entries = self.read()
            entry = entries.setdefault(result["target"], {"engine": "", "findings": [], "first": now})
            for key in _SUMS:
                entry[key] = round(entry.get(key, 0) + new.get(key, 0), 1)
            for key in _MOST:
                found = [n for n in (entry.get(key), new.get(key)) if n is not None]
                entry[key] = max(found, default=None)
            entry["findings"] = sorted({*entry["findings"], *new["findings"]})
            entry["engine"] = " ".join(sorted({*entry["engine"].split(), new["engine"]}))
            entry["last"] = now
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", "utf-8")
            fresh.replace(self.path)
            return entry

    def runs(self, target: str) -> int:
        """How often a target was run."""
        return int(self.read().get(target, {}).get("runs", 0))

    def left(self, target: str, total: float) -> float:
        """Seconds of CPU until the target has had ``total``."""
        return max(0.0, total - float(self.read().get(target, {}).get("cpu_seconds", 0)))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def table(entries: dict[str, Any], names: list[str]) -> str:
    """Entries as lines of text, with a line for those of ``names`` that were never run, and the sum."""
    columns = "{:12} {:>5} {:>9} {:>9} {:>12} {:>7} {:>6}  {}"
    lines = [columns.format("target", "runs", "CPU s", "wall s", "executions", "edges", "grown", "findings")]
    cpu = 0.0
    for name in names:
        one = entries.get(name)
        if one is None:
            lines.append(columns.format(name, 0, *"-----", "never run"))
            continue
        cpu += one["cpu_seconds"]
        shown = [one["runs"], round(one["cpu_seconds"]), round(one["seconds"]), round(one["executions"])]
        counted = ["-" if one[key] is None else one[key] for key in ("edges", "grown_mib")]
        lines.append(columns.format(name, *shown, *counted, " ".join(one["findings"]) or "none"))
    return "\n".join([*lines, f"{'all':12} {'':5} {cpu:9.0f}"])
