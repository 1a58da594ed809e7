"""Headers are read as the format says, refused where they break it, and nothing else is opened."""

import json
import os
import random
import struct
import sys
from pathlib import Path

import pytest

from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.checkpoint import read_checkpoint
from tests.observation.checkpoint.writing import header_of, write_header, write_safetensors, write_sharded

TENSORS = {"a.weight": ("BF16", (4, 8)), "b.weight": ("F32", (3,)), "c.bias": ("U8", ()), "d": ("F16", (0, 5))}


def rules(path):
    with pytest.raises(RejectedError) as caught:
        read_checkpoint(path)
    return " | ".join(f"{problem.path}: {problem.rule}" for problem in caught.value.problems)


def test_a_single_file_is_read_in_full(tmp_path):
    header, payload = header_of(TENSORS)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode() + b"    "
    write_header(tmp_path / "model.safetensors", text, payload)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        seen = read_checkpoint(path)
        assert seen.format == "safetensors"
        found = {tensor.name: (tensor.dtype, tensor.shape, tensor.bytes) for tensor in seen.tensors}
        assert found == {
            "a.weight": ("bf16", (4, 8), 64), "b.weight": ("fp32", (3,), 12), "c.bias": ("uint8", (), 1),
            "d": ("fp16", (0, 5), 0),
        }  # fmt: skip
        assert (seen.payload_bytes, seen.scalars) == (77, 36)
        assert seen.file_bytes == 8 + len(text) + 77 and seen.files[0].header_bytes == 8 + len(text)


def test_shards_are_read_with_their_index(tmp_path):
    index = write_sharded(tmp_path / "m", TENSORS, 2)
    for path in (tmp_path / "m", index):
        seen = read_checkpoint(path)
        assert seen.format == "safetensors_sharded" and seen.claims == {"total_size": 77}
        assert [tensor.name for tensor in seen.tensors] == list(TENSORS)
    (tmp_path / "m" / "consolidated.safetensors").write_bytes(b"not read")
    assert "consolidated.safetensors" in read_checkpoint(tmp_path / "m").notes[0]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda h: h["a.weight"].update(data_offsets=[0, 62]), "takes 512 bits"),
        (lambda h: h["a.weight"].update(shape=[2, 16.0]), "whole numbers"),
        (lambda h: h["a.weight"].update(shape=[True, 32]), "whole numbers"),
        (lambda h: h["a.weight"].update(shape=[-4, -8]), "whole numbers"),
        (lambda h: h["a.weight"].update(shape=[2**80, 0]), "whole numbers"),
        (lambda h: h["a.weight"].update(dtype="BF17"), "must be one of"),
        (lambda h: h["a.weight"].update(extra=1), "object of just"),
        (lambda h: h["b.weight"].update(data_offsets=[60, 72]), "overlaps"),
        (lambda h: h["b.weight"].update(data_offsets=[0, 12]), "overlaps"),
        (lambda h: h["b.weight"].update(data_offsets=[65, 77]), "leaves a gap"),
        (lambda h: h["b.weight"].update(data_offsets=[76, 64]), "ordered"),
        (lambda h: h["b.weight"].update(data_offsets=[64, 2**40]), "lie within"),
        (lambda h: h.pop("c.bias"), "leaves a gap"),
        (lambda h: (h.pop("c.bias"), h.pop("d")), "the tensors take 76 bytes"),
        (lambda h: h.update(__metadata__={"a": 1}), "text to text"),
        (lambda h: h.update({"": h.pop("a.weight")}), "no printable tensor name"),
    ],
)
def test_a_damaged_entry_is_refused(tmp_path, change, rule):
    header, payload = header_of(TENSORS)
    path = tmp_path / "model.safetensors"
    write_header(path, header, payload)
    read_checkpoint(path)  # the undamaged header passes, so the refusal below is of the damage
    change(header)
    write_header(path, header, payload)
    assert rule in rules(path)


