"""Products computed alike by several devices: said of those, and of no product that is split."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcost
from jaxcost.audits.evidence import gather
from jaxcost.audits.replication import replicated, sizes_of
from jaxcost.observation.sources import Program
from tests.observation.hlo.building import Program as ByHand
from tests.observation.hlo.building import dot

DATA, GRID = AbstractMesh((8,), ("data",)), AbstractMesh((2, 4), ("data", "other"))


def array(dims, *spec, mesh=DATA):
    return jax.ShapeDtypeStruct(dims, "float32", sharding=NamedSharding(mesh, P(*spec)))


def chain(x, w, v):
    """The second product, whole, has as many FLOPs as an eighth of the first."""
    return jnp.sin(x @ w) @ v


def pair(x, w, y):
    return x @ w, y @ w


def scanned(x, ws):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0]


@partial(jax.shard_map, mesh=DATA, in_specs=(P("data"), P()), out_specs=P("data"))
def by_hand(x, w):
    return x @ w


FIRST = 2 * 64 * 32 * 512
PROGRAMS = {
    "split": (chain, array((64, 32), "data"), array((32, 512)), array((512, 4))),
    "whole": (chain, array((64, 32)), array((32, 512)), array((512, 4))),
    "one of two axes": (
        chain, array((64, 32), "data", mesh=GRID), array((32, 512), mesh=GRID), array((512, 4), mesh=GRID),
    ),
    "in a loop": (scanned, array((64, 32)), array((5, 32, 32))),
    "by hand": (by_hand, array((64, 32), "data"), array((32, 512))),
    "one split, one whole": (pair, array((64, 32), "data"), array((32, 512)), array((24, 32))),
    "which of two": (pair, array((64, 32), "data"), array((32, 512)), array((8, 32))),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("split", 0), ("whole", 7 * (FIRST + 2 * 64 * 512 * 4)), ("one of two axes", 3 * (FIRST + 2 * 64 * 512 * 4)),
        ("in a loop", 5 * 7 * 2 * 64 * 32 * 32), ("by hand", 0), ("one split, one whole", 7 * 2 * 24 * 32 * 512),
    ],
)  # fmt: skip
def test_copies_are_counted_where_there_are_some(pool, name, more):
    function, *arguments = PROGRAMS[name]
    data = jaxcost.audit(function, *arguments, target="cpu:8", pool=pool).data
    rows = data["jaxpr"]["differences"]
    assert [row["unexplained"] for row in rows] == [0] * len(rows)
    reasons = [reason for row in rows for reason in row["reasons"]]
    assert {reason["kind"] for reason in reasons} == ({"replicated"} if more else set())
    assert sum(reason["flops"] for reason in reasons) == more == 8 * data["flops"]["total"] - data["jaxpr"]["flops"]
    assert [f["flops"] for f in data["findings"] if f["kind"] == "replicated"] == ([more] if more else [])
    if more:  # what says the same is said once
        assert len(reasons) == 1 and reasons[0]["count"] == len(reasons[0]["evidence"])


def test_no_reason_where_two_equations_could_be_meant(pool):
    """A device's part of the first product has the sizes of the second, which is whole on each."""
    function, *arguments = PROGRAMS["which of two"]
    data = jaxcost.audit(function, *arguments, target="cpu:8", pool=pool).data
    (row,) = data["jaxpr"]["differences"]
    assert row["reasons"] == [] and row["unexplained"] == row["difference"] == 7 * 2 * 8 * 32 * 512
    assert not any(finding["kind"] == "replicated" for finding in data["findings"])


@pytest.mark.parametrize(
    ("more", "said"),
    [({}, 1), ({"executions": 2}, 0), ({"executions": 0}, 0), ({"executions": None}, 0),
     ({"executions": 2, "alike": 2}, 1), ({"executions": 2, "dead": True}, 1), ({"kernel": True}, 0)],
)  # fmt: skip
def test_copies_are_said_where_executions_are_those_asked_for(more, said):
    """One product, whole on each of two devices; fewer than asked for where some may be left out, and never more."""
    made = ByHand()
    made.computation("entry")
    dot(made, 2, 3, 5)
    evidence = gather(Program("proto", "x", made.bytes(), "cpu"))
    equation = {
        "batch": 1, "m": 2, "k": 3, "n": 5, "flops": 60, "executions": 1, "basis": "shape", "kernel": False,
        "dead": False, "repeats": False, "alike": 1,
    }  # fmt: skip
    products = {row.id: row for row in evidence.reading.contractions.rows}
    found = list(replicated(evidence.work.rows, products, [{**equation, **more}], 2))
    assert [(one.copies, one.flops) for one in found] == [(2, 60)] * said


def test_sizes_of_a_product_and_its_transpose():
    one = {"batch": 1, "m": 64, "k": 32, "n": 512}
    assert sizes_of(one) == sizes_of({**one, "m": 512, "n": 64}) == (1, 64, 512, 32)
    assert sizes_of({**one, "k": None}) is None
