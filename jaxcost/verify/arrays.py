"""The arrays that a compared row is about, as predicted and as somebody saw them, matched by what they are.

Who saw them depends on the row: the network's own tree (parameters, state), the jaxpr (operands of products, saved
activations), the buffers of the compiled program (its fullest moment, its collectives), or a supplied bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.contracts.observation import Observation
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Row as LedgerRow
from jaxcost.reconciliation.layouts import expected_tensors
from jaxcost.reconciliation.rows import Row

Seen = Observed | Observation | None
# Element types as jaxpr and HLO write them.
_TYPES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "f16": "fp16", "f32": "fp32",
    "f64": "fp64", "s32": "int32", "s64": "int64", "u32": "uint32", "s8": "int8", "u8": "uint8", "pred": "bool",
}  # fmt: skip
_TEXT = re.compile(r"(\w+)\[([\d,]*)\]")
LARGEST = 16


@dataclass(frozen=True)
class Array:
    """`copies` arrays of one shape and element type; `shape` is None where only the elements are known."""

    shape: tuple[int, ...] | None
    dtype: str
    copies: int = 1
    axes: str = ""
    counted: int | None = None

    @property
    def elements(self) -> int | None:
        """Elements of all copies."""
        return self.counted if self.shape is None else prod(self.shape) * self.copies

    @property
    def bytes(self) -> int | None:
        """Payload of all copies; None for a type of unknown width."""
        return None if self.elements is None or self.dtype not in BITS else payload_bytes(self.elements, self.dtype)


@dataclass(frozen=True)
class Pair:
    """One array on both sides; None where a side does not know it. `by` is who saw it."""

    what: str
    predicted: Array | None
    seen: Array | None
    by: str = ""
    note: str = ""

    @property
    def in_pieces(self) -> bool:
        """Whether the program works on parts of the declared array, one after the other, which no shape compares."""
        one, other = self.predicted, self.seen
        if one is None or other is None or one.shape is None or other.shape is None:
            return False
        return other.copies > one.copies and not same_extents(one.shape, other.shape)


def inside(scope: str, outer: str) -> bool:
    """Return whether a scope is `outer` or lies below it; the empty scope holds everything."""
    return not outer or scope == outer or scope.startswith(outer + "/")


def pairs(prediction: Prediction, row: Row, seen: Seen) -> list[Pair]:
    """Return the arrays of a row; empty for a row that is about no array."""
    name = row.counter.split(".", 1)[0]
    if name in ("tensor", "parameters"):
        wanted = row.scope if name == "tensor" else ""
        return [pair for pair in _parameters(prediction, seen) if not wanted or pair.what == wanted]
    if name in ("state", "argument_bytes"):
        return list(_arguments(prediction, row, seen))
    if name == "kv_cache":
        return list(_cached(prediction, seen))
    document: Mapping[str, Any] = seen.data if isinstance(seen, Observed) else {}
    if name in ("matmul_flops", "jaxpr_matmul_flops", "flops"):
        section = document.get("jaxpr") or {}
        return list(_operands(prediction, row, section.get("rows") or ()))
    if name in ("saved_bytes", "activations"):
        return list(_saved(prediction, (document.get("jaxpr") or {}).get("residuals")))
    if name == "collective":
        return list(_moved(prediction, row, (document.get("collectives") or {}).get("rows") or ()))
    if name in ("live_peak_bytes", "required_bytes", "moment_bytes", "fits"):
        buffers = (document.get("memory") or {}).get("at_peak") or ()
        wanted = row.counter.partition(".")[2]
        return [_buffer(item) for item in buffers if not wanted or item["class"] == wanted][:LARGEST]
    return []


def parsed(text: str) -> Array | None:
    """Return the array of a text such as `bf16[2,8]`; None where it is none."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        return None
    kind, extents = found.groups()
    return Array(tuple(int(part) for part in extents.split(",") if part), _TYPES.get(kind, kind))


