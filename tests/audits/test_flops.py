"""The audit's FLOPs and primitives: what the sections say, and what they leave in findings and unknowns."""

from __future__ import annotations

import json

import pytest

from jaxcost.audits import flops
from jaxcost.audits.evidence import Notes, gather
from jaxcost.observation.pool import Pool
from jaxcost.observation.sources import Program
from tests.observation.hlo.building import Program as ByHand
from tests.observation.hlo.building import dot, loop
from tests.observation.hlo.counting import Compiled
from tests.observation.hlo.flop_programs import TASK


@pytest.fixture(scope="module")
def programs():
    with Pool(allow=(TASK.partition(":")[0],), timeout_seconds=300) as pool:
        yield Compiled(pool)


def audited(program, platform="cpu"):
    data = program if isinstance(program, bytes) else program.bytes()
    evidence, notes = gather(Program("proto", "hand", data, platform)), Notes()
    section = flops.section(evidence, notes)
    json.dumps([section, notes.findings, notes.unknowns])  # plain data alone
    return section, flops.primitives(evidence, notes), notes


def test_a_known_program_has_one_number_and_no_reasons():
    program = ByHand()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    section, _, notes = audited(program)
    assert section["total"] == section["minimum"] == section["maximum"] == 5 * 48
    assert section["by_class"] == {
        "contraction": 240, "elementwise_product": 0, "convolution": 0, "linear_algebra": 0, "kernel": 0,
    }  # fmt: skip
    assert section["by_dtype"] == {"f32 -> f32": 240}
    assert section["by_scope"] == [{"scope": "", "phase": "forward", "flops": 240, "minimum": 240}]
    (row,) = section["rows"]
    assert (row["flops"], row["executions"], row["total"], row["basis"]) == (48, 5, 240, "shape")
    assert (section["reason"], section["reasons"], notes.unknowns) == ("", {}, [])


def test_an_opaque_kernel_takes_the_total_and_leaves_what_is_certain():
    program = ByHand()
    program.computation("entry")
    dot(program, 2, 3, 4)
    program.add("custom-call", ("f32", 7), [], custom_call_target="mystery", op_name="jit(f)/attn/ffi_call")
    section, _, notes = audited(program)
    assert (section["total"], section["minimum"], section["maximum"]) == (None, 48, None)
    assert "mystery" in section["reason"] and section["by_class"]["kernel"] is None
    assert section["by_class"]["contraction"] == 48
    (unknown,) = notes.unknowns
    assert (unknown["kind"], unknown["target"], unknown["scope"], unknown["shapes"], unknown["voids_total"]) == (
        "kernel", "mystery", "attn", ["f32[7]"], True,
    )  # fmt: skip
    assert "hidden_primitives" in [finding["kind"] for finding in notes.findings]


def test_branches_are_an_interval_with_its_reason():
    program = ByHand()
    branches = []
    for n in (4, 8):
        branches.append(program.computation(f"branch{n}"))
        program.add("parameter", ("f32",))
        dot(program, 2, 3, n)
        program.add("constant", ("f32",))
    program.computation("entry")
    which, x = program.add("parameter", ("s32",)), program.add("parameter", ("f32",), parameter_number=1)
    program.add("conditional", ("f32",), [which, x, x], branches)
    section, _, notes = audited(program)
    assert section["total"] == {"minimum": 48, "maximum": 96} and "conditional" in section["reason"]
    assert (section["minimum"], section["maximum"], notes.unknowns) == (48, 96, [])


def test_a_host_callback_is_listed_and_the_total_stands():
    program = ByHand()
    program.computation("entry")
    dot(program, 2, 3, 4)
    program.add("custom-call", ("f32", 7), [], custom_call_target="xla_ffi_python_cpu_callback")
    section, _, notes = audited(program)
    assert section["total"] == 48
    assert [(u["kind"], u["voids_total"]) for u in notes.unknowns] == [("host", False)]


def test_linear_algebra_names_its_convention_and_an_iteration_its_estimate():
    program = ByHand()
    program.computation("entry")
    a = program.add("parameter", ("f32", 16, 16))
    program.add("custom-call", [("f32", 16, 16), ("s32",)], [a], custom_call_target="lapack_spotrf_ffi")
    section, _, _ = audited(program)
    assert section["total"] == section["by_class"]["linear_algebra"] == 1496
    (convention,) = section["conventions"]
    assert "Cholesky" in convention and "Working Note 41" in convention
    square = [("f32", 16, 16), ("f32", 16), ("s32",)]
    program.add("custom-call", square, [a], custom_call_target="lapack_ssyevd_ffi")
    section, _, notes = audited(program)
    assert (section["total"], section["minimum"]) == (None, 1496)
    assert notes.unknowns[0]["estimate"] == 9 * 16**3 and "Golub" in notes.unknowns[0]["convention"]


@pytest.mark.parametrize("kind", ["compiled_dense", "elementwise_products", "estimate"])
def test_findings_of_compiled_programs(programs, kind):
    name, total, words = {
        "compiled_dense": ("ragged", 8 * 4_194_304, ("8 groups", "4,194,304")),
        "elementwise_products": ("outer", 2 * 64 * 128, (f"{2 * 64 * 128:,}", "multiply and reduce")),
        "estimate": ("sort", 0, ("n log2 n",)),
    }[kind]
    section, _, notes = audited(programs.hlo(name, "cpu:1"))
    assert section["total"] == total
    (finding,) = (found for found in notes.findings if found["kind"] == kind)
    assert all(word in finding["text"] for word in words)
    if kind == "compiled_dense":
        assert section["active"] == 4_194_304 and section["rows"][0]["active_flops"] == 4_194_304


@pytest.mark.cuda
def test_padding_that_the_compiler_wrote_out_is_a_finding(programs):
    section, _, notes = audited(programs.hlo("conv one-sided", "h100:1"), "cuda")
    (finding,) = (found for found in notes.findings if found["kind"] == "padding")
    (row,) = section["rows"]
    assert finding["flops"] == row["flops"] - row["logical_flops"] > 0


def test_primitives_are_plain_counts_beside_the_flops(programs):
    section, primitives, _ = audited(programs.hlo("unary", "cpu:1"))
    assert section["total"] == 0
    assert primitives == {"add": 1024, "exp": 1024, "multiply": 1024, "rsqrt": 1024, "tanh": 1024}
    _, primitives, _ = audited(programs.hlo("fori", "cpu:1"))
    assert primitives["tanh"] is None


def test_only_the_largest_are_listed_and_the_sums_hold_all(monkeypatch):
    program = ByHand()
    program.computation("entry")
    for n in range(1, 6):
        dot(program, 2, 3, n)
    monkeypatch.setattr(flops, "LISTED", 2)
    section, _, _ = audited(program)
    assert [row["flops"] for row in section["rows"]] == [60, 48]
    assert section["instructions"] == 5 and section["total"] == 12 * 15


def test_rows_that_are_not_listed_are_counted_and_summed(monkeypatch):
    program = ByHand()
    program.computation("entry")
    for columns in (1, 2, 3):
        dot(program, 2, 3, columns)
    assert audited(program)[0]["not_listed"] == {"count": 0, "total": 0}
    monkeypatch.setattr(flops, "LISTED", 1)
    section, _, _ = audited(program)
    assert [row["total"] for row in section["rows"]] == [36]
    assert section["not_listed"] == {"count": 2, "total": 12 + 24}