def test_a_damaged_frame_is_refused(tmp_path):
    header, payload = header_of(TENSORS)
    path = tmp_path / "model.safetensors"
    text = json.dumps(header)
    twice = text[:-1] + ', "b.weight": ' + json.dumps(header["b.weight"]) + "}"
    for content, expected in (
        (b"", "shorter than"), (b"1234567", "shorter than"), (struct.pack("<Q", 2**63) + b"{}", "must be at most 2"),
        (struct.pack("<Q", 3) + b"{}", "must be at most 2"), (struct.pack("<Q", 2) + b"[]", "must begin with an"),
        (struct.pack("<Q", 2) + b"{\xff", "UTF-8"), (struct.pack("<Q", 2) + b"{}x", "the file holds 1"),
    ):  # fmt: skip
        path.write_bytes(content)
        assert expected in rules(path)
    write_header(path, twice.encode(), payload)
    assert "appears twice" in rules(path)
    write_header(path, header, payload, length=100_000_001)
    assert "must be at most" in rules(path)


def test_a_header_longer_than_the_limit_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, TENSORS)
    monkeypatch.setattr("jaxcost.observation.checkpoint.safetensors.MAXIMUM_HEADER_BYTES", 64)
    assert "at most 64 bytes" in rules(path)


def test_index_and_headers_must_agree(tmp_path):
    def damaged(change):
        index = write_sharded(tmp_path / "m", TENSORS, 2)
        data = json.loads(index.read_text())
        change(data, data["weight_map"])
        index.write_text(json.dumps(data))
        return rules(tmp_path / "m")

    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    assert "the index places it in" in damaged(lambda d, w: w.update({"a.weight": second}))
    assert "not in the index" in damaged(lambda d, w: w.pop("a.weight"))
    assert "does not hold this tensor" in damaged(lambda d, w: w.update({"new": first}))
    assert "no such file" in damaged(lambda d, w: w.update({"a.weight": "other.safetensors"}))
    assert "is no .safetensors file" in damaged(lambda d, w: w.update({"a.weight": "model.safetensors.index.json"}))
    assert "must be a whole number" in damaged(lambda d, w: d["metadata"].update(total_size="77"))
    assert "names no tensor" in damaged(lambda d, w: w.clear())
    assert "weight_map and" in damaged(lambda d, w: d.update(other=1))
    for name in ("../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 3, None, ["x"], "x\0.safetensors"):
        assert "a path or a control" in (text := damaged(lambda d, w, n=name: w.update({"a.weight": n}))) or (
            "no file name" in text
        )


def test_links_and_special_files_are_not_followed(tmp_path):
    folder, outside = tmp_path / "m", tmp_path / "outside.safetensors"
    write_sharded(folder, TENSORS, 2)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(outside)
    shard.symlink_to(outside)
    assert "link to a file outside" in rules(folder)
    shard.unlink()
    outside.rename(folder / "kept.bin")
    shard.symlink_to("kept.bin")  # a link within the folder is its own file under another name
    assert len(read_checkpoint(folder).tensors) == len(TENSORS)
    shard.unlink()
    os.mkfifo(shard)
    assert "no regular file" in rules(folder)  # and does not wait for a writer
    shard.unlink()
    shard.symlink_to(shard.name)
    assert "no such file" in rules(folder)
    single = tmp_path / "s"
    single.mkdir()
    (single / "model.safetensors").symlink_to(folder / "kept.bin")
    assert "link to a file outside" in rules(single)


def test_what_lies_there_decides_the_format(tmp_path):
    with pytest.raises(UnavailableError):
        read_checkpoint(tmp_path / "missing")
    assert "only local paths" in rules("https://example.org/model.safetensors")
    assert "no checkpoint of a known format" in rules(tmp_path)
    write_safetensors(tmp_path / "one.safetensors", TENSORS)
    write_safetensors(tmp_path / "two.safetensors", TENSORS)
    assert "no index says" in rules(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"\x80\x02}q")
    assert "not a format that is known" in rules(tmp_path / "x.bin")


# One kind of damage per function: each changes a folder of shards, with randomness from `draw`.
def _header_damage(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.safetensors")))
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    payload = len(content) - 8 - length
    name = draw.choice(sorted(header))
    begin, end = header[name]["data_offsets"]
    kind = draw.randrange(12)
    if kind == 0:
        return write_header(path, header, payload, length=draw.choice([2**64 - 1, 2**63, 10**8 + 1, length + 10**6]))
    if kind == 1:
        header[name]["data_offsets"] = [max(0, begin - draw.randint(1, 9)), end] if begin else [begin, end + 1]
    elif kind == 2:
        header[name]["data_offsets"] = draw.choice([[end + 1, begin], [begin, 2**62], [-1, end], [begin], "x", None])
    elif kind == 3:
        header[name]["shape"] = draw.choice([[2**70], [-1], [1.5], ["4"], None, [True], {}, [10**400]])
    elif kind == 4:
        header[name]["dtype"] = draw.choice(["", "bf16", "Q4", None, 7, ["F32"]])
    elif kind == 5:
        text = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
        return write_header(path, text.encode(), payload)
    elif kind == 6:
        return path.write_bytes(content[: draw.randrange(len(content))]) and None
    elif kind == 7:
        return path.write_bytes(content + bytes(draw.randint(1, 99))) and None
    elif kind == 8:
        text = bytearray(content[8 : 8 + length])
        text[draw.randrange(len(text))] = draw.choice(b'"{}[],:\x00\xff')
        text += b"," * (text == content[8 : 8 + length])
        return write_header(path, bytes(text), payload)
    elif kind == 9:
        header[f"{name}.copy"] = header[name]
    elif kind == 10:
        del header[name]
    else:
        return write_header(path, b"[" * 10_000 + b"]" * 10_000, payload)
    return write_header(path, header, payload)


def _index_damage(folder: Path, draw: random.Random) -> None:
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    data = json.loads(text)
    places = data["weight_map"]
    name = draw.choice(sorted(places))
    files = sorted(set(places.values()))
    kind = draw.randrange(9)
    if kind == 0:
        up = "../" * draw.randint(1, 6)
        places[name] = draw.choice([f"{up}secret.safetensors", f"{folder.parent}/secret.safetensors", f"./{files[0]}",
                                    f"x/../{files[0]}", "..", "\\\\host\\secret.safetensors"])  # fmt: skip
    elif kind == 1:
        link = folder / "link.safetensors"
        link.symlink_to(draw.choice(["../secret.safetensors", str(folder.parent / "secret.safetensors"), "/dev/zero"]))
        places[name] = link.name
    elif kind == 2:
        places[name] = draw.choice([value for value in files if value != places[name]])
    elif kind == 3:
        places[name] = draw.choice([None, 3, [], {}, "", "missing.safetensors", files[0] + "\0"])
    elif kind == 4:
        del places[name]
    elif kind == 5:
        places[f"{name}.new"] = files[0]
    elif kind == 6:
        data["metadata"] = draw.choice([None, [], {"total_size": -1}, {"total_size": "many"}, {"total_size": 1e400}])
    elif kind == 7:
        index.write_text(text[: draw.randrange(len(text))])
        return
    else:
        (folder / files[0]).unlink()
        (folder / files[0]).symlink_to(folder.parent / "secret.safetensors")
    index.write_text(json.dumps(data))


def _corrupt(folder: Path, seed: int) -> None:
    """Write a whole folder of shards and damage it in one way."""
    draw = random.Random(seed)
    for old in folder.iterdir():
        old.unlink()
    write_sharded(folder, TENSORS, 2)
    (_header_damage if seed % 2 else _index_damage)(folder, draw)


_OPENED: list[str] | None = None


def _audit(event: str, arguments: tuple) -> None:
    # A number is a descriptor that was opened, and seen here, before.
    if _OPENED is not None and event == "open" and not isinstance(arguments[0], int):
        _OPENED.append(os.fsdecode(arguments[0]))


@pytest.mark.slow
def test_five_thousand_corrupted_checkpoints_are_refused_and_nothing_outside_is_opened(tmp_path):
    global _OPENED
    sys.addaudithook(_audit)  # it stays for the process; without a list it does nothing
    folder = tmp_path / "m"
    folder.mkdir()
    write_safetensors(tmp_path / "secret.safetensors", TENSORS)
    read, accepted = [], []
    for seed in range(5000):
        _corrupt(folder, seed)
        _OPENED = []
        try:
            read_checkpoint(folder)
            accepted.append(seed)
        except RejectedError as error:
            assert error.problems and all(problem.rule and problem.remedy for problem in error.problems)
        finally:
            read += _OPENED
            _OPENED = None
    assert accepted == []
    assert len(read) >= 5000
    assert {str(Path(path).parent) for path in read} == {str(folder)}
    _OPENED = []  # the hook can fail: it sees an open of the file outside
    (tmp_path / "secret.safetensors").open("rb").close()
    seen, _OPENED = _OPENED, None
    assert [str(Path(path).parent) for path in seen] == [str(tmp_path)]
