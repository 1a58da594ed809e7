"""Savings against the truth: the change is made, the program compiled again, and the two peaks compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.audits.audit import ALLOWED, audit
from jaxcost.observation.pool import Pool
from tests.audits.test_memory import layers

CUDA = pytest.param("h100", marks=pytest.mark.cuda)
TPU = pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu)


@pytest.fixture(scope="module")
def pool():
    with Pool(size=1, allow=ALLOWED, timeout_seconds=600) as made:
        yield made


def array(*dims, dtype="float32", **more):
    return jax.ShapeDtypeStruct(dims, dtype, **more)


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


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize(("depth", "products"), [(16, 3), (6, 2), (3, 3)])
def test_a_checkpoint_of_a_loop_saves_what_was_said(pool, target, depth, products):
    function, arguments = layers(False, depth, products)
    before = audit(function, *arguments, target=target, pool=pool).memory
    after = audit(layers(True, depth, products)[0], *arguments, target=target, pool=pool).memory
    (row,) = rows_of(before, "checkpoint").values()
    assert row["bound"] == "interval" and row["at_least_bytes"] > 0
    assert holds(row, before, after)
    assert not rows_of(after, "checkpoint"), "there is nothing left to take"


@pytest.mark.tpu
def test_a_checkpoint_of_a_loop_on_tpu(pool):
    function, arguments = layers(False)
    before = audit(function, *arguments, target="tpu-v5e:1x1", pool=pool).memory
    after = audit(layers(True)[0], *arguments, target="tpu-v5e:1x1", pool=pool).memory
    (row,) = rows_of(before, "checkpoint").values()
    assert holds(row, before, after) and row["saves_bytes"] > 600_000_000


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


def test_at_most_ten_and_the_largest_first(pool):
    arguments = [array(128 + 8 * i, 128) for i in range(14)]
    memory = audit(lambda *xs: [x + 1 for x in xs], *arguments, pool=pool).memory
    rows = memory["savings"]["rows"]
    assert len(rows) <= 10 and [r["saves_bytes"] for r in rows] == sorted(r["saves_bytes"] for r in rows)[::-1]
