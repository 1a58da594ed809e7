"""Savings against the truth: the change is made, the program compiled again, and the two peaks compared."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.audits.audit import audit
from tests.audits.compiled_programs import array
from tests.audits.test_memory import layers

CUDA = pytest.param("h100", marks=pytest.mark.cuda)
TPU = pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu)


def rows_of(memory, kind):
    return {row["target"]: row for row in memory["savings"]["rows"] if row["kind"] == kind}


def holds(row, before, after):
    """Whether a saving is what its bound says."""
    saved = before["live_peak_bytes"] - after["live_peak_bytes"]
    if row["bound"] == "exact":
        return saved == row["saves_bytes"]
    return (row["at_least_bytes"] or 0) <= saved <= row["saves_bytes"]


def pass_on(x, unused):
    return jnp.tanh(x) + 1, unused.sum()


PROGRAMS = {
    "elementwise": (lambda p, g: p - 0.1 * g, (array(512, 512), array(512, 512))),
    "product": (lambda x, w: jnp.tanh(x @ w), (array(256, 256), array(256, 256))),
    "twice": (pass_on, (array(512, 512), array(64, 64))),
    "chain": (lambda x, y: (jnp.sort(x @ y, 0) + 1, y * 2), (array(256, 256), array(256, 256))),
    "scan": layers(False, depth=4),
}


@pytest.mark.parametrize("target", ["cpu", CUDA, TPU])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_donation_saves_what_was_said(pool, target, name):
    function, arguments = PROGRAMS[name]
    before = audit(function, *arguments, target=target, pool=pool).memory
    names = function.__code__.co_varnames if name != "scan" else ("ws", "x")
    proposed = rows_of(before, "donate")
    assert proposed, "each of these programs has something to give"
    for argument, row in proposed.items():
        again = audit(function, *arguments, target=target, pool=pool, donate_argnums=names.index(argument)).memory
        assert holds(row, before, again), (argument, row, again["live_peak_bytes"])
        wrong = {**row, "saves_bytes": before["live_peak_bytes"] - again["live_peak_bytes"] - 1}
        assert not holds(wrong, before, again), "the check can fail"


def starts_and_stacks(a, b):
    """The stack is filled with zeros before the loop: nothing but a schedule puts that after the read of `a[0]`."""
    return jax.lax.scan(lambda c, x: (c + jnp.sin(x), c * x), a[0], b)[1]


def one_is_passed_on(a, b):
    return b, jax.nn.softmax(a + a, -1)


@pytest.mark.parametrize("program", [starts_and_stacks, one_is_passed_on])
def test_what_only_the_schedule_allows_is_an_estimate(pool, program):
    """Copies are put in before the schedule is made: given `a`, the compiler copies, and nothing is saved."""
    arguments = array(128, 128), array(128, 128)
    before = audit(program, *arguments, pool=pool).memory
    after = audit(program, *arguments, pool=pool, donate_argnums=0).memory
    row = rows_of(before, "donate")["a"]
    assert (row["bound"], row["at_least_bytes"], row["saves_bytes"]) == ("estimate", None, 128 * 128 * 4)
    assert "only the schedule" in row["derivation"]
    assert before["live_peak_bytes"] - after["live_peak_bytes"] <= 512


def test_a_donation_is_asked_for_in_the_words_of_its_jit(pool):
    """`filter_jit` has no `donate_argnums`, and of a compiled stage it is not known who jitted it."""
    function, arguments = PROGRAMS["elementwise"]
    jitted = eqx.filter_jit(function)
    plain = rows_of(audit(jax.jit(function), *arguments, pool=pool).memory, "donate")
    filtered = rows_of(audit(jitted, *arguments, pool=pool).memory, "donate")
    stage = rows_of(audit(jax.jit(function).lower(*arguments), pool=pool).memory, "donate")
    assert plain["p"]["action"] == "donate p (donate_argnums or donate_argnames)"
    assert filtered["p"]["action"] == 'donate p (donate="all" of filter_jit donates every array)'
    assert {row["action"] for row in stage.values()} == {f"donate {name}" for name in stage} != set()


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize(("depth", "products"), [(16, 3), (6, 2), (3, 3)])
def test_a_checkpoint_of_a_loop_saves_what_was_said(pool, target, depth, products):
    function, arguments = layers(False, depth, products)
    before = audit(function, *arguments, target=target, pool=pool).memory
    after = audit(layers(True, depth, products)[0], *arguments, target=target, pool=pool).memory
    (row,) = rows_of(before, "checkpoint").values()
    saved = before["live_peak_bytes"] - after["live_peak_bytes"]
    assert row["bound"] == "estimate" and 0 < row["saves_bytes"] <= saved  # here the recomputation fits beside the rest
    assert not rows_of(after, "checkpoint"), "there is nothing left to take"


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_what_a_recomputation_works_with_makes_its_saving_an_estimate(pool, target):
    """With a residual beside two products it works with more than the backward pass: less is saved than is said."""

    def gradient(checkpoint):
        def layer(x, w):
            return x + jnp.tanh(x @ w["up"]) @ w["down"], None

        body = jax.checkpoint(layer) if checkpoint else layer
        return jax.grad(lambda ws, x: jax.lax.scan(body, x, ws)[0].sum())

    arguments = {name: array(8, 128, 128) for name in ("up", "down")}, array(512, 128)
    before, after = (audit(gradient(how), *arguments, target=target, pool=pool).memory for how in (False, True))
    (row,) = rows_of(before, "checkpoint").values()
    saved = before["live_peak_bytes"] - after["live_peak_bytes"]
    assert row["bound"] == "estimate" and 0 < saved < row["saves_bytes"]


@pytest.mark.tpu
def test_a_checkpoint_of_a_loop_on_tpu(pool):
    function, arguments = layers(False)
    before = audit(function, *arguments, target="tpu-v5e:1x1", pool=pool).memory
    after = audit(layers(True)[0], *arguments, target="tpu-v5e:1x1", pool=pool).memory
    (row,) = rows_of(before, "checkpoint").values()
    saved = before["live_peak_bytes"] - after["live_peak_bytes"]
    assert row["bound"] == "estimate" and saved > 0 and row["saves_bytes"] > 500_000_000


def blocks(checkpoint, depth=4):
    """Layers one after the other, each in a scope of its own."""

    def layer(x, p):
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return x + jax.nn.gelu(h @ p["up"]) @ p["down"]

    each = jax.checkpoint(layer) if checkpoint else layer

    def loss(params, x):
        for i in range(depth):
            with jax.named_scope(f"layer{i}"):
                x = each(x, params[i])
        return (x * x).mean()

    weights = {"up": array(256, 1024), "down": array(1024, 256)}
    return jax.grad(loss), ([weights] * depth, array(4096, 256))


@pytest.mark.cuda
def test_a_checkpoint_of_regions_in_straight_line_code(pool):
    function, arguments = blocks(False)
    before = audit(function, *arguments, target="h100", pool=pool).memory
    after = audit(blocks(True)[0], *arguments, target="h100", pool=pool).memory
    (row,) = rows_of(before, "checkpoint").values()
    saved = before["live_peak_bytes"] - after["live_peak_bytes"]
    assert row["target"] == "layer*" and row["bound"] == "estimate"
    assert saved > 0 and row["saves_bytes"] > 0  # the direction: the region is planned anew (here 17.4% more is saved)


def test_the_cpu_undoes_such_a_checkpoint_and_none_is_proposed(pool):
    function, arguments = blocks(False)
    before = audit(function, *arguments, pool=pool).memory
    after = audit(blocks(True)[0], *arguments, pool=pool).memory
    assert not rows_of(before, "checkpoint")
    assert before["live_peak_bytes"] - after["live_peak_bytes"] < before["live_peak_bytes"] // 10


@pytest.mark.parametrize("checkpoint", [False, True])
def test_that_the_cpu_undoes_a_checkpoint_is_said(pool, checkpoint):
    found = audit(*(blocks(checkpoint)[0], *blocks(checkpoint)[1]), pool=pool).findings
    (text,) = [f["text"] for f in found if f["kind"] == "checkpoint"]
    assert ("lowers nothing here" if checkpoint else "no checkpoint is proposed") in text


@pytest.mark.cuda
def test_a_checkpoint_of_blocks_told_by_their_weights(pool):
    def program(checkpoint):
        def layer(x, p):
            return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

        def loss(blocks, head, x):
            for p in blocks:
                x = (jax.checkpoint(layer) if checkpoint else layer)(x, p)
            return (jnp.tanh(x @ head) ** 2).mean()

        weights = {"up": array(256, 1024), "down": array(1024, 256)}
        return jax.grad(loss, argnums=(0, 1)), ([weights] * 4, array(256, 256), array(4096, 256))

    before, after = (audit(f, *a, target="h100", pool=pool).memory for f, a in map(program, (False, True)))
    (row,) = rows_of(before, "checkpoint").values()
    assert row["target"] == "blocks[*]" and row["bound"] == "estimate"
    assert "3 blocks" in row["derivation"]  # the backward pass of the last begins as its forward ends
    assert before["live_peak_bytes"] - after["live_peak_bytes"] > 0 and row["saves_bytes"] > 0


@pytest.mark.cuda
def test_a_stack_kept_in_its_own_type(pool):
    def program(narrow):
        def body(x, w):
            y = jnp.sin(x @ w)
            return y, (y if narrow else y.astype("float32"))

        def run(x, ws):
            x, ys = jax.lax.scan(body, x, ws)
            return x, jnp.sin(ys.astype("float32")).sum()

        return run

    arguments = array(512, 256, dtype="bfloat16"), array(8, 256, 256, dtype="bfloat16")
    before = audit(program(False), *arguments, target="h100", pool=pool).memory
    after = audit(program(True), *arguments, target="h100", pool=pool).memory
    (row,) = rows_of(before, "dtype").values()
    assert row["saves_bytes"] == 8 * 512 * 256 * 2 and holds(row, before, after)


def test_the_wide_copy_of_an_argument_goes_altogether(pool):
    """It waits through other work; where each reader widens, the argument is there anyway: all of it goes, not half."""

    def program(w, x):
        middle = jnp.sort(jnp.tile(x @ w.astype("float32"), (16, 8)), 0)[:64, :1024]
        return middle @ w.astype("float32")

    memory = audit(program, array(1024, 1024, dtype="bfloat16"), array(64, 1024), pool=pool).memory
    (row,) = rows_of(memory, "dtype").values()
    assert (row["bound"], row["saves_bytes"]) == ("upper", 1024 * 1024 * 4)


def test_pieces_of_work_are_an_estimate(pool):
    """Arrays of another size on the way are cut too: more is saved than the array's own seven eighths."""

    def mlp(x, up, down):
        gate, value = jnp.split(x @ up, 2, -1)
        return (jax.nn.silu(gate) * jnp.sort(value, -1)) @ down

    def pieces(x, up, down):
        return jax.lax.map(lambda part: mlp(part, up, down), x.reshape(8, -1, x.shape[-1])).reshape(x.shape)

    arguments = array(4096, 128), array(128, 2048), array(1024, 128)
    before, after = (audit(f, *arguments, pool=pool).memory for f in (mlp, pieces))
    (row,) = rows_of(before, "chunk").values()
    assert row["bound"] == "estimate" and row["saves_bytes"] >= 4096 * 2048 * 4 * 7 // 8
    assert before["live_peak_bytes"] - after["live_peak_bytes"] > row["saves_bytes"]


