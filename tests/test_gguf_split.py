"""Split models (case gguf-5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggfw.errors import GGUFError, InvalidRequest
from ggfw.gguf import GGUF, shard_file_name, split_name, typed_metadata, values, write_gguf, write_split
from ggfw.gguf.shard import open_shard

TENSORS = [(f"blk.{i}.weight", np.full((2, 8), i, np.float32)) for i in range(6)]
METADATA = {"general.architecture": "llama", "llama.block_count": 6}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_split(tmp_path / "m", METADATA, TENSORS, max_tensors=2)


def rewrite(path: Path, **changes: object) -> None:
    """Write a shard again with other ``split.*`` keys (given with _ for the dot)."""
    shard = open_shard(path.read_bytes())
    metadata = typed_metadata(shard.metadata)
    for key, value in changes.items():
        name = key.replace("_", ".")
        if value is None:
            del metadata[name]
        else:
            metadata[name] = value
    write_gguf(path, metadata, [(t.name, t) for t in shard.tensors(0)])


def test_good_set_opens_through_any_shard(shards: list[Path]) -> None:
    assert [p.name for p in shards] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for path in shards:
        with GGUF.open(path) as gguf:
            assert gguf.paths == shards
            assert gguf.architecture == "llama"
            assert list(gguf.tensors) == [name for name, _ in TENSORS]
            for i, (name, array) in enumerate(TENSORS):
                assert gguf.tensors[name].shard == i // 2
                assert np.array_equal(gguf.tensors[name].data.view("<f4").reshape(2, 8), array)


def test_list_of_shards_in_any_order(shards: list[Path]) -> None:
    with GGUF.open([shards[2], shards[0], shards[1]]) as gguf:
        assert gguf.paths == shards
    with GGUF.open([p.read_bytes() for p in reversed(shards)]) as gguf:
        assert list(gguf.tensors)[0] == "blk.0.weight"
    with pytest.raises(GGUFError, match=r"split\.count"):
        GGUF.open(shards[:2])
    with pytest.raises(GGUFError, match="empty"):
        GGUF.open([])


def test_one_shard_as_bytes_is_refused(shards: list[Path]) -> None:
    with pytest.raises(GGUFError, match="one shard of 3"):
        GGUF.open(shards[0].read_bytes())


def test_missing_shard(shards: list[Path]) -> None:
    shards[1].unlink()
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf.*missing"):
        GGUF.open(shards[0])


@pytest.mark.parametrize(
    ("shard", "changes", "named", "key"),
    [
        (1, {"split_count": values.U16(2)}, "m-00002", "split.count"),
        (2, {"split_no": values.U16(1)}, "m-00003", "split.no"),
        (1, {"split_no": values.U16(9)}, "m-00002", "split.no"),
        (1, {"split_no": "one"}, "m-00002", "split.no"),
        (0, {"split_tensors_count": values.I32(7)}, "m-00001", "split.tensors.count"),
        (2, {"split_count": "3"}, "m-00003", "split.count"),
    ],
)
def test_sets_that_contradict_themselves(
    shards: list[Path], shard: int, changes: dict[str, object], named: str, key: str
) -> None:
    rewrite(shards[shard], **changes)
    with pytest.raises(GGUFError) as caught:
        GGUF.open(shards[0])
    assert named in str(caught.value) and key in str(caught.value)


def test_name_and_number_disagree(shards: list[Path]) -> None:
    second, third = shards[1].read_bytes(), shards[2].read_bytes()
    shards[1].write_bytes(third)
    shards[2].write_bytes(second)
    with pytest.raises(GGUFError, match=r"m-00002.*split\.no"):
        GGUF.open(shards[0])


def test_number_falls_back_to_the_name(shards: list[Path]) -> None:
    rewrite(shards[1], split_no=None)
    assert len(GGUF.open(shards[0]).tensors) == 6


def test_misnamed_shard(shards: list[Path]) -> None:
    shards[0].rename(shards[0].with_name("first.gguf"))
    with pytest.raises(GGUFError, match=r"first\.gguf.*rename"):
        GGUF.open(shards[0].with_name("first.gguf"))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    for n in (1, 2):
        keys = {
            "split.no": values.U16(n - 1),
            "split.count": values.U16(2),
            "split.tensors.count": values.I32(2),
        }
        write_gguf(tmp_path / shard_file_name("m", n, 2), keys, [("same.weight", np.zeros(8, np.float32))])
    with pytest.raises(GGUFError, match=r"same\.weight"):
        GGUF.open(tmp_path / "m-00001-of-00002.gguf")


@pytest.mark.parametrize("name", ["best-of-breed.gguf", "m-00001-of-00001.gguf", "m-00002-of-00005.gguf"])
def test_plain_files_with_such_names(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / name, METADATA, TENSORS)
    assert len(GGUF.open(tmp_path / name).tensors) == 6


def test_one_of_one_with_keys(tmp_path: Path) -> None:
    (path,) = write_split(tmp_path / "m", METADATA, TENSORS)
    assert path.name == "m-00001-of-00001.gguf"
    assert len(GGUF.open(path).tensors) == 6


def test_split_by_bytes(tmp_path: Path) -> None:
    assert len(write_split(tmp_path / "m", METADATA, TENSORS, max_bytes=130)) == 3
    assert len(write_split(tmp_path / "n", METADATA, TENSORS, max_bytes=1)) == 6


def test_names() -> None:
    assert split_name("a-b-00002-of-00010.gguf") == ("a-b", 2, 10)
    assert split_name("A-00001-of-00002.GGUF") == ("A", 1, 2)
    assert split_name("best-of-breed.gguf") is None and split_name("a-1-of-2.gguf") is None


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="bytes"):
        write_gguf(tmp_path / "m.gguf", {}, [("w", (b"too short", (8,), "F32"))])
    assert list(tmp_path.iterdir()) == []
