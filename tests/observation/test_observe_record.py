"""Records: the same observation again without a compiler, and nothing from a damaged one."""

from __future__ import annotations

import hashlib
import json
import lzma

import pytest

from jaxcost.catalog.manifest import load_architecture
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.hlo.schema import parse
from jaxcost.observation.observe import observe
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import Pool
from jaxcost.observation.record import find_record, read_record, records, strip_module, write_record

TIMINGS = ("lowering_seconds", "compile_seconds", "reading_seconds")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    case = build_case(load_architecture("toy-untied"), {"phase": "prefill", "batch": 2, "seq": 8})
    seen = observe(case, "cpu", optimisation_level=0, record=folder)
    assert seen.status == "observed", seen.reason
    (path,) = records(folder)
    return seen, path


def copy_of(path, folder, edit=None):
    """A copy of a record; `edit` changes the JSON, whose digest is made right again."""
    content = json.loads(path.read_text())
    module = lzma.decompress(path.with_suffix(".hlo.xz").read_bytes())
    if edit is not None:
        module = edit(content, module)
    content["module"]["sha256"] = hashlib.sha256(module).hexdigest()
    content.pop("sha256")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    made = folder / path.name
    made.write_text(json.dumps(content))
    made.with_suffix(".hlo.xz").write_bytes(lzma.compress(module))
    return made


def test_a_replay_reads_what_was_observed(recorded):
    seen, path = recorded
    again = read_record(path).to_dict()
    first = seen.to_dict()
    for name in TIMINGS:
        assert again["environment"].pop(name) is None
        assert first["environment"].pop(name) > 0
    assert (again.pop("origin"), first.pop("origin")) == ("record", "compiled")
    assert again == first


def test_a_replay_in_a_worker(recorded):
    _, path = recorded
    with Pool(size=1) as pool:
        assert read_record(path, pool=pool) == read_record(path)


def test_a_record_is_found_by_case_and_target(recorded, tmp_path):
    seen, path = recorded
    assert find_record(path.parent, seen.case_digest, "cpu:1") == path
    with pytest.raises(UnavailableError):
        find_record(path.parent, seen.case_digest, "cpu:2")
    with pytest.raises(UnavailableError):
        records(tmp_path / "nowhere")


def test_half_a_record_is_not_passed_over(recorded, tmp_path):
    _, path = recorded
    module = path.with_suffix(".hlo.xz")
    (tmp_path / "notes.json").write_text("{}")
    assert records(tmp_path) == []
    for file in (path, module):
        copy = tmp_path / file.name
        copy.write_bytes(file.read_bytes())
        with pytest.raises(RejectedError) as caught:
            records(tmp_path)
        assert [problem.path for problem in caught.value.problems] == [str(copy)]
        copy.unlink()
    for file in (path, module):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert records(tmp_path) == [tmp_path / path.name]