MASK = (np.arange(2**20) % 7).astype(np.float32).reshape(1024, 1024)


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_constant_computed_where_it_is_used(pool, target):
    def computed(x):
        return jnp.tanh(x * (jnp.arange(2**20) % 7).astype("float32").reshape(1024, 1024))

    before = audit(lambda x: jnp.tanh(x * MASK), array(1024, 1024), target=target, pool=pool).memory
    after = audit(computed, array(1024, 1024), target=target, pool=pool).memory
    (row,) = rows_of(before, "constant").values()
    assert row["saves_bytes"] == 2**22 and holds(row, before, after)


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_constant_that_a_product_reads_whole_is_not_proposed(pool, target):
    before = audit(lambda x: jnp.tanh(x @ MASK), array(256, 1024), target=target, pool=pool).memory
    after = audit(lambda x, c: jnp.tanh(x @ c), array(256, 1024), array(1024, 1024), target=target, pool=pool).memory
    assert not rows_of(before, "constant")
    assert before["live_peak_bytes"] == after["live_peak_bytes"]


def test_a_replicated_argument_over_an_axis(pool):
    mesh = jax.sharding.AbstractMesh((4,), ("d",))

    def over(*axes):
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    def program(weights, x):
        return jnp.tanh(x * 2).sum() + weights.sum()

    x = array(512, 512, sharding=over("d"))
    before = audit(program, array(1024, 512, sharding=over()), x, target="cpu:4", pool=pool).memory
    after = audit(program, array(1024, 512, sharding=over("d")), x, target="cpu:4", pool=pool).memory
    row = rows_of(before, "shard")["weights"]
    assert row["saves_bytes"] == 1024 * 512 * 4 * 3 // 4
    assert 0 < before["live_peak_bytes"] - after["live_peak_bytes"] <= row["saves_bytes"]
    assert "weights" not in rows_of(after, "shard")


def test_a_share_of_an_argument_is_an_estimate(pool):
    """Its results become shares as well, whatever the argument saves by itself."""
    mesh = jax.sharding.AbstractMesh((4,), ("d",))
    here, over = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("d",)))
    before, after = (
        audit(lambda w: jnp.sin(w), array(512, 512, sharding=how), target="cpu:4", pool=pool).memory
        for how in (here, over)
    )
    row = rows_of(before, "shard")["w"]
    assert row["bound"] == "estimate" and row["saves_bytes"] == 512 * 512 * 4 * 3 // 4
    assert before["live_peak_bytes"] - after["live_peak_bytes"] == 2 * row["saves_bytes"]


def test_at_most_ten_and_the_largest_first(pool):
    arguments = [array(128 + 8 * i, 128) for i in range(14)]
    memory = audit(lambda *xs: [x + 1 for x in xs], *arguments, pool=pool).memory
    rows = memory["savings"]["rows"]
    assert len(rows) <= 10 and [r["saves_bytes"] for r in rows] == sorted(r["saves_bytes"] for r in rows)[::-1]
