"""Memory of programs nobody here wrote: required and live bytes, arguments, constants, tiles, the host, the classes.

Expected bytes are products of the shapes written here; temporaries and peaks of H04 and H07 are the compilers' own, as
published with those cases for jax 0.10.2.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.audits.audit import audit
from tests.audits.compiled_programs import array

CUDA = pytest.param("h100", marks=pytest.mark.cuda)
TPU = pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu)
EVERYWHERE = ["cpu", CUDA, TPU]
MIB = 2**20


def adds_up(memory):
    """What must hold of any program: parts sum to their whole, and no peak is below what is there throughout."""
    resident = memory["required_bytes"] - memory["temp_bytes"]
    assert memory["argument_bytes"] + memory["temp_bytes"] <= memory["required_bytes"]
    assert resident <= memory["live_peak_bytes"] <= memory["required_bytes"]
    assert memory["required_bytes"] == memory["live_peak_bytes"] + memory["fragmentation_bytes"]
    for rows in (memory["by_class"], memory["by_source"], memory["at_peak"]):
        assert sum(row["bytes"] for row in rows) == memory["live_peak_bytes"]
    assert {name: size for name, size in memory["by_class_at_peak"].items() if size} == {
        row["class"]: row["bytes"] for row in memory["by_class"]
    }
    for row in memory["savings"]["rows"]:
        assert row["peak_after_bytes"] == memory["live_peak_bytes"] - row["saves_bytes"]
        assert 0 <= (row["at_least_bytes"] or 0) <= row["saves_bytes"] and row["derivation"] and row["action"]
    return memory


def subtract(p, g):
    return p - 0.1 * g


def layers(checkpoint, depth=16, products=3):
    """The gradient of a scan over layers of two or three products with one weight (H04c and its siblings)."""

    def layer(x, w):
        for function in (jnp.tanh, jnp.sin, jnp.tanh)[:products]:
            x = function(x @ w)
        return x, None

    body = jax.checkpoint(layer) if checkpoint else layer
    return jax.grad(lambda ws, x: jax.lax.scan(body, x, ws)[0].sum()), (array(depth, 512, 512), array(4096, 512))


# H04 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", EVERYWHERE)
def test_donation_lowers_the_peak_by_one_array(pool, target):
    p = array(1024, 1024)
    kept = adds_up(audit(subtract, p, p, target=target, pool=pool).memory)
    given = adds_up(audit(subtract, p, p, target=target, pool=pool, donate_argnums=0).memory)
    for memory, alias, peak in ((kept, 0, 12 * MIB), (given, 4 * MIB, 8 * MIB)):
        assert (memory["argument_bytes"], memory["output_bytes"]) == (8 * MIB, 4 * MIB)
        assert (memory["alias_bytes"], memory["live_peak_bytes"], memory["required_bytes"]) == (alias, peak, peak)


@pytest.mark.parametrize("target", EVERYWHERE)
def test_a_donated_argument_of_another_dtype_is_reused_by_nothing(pool, target):
    seen = audit(
        lambda p, g: p.astype("float32") - 0.1 * g, array(1024, 1024, dtype="bfloat16"), array(1024, 1024),
        target=target, pool=pool, donate_argnums=0,
    )  # fmt: skip
    memory = adds_up(seen.memory)
    assert (memory["alias_bytes"], memory["argument_bytes"]) == (0, 6 * MIB)
    (row,) = memory["donation"]["arguments"]
    assert (row["path"], row["used"], row["reason"], row["bytes"]) == ("p", False, "dtype", 2 * MIB)
    assert memory["donation"]["in_vain_bytes"] == 2 * MIB
    assert any(f["kind"] == "donation" and "donated in vain" in f["text"] for f in seen.findings)


@pytest.mark.parametrize(
    ("target", "temp", "peak", "remat"),
    [
        ("cpu", 983_564_612, 1_025_507_364, 186_646_784),
        pytest.param("h100", 990_905_432, 1_032_847_368, 193_987_368, marks=pytest.mark.cuda),
        # The TPU compiler's own temp_size_in_bytes; what lies in device memory is 159,408 bytes less, by its plan.
        pytest.param("tpu-v5e:1x1", 738_488_320, 780_146_688, 67_335_168, marks=pytest.mark.tpu),
    ],
)
def test_the_peak_of_a_scan_holds_its_temporaries(pool, target, temp, peak, remat):
    """H04c, and H07: a checkpoint in a scan lowers them."""
    function, arguments = layers(False)
    memory = adds_up(audit(function, *arguments, target=target, pool=pool).memory)
    again = adds_up(audit(layers(True)[0], *arguments, target=target, pool=pool).memory)
    assert memory["argument_bytes"] == 24 * MIB
    assert memory["live_peak_bytes"] == peak
    assert memory["required_bytes"] >= memory["argument_bytes"] + memory["temp_bytes"]
    if target.startswith("tpu"):
        assert 0 <= temp - memory["temp_bytes"] < 2**18 and 0 <= remat - again["temp_bytes"] < 2**18
    else:
        assert (memory["temp_bytes"], again["temp_bytes"]) == (temp, remat)


@pytest.mark.tpu
def test_temporaries_on_the_chip_are_told_apart(pool):
    """H04's counter-example: the compiler says temp 0, and its peak less arguments and results is 75,502,592: VMEM."""
    function, arguments = layers(True, depth=8, products=2)
    memory = adds_up(audit(function, *arguments, target="tpu-v5e:1x1", pool=pool).memory)
    spaces = {row["space"]: row["bytes"] for row in memory["by_space"]}
    assert memory["all_spaces_peak_bytes"] - memory["argument_bytes"] - 8 * MIB == 75_502_592
    assert memory["live_peak_bytes"] < 25 * MIB + 2**16 and spaces["on chip"] > 75_000_000
    assert spaces["device"] == memory["required_bytes"]


