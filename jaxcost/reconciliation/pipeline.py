"""Stages as one program: what the SPMD form of GPipe does beyond a pipeline in which every rank does its own work only.

The ledgers are of a pipeline whose ranks wait in the bubble and hold their own end alone. One program for all ranks
cannot wait and cannot differ, so that each of its devices

- runs its stage in m + P - 1 ticks where m have a microbatch, forward, backward and under replay;
- holds embedding, final norm and head, and runs them on all microbatches at once;
- hands rows on in every tick, both ways, whichever rank it is; and the last stage's rows, and the gradient of the
  first one's, go to all ranks, for their ends.

Every amount follows from the ledgers, m and P. It is given only where the module shows a loop of m + P - 1 trips, the
array held, or the instruction that sends. What is compared is the ledger's worst device with the one program's device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.observation.observed import Observed
from jaxcost.prediction.collectives import rank_rows
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Row as LedgerRow
from jaxcost.prediction.sharding import on_rank, rank_bytes, worst_rank
from jaxcost.prediction.stages import Rank, ranks
from jaxcost.prediction.state import population
from jaxcost.reconciliation.rows import Explanation
from jaxcost.reconciliation.transfer_forms import Key, Need, Seen, as_evidence, listed

AXIS = "pipeline"
BUBBLE = "stages run in the bubble of their pipeline too"
ENDS = "both ends of the pipeline held by every rank"
Add = Callable[[Key, str, int, str], None]


def ticks(case: Case) -> int:
    """Return the ticks of the loop over stages, m + P - 1; 0 without stages."""
    size = case.execution.degree(AXIS)
    return case.workload.accumulate + size - 1 if size > 1 else 0


def bubble(
    prediction: Prediction, observed: Observed, scopes: Sequence[str], flops: int, compiled: bool
) -> Iterator[Explanation]:
    """Explain the FLOPs of a place inside of the stages, (P - 1) / m of those declared, by a loop that has the trips.

    In the jaxpr the equations of the place run a multiple of m + P - 1 times.
    """
    case = prediction.case
    count, micro = ticks(case), case.workload.accumulate
    if not count or not flops or flops % micro:
        return
    if compiled:
        loops = [row for row in observed.data["hlo"]["loops"] if row["trips"] == count and _over_stages(row)]
        shown = listed(f"{row['instruction']} ({row['op_name']})" for row in loops)
    else:
        rows = [row for row in observed.data["jaxpr"]["rows"] if row["scope"] in scopes and row["flops"]]
        loops = [row for row in rows if row["total"] is not None and not row["total"] // row["flops"] % count]
        loops = loops if len(loops) == len(rows) else []
        shown = f"{len(loops)} equations, each run a multiple of {count} times"
    if loops:
        size = case.execution.degree(AXIS)
        evidence = f"{count} trips for {micro} microbatches and {size} stages: {shown}"
        yield Explanation(flops * (size - 1) // micro, BUBBLE, evidence)


def _over_stages(loop: Mapping[str, Any]) -> bool:
    """Whether a loop is the outermost one of the stages, and not one over the layers of a stage."""
    return str(loop["op_name"]).rpartition("shard_map")[2] == "/while"


def ends(prediction: Prediction, observed: Observed) -> tuple[Explanation, ...]:
    """Explain the state of the ends that the worst rank of the ledger does not hold, by the arguments of the module."""
    program, case = prediction.program, prediction.case
    if not ticks(case):
        return ()
    worst = worst_rank(program, case.execution.zero)
    both = Rank(worst.number, tuple(stage._replace(embedding=True, head=True) for stage in worst.stages))
    missing = [
        entry for entry in population(program, "loaded")
        if on_rank(program, entry, worst) is None and on_rank(program, entry, both) is not None
    ]  # fmt: skip
    items = [item for item in case.state.objects if item.role not in ("gradient", "gradient_copy")]
    amount = sum(rank_bytes(program, i, None, both) - rank_bytes(program, i, None, worst) for i in items)
    arguments = observed.data["hlo"]["arguments"]
    held = [[row for row in arguments if f".{path}" in f".{row['path']}."] for path in map(_path, missing)]
    if not amount or not all(held):
        return ()
    shown = listed(f"{row['path']} {row['shape']}" for rows in held for row in rows)
    return (Explanation(amount, ENDS, f"rank {worst.number} is compared ({worst.why()}); beside it: {shown}"),)


def _path(entry: Any) -> str:
    return str(entry.name).replace("/", ".") + "."


def take(
    prediction: Prediction, observed: Observed, needs: Sequence[Need], seen: Sequence[Seen], add: Add,
    need_of: Callable[[LedgerRow], Need],
) -> list[Need]:  # fmt: skip
    """Match what crosses between stages, and return what is left to match, other ranks' transfers with it."""
    case, program = prediction.case, prediction.program
    if not ticks(case):
        return list(needs)
    stored = {f"d {tensor.name}": f"d {tensor.storage}" for tensor in program.tensors.values()}

    def owner(need: Need) -> tuple[str, ...]:
        return _name(need, stored.get(need.object, need.object))

    left = list(needs)
    for rank in ranks(program):
        for need in map(need_of, rank_rows(program, rank)):
            if any(_name(need, need.object) == _name(other, other.object) for other in left):
                continue
            # A tied table's gradients of both ends are one array here, unless they are reduced before they are added.
            alike = [other for other in seen if other.key[:2] == need.key[:2] and other.elements == need.elements]
            if len(alike) < 2 and any(owner(need) == owner(other) for other in left):
                continue
            left.append(need)
            evidence = f"rank {rank.number} sends {need.object} ({need.phase}), and one program runs on all ranks"
            add(need.key, "other ranks", need.key.total, evidence)
    sides = [need for need in left if (need.key.kind, need.key.axes) == ("collective-permute", AXIS)]
    matched = [need for need in left if _crossing(case, need, seen, add) or _once(case, need, seen, add)]
    matched += [need for need in left if need not in matched and _whole_table(observed, need, seen, add)]
    if sides:
        for phase in ("forward", "backward"):
            _rows_for_ends(case, sides[0], phase, seen, add)
    return [need for need in left if need not in matched]


