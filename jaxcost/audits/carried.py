"""Changes to what a step carries from call to call, and to how much it is given at once.

Where a peak is mostly arguments no buffer of the heap is worth much: what helps is fewer bytes of parameters and
optimizer state on the device, gradients that leave as they are made, or less of a batch. Each is replayed like any
other; none is exact, as what the change itself needs (a gathered layer, arrays in flight) is not planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jaxcost.audits.replay import Change, Edit, Held, Replay
from jaxcost.audits.roles import Group, Roles
from jaxcost.audits.tree import some
from jaxcost.observation.hlo.flow import Value
from jaxcost.observation.hlo.origins import argument_of
from jaxcost.observation.hlo.purposes import COPY, GRADIENT

_LARGE = 1 << 16
_DEVICES = (2, 4, 8)
_WIDE = {"f32": 4, "f64": 8}
_NARROW_BYTES = 2  # of a bfloat16
# The first moments of optax by the names of their fields, and the option that sets their type.
_MOMENTS = {"mu": "mu_dtype", "trace": "accumulator_dtype"}
_WORDS = re.compile(r"[A-Za-z_]\w*")


def carried(replay: Replay) -> Iterator[Change]:
    """Every such change that the module gives grounds for."""
    roles = Roles(replay)
    yield from _offload(replay, roles)
    yield from _moments(roles)
    yield from _over_devices(replay, roles)
    yield from _released(replay, roles)
    yield from _batch(replay, roles)


def whole(held: Held, size: int) -> Edit:
    """An edit that leaves `size` bytes of a stretch."""
    return Edit(held.span.first, held.span.end, size - held.bytes)


def _what(group: Group) -> str:
    """The arrays of a group in words."""
    text = f"{some(len(group.found), 'argument')} of {group.bytes - group.twice:,} bytes"
    return text + (f" and {group.twice:,} bytes of their new values" if group.twice else "")


def _offload(replay: Replay, roles: Roles) -> Iterator[Change]:
    """Optimizer state in the host's memory, one array at a time on the device."""
    state = roles.state
    if state is None or replay.evidence.platform == "cpu":
        return
    yield Change(
        "offload", "optimizer state", "keep the optimizer's state in pinned host memory between steps",
        f"{_what(state)} hold optimizer state, told {state.told}; the peak without them", "upper",
        resident=-state.bytes,
        assumptions=("the update streams: the arrays in flight are not counted", "transfers take time"),
    )  # fmt: skip


def _moments(roles: Roles) -> Iterator[Change]:
    """First moments in bfloat16, where optax's own names say which arrays those are."""
    if roles.state is None:
        return
    for word, option in _MOMENTS.items():
        found = [
            a for a in roles.state.found
            if word in _WORDS.findall(a.path) and a.parameter is not None and a.parameter.shape.dtype in _WIDE
        ]  # fmt: skip
        if not found:
            continue
        group = roles.group(found, "by their paths")
        width = {_WIDE[a.parameter.shape.dtype] for a in found if a.parameter is not None}
        if len(width) != 1:
            continue
        saved = group.bytes - group.bytes * _NARROW_BYTES // width.pop()
        yield Change(
            "dtype", f"first moments ({word})", f"keep {word} in bfloat16 ({option}=jnp.bfloat16 of the optimizer)",
            f"{_what(group)} have {word} in their paths; in two bytes an element they are {group.bytes - saved:,}",
            "estimate", resident=-saved, assumptions=("the update around them is planned as it is",),
        )  # fmt: skip


def _over_devices(replay: Replay, roles: Roles) -> Iterator[Change]:
    """On one device: parameters and optimizer state shared among several, each array that divides."""
    if replay.evidence.reading.device_count > 1:
        return
    state, parameters = ((*group.found,) if group is not None else () for group in (roles.state, roles.parameters))
    together = "parameters and optimizer state" if state else "parameters"
    for label, found in (("optimizer state", state), (together, (*parameters, *state) if parameters else ())):
        if not found:
            continue
        saved: dict[int, int] = {}
        count = 0
        for devices in _DEVICES:
            divided = [
                a for a in found
                if a.parameter is not None and any(d % devices == 0 and d >= devices for d in a.parameter.shape.dims)
            ]  # fmt: skip
            count = len(divided)
            saved[devices] = roles.group(divided, "").bytes * (devices - 1) // devices
        before = replay.peak()
        each = ", ".join(
            f"{before - replay.peak(resident=-size):,} bytes over {n} devices" for n, size in saved.items()
        )
        most = _DEVICES[-1]
        yield Change(
            "shard", label, f"shard {label} over {most} devices, or over {_DEVICES[0]} or {_DEVICES[1]}",
            f"{count:,} of {len(found):,} arrays have a dimension that divides; a share each saves {each}", "estimate",
            resident=-saved[most],
            assumptions=("what is gathered for use, and gradients that are divided too, are not counted",),
        )  # fmt: skip