# H05 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_an_unused_argument_stays_with_the_caller(pool, target):
    def square(x, y):
        return x**2

    pruned = audit(square, array(), array(4096, 4096), target=target, pool=pool)
    kept = audit(square, array(), array(4096, 4096), target=target, pool=pool, keep_unused=True)
    assert adds_up(pruned.memory)["argument_bytes"] == 4
    assert adds_up(kept.memory)["argument_bytes"] == 67_108_868
    section = pruned.memory["pruned"]
    assert (section["bytes"], [row["path"] for row in section["arguments"]]) == (67_108_864, ["y"])
    assert any(f["kind"] == "pruned" and f["bytes"] == 67_108_864 for f in pruned.findings)
    assert kept.memory["pruned"]["bytes"] == 0


# H06 --------------------------------------------------------------------------------------------------------------


@pytest.mark.tpu
def test_tiles_pad_arguments_as_the_compiler_lays_them_out(pool):
    shapes = array(100, 100), array(50257, 768), array(4096, 8, 4, dtype="int32")
    seen = audit(lambda a, b, c: (a.sum(), b.sum(), c.sum()), *shapes, target="tpu-v5e:1x1", pool=pool).memory
    padded = {row["name"]: (row["logical_bytes"], row["bytes"]) for row in adds_up(seen)["padding"]["rows"]}
    assert padded["a"] == (40_000, 53_248) and padded["b"] == (154_389_504, 154_411_008)
    assert "c" not in padded  # a T(4,128) layout: padding follows the layout, not the shape
    assert seen["argument_bytes"] == 53_248 + 154_411_008 + 524_288
    assert seen["padding"]["argument_bytes"] == 13_248 + 21_504


@pytest.mark.tpu
def test_a_temporary_thirty_two_times_its_size(pool):
    from jax.experimental.layout import Layout, with_layout_constraint

    def program(x):
        wide = jnp.broadcast_to(x[:, None, :, None, None], (2048, 1, 128, 128, 4)) * 2
        wide = jax.lax.optimization_barrier(with_layout_constraint(wide, Layout(major_to_minor=(0, 1, 2, 3, 4))))
        return (wide + x[:, None, :, None, None]).sum()

    seen = audit(program, array(2048, 128, dtype="int32"), target="tpu-v5p:1x1x1", pool=pool)
    memory = adds_up(seen.memory)
    row = memory["at_peak"][0]
    assert (row["shape"], row["logical_bytes"], row["bytes"]) == ("s32[2048,1,128,128,4]", 512 * MIB, 16 * 2**30)
    saving = next(row for row in memory["savings"]["rows"] if row["kind"] == "padding")
    assert saving["saves_bytes"] == 16 * 2**30 - 512 * MIB and saving["bound"] == "upper"
    assert any(f["kind"] == "padding" for f in seen.findings)


