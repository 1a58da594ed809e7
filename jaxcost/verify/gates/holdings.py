"""Checks on what is kept: learned arrays, numerical state, saved activations, the K/V cache, and what moves."""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.execution import Execution
from jaxcost.contracts.state import LIFECYCLE
from jaxcost.prediction.program import program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.state import CHECKPOINTED, state
from jaxcost.verify.gates.common import Items, Subject, at, each, equal, holds
from jaxcost.verify.gates.rows import is_peak

DIRECTIONS = ("read", "write")
MOMENTS = ("first_moment", "second_moment")


@holds("parameters.axes", "every learned array names its stored axes, one extent each, none of them of the workload")
def _axes(subject: Subject) -> Items:
    for ledger, row in subject.rows("parameters"):
        axes, shape = str(row.fields.get("axes", "")).split(), row.fields.get("shape", ())
        right = bool(axes) and len(axes) == len(shape) and not set(axes) & set("bstr") and bool(row.fields.get("dtype"))
        yield "" if right else f"{at(ledger, row)}: axes {axes} and shape {list(shape)}"


@holds(
    "parameters.aliases", "an alias names another row's array of as many scalars; every other row is its own storage"
)
def _aliases(subject: Subject) -> Items:
    rows = {row.object: row for _, row in subject.rows("parameters")}
    for name, row in rows.items():
        owner = rows.get(str(row.fields.get("storage")))
        if row.fields.get("alias"):
            right = owner is not None and owner is not row and not owner.fields["alias"] and owner.value == row.value
        else:
            right = owner is row
        yield "" if right else f"{name}: its storage is not said"
    tied = subject.case.architecture.tied
    yield equal("tied tables", sum(bool(row.fields.get("alias")) for row in rows.values()), int(tied))


@holds("state.declared", "the state is the objects of the policy and no other; the compute type adds none")
def _declared(subject: Subject) -> Items:
    objects = {item.name: item for item in subject.case.state.objects}
    rows = {row.object: row for _, row in subject.rows("state")}
    yield equal("state objects", sorted(rows), sorted(objects))
    for name, row in rows.items():
        want = objects[name].to_data() if name in objects else {}
        wrong = [
            key
            for key, value in want.items()
            if key in ("dtype", "copies", "placement") and row.fields.get(key) != value
        ]
        yield f"{at('state', row)}: {', '.join(wrong)} differ from the policy" if wrong else ""


@holds("state.roles", "a state row names role, basis, count rule and owner, and is alive between its birth and its end")
def _roles(subject: Subject) -> Items:
    for ledger, row in subject.rows("state"):
        named = all(row.fields.get(name) for name in ("role", "basis", "count", "owner"))
        item = next((item for item in subject.case.state.objects if item.name == row.object), None)
        alive = item is not None and list(row.fields.get("live_at", ())) == [at for at in LIFECYCLE if item.live_at(at)]
        yield (
            "" if named and alive and row.phase in LIFECYCLE else f"{at(ledger, row)}: its part in the run is not said"
        )


@holds("state.populations", "loaded, trainable and updated parameters are told apart, each within the one before")
def _populations(subject: Subject) -> Items:
    totals = subject.totals("state")
    loaded, trainable, updated = (totals.get(name) for name in ("loaded", "trainable", "updated"))
    yield equal("state.loaded", loaded, subject.totals("parameters")["unique"])
    yield equal("state.trainable", trainable, subject.totals("parameters")["trainable"])
    yield equal("state.updated", updated, trainable if subject.training else 0)
    for ledger, row in subject.rows("state"):
        basis = {"gradient": "trainable", "gradient_copy": "trainable", "parameter": "loaded"}
        yield equal(
            f"{at(ledger, row)}, basis", row.fields.get("basis"), basis.get(row.fields.get("role", ""), "updated")
        )


