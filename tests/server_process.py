"""``ggfw serve`` in a process of its own, with a tiny random model whose vocabulary has a real size; what it costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cli_support import COMMAND
from tiny_models import CHATML, NORMAL, metadata, random_matrix

from ggfw.gguf import write_gguf

#: Tokens of the vocabulary.
N_VOCAB = 32_000


def write_model(path: Path, n_ctx: int = 512, n_vocab: int = N_VOCAB) -> Path:
    """A random llama of one layer with ``n_vocab`` tokens, nine tenths of them words."""
    rng = np.random.default_rng(7)
    n_embd, n_head, d, n_ff = 32, 4, 8, 32
    meta = metadata(
        "llama", context_length=n_ctx, embedding_length=n_embd, block_count=1, feed_forward_length=n_ff,
        attention__head_count=n_head, attention__head_count_kv=2, attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=d,
    )  # fmt: skip
    pieces = meta["tokenizer.ggml.tokens"]
    letters = "etaoinshrdlu"
    n = 0
    while len(pieces) < n_vocab:
        word, k = "", n
        while k or not word:
            k, digit = divmod(k, len(letters))
            word += letters[digit]
        pieces.append(("▁" if n % 2 else "") + word + ("" if n % 2 else "q"))
        n += 1
    meta["tokenizer.ggml.scores"] = -np.arange(len(pieces), dtype=np.float32)
    types = meta["tokenizer.ggml.token_type"]
    meta["tokenizer.ggml.token_type"] = np.concatenate(
        [types, np.full(len(pieces) - len(types), NORMAL, np.int32)]
    )
    meta["tokenizer.chat_template"] = CHATML
    shapes = {
        "attn_q": (n_head * d, n_embd), "attn_k": (2 * d, n_embd), "attn_v": (2 * d, n_embd),
        "attn_output": (n_embd, n_head * d), "ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }  # fmt: skip
    tensors: list[tuple[str, Any]] = [("token_embd.weight", random_matrix(rng, len(pieces), n_embd))]
    tensors += [(f"blk.0.{name}.weight", random_matrix(rng, *shape)) for name, shape in shapes.items()]
    tensors += [(f"blk.0.{name}.weight", np.ones(n_embd, np.float32)) for name in ("attn_norm", "ffn_norm")]
    tensors.append(("output_norm.weight", np.ones(n_embd, np.float32)))
    write_gguf(path, meta, tensors)
    return path


class ServerProcess:
    """Context manager: the server runs while it is entered.

    Args:
        model: file to serve.
        args: more of the command line.
        preexec: called in the child before it becomes the server (limits).
    """

    def __init__(
        self, model: Path, *args: str, preexec: Any = None, env: dict[str, str] | None = None
    ) -> None:
        self._command = [*COMMAND, "serve", str(model), "--port", "0", "--log-format", "none", *args]
        self._preexec, self._env = preexec, {**os.environ, **(env or {})}

    def __enter__(self) -> ServerProcess:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=self._preexec,
            env=self._env,
        )  # fmt: skip
        assert self.process.stderr is not None
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {said}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        end = time.monotonic() + 20
        while True:
            try:
                if self.http.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def chat(self, **body: Any) -> httpx.Response:
        """Ask for an answer of a few tokens."""
        return self.http.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0, **body},
        )

    def alive(self) -> None:
        """Check that it still answers."""
        assert self.process.poll() is None, f"the server died ({self.process.returncode})"
        assert self.http.get("/health").status_code == 200
        answer = self.chat()
        assert answer.status_code == 200, answer.text

    # -- what it costs

    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Bytes of memory it holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def peak(self) -> int:
        """Most bytes of memory that it has held since :meth:`forget_peak`."""
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
        assert found is not None
        return int(found[1]) << 10

    def forget_peak(self) -> None:
        """Begin to watch for :meth:`peak` anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def n_files(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


LINUX = sys.platform == "linux"