# H07 --------------------------------------------------------------------------------------------------------------


def ten_layers(kind):
    def network(x, ws):
        def layer(x, w):
            return jax.nn.relu(w @ x + 1)

        each = jax.checkpoint(layer) if kind == "layer" else layer
        for i in range(10):
            x = each(x, ws[i])
        return x.sum()

    return jax.value_and_grad(jax.checkpoint(network) if kind == "whole" else network)


def test_a_checkpoint_in_straight_line_code_saves_nothing_on_cpu(pool):
    arguments = array(1000, 1000), array(10, 1000, 1000)
    temp = {
        kind: adds_up(audit(ten_layers(kind), *arguments, pool=pool).memory)["temp_bytes"]
        for kind in ("none", "whole", "layer")
    }
    assert temp == {"none": 84_000_000, "whole": 88_000_000, "layer": 84_000_000}


def test_no_checkpoint_is_proposed_where_it_would_save_nothing(pool):
    for kind in ("none", "whole", "layer"):
        rows = audit(ten_layers(kind), array(1000, 1000), array(10, 1000, 1000), pool=pool).memory["savings"]["rows"]
        assert all(row["kind"] != "checkpoint" for row in rows)


@pytest.mark.cuda
def test_what_xla_itself_would_recompute(pool):
    """A program above the limit of XLA's own pass on its device: the second compile says what the defaults do."""

    def loss(ws, x):
        for w in ws:
            a = x @ w
            x = x + jnp.tanh(a) * jax.nn.sigmoid(a)
        return jnp.square(x).sum()

    weights = [array(1024, 1024, dtype="bfloat16")] * 12
    for rows, needed in ((1_000_000, True), (10_000, False)):
        x = array(rows, 1024, dtype="bfloat16")
        seen = audit(jax.grad(loss), weights, x, target="a6000", pool=pool)
        section = adds_up(seen.memory)["rematerialisation"]
        assert (section["expected"], section["fits"]) == (needed, not needed)
        assert (section["believed_bytes"] > section["limit_bytes"]) == needed
        assert (section["second"] is not None) == needed
        assert any(f["kind"] == "rematerialisation" for f in seen.findings) == needed
        if needed:
            assert section["second"]["live_peak_bytes"] < seen.memory["live_peak_bytes"]
            assert section["second"]["excess_flops"] > 0 and section["second"]["remat_instructions"] > 0


# What its author may not know of ----------------------------------------------------------------------------------

TABLE = np.arange(MIB, dtype=np.float32).reshape(1024, 1024)


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_captured_array_is_a_constant_of_the_module(pool, target):
    seen = audit(lambda x: jnp.tanh(x @ TABLE), array(256, 1024), target=target, pool=pool)
    section = adds_up(seen.memory)["constants"]
    assert (section["bytes"], section["captured_bytes"], section["captured_but_no_constant"]) == (4 * MIB, 4 * MIB, [])
    assert [(row["bytes"], row["captured"], row["copies"]) for row in section["rows"]] == [(4 * MIB, True, 1)]
    assert section["rows"][0]["source"].startswith("test_memory.py:")
    assert any(f["kind"] == "constant" and f["bytes"] == 4 * MIB for f in seen.findings)


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize(("dtype", "bits"), [("int4", 4), ("float8_e4m3fn", 8)])
def test_narrow_types_are_stored_as_narrow_as_they_are(pool, target, dtype, bits):
    def product(w, x):
        return x @ w.astype("bfloat16")

    seen = audit(product, array(1024, 1024, dtype=dtype), array(128, 1024, dtype="bfloat16"), target=target, pool=pool)
    (row,) = adds_up(seen.memory)["packing"]
    assert (row["name"], row["bytes"], row["bits_per_element"]) == ("w", MIB * bits // 8, bits)
    assert row["packed"] == (bits < 8)
    assert seen.memory["argument_bytes"] == MIB * bits // 8 + 128 * 1024 * 2


def offloaded():
    from jax.ad_checkpoint import checkpoint_name

    def layer(x, w):
        return jnp.tanh(jnp.sin(checkpoint_name(x @ w, "product"))), None

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["product"], offload_src="device",
        offload_dst="pinned_host",
    )  # fmt: skip
    body = jax.checkpoint(layer, policy=policy)
    return jax.grad(lambda ws, x: jax.lax.scan(body, x, ws)[0].sum())


