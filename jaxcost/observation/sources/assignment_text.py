"""The buffer assignment that an XLA dump writes as text, beside a module that it writes as text.

`--xla_dump_to` alone dumps text, so most dumps that lie about have no other:

    allocation 10: size 332800, color 1, preallocated-temp:
     value: <27 copy-start.1{0} @1> (size=262144,offset=65536): f32[256,256]{1,0:T(8,128)S(1)}

It names instructions where the proto has their numbers (`(phi)` behind a name marks what a loop joins), and has no
trace of the heap: which memory is needed follows from it exactly, what of it is live at a moment does not.
(BufferAllocation::ToString of openxla/xla's buffer_assignment.cc, HloValue::ToShortString of hlo_value.cc)
"""

from __future__ import annotations

import re

from jaxcost.contracts.errors import reject
from jaxcost.observation.hlo.schema import Proto, message, parse

_HEAD = re.compile(r"allocation (?P<index>[0-9]{1,18}): size (?P<size>[0-9]{1,18})(?P<rest>.*):")
_VALUE = re.compile(
    r" value: <(?P<id>[0-9]{1,18}) (?P<name>.+?)(?P<place>\{[0-9,]*\})?(?: \(phi\))? @(?P<color>[0-9]{1,9})>"
    r" \(size=(?P<size>[0-9]{1,18}),offset=(?P<offset>[0-9]{1,18})\): (?P<shape>.*)"
)
_COLOR = re.compile(r", color ([0-9]{1,9})")
_PARAMETER = re.compile(r", parameter ([0-9]{1,9})")
_PLACE = re.compile(r" at ShapeIndex \{([0-9,]*)\}")
_SHAPES = re.compile(r"\|[^|]*\|")
_REMEDY = "dump the module again, as a proto (--xla_dump_hlo_as_proto)"


def with_assignment(hlo: bytes, text: str, where: str) -> bytes:
    """Return an HloProto of a module and the buffer assignment of a text.

    Args:
        hlo: the module as HloProto, without an assignment.
        text: the file `*-buffer-assignment.txt`.
        where: the name of that file.

    Raises:
        RejectedError: the text is no buffer assignment, or names instructions that the module does not have.
    """
    module, _ = parse(hlo)
    whole = message("HloProto")
    whole.hlo_module.CopyFrom(module)
    ids = {at.name: at.id for part in module.computations for at in part.instructions}
    _read(whole.buffer_assignment, text, ids, where)
    data: bytes = whole.SerializeToString()
    return data


def _read(assignment: Proto, text: str, ids: dict[str, int], where: str) -> None:
    lines = iter(text.splitlines())
    if next(lines, "").strip() != "BufferAssignment:":
        raise reject(where, text[:40], "must open with BufferAssignment:", _REMEDY)
    allocation: Proto = None
    known: dict[int, int] = {}
    for line in lines:
        head, value = _HEAD.fullmatch(line), _VALUE.fullmatch(line)
        if head is not None:
            allocation = assignment.buffer_allocations.add(index=int(head["index"]), size=int(head["size"]))
            _flags(allocation, head["rest"])
        elif value is not None and allocation is not None:
            _value(assignment, allocation, value, ids, known, where)
        elif line.startswith((" value:", "allocation ")):
            raise reject(where, line[:120], "a line of another form than XLA writes", _REMEDY)
        elif line.strip() and not line.startswith(" "):
            break  # totals and statistics follow
    if allocation is None:
        raise reject(where, None, "has no allocation", _REMEDY)


def _flags(allocation: Proto, rest: str) -> None:
    plain = _SHAPES.sub("", rest)
    color, parameter, place = _COLOR.search(plain), _PARAMETER.search(plain), _PLACE.search(plain)
    allocation.color = int(color[1]) if color else 0
    allocation.maybe_live_out = ", maybe-live-out" in plain
    allocation.is_thread_local = ", thread-local" in plain
    allocation.is_constant = ", constant" in plain
    if parameter is not None:
        allocation.is_entry_computation_parameter = True
        allocation.parameter_number = int(parameter[1])
        allocation.parameter_shape_index.extend(_numbers(place[1]) if place else [])
        allocation.is_parameter_aliased_with_output = allocation.maybe_live_out


def _value(
    assignment: Proto, allocation: Proto, value: re.Match[str], ids: dict[str, int], known: dict[int, int], where: str
) -> None:
    number, size = int(value["id"]), int(value["size"])
    if value["name"] not in ids:
        raise reject(where, value["name"][:120], "the module has no such instruction", "keep both files of one dump")
    place = _numbers(value["place"][1:-1]) if value["place"] else []
    first = number not in known
    if known.setdefault(number, size) != size:
        raise reject(where, number, "a value has one size", _REMEDY)
    if first:
        made = assignment.logical_buffers.add(id=number, size=size, color=int(value["color"]))
        made.defined_at.instruction_id = ids[value["name"]]
        made.defined_at.shape_index.extend(place)
    allocation.assigned.add(logical_buffer_id=number, offset=int(value["offset"]), size=size)
    table = value["shape"].startswith("(") and not place
    allocation.is_tuple = table and (allocation.is_tuple or len(allocation.assigned) == 1)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
