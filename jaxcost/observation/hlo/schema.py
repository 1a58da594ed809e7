"""XLA's protobuf messages, built from a field table instead of generated code.

XLA publishes no Python package for `hlo.proto`. The wire format needs only numbers and types, so `fields.txt` lists the
ones jaxcost reads and this module turns them into classes in a descriptor pool of its own (package `jaxcost.hlo`: no
clash with a protobuf that some other library registered). Bytes that are no HLO are rejected, and a field number that
the table does not know is reported, never dropped.
"""

from __future__ import annotations

import zlib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jaxcost.contracts.errors import Problem, RejectedError

# The classes exist only at run time, so their attributes cannot be typed.
Proto: TypeAlias = Any

PACKAGE = "jaxcost.hlo"
MAX_PROTO_BYTES = 1 << 30  # protobuf's own limit is 2 GiB; the largest dump met is 5 MB, so this only stops gzip bombs

_SCALARS = {"i64": 3, "u64": 4, "i32": 5, "bool": 8, "str": 9, "bytes": 12, "u32": 13, "f64": 1, "f32": 2}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


class Schema(NamedTuple):
    """Message classes by name, and for each message the numbers that exist but are not read."""

    classes: dict[str, type[Message]]
    unread: dict[str, frozenset[int]]


def rejected(path: str, value: object, rule: str, remedy: str) -> RejectedError:
    """One problem as an error ready to raise."""
    return RejectedError((Problem(path, value, rule, remedy),))


@cache
def schema() -> Schema:
    """The schema of `fields.txt`."""
    text = resources.files(__package__).joinpath("fields.txt").read_text(encoding="utf-8")
    file = descriptor_pb2.FileDescriptorProto(name="jaxcost/hlo.proto", package=PACKAGE, syntax="proto3")
    unread: dict[str, frozenset[int]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, body = line.partition(": ")
        message = file.message_type.add(name=name)
        unread[name] = frozenset()
        for part in body.split("; "):
            if part.startswith("- "):
                unread[name] = frozenset(int(number) for number in part[2:].split())
                continue
            number, field_name, kind = part.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = _REPEATED if kind.endswith("*") else _OPTIONAL
            kind = kind.removesuffix("*")
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


def message(name: str) -> Proto:
    """A new, empty message of the given name."""
    return schema().classes[name]()


def unknown_fields(msg: Proto) -> list[str]:
    """Names `Message.number` of the fields in `msg` (not in its children) that the table does not know."""
    found = UnknownFieldSet(msg)
    if len(found) == 0:
        return []
    name = msg.DESCRIPTOR.name
    known = schema().unread[name]
    return sorted({f"{name}.{field.field_number}" for field in found if field.field_number not in known})


def _gunzip(data: bytes) -> bytes:
    try:
        decoder = zlib.decompressobj(wbits=31)
        out = decoder.decompress(data, MAX_PROTO_BYTES)
    except zlib.error as error:
        raise rejected("hlo", str(error), "gzip data must be whole", "dump the module again") from error
    if not decoder.eof:
        raise rejected(
            "hlo",
            f"{len(data)} bytes",
            f"gzip data must be whole and unpack to at most {MAX_PROTO_BYTES} bytes",
            "dump the module again, or pass the unpacked file",
        )
    return out


def _try(name: str, data: bytes) -> Proto | None:
    msg = message(name)
    try:
        msg.ParseFromString(data)
    except DecodeError:
        return None
    return msg


def parse(data: bytes) -> tuple[Proto, Proto | None]:
    """(HloModuleProto, BufferAssignmentProto or None) from an HloProto, a bare HloModuleProto, or either gzipped.

    Raises RejectedError for anything else, truncated bytes included.
    """
    if data[:2] == b"\x1f\x8b":
        data = _gunzip(data)
    if len(data) > MAX_PROTO_BYTES:
        raise rejected("hlo", len(data), f"at most {MAX_PROTO_BYTES} bytes", "pass one HLO module")
    whole = _try("HloProto", data)
    if whole is not None and whole.hlo_module.computations:
        return whole.hlo_module, whole.buffer_assignment if whole.HasField("buffer_assignment") else None
    bare = _try("HloModuleProto", data)
    if bare is not None and bare.computations:
        return bare, None
    raise rejected(
        "hlo",
        f"{len(data)} bytes starting {data[:8].hex()}",
        "must be a whole HloProto or HloModuleProto with at least one computation",
        "pass a *after_optimizations.hlo.pb file (xla_dump_hlo_as_proto) or as_serialized_hlo_module_proto() bytes",
    )