@pytest.mark.parametrize("target", [CUDA, TPU])
def test_what_lies_on_the_host_is_not_in_device_bytes(pool, target):
    seen = audit(offloaded(), array(8, 512, 512), array(2048, 512), target=target, pool=pool)
    section = adds_up(seen.memory)["host"]
    assert section["bytes"] == 8 * 2048 * 512 * 4 and section["transfers"] == 2
    assert [(row["what"], row["shape"]) for row in section["rows"]] == [("temporary", "f32[8,2048,512]")]
    assert {row["space"]: row["bytes"] for row in seen.memory["by_space"]}["device"] == seen.memory["required_bytes"]


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_loop_that_writes_into_an_argument_starts_from_a_copy(pool, target):
    def program(state, x):
        written = jax.lax.fori_loop(
            0, 8, lambda i, c: jax.lax.dynamic_update_index_in_dim(c, x * i, i, 0), state
        )  # fmt: skip
        return written, state.sum()

    seen = audit(program, array(8, 1024, 256), array(1024, 256), target=target, pool=pool)
    (row,) = adds_up(seen.memory)["loop_copies"]
    assert (row["bytes"], row["where"], row["executions"]) == (8 * MIB, "before", 1)
    assert "argument state is not donated" in row["why"]
    assert any(f["kind"] == "loop_copy" for f in seen.findings)


@pytest.mark.parametrize("changed", [True, False])
def test_a_copy_that_a_loop_hands_on_unchanged_is_no_copy_of_its_state(changed):
    from jaxcost.audits.evidence import Notes, gather
    from jaxcost.audits.residents import loop_copies
    from jaxcost.observation.sources import Program
    from tests.observation.hlo.building import Program as ByHand

    state = [("s32",), ("f32", 1024)]
    made = ByHand()
    body = made.computation("body")
    given = made.add("parameter", state)
    counter, rows = (made.add("get-tuple-element", shape, [given], tuple_index=n) for n, shape in enumerate(state))
    after = made.add("negate", state[1], [rows]) if changed else rows
    made.add("tuple", state, [made.add("add", state[0], [counter, made.constant(1)]), after])
    condition = made.computation("condition")
    given = made.add("parameter", state)
    counter = made.add("get-tuple-element", state[0], [given], tuple_index=0)
    made.add("compare", ("pred",), [counter, made.constant(3)], comparison_direction="LT")
    made.computation("entry")
    copy = made.add("copy", state[1], [made.add("parameter", state[1])])
    made.add("while", state, [made.add("tuple", state, [made.constant(0), copy])], [body, condition])
    found = loop_copies(gather(Program("proto", "x", made.bytes(), "cpu")), Notes())
    assert [(row["bytes"], row["where"]) for row in found] == ([(4096, "before")] if changed else [])


def test_an_argument_returned_unchanged_is_there_twice(pool):
    memory = audit(lambda a, b: (jnp.transpose(a).T, b @ a), array(1024, 1024), array(1024, 1024), pool=pool).memory
    assert [(row["path"], row["result"], row["bytes"]) for row in adds_up(memory)["twice"]] == [("a", [0], 4 * MIB)]


# The peak by class ------------------------------------------------------------------------------------------------


def classes(memory):
    return {row["class"]: row["bytes"] for row in memory["by_class"]}


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_classes_of_a_scan_rest_on_its_loops(pool, target):
    function, arguments = layers(False)
    found = classes(audit(function, *arguments, target=target, pool=pool).memory)
    assert found["saved"] == 7 * 16 * 4096 * 512 * 4  # seven stacks: what JAX saves of each layer
    assert found["argument"] == 24 * MIB and found["result"] == 16 * MIB
    again = classes(audit(layers(True)[0], *arguments, target=target, pool=pool).memory)
    assert again["saved"] == 16 * 4096 * 512 * 4 and again["recomputed"] > 0


