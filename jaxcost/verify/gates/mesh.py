"""Checks on a mesh: global and local amounts apart, divisions that name their axis, collectives with their ends."""

from __future__ import annotations

from math import prod
from typing import Any

from jaxcost.contracts.execution import MESH_AXES
from jaxcost.contracts.mesh import program_mesh
from jaxcost.prediction.algorithms import ends
from jaxcost.prediction.rows import Row
from jaxcost.verify.gates.common import Items, Subject, at, equal, holds

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SCOPES = ("global_bytes", "cluster_bytes", "persistent_bytes")


def state_rows(subject: Subject) -> list[Row]:
    """Return the ownership rows of state objects."""
    return [row for _, row in subject.rows("ownership") if "zero" in row.fields]


@holds(
    "device.scopes",
    "what one device does or holds stands beside the global amount, and is it where there is one device",
)
def _scopes(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops", "activations", "device"):
        if "alive" in row.fields:
            continue
        here = row.per_device
        known = type(here) is int and here >= 0
        alike = here == row.value if subject.one_device and ledger != "activations" else True
        yield "" if known and alike else f"{at(ledger, row)}: {here} on a device of {row.value}"


@holds("ownership.scopes", "global, cluster and persistent bytes of one device are three totals, the peak a fourth")
def _four(subject: Subject) -> Items:
    totals, rows = subject.totals("ownership"), state_rows(subject)
    sums = {
        "global_bytes": sum(row.value for row in rows),
        "cluster_bytes": sum(row.fields["cluster_bytes"] for row in rows),
        "persistent_bytes": sum(row.per_device for row in rows),
        "host_bytes": sum(row.fields["host_bytes"] for row in rows),
    }
    for name, want in sums.items():
        yield equal(f"ownership.{name}", totals.get(name), want)
    yield "" if sums["cluster_bytes"] >= sums["global_bytes"] else "all devices together hold less than one copy"
    peak = subject.totals("device")["peak_bytes"]
    yield "" if {"lower", "expected", "upper"} <= set(peak) else "no peak beside the persistent bytes"


@holds(
    "ownership.divided", "every state object says by which mesh axes its bytes are divided, and over which they repeat"
)
def _divided(subject: Subject) -> Items:
    run = subject.case.execution
    for row in state_rows(subject):
        divided = row.fields.get("divided", {})
        repeated = row.fields.get("replicated_over", {})
        right = bool(divided) and set(divided) == set(repeated)
        for label in divided:
            cuts = {} if label == "whole" else dict(part.split("=") for part in label.split(" x "))
            named = {*cuts, *repeated.get(label, ())}
            right = right and named == set(run.mesh_sizes) - {"pipeline"}
            right = right and all(run.degree(axis) % int(degree) == 0 for axis, degree in cuts.items())
        yield "" if right else f"{at('ownership', row)}: divided by {divided}, repeated over {repeated}"


@holds(
    "ownership.shares", "of state on a mesh without stages, what is divided adds up, and a device has its share of each"
)
def _shares(subject: Subject) -> Items:
    run = subject.case.execution
    if run.degree("pipeline") > 1:
        return
    for row in state_rows(subject):
        divided = row.fields.get("divided", {})
        yield equal(f"{at('ownership', row)}, divided", sum(divided.values()), row.value)
        least = sum(-(-value // _degree(label)) for label, value in divided.items())
        own = row.per_device + row.fields["host_bytes"]
        right = least <= own and own * run.device_count >= row.value + row.fields["padding"]
        yield "" if right else f"{at('ownership', row)}: a device holds {own}, its share is {least}"


def _degree(label: str) -> int:
    return 1 if label == "whole" else prod(int(part.split("=")[1]) for part in label.split(" x "))


@holds("ownership.fsdp", "where weights are gathered, the group, resharding, prefetch and what stands whole are totals")
def _fsdp(subject: Subject) -> Items:
    run, totals = subject.case.execution, subject.totals("ownership")
    gathers = run.degree("fsdp") > 1 or run.zero == 3
    yield "" if ("fsdp" in totals) == gathers else f"weights are gathered: {gathers}, and the totals say otherwise"
    if gathers:
        found = totals["fsdp"]
        for name, want in (("group", run.fsdp.group), ("reshard", run.fsdp.reshard), ("prefetch", run.fsdp.prefetch)):
            yield equal(f"ownership.fsdp.{name}", found.get(name), want)
        for name in ("gathered_at_once_bytes", "largest_group_bytes"):
            yield "" if type(found.get(name)) is int else f"ownership.fsdp.{name} is missing"
        rows = [row for _, row in subject.rows("ownership") if "shard_bytes" in row.fields]
        yield "" if rows else "no group of gathered weights has a row"
    if subject.training:
        yield equal("ownership.gradients.sync", totals.get("gradients", {}).get("sync"), run.gradient_sync)


@holds(
    "ownership.tensor",
    "every product with a weight says how it is cut; one cut along what is summed names its collective",
)
def _tensor(subject: Subject) -> Items:
    if subject.case.execution.degree("tensor") == 1:
        return
    for ledger, row in subject.rows("ownership"):
        if "weight_shard_bytes" in row.fields:
            kind, collective = str(row.fields.get("kind")), row.fields.get("collective")
            right = bool(collective) == kind.endswith("row") and kind.split()[-1] in ("row", "column", "whole")
            yield "" if right else f"{at(ledger, row)}: {kind} with collective {collective!r}"


@holds("ownership.axes", "pipeline, sequence and context splits each have a total of their own, with what they split")
def _own_totals(subject: Subject) -> Items:
    run, totals = subject.case.execution, subject.totals("ownership")
    wanted = {
        "pipeline": (run.degree("pipeline") > 1, "schedule"),
        "sequence": (run.sequence_parallel, "stream_bytes"),
        "context": (run.degree("context") > 1, "method"),
        "tensor": (run.degree("tensor") > 1, "sliced_weights"),
    }
    for name, (there, fact) in wanted.items():
        right = (name in totals) == there and (not there or fact in totals[name])
        yield "" if right else f"ownership.{name}: {'missing' if there else 'there without its axis'}"


@holds("collectives.named", "every collective names its kind, its mesh axes and its participants, more than one")
def _named(subject: Subject) -> Items:
    known = {*MESH_AXES, "tensor_heads", "tensor_replica"}
    mesh = set(program_mesh(subject.case)) | set(subject.case.execution.mesh_sizes)
    for ledger, row in subject.rows("collectives"):
        axes = str(row.fields.get("axis", "")).split(",")
        right = row.fields.get("kind") in KINDS and set(axes) <= known
        right = right and all(axis in mesh or axis.startswith("tensor_") for axis in axes)
        right = right and type(row.fields.get("participants")) is int and row.fields["participants"] > 1
        yield "" if right else f"{at(ledger, row)}: {row.fields.get('kind')} over {axes}"


@holds("collectives.trips", "every collective says how often it runs: its layers times its microbatches")
def _trips(subject: Subject) -> Items:
    for ledger, row in subject.rows("collectives"):
        want: Any = row.fields["layers"] * row.fields["microbatches"]
        yield equal(f"{at(ledger, row)}, executions", row.fields.get("times"), want)


@holds(
    "collectives.ends", "what goes into a collective and comes out is its kind's part of the payload, apart from sends"
)
def _ends(subject: Subject) -> Items:
    for ledger, row in subject.rows("collectives"):
        fields = row.fields
        wanted = (
            ends(fields["kind"], fields["payload_bytes"], fields["participants"]) if fields.get("kind") in KINDS else ()
        )
        found = (fields.get("input_bytes"), fields.get("output_bytes"))
        sent = all(type(fields.get(name)) is int for name in ("ring_send_bytes", "tree_send_bytes"))
        right = not wanted or (found == tuple(wanted) and sent)
        yield "" if right else f"{at(ledger, row)}: {found} in and out, should be {wanted}"


@holds("collectives.reasons", "a collective joins a maker and a user: who made the array, and who waits for it")
def _reasons(subject: Subject) -> Items:
    for ledger, row in subject.rows("collectives"):
        right = bool(row.fields.get("made_by")) and bool(row.fields.get("needed_by"))
        yield "" if right else f"{at(ledger, row)}: made by or needed by nobody"


@holds("collectives.only_on_a_mesh", "one device sends nothing")
def _alone(subject: Subject) -> Items:
    if subject.one_device:
        found = subject.totals("collectives").get("payload_bytes")
        yield equal("collectives.payload_bytes on one device", found, 0)