def _parameters(prediction: Prediction, seen: Seen) -> Iterator[Pair]:
    if isinstance(seen, Observation):
        stored = {tensor.name: tensor for tensor in seen.tensors or ()}
        for wanted in expected_tensors(prediction.program, seen.layout):
            found = stored.pop(wanted.name, None)
            other = None if found is None else Array(found.shape, found.dtype)
            yield Pair(wanted.name, Array(wanted.shape, wanted.dtype), other, "the bundle")
        for name, found in stored.items():
            if found.kind == "parameter":
                yield Pair(name, None, Array(found.shape, found.dtype), "the bundle")
        return
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in seen.parameters.get("entries", ()) if seen is not None else ():
        if entry["kind"] == "parameter":
            entries.setdefault(f"{entry['scope']}/{str(entry['name']).rsplit('.', 1)[-1]}", []).append(entry)
    for row in prediction.ledgers["parameters"].rows:
        fields, own = row.fields, entries.pop(row.object, [])
        first = own[0] if own else None
        array = Array(tuple(fields["shape"]), fields["dtype"], fields["copies"], fields["axes"])
        other = None
        if first is not None:
            other = Array(tuple(first["shape"]), first["dtype"], len(own), _axes(first["axes"]))
        yield Pair(row.object, array, other, "the network")
    for name, own in entries.items():
        yield Pair(name, None, Array(tuple(own[0]["shape"]), own[0]["dtype"], len(own)), "the network")


def _axes(axes: Sequence[Sequence[Any]] | None) -> str:
    return " ".join(str(name) for name, _ in axes or ())


def _arguments(prediction: Prediction, row: Row, seen: Seen) -> Iterator[Pair]:
    """State objects and inputs, each as one row: of the whole program for `state`, of one device for the arguments."""
    held = (seen.data["state"] or {}).get("rows") or () if isinstance(seen, Observed) else ()
    role, local = row.counter.partition(".")[2], row.counter == "argument_bytes"
    totals: dict[str, list[Mapping[str, Any]]] = {}
    for item in held:
        totals.setdefault(_role(str(item["role"])), []).append(item)
    for kind, array in _arguments_by_role(prediction, local):
        if not role or role == kind:
            yield Pair(kind, array, _summed(totals.get(kind, ()), local), "the step's arguments")


def _cached(prediction: Prediction, seen: Seen) -> Iterator[Pair]:
    """Keys and values of every group of layers, and the cache that is handed to a decode step."""
    held = (seen.data["state"] or {}).get("rows") or () if isinstance(seen, Observed) else ()
    left = [item for item in held if str(item["role"]).startswith("cache")]
    sizes = prediction.program.sizes
    for row in prediction.ledgers["kv_cache"].rows:
        shape = tuple(sizes.shape(row.fields["axes"], _group(row.scope)))
        array = Array(shape, row.fields["dtype"], row.fields["layers"], row.fields["axes"])
        own = [item for item in left if prod(item["shape"]) == array.elements]
        left = [item for item in left if not own or item is not own[0]]
        found = None
        if own:
            stacked = len(own[0]["shape"]) == len(shape) + 1 and own[0]["shape"][0] == array.copies
            whole = tuple(own[0]["shape"])
            found = Array(whole[1:] if stacked else whole, own[0]["dtype"], array.copies if stacked else 1)
        yield Pair(row.object, array, found, "the step's arguments")


def _role(role: str) -> str:
    return "cache" if role.startswith("cache") else "input" if role in ("tokens", "key", "position") else role


def _arguments_by_role(prediction: Prediction, local: bool) -> Iterator[tuple[str, Array]]:
    found: dict[tuple[str, str], int] = {}
    for item in prediction.ledgers["device"].rows:
        if item.phase == "argument":
            fields = item.fields
            size = item.per_device if local else item.value
            elements = size * 8 // BITS[fields["dtype"]]
            cached = item.object.rpartition("/")[2].startswith("past_")
            key = ("cache" if cached else str(fields["role"]), str(fields["dtype"]))
            found[key] = found.get(key, 0) + elements
    for (role, dtype), elements in found.items():
        yield role, Array(None, dtype, counted=elements)


def _summed(items: Sequence[Mapping[str, Any]], local: bool) -> Array | None:
    if not items:
        return None
    types = list(dict.fromkeys(str(item["dtype"]) for item in items))
    shape = "device_shape" if local else "shape"
    return Array(None, ", ".join(types), counted=sum(prod(item[shape]) for item in items))


@dataclass(frozen=True)
class Declared:
    """A product of the FLOP ledger with its operands, over all rows of it: replays of several causes are one."""

    row: LedgerRow
    flops: int
    arrays: tuple[Array, ...]


