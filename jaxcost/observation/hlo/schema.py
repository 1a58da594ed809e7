"""XLA's protobuf messages, built from a field table instead of generated code.

XLA publishes no Python package for `hlo.proto`. The wire format needs only numbers and types, so `fields.txt` lists the
ones jaxcost reads and this module turns them into classes in a descriptor pool of its own (package `jaxcost.hlo`: no
clash with a protobuf that some other library registered). Bytes that are no HLO are rejected, and a field number that
the table does not know is reported, never dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.observation.hlo.packing import unpacked

# The classes exist only at run time, so their attributes cannot be typed.
Proto: TypeAlias = Any

PACKAGE = "jaxcost.hlo"
MAX_PROTO_BYTES = 1 << 30  # protobuf's own limit is 2 GiB; the largest dump met is 5 MB

_SCALARS = {"i64": 3, "u64": 4, "i32": 5, "bool": 8, "str": 9, "bytes": 12, "u32": 13, "f64": 1, "f32": 2}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


class Schema(NamedTuple):
    """Message classes by name, and for each message the numbers that exist but are not read."""

    classes: dict[str, type[Message]]
    unread: dict[str, frozenset[int]]


# More readings of the same table. `kept` leaves out what no count depends on; the others are for speed. The wire format
# allows them: a message is a string of bytes to who does not look inside; a field that is met again replaces scalars,
# extends lists and merges messages.
#   split    instructions and the buffer assignment stay bytes
#   merged   no list of messages: all computations of a module become one, so that one look finds every unknown field;
#            instructions stay bytes, for `columns` looks into them
#   columns  many instructions as one: a few fields each as one list, shapes and metadata in bytes, the others merged
Form = Literal["full", "kept", "split", "merged", "columns"]
_INSTRUCTIONS, _ASSIGNMENT = "HloComputationProto.instructions", "HloProto.buffer_assignment"
_OPAQUE: dict[Form, frozenset[str]] = {
    "split": frozenset({_INSTRUCTIONS, _ASSIGNMENT}), "merged": frozenset({_INSTRUCTIONS}),
    "columns": frozenset({"HloInstructionProto.shape", "HloInstructionProto.metadata"}),
}  # fmt: skip
COLUMNS = (
    "id", "name", "opcode", "shape", "metadata", "operand_ids", "called_computation_ids", "parameter_number",
    "tuple_index",
)  # fmt: skip


def rejected(path: str, value: object, rule: str, remedy: str) -> RejectedError:
    """One problem as an error ready to raise."""
    return RejectedError((Problem(path, value, rule, remedy),))


@contextmanager
def agreeing() -> Iterator[None]:
    """Reject a module whose parts contradict each other further on than any structural check looks: damage that shows
    as an impossible index or size.
    """
    try:
        yield
    except (LookupError, ValueError, ArithmeticError, RecursionError) as error:
        raise rejected(
            "hlo", f"{type(error).__name__}: {error}", "the parts of a module must agree with each other",
            "the dump is damaged: dump the module again",
        ) from error  # fmt: skip


def schema(form: Form = "full") -> Schema:
    """The schema of `fields.txt`."""
    return _schema(form)


@cache
def _schema(form: Form) -> Schema:
    text = resources.files(__package__).joinpath("fields.txt").read_text(encoding="utf-8")
    file = descriptor_pb2.FileDescriptorProto(name="jaxcost/hlo.proto", package=PACKAGE, syntax="proto3")
    unread: dict[str, frozenset[int]] = {}
    for line in text.splitlines():
        name, _, body = line.partition(":")
        if not line or line.startswith("#"):
            continue
        message = file.message_type.add(name=name)
        unread[name] = frozenset()
        for part in body.strip().split("; ") if body else ():
            if part.startswith("- "):
                unread[name] = frozenset(int(number) for number in part[2:].split())
                continue
            number, field_name, kind = part.removeprefix("~").split()
            if part.startswith("~") and form == "kept":
                continue
            field = message.field.add(name=field_name, number=int(number))
            repeated, kind = kind.endswith("*"), kind.removesuffix("*")
            if f"{name}.{field_name}" in _OPAQUE.get(form, ()):
                kind = "bytes"
            if form == "columns" and name == "HloInstructionProto" and field_name in COLUMNS:
                repeated = True
            elif form in ("merged", "columns"):
                repeated = repeated and kind in _SCALARS and kind not in ("str", "bytes")
            field.label = _REPEATED if repeated else _OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _MESSAGE
                field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        m.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{m.name}"))
        for m in file.message_type
    }
    return Schema(classes, unread)


def message(name: str, data: bytes = b"") -> Proto:
    """A message of the given name: empty, or what `data` holds. Raises DecodeError when that is damaged."""
    return schema().classes[name].FromString(data)


def part(name: str, data: bytes) -> Proto:
    """A message that is part of a module. Raises RejectedError when it is damaged."""
    try:
        return message(name, data)
    except DecodeError as error:
        raise rejected("hlo", f"{len(data)} bytes of a {name}", str(error), "dump the module again") from error


def unknown_fields(merged: Proto) -> Counter[str]:
    """`Message.number` of each field that the table does not know, and how often it occurs, in a merged message."""
    found: Counter[str] = Counter()
    stack = [merged]
    while stack:
        here = stack.pop()
        name = here.DESCRIPTOR.name
        known = schema().unread[name]
        found.update(f"{name}.{f.field_number}" for f in UnknownFieldSet(here) if f.field_number not in known)
        stack += (value for field, value in here.ListFields() if field.message_type is not None)
    return found


def _try(name: str, data: bytes, form: Form) -> Proto | None:
    try:
        return schema(form).classes[name].FromString(data)
    except DecodeError:
        return None


def _plain(data: bytes) -> bytes:
    """`data` without packing around it, at most MAX_PROTO_BYTES."""
    data = unpacked(data)
    if len(data) > MAX_PROTO_BYTES:
        raise rejected("hlo", len(data), f"at most {MAX_PROTO_BYTES} bytes", "pass one HLO module")
    return data


def _refused(data: bytes) -> RejectedError:
    return rejected(
        "hlo",
        f"{len(data)} bytes starting {data[:8].hex()}",
        "must be a whole HloProto or HloModuleProto with at least one computation",
        "pass a *after_optimizations.hlo.pb file (xla_dump_hlo_as_proto) or as_serialized_hlo_module_proto() bytes",
    )


def parse(data: bytes) -> tuple[Proto, Proto | None]:
    """(HloModuleProto, BufferAssignmentProto or None) from an HloProto, a bare HloModuleProto, or either packed; for
    whoever changes a module. `split` is for reading one.

    Raises RejectedError for anything else, truncated bytes included.
    """
    data = _plain(data)
    whole = _try("HloProto", data, "full")
    if whole is not None and whole.hlo_module.computations:
        return whole.hlo_module, whole.buffer_assignment if whole.HasField("buffer_assignment") else None
    bare = _try("HloModuleProto", data, "full")
    if bare is not None and bare.computations:
        return bare, None
    raise _refused(data)


class Header(NamedTuple):
    """What a computation says of itself."""

    id: int
    name: str
    root_id: int
    is_fusion: bool
    thread: str


@dataclass(eq=False)
class Split:
    """A module whose instructions are still bytes, the fields that the table does not know with how often each occurs,
    and the bytes of its buffer assignment (None: absent).

    `raw` are the instructions of all `computations`, those of number n from `starts[n]` to `starts[n + 1]`; `columns`
    their COLUMNS, of which those that each instruction has once are read: `opcodes`, `shapes`, `metadata`, `names`.
    """

    module: Proto
    unknown: Counter[str]
    packed_assignment: bytes | None
    computations: list[Header]
    raw: list[bytes]
    starts: list[int]
    columns: Proto
    opcodes: list[str]
    shapes: list[bytes]
    metadata: list[bytes]
    _names: list[str] | None

    @cached_property
    def assignment(self) -> Proto | None:
        """The BufferAssignmentProto, decoded when it is first asked for; None without one."""
        return None if self.packed_assignment is None else part("BufferAssignmentProto", self.packed_assignment)

    @cached_property
    def names(self) -> list[str]:
        """The name of each instruction."""
        return self.columns.name[:] if self._names is None else self._names


def split(data: bytes) -> Split:
    """The parts of an HloProto or HloModuleProto, plain or packed. All of it is well-formed, instructions included.

    Raises RejectedError as `parse` does.
    """
    data = _plain(data)
    for name in ("HloProto", "HloModuleProto"):
        outer = _try(name, data, "split")
        module = outer.hlo_module if outer is not None and name == "HloProto" else outer
        if outer is None or module is None or not module.computations:
            continue
        merged = _try(name, data, "merged")
        if merged is None:
            continue
        headers, raw, starts = list[Header](), list[bytes](), [0]
        for one in module.computations:
            headers.append(Header(one.id, one.name, one.root_id, one.is_fusion_computation, one.execution_thread))
            raw += one.instructions[:]
            starts.append(len(raw))
        try:
            found, names = columns(raw), None
            if all(len(getattr(found, single)) == len(raw) for single in _SINGLE):
                opcodes, shapes = found.opcode[:], found.shape[:]
            else:  # one is absent somewhere, or there twice
                found = columns(raw, apart=True)
                names, opcodes, shapes = (_apart(found, single, len(raw)) for single in _SINGLE)
            metadata = _apart(found, "metadata", len(raw))
            unknown = unknown_fields(merged) + unknown_fields(found)
            unknown += _unknown_within("ShapeProto", shapes) + _unknown_within("OpMetadata", metadata)
        except DecodeError:
            continue
        packed = outer.buffer_assignment if name == "HloProto" and merged.HasField("buffer_assignment") else None
        return Split(module, unknown, packed, headers, raw, starts, found, opcodes, shapes, metadata, names)
    raise _refused(data)


def outline(data: bytes) -> Proto:
    """The HloModuleProto of an HloProto or HloModuleProto, plain or packed, with its instructions as bytes: what a
    module says of itself, before it is read.

    Raises RejectedError where it is no module; damage inside instructions is for `split` to find.
    """
    data = _plain(data)
    for name in ("HloProto", "HloModuleProto"):
        outer = _try(name, data, "split")
        module = outer.hlo_module if outer is not None and name == "HloProto" else outer
        if outer is not None and module is not None and module.computations:
            return module
    raise _refused(data)


def _unknown_within(name: str, messages: list[bytes]) -> Counter[str]:
    """`unknown_fields` of many messages, most of which are the same."""
    read = schema("merged").classes[name].FromString
    return unknown_fields(read(b"".join(messages))) if unknown_fields(read(b"".join(set(messages)))) else Counter()


# Ends the part of one instruction in a column: no id, index or number of a module is negative, no name is this one
# character, and no message begins with field 0.
NOTHING = -1
_ENDS: dict[str, int | str | bytes] = {
    "operand_ids": NOTHING, "called_computation_ids": NOTHING, "parameter_number": NOTHING, "tuple_index": NOTHING,
    "id": NOTHING, "metadata": b"\0", "name": "\0", "opcode": "\0", "shape": b"\0",
}  # fmt: skip
_SINGLE = ("name", "opcode", "shape")  # an instruction has one of each


@cache
def _end(apart: bool) -> bytes:
    """Ends the parts of an instruction in the columns that it may have not at all or several times; with `apart` in
    all of them.
    """
    fields = schema().classes["HloInstructionProto"].DESCRIPTOR.fields_by_name
    parts = []
    for name, end in _ENDS.items():
        if apart or name not in _SINGLE:
            tag = fields[name].number << 3
            parts.append(varint(tag) + varint(NOTHING & 2**64 - 1) if end == NOTHING else varint(tag | 2) + b"\1\0")
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A number of 0 or more on the wire: seven bits a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def columns(instructions: list[bytes], *, apart: bool = False) -> Proto:
    """COLUMNS of many instructions, each field as one list. Of the fields that an instruction may have not at all or
    several times, NOTHING ends the part of each instruction. The others have one item for each instruction, or the
    module is unusual: whoever asks compares the lengths, and asks for all parts `apart`.
    """
    end = _end(apart)
    whole = b"".join((end.join(instructions), end)) if instructions else b""
    return schema("columns").classes["HloInstructionProto"].FromString(whole)


def _apart(found: Proto, name: str, total: int) -> list[Any]:
    """A column whose parts are ended, with one item for each instruction. As protobuf has it: of scalars the last one
    counts, messages are merged, and what is absent is the default.
    """
    column: list[Any] = getattr(found, name)[:]
    end: Any = _ENDS[name]
    if len(column) == 2 * total and column[1::2].count(end) == total:
        return column[::2]
    items: list[Any] = []
    absent = value = type(end)()
    for item in column:
        if item == end:
            items.append(value)
            value = absent
        else:
            value = value + item if isinstance(item, bytes) else item
    if len(items) != total:
        rule = f"no {name} is {end!r}, and {total} instructions have one each"
        raise rejected("hlo", len(items), rule, "dump the module again")
    return items