@holds(
    "state.lifecycle", "what is resident at each point of a run, and of each role, is the sum of what is alive there"
)
def _lifecycle(subject: Subject) -> Items:
    rows = [row for _, row in subject.rows("state")]

    def held(point: str, role: str = "") -> Any:
        here = [row for row in rows if point in row.fields.get("live_at", ()) and row.fields.get("placement") != "host"]
        kept = [row for row in here if row.fields.get("placement") != "checkpoint"]
        return sum(row.value for row in kept if not role or row.fields.get("role") == role)

    totals = subject.totals("state")
    for point in LIFECYCLE:
        yield equal(f"state.resident_bytes.{point}", totals["resident_bytes"].get(point), held(point))
    yield equal("state.bytes", totals["bytes"], held("in_first_step"))
    for role in dict.fromkeys(str(row.fields.get("role")) for row in rows):
        yield equal(f"state.by_role.{role}", totals["by_role"].get(role), held("in_first_step", role))


@holds(
    "state.moments", "Adam keeps two moments, each of as many scalars as are updated; other optimizers what they name"
)
def _moments(subject: Subject) -> Items:
    if subject.case.state.optimizer not in ("adam", "adamw"):
        return
    rows = [row for _, row in subject.rows("state")]
    for role in MOMENTS:
        found = [row for row in rows if row.fields.get("role") == role]
        yield equal(f"rows of {role}", len(found), 1)
        for row in found:
            want = subject.totals("parameters")["trainable"] + _trainable_padding(subject)
            yield equal(at("state", row), row.fields["scalars"], want)
            yield equal(f"{at('state', row)}, count", row.fields.get("count"), "dense")


def _trainable_padding(subject: Subject) -> Any:
    rows = [row for _, row in subject.rows("parameters") if row.fields["trainable"] and not row.fields["alias"]]
    return sum(row.fields["padding"] for row in rows)


@holds("state.checkpoint", "a checkpoint is a sum of its own: no gradient, nothing of the moment the memory is full")
def _checkpoint(subject: Subject) -> Items:
    rows = [row for _, row in subject.rows("state") if "after_release" in row.fields.get("live_at", ())]
    want = sum(
        row.value
        for row in rows
        if row.fields.get("placement") == "checkpoint"
        or (row.fields.get("placement") == "device" and row.fields.get("role") in CHECKPOINTED)
    )
    totals = subject.totals("state")
    yield equal("state.checkpoint_bytes", totals["checkpoint_bytes"], want)
    gradients = any("gradient" in row.fields.get("role", "") for _, row in subject.rows("state"))
    if gradients:
        yield "" if totals["checkpoint_bytes"] != totals["bytes"] else "a checkpoint holds the gradients"


@holds("state.global", "the global state does not know the mesh: on one device it is the same, row by row")
def _global(subject: Subject) -> Items:
    run = subject.case.execution
    alone = Execution(vocabulary_multiple=run.vocabulary_multiple, head_multiple=run.head_multiple, layers=run.layers)
    case = subject.case.replaced(execution=alone)
    found = {row.object: row.value for row in state(program(case)).rows}
    for ledger, row in subject.rows("state"):
        yield equal(at(ledger, row), row.value, found.get(row.object))


@holds("saved.needed_by", "every saved tensor names the gradients, backward passes or replays that need it")
def _needed_by(subject: Subject) -> Items:
    known = {op.scope for op in subject.prediction.program.ops}
    tensors = subject.prediction.program.tensors
    for ledger, row in subject.rows("activations"):
        if not is_peak(row):
            uses = row.fields.get("needed_by", ())
            right = bool(uses) and all(use.removeprefix("d ") in tensors or use.split(" ")[0] in known for use in uses)
            yield "" if right else f"{at(ledger, row)}: nothing is said to need it"


@holds("saved.lifetime", "every saved tensor names where it is born, its last use and its release")
def _saved_lifetime(subject: Subject) -> Items:
    for ledger, row in subject.rows("activations"):
        if not is_peak(row):
            uses, last = row.fields.get("needed_by", ()), row.fields.get("last_use")
            right = bool(row.fields.get("created")) and bool(last) and (not uses or last == uses[-1])
            yield "" if right else f"{at(ledger, row)}: no birth or last use"


@holds("saved.unique", "a saved storage is counted once, not once for each name or use")
def _saved_once(subject: Subject) -> Items:
    seen: set[tuple[str, str]] = set()
    for ledger, row in subject.rows("activations"):
        if not is_peak(row):
            key = (row.object, row.region)
            yield f"{at(ledger, row)}: counted twice" if key in seen else ""
            seen.add(key)