def declared(prediction: Prediction, scope: str, phase: str) -> list[Declared]:
    """Return the products declared below a scope in a phase; empty means everything."""
    found: dict[Any, list[LedgerRow]] = {}
    for item in prediction.ledgers["flops"].rows:
        if inside(item.scope, scope) and phase in ("", item.phase):
            key = (item.scope, item.phase, item.fields["contraction"], item.fields.get("gradient_of"))
            found.setdefault(key, []).append(item)
    made = []
    for rows in found.values():
        both = zip(*(operands(prediction, item) for item in rows), strict=True)
        arrays = tuple(replace(same[0], copies=sum(array.copies for array in same)) for same in both)
        made.append(Declared(rows[0], sum(item.value for item in rows), arrays))
    return made


def matched(
    prediction: Prediction, row: Row, seen: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Declared, Product | None]]:
    """Yield every declared product in a row's scope and phase, and the jaxpr's product for it."""
    left = products(seen)
    for item in declared(prediction, row.scope, row.phase):
        own = [other for other in left if other.place == (item.row.scope, item.row.phase)]
        match = min(own, key=lambda other: _distance(item.arrays, other.arrays), default=None)
        if match is not None:
            left.remove(match)
        yield item, match


def _operands(prediction: Prediction, row: Row, seen: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    for item, match in matched(prediction, row, seen):
        note = "" if match is not None or not seen else "the jaxpr has no such product"
        found = [None, None] if match is None else _ordered(item.arrays, match.arrays)
        for side, array, other in zip(("left", "right"), item.arrays, found, strict=True):
            yield Pair(f"{product(item.row)}, {side}", array, other, "the jaxpr", note)


@dataclass(frozen=True)
class Product:
    """The products of one kind in a jaxpr: where they stand, their operands, their FLOPs in all."""

    place: tuple[str, str]
    arrays: tuple[Array, ...]
    flops: int | None


def products(seen: Sequence[Mapping[str, Any]]) -> list[Product]:
    """Return the products of a jaxpr; layers that are written out make one kind."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for item in seen:
        key = (item["scope"], item["phase"], item["name"].rpartition("/")[2], tuple(item["operands"]))
        found.setdefault(key, []).append(item)
    products = []
    for (scope, phase, _, texts), items in found.items():
        times = sum(int(item["executions"] or 0) for item in items)
        arrays = [parsed(text) for text in texts[:2]]
        known = tuple(Array(array.shape, array.dtype, times) for array in arrays if array is not None)
        totals = [item["total"] for item in items]
        products.append(Product((scope, phase), known, None if None in totals else sum(totals)))
    return products


def product(item: LedgerRow) -> str:
    """Return the name of a product: its scope, and of which operand it makes the gradient."""
    made = {"dx": " (dX)", "dw": " (dW)"}.get(item.part, "")
    return f"{item.scope}{made}"


def operands(prediction: Prediction, item: LedgerRow) -> list[Array]:
    """Return the two operands of a row of the FLOP ledger, of one layer and one microbatch."""
    spec = str(item.fields.get("product") or item.fields["contraction"])
    sides = spec.split("->", maxsplit=1)[0].split(",")
    program, group = prediction.program, _group(item.scope)
    op = next(op for op in program.contractions if (op.scope, op.spec) == (item.scope, item.fields["contraction"]))
    types = [prediction.case.state.compute_dtype if program.is_weight(name) else program.tensors[name].dtype
             for name in op.inputs]  # fmt: skip
    if item.phase == "backward":  # the gradient of the result stands in the place of the operand it is made for
        types[op.inputs.index(item.fields["gradient_of"])] = op.out_dtype
    times = int(item.fields.get("layers", 1)) * int(item.fields.get("microbatches", 1))
    return [
        Array(tuple(program.microbatch_sizes.shape(side.strip(), group)), dtype, times, side.strip())
        for side, dtype in zip(sides, types, strict=True)
    ]


def _group(scope: str) -> int | None:
    found = re.match(r"group(\d+)", scope)
    return int(found.group(1)) if found else None


def _distance(wanted: Sequence[Array], found: Sequence[Array]) -> int:
    return sum(not _alike(one, other) for one, other in zip(wanted, _ordered(wanted, found), strict=True))


def _ordered(wanted: Sequence[Array], found: Sequence[Array]) -> list[Array | None]:
    """Return two operands in the order of the declared ones: a product may name them the other way round."""
    if len(found) != 2:
        return [None, None]
    straight = sum(_likeness(one, other) for one, other in zip(wanted, found, strict=True))
    turned = sum(_likeness(one, other) for one, other in zip(wanted, reversed(found), strict=True))
    return list(found) if straight >= turned else [found[1], found[0]]


def _likeness(one: Array, other: Array) -> int:
    rank = len(one.shape or ()) == len(other.shape or ())
    return 4 * _alike(one, other) + 2 * (one.elements == other.elements) + rank


def _alike(one: Array, other: Array | None) -> bool:
    return other is not None and same_extents(one.shape, other.shape)


def same_extents(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    """Return whether two shapes hold the same axes, whatever their order; axes of one element do not count."""
    return one is None or other is None or sorted(n for n in one if n != 1) == sorted(n for n in other if n != 1)


def _saved(prediction: Prediction, seen: Sequence[Mapping[str, Any]] | None) -> Iterator[Pair]:
    """Saved tensors and residuals of the jaxpr: matched in their scope by elements, else anywhere by their axes."""
    left = sorted(seen or (), key=lambda entry: -int(entry["bytes"]))
    rows = [row for row in prediction.ledgers["activations"].rows if "axes" in row.fields]
    sizes = prediction.program.microbatch_sizes
    waiting = []
    for row in sorted(rows, key=lambda entry: -int(entry.value)):
        shape = tuple(sizes.shape(row.fields["axes"], _group(row.scope)))
        array = Array(shape, row.fields["dtype"], row.fields["layers"], row.fields["axes"])
        own = [item for item in left if item["scope"] == row.scope and _residual(item).elements == array.elements]
        waiting.append((row, array, own[0] if own else None))
        left = [item for item in left if not own or item is not own[0]]
    for row, array, match in waiting:
        if match is None:
            alike = (item for item in left if _alike(array, _residual(item)))
            match = next((item for item in alike if _residual(item).elements == array.elements), None)
            left = [item for item in left if item is not match]
        yield Pair(row.object, array, _residual(match) if match else None, "the jaxpr")
    for item in left:
        yield Pair(f"{item['scope'] or 'outside'}, made by {item['primitive']}", None, _residual(item), "the jaxpr")


def _residual(item: Mapping[str, Any]) -> Array:
    """A residual without its leading axis of layers, so that it reads like a declared tensor."""
    shape, layers = tuple(item["shape"]), int(item["layers"])
    if shape and layers > 1 and shape[0] == layers:
        return Array(shape[1:], _TYPES.get(item["dtype"], item["dtype"]), layers)
    return Array(shape, _TYPES.get(item["dtype"], item["dtype"]))


def _moved(prediction: Prediction, row: Row, seen: Iterable[Mapping[str, Any]]) -> Iterator[Pair]:
    """Declared transfers of the row's kind, axis and size, and the arrays of the program's own of that size."""
    kind, axis, size, times = place(row.scope)
    for item in prediction.ledgers["collectives"].rows:
        fields = item.fields
        if (fields["kind"], fields["axis"], fields["payload_bytes"], fields["layers"]) == (kind, axis, size, times):
            array = Array(None, fields["dtype"], counted=fields["elements"] * fields["times"])
            yield Pair(f"{item.object} ({item.phase})", array, None, "", f"made by {fields['made_by']}")
    for found in seen:
        parts = found["parts"] or ()
        whole = "result_dims" if kind == "all-gather" else "operand_dims"
        whole_bytes = whole.replace("dims", "bytes")
        for part in parts:
            if (found["kind"], ",".join(found["axes"] or ())) == (kind, axis) and part[whole_bytes] == size:
                array = Array(tuple(part[whole]), _TYPES.get(part["dtype"], part["dtype"]), found["executions"] or 1)
                yield Pair(found["name"], None, array, "the compiled program", part["scope"] or part["argument"] or "")


def place(scope: str) -> tuple[str, str, int, int]:
    """Return kind, axes, bytes and times of the scope of a row `collective:kind/axes/BYTESxTIMES`."""
    kind, axis, size = [*scope.split("/"), "", "", "0x1"][:3]
    one, _, times = size.partition("x")
    return kind, axis, int(one or 0), int(times or 1)


def _buffer(item: Mapping[str, Any]) -> Pair:
    found = parsed(str(item["shape"]).split("{", maxsplit=1)[0])
    name = f"{item['class']}: {item['instruction']}"
    return Pair(name, None, found, "the compiled program", f"{item['scope'] or 'no scope'}, {item['phase']}")