def test_classes_of_a_step_rest_on_paths_and_phases(pool):
    import optax

    optimizer = optax.adam(1e-3)

    def loss(params, x):
        for w in params["w"]:
            x = jnp.tanh(x @ w)
        return (x * x).mean()

    def step(params, opt_state, x):
        updates, opt_state = optimizer.update(jax.grad(loss)(params, x), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = {"w": [array(256, 256)] * 4}
    state = jax.eval_shape(optimizer.init, params)
    memory = adds_up(audit(step, params, state, array(512, 256), pool=pool, donate_argnums=(0, 1)).memory)
    found = classes(memory)
    given = {"parameter": 4 * 256 * 256 * 4, "optimizer": 2 * 4 * 256 * 256 * 4 + 4}
    for name, size in given.items():
        rows = [row for row in memory["at_peak"] if row["class"] == name and row["kind"] == "parameter"]
        assert sum(row["bytes"] for row in rows) == size
    activation = 512 * 256 * 4  # of the four the last is overwritten by its gradient, or not yet
    assert found["saved"] in (3 * activation, 4 * activation)
    assert memory["donation"]["used_bytes"] == sum(given.values())
    assert memory["donation"]["in_vain_bytes"] == 0
    lines = [row for row in memory["by_source"] if row["kind"] == "line"]
    assert lines and all(row["source"].startswith(("test_memory.py:", "optax/")) for row in lines)


def test_collectives_are_a_class_of_their_own(pool):
    mesh = jax.sharding.AbstractMesh((4,), ("d",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def program(w, x):
        return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole))

    seen = audit(program, array(1024, 1024, sharding=cut), array(512, 1024, sharding=cut), target="cpu:4", pool=pool)
    assert classes(adds_up(seen.memory))["collective"] == 4 * MIB


def test_without_a_heap_trace_the_peak_is_unknown():
    from jaxcost.audits import memory
    from jaxcost.audits.evidence import Notes, gather
    from jaxcost.observation.sources import Program

    compiled = jax.jit(layers(False, depth=2)[0]).lower(*layers(False, depth=2)[1]).compile()
    bare = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    notes = Notes()
    section = memory.section(gather(Program(origin="proto", name="bare", hlo=bare, platform="cpu")), notes)
    for name in ("live_peak_bytes", "required_bytes", "by_class", "by_source"):
        assert section[name] is None
    assert section["savings"]["rows"] == [] and "buffer assignment" in section["savings"]["reason"]
    assert section["donation"]["known"] is False and section["donation"]["in_vain_bytes"] is None
    assert [u["what"] for u in notes.unknowns] == ["live peak"]
    assert section["pruned"]["bytes"] is None and "call is not at hand" in section["pruned"]["reason"]
    assert section["constants"]["captured_bytes"] is None and section["host"]["bytes"] == 0


def test_what_a_lowered_stage_captured_is_unknown(pool):
    """Its constant stands in the module, whoever captured it; a function tells."""
    stage = jax.jit(lambda x: x @ TABLE).lower(array(64, 1024))
    section = audit(stage, pool=pool).memory["constants"]
    assert section["captured_bytes"] is section["captured_but_no_constant"] is None
    assert [(row["bytes"], row["captured"]) for row in section["rows"]] == [(4 * MIB, None)]


def test_temporaries_on_the_host_without_a_plan_are_unknown():
    from jaxcost.audits import residents
    from jaxcost.audits.arguments import bound_arguments
    from jaxcost.audits.evidence import Notes, gather
    from jaxcost.observation.sources import Program
    from tests.observation.hlo.building import Program as ByHand

    def host(where):
        made = ByHand()
        made.computation("entry")
        given = made.add("parameter", ("f32", 1024))
        away = made.add("negate", ("f32", 1024), [given])
        made.add("negate", ("f32", 1024), [away])
        for number in where:
            made.open.instructions[number].shape.layout.memory_space = 5
        evidence = gather(Program("proto", "x", made.bytes(), "tpu"))
        return residents.host(evidence, bound_arguments(evidence)[0], Notes())

    assert host([])["bytes"] == 0
    assert host([1])["bytes"] is None and host([0])["bytes"] == 4096
    assert [row["what"] for row in host([0, 2])["rows"]] == ["argument", "result"]
