"""What a buffer is for, from the compiled module alone: no prediction is read here.

The evidence, strongest first: the path of an argument; what a loop does with an element of its state (`flow`); which
argument a value is a copy of; which operands a product of the backward pass has; the scope and phase of its name. A
value for which none of these speaks is `workspace` and marked unsure; how many bytes are unsure is reported.

Where two classes apply the first of gathered_weight, gradient, cache, logits, saved, attention, optimizer, workspace
holds: a stack of compute-dtype weights that autodiff keeps is a copy of weights, and a stack of scores that it keeps is
saved, not working memory of attention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from jaxcost.observation.hlo.flow import Reach, Slot, Value
from jaxcost.observation.hlo.kinds import SCRATCH, Classifier, Kind, made_inside
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import HARMLESS_TARGETS
from jaxcost.observation.hlo.origins import Places, source_of
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, MIXED, OPTIMIZER, REPLAY, Place, common_scope

PARAMETER, GRADIENT, MOMENTS, SAVED, GATHERED = "parameter", "gradient", "optimizer", "saved", "gathered_weight"
ATTENTION, LOGITS, CACHE, BORDER, WORKSPACE = "attention", "logits", "cache", "input_output", "workspace"
CLASSES = (PARAMETER, GRADIENT, MOMENTS, SAVED, GATHERED, ATTENTION, LOGITS, CACHE, BORDER, WORKSPACE)

_ARGUMENTS = (
    (PARAMETER, re.compile(r"(state[.\[]?['\"]?)?(parameters|params|model|weights)\b")),
    (MOMENTS, re.compile(r"(state[.\[]?['\"]?)?(master|optimizer|opt_state)\b")),
    (CACHE, re.compile(r"(caches?|kv_caches?)\b")),
    (BORDER, re.compile(r"(tokens|labels|targets|position|positions|key|batch|inputs?|mask)\b")),
)
_PAIRWISE = frozenset({"scores", "softmax", "softcap", "values", "kernel"})
_ROWWISE = frozenset({"softmax", "softcap", "kernel"})  # all that is made there belongs to the pairs of rows
_OUTPUT = frozenset({"head", "loss", "project_out", "softcap"})
_CONTRACTIONS = frozenset({"dot", "convolution", "ragged-dot"})
_COMBINING = frozenset(
    """reduce-scatter all-reduce all-reduce-start all-reduce-done collective-permute collective-permute-start
    collective-permute-done all-to-all concatenate dynamic-update-slice add reduce pad select async-update
    add-dependency""".split()
)
_REASSEMBLING = _COMBINING - {"add", "reduce", "reduce-scatter"}
_ZEROS = frozenset({"constant", "broadcast", "iota", "partition-id", "replica-id"})
_EMPTY = frozenset({"AllocateBuffer", "CreateBuffer"})
_MAX_NODES = 96


def argument_kind(path: str) -> Kind:
    """The class of an argument of the program, by its path in the arguments."""
    for name, pattern in _ARGUMENTS:
        if pattern.match(path):
            return Kind(name, f"argument {path}")
    return Kind(BORDER, f"argument {path or 'without a name'} of no known kind", sure=False)


def _owner(path: str) -> str:
    """The scope a parameter belongs to: `state.parameters.groups[0].mlp.up.weight` is of `group0/mlp/up`."""
    words = re.findall(r"[A-Za-z_]\w*|\d+", re.sub(r"^(state\.)?(parameters|params|model|weights)", "", path))
    merged: list[str] = []
    for word in words[:-1]:
        if word.isdigit() and merged:
            merged[-1] = merged[-1].removesuffix("s") + word
        else:
            merged.append(word)
    return "/".join(merged)


class Classes(Classifier):
    """Classifies the values of one module of the reference network."""

    names: ClassVar[tuple[str, ...]] = CLASSES
    constant = Kind(WORKSPACE, "a constant of the program")
    border = Kind(BORDER, "a result of the program")
    unknown = Kind(WORKSPACE, "made by no instruction of the module", sure=False)

    def argument(self, path: str) -> Kind:
        """The class of an argument of the program."""
        return argument_kind(path)

    def __init__(self, module: Module, places: Places) -> None:
        super().__init__(module, places)
        self._slots: dict[tuple[int, int], Kind | None] = {}
        self._copies: dict[int, Instruction | None] = {}
        weights = [p for p in module.entry.parameters.values() if argument_kind(p.op_name).name == PARAMETER]
        self._owners: dict[str, list[Instruction]] = {}
        for weight in weights:
            self._owners.setdefault(_owner(weight.op_name), []).append(weight)
        self._products: dict[int, list[Instruction]] = {}
        self._score_sizes: set[int] = set()
        self._vocabulary: set[int] = set()
        self._serving = True
        self._read_products()
        self._results = self._positions()

    def _read_products(self) -> None:
        """Sizes that products of the forward pass and its replay show: pairs of rows, and the vocabulary."""
        for at in self.module.walk():
            if at.opcode not in _CONTRACTIONS:
                continue
            where = self.places.of(at)
            self._serving &= where.phase not in (BACKWARD, REPLAY)
            last = where.scope.rpartition("/")[2]
            if last == "scores" and where.phase != BACKWARD:
                self._score_sizes.add(at.shape.size)
            if where.scope.split("/")[0] in ("head", "project_out") and where.phase == FORWARD:
                operands = [set(o.shape.dims) for o in at.operands[:2]]
                copies = [self.copied(o) is not None for o in at.operands[:2]]
                if copies.count(True) == 1:
                    weight, rows = operands if copies[0] else operands[::-1]
                    self._vocabulary |= {d for d in weight - rows if d > 1 and d in at.shape.dims}
        if not self._vocabulary:  # one token: the product became a multiply and a reduce
            tables = [w for owner in ("head", "embed/tokens") for w in self._owners.get(owner, ())]
            self._vocabulary = {max(w.shape.dims) for w in tables[:1] if w.shape.dims}

    def _positions(self) -> dict[int, Kind]:
        """The class of the results that take the place of arguments: the state comes back in the order it went in."""
        arguments = [p for _, p in sorted(self.module.entry.parameters.items())]
        root = self.module.entry.root
        leaves = list(root.shape.leaves())
        state = [a for a in arguments if argument_kind(a.op_name).name in (PARAMETER, MOMENTS)]
        trained = any(argument_kind(a.op_name).name == MOMENTS for a in state)
        if not trained or len(leaves) < len(state):
            return {}
        same = all(
            (leaf.dtype, leaf.dims) == (a.shape.dtype, a.shape.dims) for leaf, a in zip(leaves, state, strict=False)
        )
        if not same:
            return {}
        kinds = (argument_kind(a.op_name) for a in state)
        return {
            i: Kind(kind.name, f"new value of {a.op_name}")
            for i, (kind, a) in enumerate(zip(kinds, state, strict=True))
        }

    # The three kinds of buffers -------------------------------------------------------------------------------------

    def result(self, at: Instruction, index: tuple[int, ...]) -> Kind:
        """The class of a result that has memory of its own."""
        shape = at.shape.at(index)
        if at is self.module.entry.root and shape is not None and shape.is_tuple:
            return Kind(BORDER, "the table of pointers to the results")
        reach = self.flow.reach(Value(at, index))
        for position in reach.results:
            if position in self._results:
                return self._results[position]
        kind = self.temporary(at, index)
        if kind.name in (CACHE, LOGITS):
            return kind
        if "attn" in self.places.of(at).scope.split("/") and reach.results:
            return Kind(CACHE, "a result made in attention: keys or values")
        return Kind(BORDER, "a result of the program")

    def _find(self, value: Value) -> Kind:
        reach = self.flow.reach(value)
        for slot in reach.slots:
            kind = self._of_slot(slot)
            if kind is not None:
                return kind
        start = self._start(value, reach)
        if start is not None:
            return start
        return self._of_value(value, reach)

    def _start(self, value: Value, reach: Reach) -> Kind | None:
        """Loop state that the loop only reads or replaces: what it started as, if the loop keeps it."""
        at, index = value
        is_state = (
            at.opcode == "while" or (at.opcode == "parameter" and at.computation is not self.module.entry)
        ) and index
        if not is_state or not reach.slots:
            return None
        slot = reach.slots[0]
        if self.flow.change(slot)[0] != "kept":
            place = self.places.of(slot.loop)
            return Kind(WORKSPACE, f"state that {place.scope or slot.loop.name} replaces in each round")
        first = self.flow.before(slot)
        if first is None or first.at is at:
            return None
        return self.temporary(*first)

    # Loop state -----------------------------------------------------------------------------------------------------

    def _of_slot(self, slot: Slot) -> Kind | None:
        key = (slot.loop.id, slot.position)
        if key not in self._slots:
            self._slots[key] = None  # a slot that leads to itself has no class of its own
            self._slots[key] = self._decide(self.flow.chain(slot))
        return self._slots[key]

    def _decide(self, chain: tuple[Slot, ...]) -> Kind | None:
        shape = chain[0].loop.shape.elements[chain[0].position]
        if shape.size <= 1:
            return Kind(WORKSPACE, "a scalar of a loop's state")
        for slot in chain:
            change, writer = self.flow.change(slot)
            if change in ("kept", "replaced"):
                continue
            assert writer is not None
            loop, name = self.places.of(slot.loop), slot.loop.name
            if "attn" in loop.scope.split("/"):
                return self._in_attention(chain, loop, name)
            if change == "stacked" and writer.opcode == "dynamic-update-slice":
                copy = self.copied(writer.operands[1])
                if copy is not None:
                    kind = argument_kind(copy.op_name)
                    if kind.name in (PARAMETER, MOMENTS):
                        return Kind(GATHERED, f"a copy of {copy.op_name} for each layer, stacked by {name}")
            if loop.phase in (BACKWARD, REPLAY):
                return Kind(GRADIENT, f"{change} by the backward loop {name}")
            if self._holds_cache(chain, writer):
                return Kind(CACHE, f"keys or values, written by {name}")
            later = chain[chain.index(slot) + 1 :]
            reader = next((s.loop for s in later if self.places.of(s.loop).phase in (BACKWARD, REPLAY)), None)
            if reader is not None:
                return Kind(SAVED, f"stacked by the forward loop {name}, read by the backward loop {reader.name}")
            if any(
                self.places.of(u).phase in (BACKWARD, REPLAY)
                for u in self.flow.reach(Value(slot.loop, (slot.position,))).users
            ):
                return Kind(SAVED, f"stacked by the forward loop {name}, read in the backward pass")
            if self._like_parameter(shape.size):
                return Kind(GRADIENT, f"{change} by {name} in the shape of a parameter")
            return Kind(WORKSPACE, f"{change} by the loop {name}")
        return next(filter(None, map(self._replaced, chain)), None)

    def _replaced(self, slot: Slot) -> Kind | None:
        """The class of what a loop puts in the place of a slot in each round: the pieces of a product that a loop makes
        shard by shard. None for what passes through the layers.
        """
        root = slot.loop.called[0].root
        if self.flow.change(slot)[0] != "replaced" or root.opcode != "tuple" or slot.position >= len(root.operands):
            return None
        kind = self._of_value(Value(root.operands[slot.position]), Reach())
        return kind if kind.name in (GRADIENT, LOGITS, GATHERED, CACHE) else None

    def _in_attention(self, chain: tuple[Slot, ...], loop: Place, name: str) -> Kind:
        if self._reaches_result(chain):
            return Kind(CACHE, f"keys or values, written by {name}")
        return Kind(ATTENTION, f"gathered block by block by the loop {name} of {loop.scope}")

    def _holds_cache(self, chain: tuple[Slot, ...], writer: Instruction) -> bool:
        first = self.flow.before(chain[0])
        argument = self.copied(first.at) if first is not None and not first.path else None
        if argument is not None and argument_kind(argument.op_name).name == CACHE:
            return True
        made = {
            part for at in (writer, *writer.operands[1:2]) for part in self.places.of(source_of(at)).scope.split("/")
        }
        return (self._serving or self._reaches_result(chain)) and not made.isdisjoint(("attn", "cache"))

    def _reaches_result(self, chain: tuple[Slot, ...]) -> bool:
        return any(self.flow.reach(Value(slot.loop, (slot.position,))).results for slot in chain)

    # Single values --------------------------------------------------------------------------------------------------

    def _of_value(self, value: Value, reach: Reach) -> Kind:
        at, index = value
        shape = at.shape.at(index)
        size = shape.size if shape is not None and not shape.is_tuple else 0
        place = self.places.of(at)
        if at.opcode == "custom-call" and index and shape is not None and shape.dtype in ("s8", "u8"):
            return Kind(WORKSPACE, SCRATCH)
        copy = self.copied(at, index)
        if copy is not None:
            kind = argument_kind(copy.op_name)
            if kind.name == MOMENTS or (kind.name == PARAMETER and place.phase == OPTIMIZER and place.exact):
                return Kind(MOMENTS, f"a copy of {copy.op_name} in the optimizer")
            name = GATHERED if kind.name == PARAMETER else kind.name
            return Kind(name, f"a copy of {copy.op_name}", kind.sure)
        uses = self._uses(value, reach)
        if not place.exact and not place.scope:
            place = self._by_uses(place, uses)
        parts = place.scope.split("/") if place.scope else []
        if parts[:1] == [OPTIMIZER]:
            return Kind(MOMENTS, "made by the optimizer")
        gradient = self._gradient(value, size, place)
        if gradient is not None:
            return gradient
        if "cache" in parts or ("attn" in parts and reach.results):
            return Kind(CACHE, "made where keys and values are written")
        if parts and parts[0] in _OUTPUT and shape is not None and self._is_vocabulary(shape.dims):
            return Kind(LOGITS, f"as wide as the vocabulary, in {place.scope}")
        whole = self._whole_copy(value, size)
        if whole is not None:
            return whole
        still = self.flow.constant(value)
        filled = self._filled(value, size, reach) if still else None
        if filled is not None:
            return filled
        pairwise = "attn" in parts and (
            not _ROWWISE.isdisjoint(parts) or any(size % pairs == 0 for pairs in self._score_sizes if pairs > 1)
        )
        if not still and place.phase == FORWARD:
            reader = next((u for u in uses if self.places.of(u).phase in (BACKWARD, REPLAY)), None)
            if reader is not None:
                return Kind(SAVED, f"made in the forward pass, read by {reader.name} in the backward pass")
        if pairwise:
            return Kind(ATTENTION, f"in {place.scope}")
        if still:
            return Kind(WORKSPACE, "follows from constants and counters")
        if place.scope:
            return Kind(WORKSPACE, f"at work in {place.scope}")
        return Kind(WORKSPACE, "neither its name nor the graph says more", sure=False)

    def _whole_copy(self, value: Value, size: int) -> Kind | None:
        """The class of the loop's stack that a value is the whole of, in another layout or type."""
        at: Instruction | None = next(made_inside(value), None)
        while at is not None and not at.shape.is_tuple and at.shape.size == size:
            if at.opcode == "get-tuple-element" and at.operands[0].opcode in ("while", "parameter"):
                for slot in self.flow.reach(Value(at.operands[0], (at.number,))).slots[:1]:
                    kind = self._of_slot(slot)
                    if kind is not None and kind.name in (SAVED, GRADIENT, CACHE, GATHERED):
                        return Kind(kind.name, f"a copy of what is {kind.why}")
            at = self.flow.behind(at)
        return None

    def _filled(self, value: Value, size: int, reach: Reach) -> Kind | None:
        """The class of what is written into memory that starts empty: zeros, or a buffer without content."""
        source = next((source_of(at) for at in made_inside(value)), None)
        empty = source is not None and (
            (source.opcode == "custom-call" and source.proto.custom_call_target in _EMPTY)
            or (source.opcode == "broadcast" and source_of(source.operands[0]).opcode == "constant")
        )
        if not empty or size <= 1:
            return None
        for user in reach.users:
            if not user.shape.is_tuple and user.shape.size == size and not self.flow.constant(Value(user)):
                kind = self.temporary(user, ())
                return Kind(kind.name, f"memory that {user.name} fills: {kind.why}", kind.sure)
        return None

    def _uses(self, value: Value, reach: Reach) -> list[Instruction]:
        """What computes with a value, inside the loops that only read it too."""
        users = list(reach.users)
        for slot in reach.slots[:8]:
            for near in self.flow.chain(slot):
                if self.flow.change(near)[0] == "kept":
                    users += self.flow.inside(near).users
        return users

    def _by_uses(self, place: Place, uses: Iterable[Instruction]) -> Place:
        scopes = {self.places.of(use).scope for use in uses} - {""}
        return Place(common_scope(scopes), place.phase, exact=False) if scopes else place

    def _is_vocabulary(self, dims: tuple[int, ...]) -> bool:
        return any(d in self._vocabulary for d in dims) or any(
            d % v == 0 and d > v for d in dims for v in self._vocabulary
        )

    def _like_parameter(self, size: int) -> bool:
        return any(weight.shape.size == size for weights in self._owners.values() for weight in weights)

    def _gradient(self, value: Value, size: int, place: Place) -> Kind | None:
        """The gradient of a parameter: a product of the backward pass without a weight among its operands, in the scope
        of a parameter; or a value of its size there.
        """
        if place.phase not in (BACKWARD, MIXED) or size <= 1:
            return None
        parts = place.scope.split("/") if place.scope else []
        if parts and parts[-1] in _PAIRWISE:
            return None
        owned = self._owned(place.scope)
        if self.places.scopes is not None and not owned:
            return None
        products = list(self._reached(value))
        if products and not any(self._has_weight(p) for p in products):
            return Kind(GRADIENT, f"a product of the backward pass of {place.scope or 'the program'} without a weight")
        if products:
            return None
        for weight in owned:
            whole = weight.shape.size
            layer = whole // weight.shape.dims[0] if weight.shape.dims else whole
            if size in (whole, layer) or (parts[:1] == ["embed"] and size % whole == 0):
                return Kind(GRADIENT, f"as large as {weight.op_name}, in its backward pass")
        return None

    def _owned(self, scope: str) -> list[Instruction]:
        """The parameters of a scope and of the scopes below it; a tied table serves the head as well."""
        found = [w for owner, ws in self._owners.items() if owner == scope or owner.startswith(scope + "/") for w in ws]
        if not scope:
            found = [w for ws in self._owners.values() for w in ws]
        if not found and scope.split("/")[0] in ("head", "embed"):
            found = [w for owner, ws in self._owners.items() if owner.split("/")[0] == "embed" for w in ws]
        return found

    def _has_weight(self, product: Instruction) -> bool:
        for operand in product.operands[:2]:
            copy = self.copied(operand)
            if copy is not None and argument_kind(copy.op_name).name == PARAMETER:
                return True
        return False

    def _reached(self, value: Value) -> Iterator[Instruction]:
        """The products whose results, moved and summed, a value is."""
        seen: set[int] = set()
        stack = list(made_inside(value))
        while stack and len(seen) < _MAX_NODES:
            at = stack.pop()
            if at.id in seen:
                continue
            seen.add(at.id)
            if at.opcode in _CONTRACTIONS or (at.opcode == "custom-call" and len(at.operands) >= 2):
                yield at
            elif at.opcode in _COMBINING:
                stack += [inner for o in at.operands for inner in made_inside(Value(o))]
            else:
                before = self.flow.behind(at)
                if before is not None:
                    stack.append(before)

    def copied(self, at: Instruction, index: tuple[int, ...] = ()) -> Instruction | None:
        """The argument that a value is a copy of: moved, cast, cut, gathered, or put together again from pieces."""
        if index or at.shape.is_tuple:
            found: Instruction | None = None
            for inner in made_inside(Value(at, index)):
                if inner is not at:
                    found = self.copied(inner)
            return found
        if at.id not in self._copies:
            self._copies[at.id] = self._reassembled(at)
        return self._copies[at.id]

    def _reassembled(self, start: Instruction) -> Instruction | None:
        """The one argument whose pieces, with nothing but zeros beside them, make up a value."""
        seen: set[int] = set()
        found: Instruction | None = None
        stack = [start]
        while stack:
            at = stack.pop()
            if at.id in seen:
                continue
            seen.add(at.id)
            if len(seen) > _MAX_NODES:
                return None
            if at.opcode == "parameter" and at.computation is self.module.entry:
                if found is not None and found is not at:
                    return None
                found = at
                continue
            harmless = at.opcode == "custom-call" and at.proto.custom_call_target in HARMLESS_TARGETS
            if at.opcode in _REASSEMBLING or harmless:
                data = (
                    at.operands[:1]
                    if at.opcode.startswith(("all-reduce", "collective-permute", "all-to-all"))
                    else (
                        at.operands[:2]
                        if at.opcode == "dynamic-update-slice"
                        else at.operands[1:]
                        if at.opcode == "select"
                        else at.operands
                    )
                )
                stack += data
                continue
            if at.opcode in _ZEROS:
                continue
            before = self.flow.behind(at)
            if before is not None:
                stack.append(before)
            elif not self.flow.constant(Value(at)):
                return None
        return found
