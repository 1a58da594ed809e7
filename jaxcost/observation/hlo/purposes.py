"""What a buffer is for in a program of any author, from the compiled module alone.

`classes` knows the names of the reference network; nothing of the kind is known of a foreign program. What is evidence
here: the path of an argument; what a loop does with an element of its state (`flow`); which argument a value is a copy
of; the words that autodiff, checkpoint and optax leave in names and source frames. `gradient` is whatever the backward
pass makes, of parameters and of activations alike: which of the two a value is cannot be told without the author's
names. A value for which nothing speaks is `temporary`, marked unsure where even its place was inferred.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import ClassVar

from jaxcost.observation.hlo.flow import Change, Reach, Slot, Value
from jaxcost.observation.hlo.kinds import SCRATCH, Classifier, Kind, made_inside
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import COLLECTIVES
from jaxcost.observation.hlo.origins import Places, argument_of
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, OPTIMIZER, REPLAY, Place

PARAMETER, STATE, ARGUMENT, RESULT, CONSTANT = "parameter", "optimizer", "argument", "result", "constant"
SAVED, STACK, GRADIENT, RECOMPUTED, COPY = "saved", "loop_stack", "gradient", "recomputed", "argument_copy"
COLLECTIVE, LIBRARY, TEMPORARY = "collective", "library_workspace", "temporary"
PURPOSES = (
    PARAMETER, STATE, ARGUMENT, RESULT, CONSTANT, SAVED, STACK, GRADIENT, RECOMPUTED, COPY, COLLECTIVE, LIBRARY,
    TEMPORARY,
)  # fmt: skip

_WORDS = re.compile(r"[A-Za-z_]\w*")
# The words of optax's states and of the usual names for them; then those for parameters.
_STATE_WORDS = frozenset({"opt_state", "optimizer_state", "optim_state", "opt", "optimizer", "optim", "mu", "nu"})
_MOMENT = re.compile(
    r"(?:\.|\[')(?:mu|nu|trace)(?:'\])?(?=[.\[])"
)  # fields of optax's states that are trees of moments
_STEP = re.compile(r"[.\[]")  # where a part of a path begins
_PARAMETER_WORDS = frozenset({"params", "param", "parameters", "weights", "model"})
_LATER = frozenset({BACKWARD, REPLAY})
# What of optax is update rules and what is not (optax 0.2; names of before in `_src` too). The rest are helpers.
_OPTAX_UPDATES = frozenset({"transforms", "contrib"})
_OPTAX_SOURCES = frozenset(
    """alias clipping combine constrain factorized linesearch lookahead privacy schedule transform update
    wrappers""".split()
)
_OPTAX_OTHERS = frozenset({"losses", "monte_carlo", "perturbations", "projections", "second_order", "assignment"})


def argument_purpose(path: str) -> Kind:
    """The class of an argument by its path: a parameter or optimizer state only where the path says so."""
    words = _WORDS.findall(path)
    for name, known in ((STATE, _STATE_WORDS), (PARAMETER, _PARAMETER_WORDS)):
        if not known.isdisjoint(words):
            return Kind(name, f"argument {path}")
    return Kind(ARGUMENT, f"argument {path}" if path else "an argument without a name")


def _updates(file: str) -> bool | None:
    """Whether a file is of an update rule of optax; None where it says neither: a helper, or no file of optax."""
    _, inside, rest = file.replace("\\", "/").rpartition("/optax/")
    if not inside:
        return None
    folder, _, name = rest.rpartition("/")
    if folder.split("/")[0] in _OPTAX_UPDATES or (folder == "_src" and name.removesuffix(".py") in _OPTAX_SOURCES):
        return True
    return False if folder.split("/")[0] in _OPTAX_OTHERS or rest == "_src/loss.py" else None


class Purposes(Classifier):
    """Classifies the values of one module."""

    names: ClassVar[tuple[str, ...]] = PURPOSES
    constant = Kind(CONSTANT, "a constant of the program")
    border = Kind(RESULT, "a result of the program")
    unknown = Kind(TEMPORARY, "made by no instruction of the module", sure=False)

    def __init__(self, module: Module, places: Places) -> None:
        super().__init__(module, places)
        self._slots: dict[tuple[int, int], Kind | None] = {}
        self._changes: dict[tuple[int, int], tuple[Change, Instruction | None]] = {}

    def argument(self, path: str) -> Kind:
        """The class of an argument of the program: by its path, else by a tree of moments that repeats its own."""
        told = argument_purpose(path)
        return self._repeated.get(path, told) if told.name == ARGUMENT else told

    @cached_property
    def _repeated(self) -> dict[str, Kind]:
        """The arguments whose tree a tree of moments repeats path for path and shape for shape, and those moments."""
        dims = {
            at.op_name: at.shape.dims
            for at in self.module.entry.parameters.values()
            if at.op_name and not at.shape.is_tuple
        }
        trees: dict[str, dict[str, tuple[int, ...]]] = {}
        others: dict[str, list[str]] = {}  # what a path ends with -> what stands before that
        for path, shape in dims.items():
            moment = next(iter(_MOMENT.finditer(path)), None)
            if moment is not None:
                trees.setdefault(path[: moment.end()], {})[path[moment.end() :]] = shape
            elif argument_purpose(path).name != STATE:
                for step in _STEP.finditer(path):
                    others.setdefault(path[step.start() :], []).append(path[: step.start()])
        found: dict[str, Kind] = {}
        for tree, moments in trees.items():
            alike: dict[str, list[str]] = {}
            for ends, shape in moments.items():
                for begins in others.get(ends, ()):
                    alike.setdefault(begins, []).extend([ends] if dims[begins + ends] == shape else [])
            # A parameter that is not used is no argument of the module, while its moments are: more than half will do.
            whole = [begins for begins, ends in alike.items() if 2 * len(ends) > len(moments)]
            if len(whole) != 1:
                continue  # parameters beside their gradients, or an average of them: which is which is not told
            for ends in alike[whole[0]]:
                why = f"argument {whole[0]}{ends}, whose tree the moments {tree} repeat"
                found[whole[0] + ends] = Kind(PARAMETER, why)
                moments_why = f"argument {tree}{ends}, moments of the tree {whole[0]}"
                found[tree + ends] = Kind(STATE, moments_why)
        return found

    @cached_property
    def _optax_frames(self) -> frozenset[int]:
        """The stack frames (1-based) that are, or were called from, an update rule of optax.

        The nearest file of optax that decides has the word: a loss of optax is no update, and a helper of both (norms,
        trees) is what called it.
        """
        index = self.module.proto.stack_frame_index
        files = {i + 1: _updates(name) for i, name in enumerate(index.file_names)}
        places = [files.get(location.file_name_id) for location in index.file_locations]
        found: set[int] = set()
        for number in range(1, len(index.stack_frames) + 1):
            here, seen = number, 0
            while 1 <= here <= len(index.stack_frames) and seen < 64:
                location = index.stack_frames[here - 1].file_location_id
                decided = places[location - 1] if 1 <= location <= len(places) else None
                if decided is not None:
                    if decided:
                        found.add(number)
                    break
                here, seen = index.stack_frames[here - 1].parent_frame_id, seen + 1
        return frozenset(found)

    def result(self, at: Instruction, index: tuple[int, ...]) -> Kind:
        """The class of a result that has memory of its own."""
        shape = at.shape.at(index)
        if at is self.module.entry.root and shape is not None and shape.is_tuple:
            return Kind(RESULT, "the table of pointers to the results")
        return self.border

    def change(self, slot: Slot) -> tuple[Change, Instruction | None]:
        """What a loop does with an element of its state, and the instruction that does it."""
        key = (slot.loop.id, slot.position)
        found = self._changes.get(key)
        if found is None:
            found = self._changes[key] = self.flow.change(slot)
        return found

    def _find(self, value: Value) -> Kind:
        at, index = value
        shape = at.shape.at(index)
        if at.opcode == "custom-call" and index and shape is not None and shape.dtype in ("s8", "u8"):
            return Kind(LIBRARY, SCRATCH)
        reach = self.flow.reach(value)
        for slot in reach.slots:
            kind = self._of_slot(slot, value)
            if kind is not None:
                return kind
        return self._of_value(value, reach)

    # Loop state -----------------------------------------------------------------------------------------------------

    def _of_slot(self, slot: Slot, asked: Value) -> Kind | None:
        key = (slot.loop.id, slot.position)
        if key not in self._slots:
            self._slots[key] = None  # a slot that leads to itself has no class of its own
            self._slots[key] = self._decide(self.flow.chain(slot), asked)
        return self._slots[key]

    def _decide(self, chain: tuple[Slot, ...], asked: Value) -> Kind | None:
        if chain[0].loop.shape.elements[chain[0].position].size <= 1:
            return Kind(TEMPORARY, "a scalar of a loop's state")
        for number, slot in enumerate(chain):
            change, writer = self.change(slot)
            if change in ("stacked", "summed"):
                return self._written(chain, number, change, writer)
        replaced = next((s for s in chain if self.change(s)[0] == "replaced"), None)
        if replaced is not None:
            place = self.places.of(replaced.loop)
            name = GRADIENT if place.phase == BACKWARD else TEMPORARY
            return Kind(name, f"handed from round to round by the loop {replaced.loop.name}", place.exact)
        first = self.flow.before(chain[0])
        if first is None or first == asked or first.at.opcode == "while":
            return None
        return self.temporary(*first)

    def _written(self, chain: tuple[Slot, ...], number: int, change: Change, writer: Instruction | None) -> Kind:
        slot = chain[number]
        place, name = self._place(slot.loop, writer), slot.loop.name
        if place.phase in _LATER:
            return Kind(GRADIENT, f"{change} by the backward loop {name}", place.exact)
        for after in chain[number + 1 :]:
            if self.places.of(after.loop).phase in _LATER:
                return Kind(SAVED, f"{change} by the forward loop {name}, read by the backward loop {after.loop.name}")
        for near in chain[number:]:
            if any(
                self.places.of(u).phase in _LATER for u in self.flow.reach(Value(near.loop, (near.position,))).users
            ):
                return Kind(SAVED, f"{change} by the forward loop {name}, read in the backward pass", place.exact)
        return Kind(STACK, f"{change} by the loop {name}")

    def _place(self, loop: Instruction, writer: Instruction | None) -> Place:
        """Where a loop belongs, by its own name or by that of what it writes."""
        place = self.places.of(loop)
        if not place.exact and writer is not None:
            other = self.places.of(writer)
            return other if other.exact else place
        return place

    # Single values --------------------------------------------------------------------------------------------------

    def _of_value(self, value: Value, reach: Reach) -> Kind:
        at, index = value
        inside = next(made_inside(value), at)
        place = self.places.of(at)
        argument = argument_of(self.module, inside)
        if moves_between_devices(at) or moves_between_devices(inside):
            what = f" of argument {argument.op_name}" if argument is not None and argument.op_name else ""
            return Kind(COLLECTIVE, f"received by {at.name}{what}")
        if argument is not None and inside is not argument:
            shape = at.shape.at(index)
            cast = shape is not None and not shape.is_tuple and shape.dtype != argument.shape.dtype
            how = f" as {shape.dtype}" if cast and shape is not None else ""
            return Kind(COPY, f"a copy of argument {argument.op_name or argument.name}{how}")
        if self.flow.constant(value):
            return Kind(CONSTANT, "follows from constants and counters")
        differentiated = place.phase in _LATER and place.exact  # whichever library's code that was
        if place.phase == OPTIMIZER or (not differentiated and at.metadata.stack_frame_id in self._optax_frames):
            return Kind(STATE, "made by the optimizer", place.exact)
        if place.phase == BACKWARD:
            return Kind(GRADIENT, "made in the backward pass", place.exact)
        if place.phase == REPLAY:
            return Kind(RECOMPUTED, "made again in the backward pass, by a checkpoint", place.exact)
        if place.phase == FORWARD:
            readers = [u for u in self._uses(reach) if self.places.of(u).phase in _LATER]
            if readers:
                sure = place.exact and any(self.places.of(u).exact for u in readers)
                return Kind(SAVED, f"made in the forward pass, read by {readers[0].name} in the backward pass", sure)
        return Kind(TEMPORARY, "at work", place.exact)

    def _uses(self, reach: Reach) -> list[Instruction]:
        """What computes with a value, inside the loops that only read it too."""
        users = list(reach.users)
        for slot in reach.slots[:8]:
            if self.change(slot)[0] == "kept":
                users += self.flow.inside(slot).users
        return users


def moves_between_devices(at: Instruction) -> bool:
    """Whether an instruction is a collective, or the started or finished half of one."""
    opcode = at.opcode
    if opcode in COLLECTIVES or (opcode.endswith("-done") and opcode[:-5] in COLLECTIVES):
        return True
    if opcode == "async-start":
        return bool(at.called) and at.called[0].root.opcode in COLLECTIVES
    return opcode in ("async-done", "async-update") and moves_between_devices(at.operands[0])
