"""What must be true of who holds what: state on a device, over the cluster, over stages; groups; gradients.

The oracle is `jaxcost.verify.recount_ownership`, a walk over ranks and arrays. Importing this module registers them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import BITS
from jaxcost.verify import recount
from jaxcost.verify import recount_ownership as walk
from jaxcost.verify.holding import at_most, declares, expect, ledger, totals


def _factored(case: Case) -> bool:
    return any(item.count not in ("dense", "scalar") for item in case.state.objects)


@declares("the state on the fullest device is that of a walk over ranks and arrays, role by role")
def owned_state_equals_the_walk(case: Case) -> None:
    """Compare bytes by role on the device, on its host, and over the cluster; factored moments are left out."""
    if _factored(case):
        return
    seen, seat = totals(case, "ownership"), walk.fullest(case)
    wanted: dict[str, int] = {}
    host = 0
    for item in walk.counted(case):
        own = walk.owned_bytes(case, item, seat)
        away = walk.on_host(case, item)
        host += own if away else 0
        wanted[item.role] = wanted.get(item.role, 0) + (0 if away else own)
    expect(dict(seen["by_role"]), wanted, "bytes by role on the fullest device")
    expect(seen["persistent_bytes"], sum(wanted.values()), "persistent bytes of the fullest device")
    expect(seen["host_bytes"], host, "bytes in the host memory of the fullest device")
    each = case.execution.device_count // case.execution.degree("pipeline")
    everywhere = sum(
        each * walk.owned_bytes(case, item, place) for place in walk.seats(case) for item in walk.counted(case)
    )
    expect(seen["cluster_bytes"], everywhere, "bytes over the cluster")


@declares("all devices together hold at least one copy, and at most what the fullest holds, each")
def the_cluster_holds_every_copy(case: Case) -> None:
    """Order global, cluster, and devices times the fullest; padding is never negative."""
    seen = totals(case, "ownership")
    at_most(seen["global_bytes"], seen["cluster_bytes"], "one global copy against the cluster")
    at_most(0, seen["padding_bytes"], "padding")
    if not case.execution.offload:  # the fullest device is that of device memory, not of host memory
        fullest = (seen["persistent_bytes"] + seen["host_bytes"]) * case.execution.device_count
        at_most(seen["cluster_bytes"], fullest, "the cluster against the fullest device on every device")
    sums = sum(row["fields"]["cluster_bytes"] for row in _objects(case))
    expect(sums, seen["cluster_bytes"], "cluster bytes of the objects")
    for row in _objects(case):
        divided = sum(row["fields"]["divided"].values())
        if case.execution.degree("pipeline") == 1:
            expect(divided, row["value"], f"bytes of {row['object']} by the axes that divide them")


def _objects(case: Case) -> list[Any]:
    return [row for row in ledger(case, "ownership")["rows"] if "cluster_bytes" in row["fields"]]


@declares("a higher ZeRO stage never leaves more state on a device", "training")
def zero_stages_only_shrink(case: Case) -> None:
    """Order the stages that a data axis allows."""
    stages = list(totals(case, "ownership")["by_zero_stage"].values())
    for more, less in pairwise(stages):
        at_most(less, more, "persistent bytes of a stage against the one before")


@declares("stages hold the model: parameters, FLOPs and layers sum to it, a tied table in two stages counting twice")
def stages_sum_to_the_model(case: Case) -> None:
    """Add up the ranks of a pipeline, and count the microbatches in flight by hand where the schedule is plain."""
    if case.execution.degree("pipeline") == 1:
        return
    seen, seats = totals(case, "ownership")["pipeline"], walk.seats(case)
    arch, plan, size = case.architecture, case.execution.pipeline, case.execution.degree("pipeline")
    tables = sum(seat.embedding or seat.head for seat in seats) - 1 if arch.tied else 0
    copied = tables * arch.vocabulary_size * arch.table_width
    by_rank = list(seen["parameters_by_rank"].values())
    expect(sum(by_rank), recount.unique_parameters(case) + copied, "parameters of all ranks")
    for rank, seat in enumerate(seats):
        stored = sum(tensor.scalars * layers for tensor, layers in walk.seated(case, seat))
        at_most(by_rank[rank], stored, f"parameters of rank {rank} against what is stored there")
    rows = [row["fields"] for row in ledger(case, "ownership")["rows"] if row["object"].startswith("pipeline rank")]
    expect(sum(row["flops"] for row in rows), totals(case, "flops")["total"], "FLOPs of all ranks")
    expect([sum(row["layers"]) for row in rows], [len(seat.layers) for seat in seats], "layers by rank")
    expect(max(row["flops_per_device"] for row in rows), totals(case, "flops")["per_device"], "FLOPs of the busiest")
    micro = case.workload.accumulate
    plain = {"gpipe": [micro] * size, "1f1b": [min(micro, size - rank) for rank in range(size)]}
    if plan.schedule in plain:
        expect(list(seen["in_flight_by_rank"].values()), plain[plan.schedule], "microbatches in flight")


@declares(
    "weights stand whole as declared: the group in use and those fetched ahead, or all of them without resharding"
)
def gathered_groups_equal_the_walk(case: Case) -> None:
    """List the gathers one by one; of single arrays fetched ahead, whose order is the program's, only bound them."""
    run, seat = case.execution, walk.fullest(case)
    if not walk.gathers(case, seat) or _factored(case):
        return
    seen = totals(case, "ownership")["fsdp"]
    wanted = walk.gathered_at_once(case, seat)
    if run.fsdp.group == "matrix" and run.fsdp.prefetch and run.fsdp.reshard:
        single = max(size for _, _, size in walk.gathers(case, seat))
        at_most(single, seen["gathered_at_once_bytes"], "the largest array against what stands whole")
        at_most(seen["gathered_at_once_bytes"], single * (1 + run.fsdp.prefetch), "what stands whole")
        return
    expect(seen["gathered_at_once_bytes"], wanted, "gathered bytes at once")