def _released(replay: Replay, roles: Roles) -> Iterator[Change]:
    """Gradients of parameters that wait for the update: each applied, and released, as soon as it is made."""
    if roles.parameters is None or not roles.trains:
        return
    shapes = {a.parameter.shape.size for a in roles.parameters.found if a.parameter is not None}
    flow, edits, waiting = replay.purposes.flow, [], 0
    for held in replay.held:
        shape = held.at.shape.at(held.index) if held.at is not None else None
        if held.at is None or held.kind.name != GRADIENT or shape is None or shape.is_tuple or held.bytes < _LARGE:
            continue
        if shape.size not in shapes or (roles.batch is not None and roles.batch.times(held.at, held.index)):
            continue
        stacked = next(
            (s for s in flow.reach(Value(held.at, held.index)).slots[:4] if replay.purposes.change(s)[0] == "stacked"),
            None,
        )
        if stacked is not None:
            loop = replay.evidence.graph.loops.get(stacked.loop.id)
            trips = loop.trips if loop is not None else None
            if isinstance(trips, int) and trips > 1:
                edits.append(whole(held, held.bytes // trips))
                waiting += held.bytes
        elif held.span.first + 2 < held.span.end:  # the event that makes it and the one that reads it
            edits.append(Edit(held.span.first + 2, held.span.end, -held.bytes))
            waiting += held.bytes
    if edits:
        yield Change(
            "release", "gradients", "apply the update of each layer as soon as its gradient is made",
            f"{some(len(edits), 'gradient')} of a parameter's size, {waiting:,} bytes, before the update; each would "
            "leave after the step that makes it, a stack over layers but for one layer", "estimate", tuple(edits),
            assumptions=("no norm over all gradients is needed first", "the update around them is planned as it is"),
        )  # fmt: skip


def _batch(replay: Replay, roles: Roles) -> Iterator[Change]:
    """Half of the batch: at a time, with the gradients summed, or altogether."""
    batch = roles.batch
    if batch is None or batch.size < 2 or batch.size % 2:
        return
    edits, grows, unsure, inside = [], 0, 0, replay.inside_arguments(batch.times)
    for held in replay.held:
        times = max((batch.times(*value) for value in replay.values(held)), default=0)
        if not times and held.at is not None and held.kind.name == COPY:
            # It makes room for the batch in the argument's memory, where smaller values would lie in its stead here.
            source = argument_of(batch.module, held.at)
            times = inside.get(source.number, 0) if source is not None else 0
        if times:
            edits.append(whole(held, held.bytes >> times))
            grows += held.bytes
        elif any(batch.undecided(*value) for value in replay.values(held)):
            unsure += held.bytes
    size = batch.size
    given = [a for a in roles.arguments if a.parameter is not None and batch.times(a.parameter)]
    halves = sum(a.bytes - (a.bytes >> batch.times(a.parameter)) for a in given if a.parameter is not None)
    results = sum(own - (own >> times) for own, times in roles.results_with_batch())
    what = f"{some(len(edits), 'buffer')} of the heap, {grows:,} bytes, with the batch, by the data's first dimension"
    what += f" (of {unsure:,} bytes more it cannot be told)" if unsure else ""
    if roles.trains and edits and roles.parameters is not None:
        sums = sum(a.bytes for a in roles.parameters.found)
        yield Change(
            "accumulate", "batch", "accumulate gradients over two halves of the batch",
            f"{what}: these are halved; {sums:,} bytes of summed gradients are added", "estimate", tuple(edits),
            resident=sums, assumptions=("the loop over the halves is planned as the step is",),
        )  # fmt: skip
    yield Change(
        "batch", "batch", f"a batch of {size // 2} instead of {size} a device",
        f"{what}: these are halved, and {len(given):,} arguments and the results that hold it lose "
        f"{halves + results:,} bytes", "estimate", tuple(edits), resident=-halves - results,
        assumptions=(f"{size}, the first dimension of the data, is the batch", "smaller shapes are planned alike"),
    )  # fmt: skip