def test_the_same_observation_gives_the_same_bytes(recorded, tmp_path):
    seen, path = recorded
    module = lzma.decompress(path.with_suffix(".hlo.xz").read_bytes())
    data = seen.to_dict()
    data["environment"]["module_digest"] = hashlib.sha256(module).hexdigest()
    slower = seen.to_dict() | {"environment": {**data["environment"], "compile_seconds": 99.0}}
    for name, document in (("a", data), ("b", slower)):
        write_record(tmp_path / name, Observed.from_dict(document), module, command=["x"], date="2026-01-01")
    for suffix in (".json", ".hlo.xz"):
        one, other = (tmp_path / name / path.with_suffix("").with_suffix(suffix).name for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()


def test_a_record_is_small_and_names_no_directory_of_this_machine(recorded):
    _, path = recorded
    assert path.with_suffix(".hlo.xz").stat().st_size < 30_000
    module, _ = parse(lzma.decompress(path.with_suffix(".hlo.xz").read_bytes()))
    assert not [name for name in module.stack_frame_index.file_names if name.startswith("/")]
    assert strip_module(strip_module(module.SerializeToString())) == strip_module(module.SerializeToString())


def test_the_module_must_be_the_observations_own(recorded, tmp_path):
    seen, path = recorded
    with pytest.raises(RejectedError, match="not the module"):
        write_record(tmp_path, seen, lzma.decompress(path.with_suffix(".hlo.xz").read_bytes()) + b"\x08\x01")


def test_an_added_dot_changes_the_reading(recorded, tmp_path):
    seen, path = recorded

    def duplicate(content, module):
        proto, assignment = parse(module)
        for computation in proto.computations:
            for position, instruction in enumerate(computation.instructions):
                if instruction.opcode == "dot":
                    added = type(instruction)()
                    added.CopyFrom(instruction)
                    added.id = 1 + max(i.id for c in proto.computations for i in c.instructions)
                    added.name += ".again"
                    rest = list(computation.instructions)[position:]
                    del computation.instructions[position:]
                    computation.instructions.extend([rest[0], added, *rest[1:]])
                    return whole(proto, assignment)
        raise AssertionError("the module has no dot")

    changed = read_record(copy_of(path, tmp_path, duplicate))
    assert changed.flops > seen.flops
    assert len(changed.data["hlo"]["contractions"]) == len(seen.data["hlo"]["contractions"]) + 1
    # The jaxpr, recorded as numbers, still says what the program was.
    assert changed.data["jaxpr"]["flops"] == seen.flops


def test_a_removed_dot_changes_the_reading(recorded, tmp_path):
    seen, path = recorded

    def remove(content, module):
        proto, assignment = parse(module)
        dot = next(i for c in proto.computations for i in c.instructions if i.opcode == "dot")
        dot.opcode = "custom-call"
        dot.custom_call_target = "something"
        return whole(proto, assignment)

    changed = read_record(copy_of(path, tmp_path, remove))
    assert changed.flops < seen.flops
    assert [row["target"] for row in changed.data["hlo"]["opaque"]] == ["something"]


def whole(proto, assignment):
    """An HloProto of its two parts."""
    module = proto.SerializeToString()
    data = b"\x0a" + varint(len(module)) + module
    part = assignment.SerializeToString()
    return data + b"\x1a" + varint(len(part)) + part


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def damaged(path, folder, *, json_bytes=None, module_bytes=None):
    made = folder / path.name
    made.write_bytes(path.read_bytes() if json_bytes is None else json_bytes(path.read_bytes()))
    module = path.with_suffix(".hlo.xz").read_bytes()
    made.with_suffix(".hlo.xz").write_bytes(module if module_bytes is None else module_bytes(module))
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data.replace(b'"reason"', b'"raison"'),
        lambda data: data.replace(b'"status": "observed"', b'"status": "Observed"'),
        lambda data: b"\xff\xfe" + data,
        lambda data: b"[" * 100_000,
        lambda data: b"3",
        lambda data: data.replace(b'"date"', b'"date": 1, "date"', 1),
        lambda data: data.replace(b"jaxcost.record.v1", b"jaxcost.record.v9"),
    ],
)
def test_a_damaged_document_is_refused(recorded, tmp_path, change):
    with pytest.raises(RejectedError):
        read_record(damaged(recorded[1], tmp_path, json_bytes=change))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: bytes([*data[:200], data[200] ^ 1, *data[201:]]),
        lambda data: lzma.compress(b"not a module"),
        lambda data: lzma.compress(bytes(300 * 2**20), preset=0),
    ],
    ids=["truncated", "empty", "trailing", "bit", "other", "bomb"],
)
def test_a_damaged_module_is_refused(recorded, tmp_path, change):
    with pytest.raises(RejectedError):
        read_record(damaged(recorded[1], tmp_path, module_bytes=change))


def removed(*keys):
    def edit(content, module):
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        return module

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        removed("observed", "environment"), removed("observed", "compiler"), removed("observed", "target"),
        removed("observed", "case"), removed("observed", "state"), removed("observed", "case_digest"),
        removed("observed", "environment", "module_digest"), removed("observed", "case", "workload"),
        removed("module", "file"),
        lambda content, module: content["module"].update(file="../x.hlo.xz") or module,
        lambda content, module: content["observed"]["target"].update(text="rocket:9") or module,
        lambda content, module: content["observed"]["case"]["workload"].update(batch=3) or module,
        lambda content, module: content["observed"]["compiler"].update(raw=3) or module,
        lambda content, module: content["observed"]["compiler"]["raw"].clear() or module,
    ],
)  # fmt: skip
def test_a_record_that_was_altered_with_care_is_still_refused(recorded, tmp_path, edit):
    with pytest.raises(RejectedError):
        read_record(copy_of(recorded[1], tmp_path, edit))


def test_the_careful_copy_itself_is_read(recorded, tmp_path):
    assert read_record(copy_of(recorded[1], tmp_path)).flops == recorded[0].flops


def test_a_missing_record_or_module_is_unavailable(recorded, tmp_path):
    with pytest.raises(UnavailableError) as error:
        read_record(tmp_path / "none.json")
    assert error.value.exit_code == 3
    made = damaged(recorded[1], tmp_path)
    made.with_suffix(".hlo.xz").unlink()
    with pytest.raises(UnavailableError):
        read_record(made)