@declares("a row-parallel product leaves its full output on every rank, before its collective")
def partial_sums_keep_their_extent(case: Case) -> None:
    """Find the largest of the output projections, down projections and looked-up rows, none divided by the ranks."""
    if case.execution.degree("tensor") == 1 or case.workload.lengths is not None:
        return
    run, work, arch = case.execution, case.workload, case.architecture
    rows = work.batch * work.new_tokens // (work.accumulate * run.degree("data") * run.degree("fsdp"))
    widths = {arch.hidden_size, arch.table_width if arch.embedding_width else arch.hidden_size}
    width = BITS[case.state.compute_dtype] // 8
    wanted = rows // run.degree("context") * max(widths) * width
    expect(totals(case, "ownership")["tensor"]["largest_partial_bytes"], wanted, "the largest partial sum")


@declares("gradients are reduced once a step or once a microbatch, and stand whole until then", "training")
def gradients_wait_for_their_reduction(case: Case) -> None:
    """Compare what stands between microbatches with the walk."""
    item = next((item for item in case.state.objects if item.role == "gradient"), None)
    if item is None or _factored(case):
        return
    seen, run = totals(case, "ownership")["gradients"], case.execution
    expect(seen["between_microbatches_bytes"], walk.owned_bytes(case, item, walk.fullest(case)), "unreduced gradients")
    at_most(seen["reduced_bytes"], seen["between_microbatches_bytes"], "reduced against unreduced gradients")
    shared = run.degree("data") * run.degree("fsdp") * run.degree("context") > 1
    times = 1 if run.gradient_sync == "last_microbatch" else case.workload.accumulate
    expect(seen["reductions"], times if shared else 0, "reductions of a step")


@declares(
    "over a data axis every gradient crosses once, in two to four bytes an element, whatever copies rest", "training"
)
def one_gradient_is_reduced(case: Case) -> None:
    """Bound the payload of a plain data-parallel step in one microbatch; a tied table may cross in two parts."""
    run, payload = case.execution, totals(case, "collectives")["payload_bytes"]
    plain = run.degree("data") == run.device_count > 1 and not run.zero and run.sharding == "explicit"
    if not plain or case.workload.accumulate > 1 or payload is None:
        return
    tensors = recount.tensors(case, padded=True)
    trained = sum(tensor.scalars for tensor in tensors if not case.is_frozen(tensor.scope))
    twice = case.vocabulary_rows * case.architecture.table_width * case.architecture.tied
    at_most(2 * trained, payload, "two bytes for each trained scalar against the payload")
    at_most(payload, 4 * (trained + twice) + 4, "the payload against four bytes each, and the loss")


@declares("the step's inputs are its tokens and, with dropout, one key", "training")
def inputs_equal_the_walk(case: Case) -> None:
    """Count tokens (int32) and the key of two 32-bit words; a replay of dropout draws its masks from that key again."""
    rates = case.architecture.dropout
    drops = case.workload.dropout and any((rates.embedding, rates.attention, rates.residual))
    if case.workload.lengths is not None:
        return
    run, work = case.execution, case.workload
    rows = work.batch * work.new_tokens // (run.degree("data") * run.degree("fsdp") * run.degree("context"))
    expect(totals(case, "device")["input_bytes"], 4 * rows + 8 * drops, "input bytes of a device")