@holds("peak.cut", "a peak is the sum of what is alive at one moment, which it names")
def _cut(subject: Subject) -> Items:
    peaks = [row for _, row in subject.rows("activations") if is_peak(row)]
    yield "" if peaks else "no peak is derived"
    for row in peaks:
        alive = sum(row.fields["alive"].values())
        named = bool(row.fields.get("at")) or not row.value
        yield "" if named and alive == row.value else f"{row.object}: {row.value}, alive are {alive}"


@holds("peak.not_supplied", "without events no peak of them is given: unknown, and not zero")
def _not_supplied(subject: Subject) -> Items:
    found = subject.totals("activations").get("peak_bytes")
    supplied = subject.case.liveness is not None
    yield "" if (found is not None) == supplied else f"activations.peak_bytes is {found}, events supplied: {supplied}"


@holds("kv.extents", "every cached array names past, new and visible rows, which are the workload's; training has none")
def _kv_extents(subject: Subject) -> Items:
    work = subject.case.workload
    rows = list(subject.rows("kv_cache"))
    wanted = (work.past_tokens, work.new_tokens, work.visible_tokens)
    for ledger, row in rows:
        found = tuple(row.fields.get(name) for name in ("past_rows", "new_rows", "visible_rows"))
        yield equal(f"{at(ledger, row)}, past, new and visible rows", found, wanted)
    yield "" if bool(rows) != subject.training else f"{len(rows)} cached arrays in {work.phase}"


@holds(
    "kv.apart", "what the cache stores and what attention reads of it are rows of two ledgers, each with its own sum"
)
def _kv_apart(subject: Subject) -> Items:
    totals = subject.totals("kv_cache")
    low, whole, most = totals["minimum_bytes"], totals["bytes"], totals["allocated_bytes"]
    yield "" if low <= whole <= most else f"kv_cache: {low}, {whole} and {most} are out of order"
    for ledger, row in subject.rows("kv_cache"):
        moves = "direction" in row.fields or "multiplicity" in row.fields
        yield f"{at(ledger, row)}: is stored, and says it moves" if moves else ""
    reads = [row for _, row in subject.rows("traffic") if row.fields.get("schedule") != "one pass"]
    yield "" if reads else "no row of the attention schedule reads keys and values"


@holds("traffic.boundary", "every transfer names the two memories it passes between")
def _boundary(subject: Subject) -> Items:
    def right(row: Row) -> bool:
        return bool(row.fields.get("boundary"))

    yield from each(subject.rows("traffic", "collectives"), right, "no memory boundary")
    for ledger, row in subject.rows("ownership"):
        if "direction" in row.fields:
            yield "" if right(row) else f"{at(ledger, row)}: no memory boundary"


@holds("traffic.direction", "every transfer to or from the chip has one direction, and a multiplicity")
def _direction(subject: Subject) -> Items:
    def right(row: Row) -> bool:
        return row.fields.get("direction") in DIRECTIONS and type(row.fields.get("multiplicity")) is int

    return each(subject.rows("traffic"), right, "neither read nor written, or not how often")


@holds("traffic.schedule", "every transfer names its schedule, and its convention what that takes for granted")
def _schedule(subject: Subject) -> Items:
    plan = subject.case.workload.attention
    for ledger, row in subject.rows("traffic"):
        named = row.fields.get("schedule") in ("one pass", plan)
        said = row.convention.partition(": ")[2]
        yield "" if named and (said or not row.convention) else f"{at(ledger, row)}: under no schedule"


@holds("traffic.one_pass", "an isolated product moves three payloads: two operands read, one result written")
def _one_pass(subject: Subject) -> Items:
    moves: dict[tuple[str, str], list[str]] = {}
    for _, row in subject.rows("traffic"):
        if row.fields.get("schedule") == "one pass" and row.phase == "forward":
            moves.setdefault((row.scope, repr(row.fields["layers"])), []).append(str(row.fields.get("direction")))
    for key, ways in moves.items():
        right = ways.count("read") == 2 * ways.count("write")
        yield "" if right and len(ways) % 3 == 0 else f"traffic {key[0]}: moves {ways}"
