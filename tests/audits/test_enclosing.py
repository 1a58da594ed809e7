"""Places that agree only together are one row; what agrees nowhere stays unexplained."""

from __future__ import annotations

import copy
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxcost.audits import jaxpr
from jaxcost.audits.enclosing import enclosed
from jaxcost.audits.evidence import Notes, gather
from jaxcost.observation.sources import Program
from jaxcost.observation.sources.functions import lower_function
from tests.observation.hlo.building import dump


def row(scope, unexplained, phase="forward", reasons=()):
    return {
        "scope": scope, "phase": phase, "jaxpr": 100, "compiled": 100 + unexplained, "difference": unexplained,
        "reasons": list(reasons), "unexplained": unexplained, "reason": "",
    }  # fmt: skip


def test_the_smallest_scope_that_closes():
    rows = [
        row("net/a/q", -10), row("net/a/k", -10), row("net/a", 20), row("net/b", 5, "backward"),
        row("net/b/w", -5, "backward"), row("net/c", 7, "replay"), row("net", -7), row("other", 1),
    ]  # fmt: skip
    found = {(r["scope"], r["phase"]): r for r in enclosed(rows)}
    assert set(found) == {("net/a", "forward"), ("net/b", "backward"), ("net", ""), ("other", "forward")}
    merged = found["net/a", "forward"]
    assert [place["scope"] for place in merged["places"]] == ["net/a/q", "net/a/k", "net/a"]
    assert (merged["jaxpr"], merged["compiled"], merged["difference"], merged["unexplained"]) == (300, 300, 0, 0)
    assert merged["reason"] == "named differently by the compiler: the sums of 3 places agree"
    assert found["other", "forward"] == rows[-1] and found["net", ""]["unexplained"] == 0


def test_names_that_only_begin_alike_do_not_enclose():
    rows = [row("net", 3), row("network", -3)]
    (found,) = enclosed(rows)
    assert found["scope"] == "" and len(found["places"]) == 2
    assert enclosed([row("net", 3), row("network", -4)]) == [row("net", 3), row("network", -4)]


def test_reasons_keep_their_amounts_and_unknown_places_stay():
    reason = {"kind": "merged", "flops": -4, "text": "once", "count": 1, "evidence": ["dot.1"]}
    first, second = row("net/a", -10, reasons=[reason]), row("net/b", 10, reasons=[{**reason, "evidence": ["dot.2"]}])
    first["difference"], second["difference"] = -14, 6
    unknown = {**row("net/c", 0), "compiled": None, "difference": None, "unexplained": None}
    merged, kept = enclosed([first, second, unknown])
    assert merged["reasons"] == [{**reason, "flops": -8, "count": 2, "evidence": ["dot.1", "dot.2"]}]
    assert merged["difference"] == -8 and kept == unknown


def two(x, w, v):
    with jax.named_scope("net"):
        with jax.named_scope("q"):
            a = x @ w
        with jax.named_scope("k"):
            return jnp.tanh(a) @ v


def test_a_module_with_other_names_than_its_jaxpr():
    arguments = [jax.ShapeDtypeStruct(dims, "float32") for dims in ((8, 16), (16, 32), (32, 4))]
    lowered, _ = lower_function(two, arguments, {}, platform="cpu", options={}, mesh=None)

    def differences(change):
        data = copy.deepcopy(dict(lowered.jaxpr))
        for found in (*data["by_scope_phase"], *data["rows"]):
            found["scope"] = found["scope"].replace("net/q", "net/z")
        change(data)
        program = Program("function", "f", dump(two, *arguments)[0], "cpu", lowered=replace(lowered, jaxpr=data))
        return jaxpr.section(gather(program), Notes())["differences"]

    (found,) = differences(lambda data: None)
    assert (found["scope"], found["phase"], found["unexplained"]) == ("net", "forward", 0)
    assert [place["difference"] for place in found["places"]] == [2 * 8 * 16 * 32, -2 * 8 * 16 * 32]

    def one_less(data):
        next(row for row in data["by_scope_phase"] if row["scope"] == "net/z")["flops"] -= 1

    rows = differences(one_less)  # nothing is closed by force
    assert [row["unexplained"] for row in rows] == [8192, -8191] and not any("places" in row for row in rows)
