"""A file's tensors as the native kernels read them.

Packing follows use: a matrix that is multiplied is packed once (a tied output serves the token look-up from the
packed form); a table that is only looked up by row stays mapped in file layout; vectors become float32. The mapping
of a packed tensor is released, so that resident memory stays near the file's size. Packed weights may come from, and
go to, a cache on disk (:mod:`ggfw.packed_cache`). Where the kernels are told not to have weights packed, matrices stay
mapped as well, and the system brings in, and drops, what is read of them: for files larger than memory.

What stays mapped is read ahead in a thread (*prefaulted*), as far as memory is free for it.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from ggfw import quants
from ggfw.errors import BackendError
from ggfw.execute.kernel_set import F32_FORMAT, KernelSet
from ggfw.gguf import GGUF
from ggfw.graph.plan import Plan
from ggfw.graph.weights import WeightRef
from ggfw.threads import start_if_possible

if TYPE_CHECKING:
    from ggfw.packed_cache import PackedCache

_ALIGN = 64
_READ_AHEAD = 8 << 20  # bytes at a time, between which a model may be closed
_MUCH = 1 << 30  # bytes to read ahead, from which on it is asked what memory is free
_SAMPLES = 16  # places of each file whose bytes are part of the key of its packed weights


class NativeWeights:
    """Weights of one plan in native form; see the module.

    Args:
        gguf: the file; kept mapped for tables in file layout.
        plan: whose steps say how each tensor is used.
        kernels: whose ``pack`` decides the layout.
        cache: where packed weights may be found, and are stored; None = they are packed anew.
        prefault: whether what stays mapped is read ahead, in a thread.

    Attributes:
        packed_bytes: of the packed weights, in memory or mapped; 0 where all stay in the file's layout.
        mapped: (path, bytes) of the file that the packed weights are mapped from; None when they were packed.
        settled: whether :meth:`settle` has nothing to do, or has begun.

    Raises:
        BackendError: memory is short.
    """

    def __init__(
        self,
        gguf: GGUF,
        plan: Plan,
        kernels: KernelSet,
        cache: PackedCache | None = None,
        *,
        prefault: bool = True,
    ) -> None:
        self._gguf = gguf
        self._kernels = kernels
        self._ffi, self._lib = kernels.native.ffi, kernels.native.lib
        self._vectors: dict[str, Any] = {}
        self._matrices: dict[str, Any] = {}  # of products, by name
        self._tables: dict[str, Any] = {}  # looked up by row in the file's layout
        self._mapped: list[tuple[Any, int]] = []  # (pointer, bytes) of what stays mapped
        self._keep: list[Any] = []
        self._memory: Any = None
        self._memory_bytes = 0
        self._thread: Thread | None = None  # that stores the weights, or settles them
        self._reader: Thread | None = None  # that reads ahead
        self._closing = False
        self.settled = True
        self.mapped: tuple[Path, np.ndarray] | None = None
        self._pack(plan, cache)
        if prefault and self._mapped:
            reader = Thread(target=self._read_ahead, name="ggfw-prefault", daemon=True)
            self._reader = reader if start_if_possible(reader) else None

    # -- matrices ------------------------------------------------------------------------------------------------

    def _pack(self, plan: Plan, cache: PackedCache | None) -> None:
        multiplied: dict[str, tuple[WeightRef, str]] = {}
        looked_up: dict[str, WeightRef] = {}
        for step in plan.steps:
            for ref in step.weights:
                if step.op == "embed":
                    looked_up[ref.name] = ref
                else:
                    multiplied[ref.name] = (ref, step.op)
        sizes = {}
        for name, (ref, op) in multiplied.items():
            n_out, n_in = ref.shape[-2:]
            pair = self._kernels.pair(op, self._kernels.weight_type(ref, op))
            size = 0 if self._kernels.in_file_layout(*pair) else pair[0].pack_size(n_out, n_in)
            sizes[name] = -(-size * prod(ref.shape[:-2]) // _ALIGN) * _ALIGN
        n_bytes = self.packed_bytes = sum(sizes.values())
        key = self._cache_key(multiplied, sizes) if cache is not None and n_bytes else None
        if cache is not None and key is not None:
            data = cache.find(key, n_bytes, self._kernels.native)
            if data is not None:
                self.mapped, self.settled = (cache.path(key), data), False
        place = self._memory_for(n_bytes)
        packings = []
        for name, (ref, op) in multiplied.items():
            if self._place(ref, op, place) and self.mapped is None:
                packings.append((ref, place))
            place += sizes[name]
        self._run(packings)
        if cache is not None and key is not None and self.mapped is None:
            data = np.frombuffer(self._ffi.buffer(self._memory, n_bytes), np.uint8)
            self._thread = cache.store(key, data, self._kernels.native)
        for name, ref in looked_up.items():
            packed = self._matrices.get(name)
            if packed is None or packed.layout == self._lib.GGFW_LAYOUT_FILE:
                self._tables[name] = self._in_file_layout(ref)

    def _memory_for(self, n_bytes: int) -> Any:
        """Where packed weights begin: in the mapped file, or in new memory."""
        if self.mapped is not None:
            return self._ffi.cast("uint8_t *", self.mapped[1].ctypes.data)
        if not n_bytes:
            return self._ffi.cast("uint8_t *", 0)
        self._memory, self._memory_bytes = self._lib.ggfw_memory_new(n_bytes, 1), n_bytes
        if self._memory == self._ffi.NULL:
            self._memory = None
            raise BackendError(
                f"{n_bytes >> 20} MiB for packed weights are not to be had; free memory, choose a smaller "
                "quantisation of the model, or leave them in the file (--no-repack, slower)"
            )
        return self._ffi.cast("uint8_t *", self._memory)

    def _cache_key(self, multiplied: dict[str, tuple[WeightRef, str]], sizes: dict[str, int]) -> bytes | None:
        """What tells these packed weights from all others; None for a model that is no file.

        Of a file: its tensors' names, types and places, size, times of change, and bytes from all over it. The time at
        which its entry on the disk changed is the system's: archives and programs can set the other one, so that a
        stranger's file could look like a good one and be packed for it. Of the layout: the libraries that pack, byte
        for byte, and which of their kernels.
        """
        from ggfw.packed_cache import packed_key

        if not self._gguf.mappings:
            return None
        files = []
        for path, data in self._gguf.mappings:
            places = [len(data) * i // _SAMPLES for i in range(_SAMPLES)]
            samples = [bytes(data[place : place + 64]) for place in places]
            found = path.stat()
            files.append((len(data), found.st_mtime_ns, found.st_ctime_ns, samples))
        tensors = [
            (name, op, ref.ggml_type, ref.shape, self._gguf.tensors[name].offset, sizes[name])
            for name, (ref, op) in multiplied.items()
        ]
        return packed_key([files, tensors, self._kernels.identity])

    def _file_data(self, ref: WeightRef, ggml_type: int) -> tuple[Any, bool]:
        """Return (pointer to rows of ``ggml_type``, whether they are the file's own bytes)."""
        info = self._gguf.tensors[ref.name]
        if ggml_type == info.ggml_type:
            return self._ffi.from_buffer("uint8_t *", info.data), True
        return self._ffi.from_buffer(
            "uint8_t *", quants.dequantize(info.ggml_type, info.data, ref.shape)
        ), False

    def _run(self, packings: list[tuple[WeightRef, Any]]) -> None:
        """Pack (matrix, place) pairs."""
        from_file = []
        for ref, place in packings:
            weight, info = self._matrices[ref.name], self._gguf.tensors[ref.name]
            data, is_file = self._file_data(ref, weight.format)
            packing = self._ffi.new("ggfw_packing *")
            packing.kernel, packing.file_rows, packing.packed = weight.kernel, data, place
            packing.n_out, packing.n_in, packing.n_expert = weight.n_out, weight.n_in, weight.n_expert
            # Pages of a mapped file come back from disk; a file given as bytes is left alone.
            packing.release = is_file and info.mapped
            if is_file:
                from_file.append((packing, data))
            else:  # dequantised for this: packed at once, so that one such array exists at a time
                self._run_native([(packing, data)])
        self._run_native(from_file)

    def _run_native(self, packings: list[tuple[Any, Any]]) -> None:
        """Pack (packing, data) pairs in one call, without the interpreter lock: the tokenizer is built meanwhile."""
        jobs = self._ffi.new("ggfw_packing[]", len(packings))
        for i, (packing, _) in enumerate(packings):
            jobs[i] = packing[0]
        status = self._lib.ggfw_pack(jobs, len(packings))
        if status != self._lib.GGFW_OK:
            raise BackendError(f"the weights cannot be packed (status {status}); memory may be short")

    def _place(self, ref: WeightRef, op: str, place: Any) -> bool:
        """Note where a matrix will be; returns whether it is packed (to ``place``) or stays in file layout."""
        ggml_type = self._kernels.weight_type(ref, op)
        kernel, prompt = self._kernels.pair(op, ggml_type)
        n_out, n_in = ref.shape[-2:]
        weight = self._matrices[ref.name] = self._new(ref, ggml_type, kernel)
        if self._kernels.in_file_layout(kernel, prompt):
            data = self._stay(ref, ggml_type)
            weight.data, weight.layout = data, self._lib.GGFW_LAYOUT_FILE
            weight.expert_stride = quants.row_bytes(ggml_type, n_in) * n_out
            return False
        weight.data, weight.layout = place, self._lib.GGFW_LAYOUT_PACKED
        weight.expert_stride = kernel.pack_size(n_out, n_in)
        return True

    def _in_file_layout(self, ref: WeightRef) -> Any:
        ggml_type = ref.ggml_type if self._kernels.find("embed", ref.ggml_type) is not None else F32_FORMAT
        data = self._stay(ref, ggml_type)
        weight = self._new(ref, ggml_type, self._kernels.pair("embed", ggml_type)[0])
        weight.data, weight.layout = data, self._lib.GGFW_LAYOUT_FILE
        return weight

    def _stay(self, ref: WeightRef, ggml_type: int) -> Any:
        """Return a pointer to a tensor's rows, which stay where they are or are dequantised into new memory."""
        data, is_file = self._file_data(ref, ggml_type)
        self._keep.append(data)
        info = self._gguf.tensors[ref.name]
        if is_file and info.mapped:
            self._mapped.append((data, info.n_bytes))
        return data

    def _new(self, ref: WeightRef, ggml_type: int, kernel: Any) -> Any:
        weight = self._ffi.new("ggfw_weight *")
        weight.format, weight.kernel = ggml_type, kernel
        weight.n_out, weight.n_in = ref.shape[-2:]
        weight.n_expert = prod(ref.shape[:-2])
        return weight

    def matrix(self, ref: WeightRef, op: str) -> Any:
        """Return the ``ggfw_weight *`` of a matrix that a step of the plan uses, for a step of ``op``."""
        return (op == "embed" and self._tables.get(ref.name)) or self._matrices[ref.name]

    def settle(self, wait: bool = False) -> None:
        """Move mapped weights into memory with huge pages, in a thread; steps that read them may go on meanwhile.

        A file is mapped in small pages, of whose addresses the processor forgets most between two steps.

        Args:
            wait: return when they have been moved.
        """
        if not self.settled and self.mapped is not None:
            self.settled = True
            # The thread holds the mapping: an interrupt may make all others let go of it before it has been moved.
            thread = Thread(target=_settle, args=(self._ffi, self._lib, self.mapped[1]), name="ggfw-settle")
            self._thread = thread if start_if_possible(thread) else None
            if wait and self._thread is not None:
                self._thread.join()

    def wait_until_read(self) -> None:
        """Wait until what stays mapped has been asked for, as far as memory is free for it."""
        if self._reader is not None:
            self._reader.join()

    def _read_ahead(self) -> None:
        """Have the system read what stays mapped, as far as memory is free: what does not fit would push itself out."""
        left = None
        if sum(n_bytes for _, n_bytes in self._mapped) >= _MUCH:
            from ggfw.free_memory import available_memory

            left = available_memory()
        for data, n_bytes in self._mapped:
            for begin in range(0, n_bytes, _READ_AHEAD):
                n = min(_READ_AHEAD, n_bytes - begin)
                if self._closing or (left is not None and left < n):
                    return
                self._lib.ggfw_memory_read_ahead(data + begin, n)
                if left is not None:
                    left -= n

    # -- vectors -------------------------------------------------------------------------------------------------

    def vector(self, ref: WeightRef) -> Any:
        """Return a ``const float *`` to a tensor's values."""
        pointer = self._vectors.get(ref.name)
        if pointer is None:
            pointer = self._vectors[ref.name] = self.constant(self.array(ref))
        return pointer

    def array(self, ref: WeightRef) -> np.ndarray:
        """Return a tensor's values as float32, one axis."""
        info = self._gguf.tensors[ref.name]
        return quants.dequantize(info.ggml_type, info.data, ref.shape).reshape(-1)

    def constant(self, values: np.ndarray) -> Any:
        """Keep a float32 array and return a pointer to it."""
        array = np.ascontiguousarray(values, np.float32)
        self._keep.append(array)
        return self._ffi.from_buffer("float *", array)

    def close(self) -> None:
        """Free the packed weights; steps that use them must not run any more."""
        self._closing = True
        for thread in (self._thread, self._reader):
            if thread is not None:
                thread.join()
        self._thread = self._reader = None
        self.mapped = None
        if self._memory is not None:
            self._lib.ggfw_memory_free(self._memory, self._memory_bytes)
            self._memory = None
        self._matrices.clear()
        self._tables.clear()
        self._mapped.clear()
        self._vectors.clear()
        self._keep.clear()


def _settle(ffi: Any, lib: Any, data: np.ndarray) -> None:
    """Move a mapped file into memory with huge pages."""
    lib.ggfw_memory_settle(ffi.cast("void *", data.ctypes.data), data.size)