def _name(need: Need, array: str) -> tuple[str, ...]:
    return array, need.phase, need.key.kind, need.key.axes


def _crossing(case: Case, need: Need, seen: Sequence[Seen], add: Add) -> bool:
    """Rows handed to the next stage, or their gradient to the one before: in every tick."""
    if (need.key.kind, need.key.axes) != ("collective-permute", AXIS):
        return False
    times = need.key.times // case.workload.accumulate * ticks(case)
    for other in seen:
        same = not other.taken and other.key[:2] == need.key[:2] and other.key.times == times
        if same and (other.elements, other.phase) == (need.elements, need.phase) and _typed(need, other):
            _moved(need, other, need.elements, "every tick", add)
            add(need.key, "every tick", -need.key.total, as_evidence(other, need))
            return True
    return False


def _once(case: Case, need: Need, seen: Sequence[Seen], add: Add) -> bool:
    """The mean over devices of a loss that is computed once, of all microbatches."""
    if need.key.kind != "all-reduce" or need.object.startswith("d ") or need.scope.startswith("group"):
        return False
    times, rest = divmod(need.key.times, case.workload.accumulate)
    for other in seen if not rest and case.workload.accumulate > 1 else ():
        if not other.taken and other.key == need.key._replace(times=times) and other.dtype == need.dtype:
            _moved(need, other, need.elements, "once", add)
            add(need.key, "once", -need.key.total, as_evidence(other, need))
            return True
    return False


def _whole_table(observed: Observed, need: Need, seen: Sequence[Seen], add: Add) -> bool:
    """The sum of a tied table's two gradients, where each rank holds the table and makes both."""
    if (need.key.kind, need.key.axes) != ("all-reduce", AXIS) or any(other.key == need.key for other in seen):
        return False
    path = need.object.removeprefix("d ").replace("/", ".")
    held = [row for row in observed.data["hlo"]["arguments"] if str(row["path"]).endswith(path)]
    if held:
        add(need.key, "whole table", -need.key.total, listed(f"{row['path']} {row['shape']}" for row in held))
    return bool(held)


def _rows_for_ends(case: Case, side: Need, phase: str, seen: Sequence[Seen], add: Add) -> None:
    """One sum over ranks of the rows of all microbatches: of the last stage for the head, of the first's gradient."""
    elements = side.elements * case.workload.accumulate
    for other in seen:
        same = not other.taken and other.key[:2] == ("all-reduce", AXIS) and other.key.times == 1
        if same and (other.elements, other.phase) == (elements, phase) and _typed(side, other):
            _moved(side, other, elements, "rows for ends", add)
            return


def _typed(need: Need, other: Seen) -> bool:
    return other.dtype in (need.dtype, "fp32")


def _moved(need: Need, other: Seen, elements: int, change: str, add: Add) -> None:
    other.taken = True
    amount = payload_bytes(elements, need.dtype) * other.key.times
    add(other.key, change, amount, as_evidence(other, need))
    add(other.key, "wider type", other.key.total - amount, as_evidence(other, need))
