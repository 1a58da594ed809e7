"""Donation: why a donated argument is not reused, one reason each, and what could be donated."""

import jax
import pytest

from jaxcost.audits.audit import audit
from jaxcost.audits.donation import last_use, schedule
from jaxcost.audits.evidence import gather
from jaxcost.observation.sources import Program
from tests.audits.compiled_programs import array
from tests.observation.hlo.building import Program as ByHand


def given(pool, function, *arguments, **more):
    section = audit(function, *arguments, pool=pool, **more).memory["donation"]
    return section, {row["path"]: (row["reason"], row["result"]) for row in section["arguments"]}


TARGETS = [
    "cpu",
    pytest.param("h100", marks=pytest.mark.cuda),
    pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu),
]


@pytest.mark.parametrize("target", TARGETS)
def test_each_reason_has_its_name(pool, target):
    def program(cast, cut, same, reshaped, left, unused):
        return cast.astype("bfloat16"), cut[:300] * 2, same * 2, (reshaped + left).reshape(-1)

    arguments = (
        array(1024, 1024), array(700, 7), array(512, 512), array(256, 256), array(256, 256), array(64, 64)
    )  # fmt: skip
    section, rows = given(pool, program, *arguments, target=target, donate_argnums=(0, 1, 2, 3, 4, 5))
    assert rows["cast"] == ("dtype", None)
    assert rows["cut"] == ("shape", None)
    assert rows["same"] == (None, [2])
    assert rows["unused"] == ("unused", None)
    # JAX offers one of the two for the result of as many elements; whether XLA takes it is its own affair.
    assert {rows["reshaped"][0], rows["left"][0]} in ({None, "taken"}, {"dropped"})
    used = 4 * (512 * 512 + sum(256 * 256 for name in ("reshaped", "left") if rows[name][0] is None))
    assert section["used_bytes"] == used and section["donated"] == 6
    cut = 8 * 768 if target.startswith("tpu") else 7 * 700  # in tiles of 8 x 128, the 700 along the lanes
    assert section["in_vain_bytes"] == 4 * (1024**2 + cut + 512**2 + 2 * 256**2 + 64**2) - used


def test_two_arguments_for_one_result(pool):
    section, rows = given(pool, lambda a, b: a + b, array(64, 64), array(64, 64), donate_argnums=(0, 1))
    assert sorted(reason or "" for reason, _ in rows.values()) == ["", "taken"]
    assert section["in_vain_bytes"] == 64 * 64 * 4


def test_another_sharding(pool):
    mesh = jax.sharding.AbstractMesh((4,), ("d",))

    def over(*axes):
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    section, rows = given(
        pool, lambda a: a * 2, array(64, 64, sharding=over("d")), target="cpu:4", donate_argnums=0, out_shardings=over()
    )  # fmt: skip
    assert rows["a"] == ("sharding", None)
    assert section["in_vain_bytes"] == 64 * 64 * 4 // 4


def test_what_could_be_donated_is_paired_as_jax_pairs_it(pool):
    def program(a, b, other):
        return a + 1, b * 2, other[:3]

    section, rows = given(pool, program, array(32, 32), array(32, 32), array(7, 7))
    assert rows == {} and section["donated"] == 0
    assert [(p["path"], p["result"], p["bytes"], p["sure"]) for p in section["possible"]] == [
        ("a", [0], 4096, True), ("b", [1], 4096, True),
    ]  # fmt: skip
    both, _ = given(pool, program, array(32, 32), array(32, 32), array(7, 7), donate_argnums=(0, 1))
    assert (both["used_bytes"], both["possible"]) == (8192, [])


def test_an_argument_read_after_the_result_is_written_is_unsure(pool):
    def program(a):
        return a @ a

    section, _ = given(pool, program, array(256, 256))
    (row,) = section["possible"]
    assert not row["sure"] and "still reads it" in row["why"]


@pytest.mark.parametrize(("asynchronous", "place"), [(True, 3), (False, 1)])
def test_what_starts_a_transfer_reads_until_its_end(asynchronous, place):
    """A result written between start and end of a gather cannot lie in the gathered argument's memory."""
    made = ByHand()
    made.computation("entry")
    given = made.add("parameter", ("f32", 16))
    opcode, more = ("all-gather", {"dimensions": [0]})
    if asynchronous:
        start = made.add("all-gather-start", [("f32", 16), ("f32", 128)], [given], **more)
    else:
        start = made.add(opcode, ("f32", 128), [given], **more)
    other = made.add("constant", ("f32", 16))
    end = made.add("all-gather-done", ("f32", 128), [start]) if asynchronous else start
    made.add("tuple", [("f32", 16), ("f32", 128)], [other, end])
    module = gather(Program("proto", "x", made.bytes(), "cuda")).graph.module
    when, by = last_use(module.entry.parameters[0], schedule(module))
    assert (when, by.opcode) == (place, "all-gather-start" if asynchronous else "all-gather")
