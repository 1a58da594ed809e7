"""What is known of a function before a compiler runs, however it is written."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.private import Portable, plain_stage
from jaxcost.observation.sources import Lowered
from jaxcost.observation.sources.functions import array_bytes, lower_function, lower_traced

P = PartitionSpec


def shape(*sizes, dtype=jnp.float32, **options):
    return jax.ShapeDtypeStruct(sizes, dtype, **options)


def lower(function, *args, platform="cpu", mesh=None, options=None, **keywords):
    return lower_function(function, args, keywords, platform=platform, options=options, mesh=mesh)


def of(lowered, name="path"):
    return [getattr(argument, name) for argument in lowered.arguments]


def step(state, x):
    """A training step of two matrices, one of them not used."""
    y = jnp.tanh(x @ state["w"])
    return {**state, "w": state["w"] - 0.1 * y.mean(0)}, y.sum()


STATE = {"unused": shape(7), "w": shape(16, 16)}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_arguments_are_named_counted_and_known_as_donated_and_kept(platform):
    lowered, module = lower(lambda s, x, z: step(s, x), STATE, shape(4, 16), shape(3), options={"donate_argnums": 0},
                            platform=platform)  # fmt: skip
    assert of(lowered) == ["s['unused']", "s['w']", "x", "z"]
    assert of(lowered, "donated") == [True, True, False, False]
    assert of(lowered, "kept") == [True, True, True, False]  # `unused` is handed on
    assert of(lowered, "bytes") == [28, 1024, 256, 12]
    assert of(lowered, "shape")[2] == (4, 16) and of(lowered, "dtype")[0] == "float32"
    assert lowered.results == ("float32[7]", "float32[16,16]", "float32[]")
    assert (lowered.platform, lowered.device_count, module.device_count) == (platform, 1, 1)
    assert lowered.jaxpr["flops"] == 2 * 4 * 16 * 16
    assert not lowered.constants and lowered.mesh == {}


def test_records_cross_processes_unchanged():
    lowered, module = lower(step, STATE, shape(4, 16))
    assert Lowered.from_data(lowered.to_data()) == lowered
    assert Portable.from_data(module.to_data()) == module


def test_a_jitted_function_keeps_its_own_rules():
    jitted = jax.jit(step, donate_argnums=0, keep_unused=True)
    for function in (jitted, functools.partial(jitted, STATE)):
        args = (STATE, shape(4, 16)) if function is jitted else (shape(4, 16),)
        lowered, _ = lower(function, *args)
        assert lowered.name == "step" and of(lowered, "donated") == [True, True, False]
    with pytest.raises(RejectedError, match="give donate_argnums to its jit"):
        lower(jitted, STATE, shape(4, 16), options={"donate_argnums": 0})


@pytest.mark.parametrize(
    "options", [{"static_argnums": (1, -1)}, {"static_argnames": ("power", "mode")}, {"static_argnums": 1}]
)
def test_static_arguments_are_no_arguments_of_the_program(options):
    def function(x, power, mode):
        return x**power if mode == "powers" else x

    lowered, _ = lower(function, shape(4), 3, "powers", options=options)
    assert of(lowered) == ["x"]
    by_name, _ = lower(function, shape(4), power=3, mode="powers", options={"static_argnames": ["power", "mode"]})
    assert of(by_name) == ["x"]


def test_numbers_are_arguments_none_is_nothing_and_other_leaves_are_held_fixed():
    def function(key, rate, nothing, table):
        assert nothing is None and table["name"] == "adam" and table["call"](3) == 9
        return jax.random.normal(key, (3,)) * rate + table["n"]

    key = jax.eval_shape(lambda: jax.random.key(0))
    table = {"n": 3, "name": "adam", "call": lambda x: x * x}
    lowered, _ = lower(function, key, 2.0, None, table)
    assert of(lowered) == ["key", "rate", "table['n']"] and of(lowered, "bytes") == [8, 4, 4]
    real, _ = lower(function, jax.random.key(0), np.float32(2), None, table)
    assert of(real, "bytes") == of(lowered, "bytes")


def mlp(key=None):
    make = functools.partial(eqx.nn.MLP, 8, 4, 16, 2)
    return make(key=key) if key is not None else eqx.filter_eval_shape(lambda: make(key=jax.random.key(0)))


@eqx.filter_value_and_grad
def eqx_loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


ADAM = optax.adam(1e-3)


def eqx_step(model, state, x, y):
    loss, gradient = eqx_loss(model, x, y)
    update, state = ADAM.update(gradient, state, model)
    return eqx.apply_updates(model, update), state, loss


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("wrap", [None, "filter_jit"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_an_equinox_step_with_optax_state(real, wrap, platform):
    model = mlp(jax.random.key(0) if real else None)
    arrays = eqx.filter(model, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct))
    state = ADAM.init(arrays) if real else eqx.filter_eval_shape(ADAM.init, arrays)
    function = eqx.filter_jit(eqx_step, donate="all-except-first") if wrap else eqx_step
    options = None if wrap else {"donate_argnums": (1, 2, 3)}
    lowered, _ = lower(function, model, state, shape(32, 8), shape(32, 4), platform=platform, options=options)
    assert len(lowered.arguments) == 6 + (1 + 12) + 2 and lowered.name == "eqx_step"
    assert lowered.jitted == ("eqx.filter_jit" if wrap else "jax.jit")
    donated = [a for a in lowered.arguments if a.donated]
    assert len(donated) == 13 + 2 and sum(a.bytes for a in lowered.arguments if not a.donated) == 4 * 484
    assert not lowered.constants
    layers = [f"layers[{n}].{part}" for n in range(3) for part in ("weight", "bias")]
    states = ["count", *(f"{moment}.{layer}" for moment in ("mu", "nu") for layer in layers)]
    expected = [f"model.{layer}" for layer in layers] + [f"state[0].{part}" for part in states] + ["x", "y"]
    assert sorted(of(lowered)) == sorted(expected)
    sizes = {a.path: a.shape for a in lowered.arguments}
    assert sizes["model.layers[0].weight"] == sizes["state[0].nu.layers[0].weight"] == (16, 8)
    assert sizes["model.layers[2].bias"] == (4,) and sizes["y"] == (32, 4)
    (note,) = [text for text in lowered.warnings if "held fixed" in text]
    assert note.startswith("2 leaves of the arguments are no arrays") and "model.activation (" in note
    # forward, and all of backward but the gradient of the first layer's input
    assert lowered.jaxpr["flops"] == 2 * 32 * (3 * (8 * 16 + 16 * 16 + 16 * 4) - 8 * 16)


def test_equinox_takes_static_arguments_as_it_does():
    function = eqx.filter_jit(lambda model, x, n=2: jax.vmap(model)(x) * n)
    lowered, _ = lower(function, mlp(), shape(32, 8), n=3)
    assert len(lowered.arguments) == 6 + 1


def test_arguments_of_filter_jit_have_the_names_of_the_call():
    @eqx.filter_jit(donate="all-except-first")
    def function(first, *more, scale, **others):
        return first["w"] @ more[1] * scale + others["bias"] + more[0]["a"][1]

    more = {"a": [shape(3), shape(4)]}, shape(4, 4)
    lowered, _ = lower(function, {"w": shape(4, 4)}, *more, scale=2, bias=shape(4, dtype=jnp.bfloat16))
    known = {a.path: (a.donated, a.kept, a.dtype) for a in lowered.arguments}
    assert known == {
        "first['w']": (False, True, "float32"), "more[0]['a'][0]": (True, False, "float32"),
        "more[0]['a'][1]": (True, True, "float32"), "more[1]": (True, True, "float32"),
        "bias": (True, True, "bfloat16"),
    }  # fmt: skip
    assert any("scale (2)" in text for text in lowered.warnings)
    again, _ = lower(function, {"w": shape(4, 4)}, *more, scale=2, bias=shape(4, dtype=jnp.bfloat16))
    assert of(again) == of(lowered), "the names that JAX keeps are its own"


@pytest.mark.parametrize("given", ["function", "stage"])
def test_arguments_of_nnx_jit_have_the_paths_of_their_variables(given):
    from flax import nnx

    class Both(nnx.Module):
        def __init__(self, rngs):
            self.second, self.first = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)
            self.tied = self.second

    @nnx.jit
    def nnx_step(model, optimizer, x):
        gradient = nnx.grad(lambda m: jnp.mean(m.first(m.second(m.tied(x)))))(model)
        optimizer.update(model, gradient)

    model = Both(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    call = model, optimizer, jnp.zeros((2, 8))
    if given == "stage":
        lowered, _ = lower_traced(plain_stage(nnx_step.trace(*call)), platform="cpu")
    else:
        lowered, _ = lower(nnx_step, *call)
    known = {a.path: a.shape for a in lowered.arguments}
    assert known["model.first.kernel"] == known["optimizer.opt_state[0].mu.first.kernel"] == (8, 4)
    assert known["model.second.kernel"] == (8, 8) and known["model.first.bias"] == (4,) and "x" in known
    assert not any("states" in path or "tied" in path for path in known)


class Linear(eqx.Module):
    weight: jax.Array
    name: str = "linear"

    def plain(self, x):
        return x @ self.weight

    @eqx.filter_jit
    def filtered(self, x):
        return x @ self.weight

    @jax.jit
    def jitted(self, x):
        return x @ self.weight

    __call__ = plain


class Holder:
    """A plain object that holds arrays is no pytree: what it holds is captured."""

    def __init__(self):
        self.weight = jnp.ones((8, 8))

    def plain(self, x):
        return x @ self.weight


@pytest.mark.parametrize("name", ["plain", "filtered", "__call__", "self"])
def test_what_a_module_holds_are_arguments_of_its_methods(name):
    model = Linear(jnp.ones((8, 8)))
    lowered, _ = lower(model if name == "self" else getattr(model, name), shape(4, 8))
    assert of(lowered, "shape") == [(8, 8), (4, 8)] and not lowered.constants


def test_what_a_function_captures_is_a_constant():
    weight = jnp.ones((64, 64))

    @jax.jit
    def inner(x):
        return x @ weight

    for function in (inner, lambda x: inner(x) + 1, jax.vmap(Linear(weight)), lambda x: jax.lax.map(inner, x[None])):
        lowered, _ = lower(function, shape(4, 64))
        assert [(c.shape, c.bytes) for c in lowered.constants] == [((64, 64), 4 * 64 * 64)]
    held, _ = lower(Holder().plain, shape(4, 8))
    assert [c.shape for c in held.constants] == [(8, 8)]
    none, _ = lower(lambda w, x: x @ w, shape(64, 64), shape(4, 64))
    assert not none.constants


def test_a_gibibyte_of_constants_is_no_program(monkeypatch):
    monkeypatch.setattr("jaxcost.observation.sources.functions.MOST_CONSTANT_BYTES", 4 * 64 * 64)
    small, large = jnp.ones((64, 64)), jnp.ones((64, 65))
    lower(lambda x: x @ small, shape(4, 64))
    with pytest.raises(RejectedError, match="captures 16,640 bytes"):
        lower(lambda x: x @ large, shape(4, 64))


MESH = {"data": 2, "model": 4}


def meshes():
    devices = np.array(jax.devices()).reshape(2, 4)
    return {"concrete": Mesh(devices, tuple(MESH)), "abstract": AbstractMesh((2, 4), tuple(MESH))}


@pytest.mark.parametrize("kind", ["concrete", "abstract"])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_mesh_is_found_on_the_arguments(kind, platform):
    mesh = meshes()[kind]
    w, x = (shape(16, 16, sharding=NamedSharding(mesh, P(None, "model"))),
            shape(8, 16, sharding=NamedSharding(mesh, P("data"))))  # fmt: skip
    lowered, module = lower(lambda w, x: x @ w, w, x, platform=platform)
    assert lowered.mesh == MESH and module.device_count == lowered.device_count == 8
    assert [a.sharding for a in lowered.arguments] == [str(P(None, "model")), str(P("data"))]
    assert module.free_inputs == (False, False) and module.free_outputs == (True,)


def test_a_mesh_is_found_inside_given_by_name_or_in_explicit_types():
    mesh = meshes()["abstract"]
    inside, _ = lower(lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data"))), shape(8, 8))
    assert inside.mesh == MESH and inside.device_count == 8

    def bare(x):
        return jax.lax.with_sharding_constraint(x * 2, P("data"))

    named, module = lower(bare, shape(8, 8), mesh=MESH, options={"in_shardings": P("model"), "out_shardings": P()})
    assert named.mesh == MESH and named.device_count == 8 and module.free_outputs == (False,)
    with pytest.raises(RejectedError, match="mesh"):
        lower(bare, shape(8, 8))

    explicit = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    typed, _ = lower(lambda a: a * 2, shape(8, sharding=NamedSharding(explicit, P("i"))))
    assert typed.mesh == {"i": 8}


@pytest.mark.parametrize("jitted", [False, True])
def test_a_shard_map_over_abstract_devices_brings_its_mesh(jitted):
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=AbstractMesh((8,), ("i",)), in_specs=P("i"),
                           out_specs=P())  # fmt: skip
    lowered, _ = lower(jax.jit(mapped) if jitted else mapped, shape(64, 8), platform="cuda")
    assert lowered.device_count == 8 and lowered.mesh == {"i": 8}
    stage, _ = lower_traced(jax.jit(mapped).trace(shape(64, 8)), platform="tpu")
    assert stage.device_count == 8


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_callbacks_are_named_and_lowered_for_any_platform(platform):
    def function(x):
        jax.debug.print("{}", x.sum())
        y = jax.pure_callback(lambda v: np.asarray(v), shape(8, 8), x)
        return jax.lax.map(lambda row: jax.experimental.io_callback(np.sin, shape(8), row, ordered=True), y)

    lowered, module = lower(function, shape(8, 8), platform=platform)
    assert lowered.platform == platform
    called = {row["primitive"].removeprefix("debug_") for row in lowered.jaxpr["opaque"]}
    assert called in ({"print", "io_callback", "pure_callback"}, {"callback", "io_callback", "pure_callback"})
    assert module.free_inputs == (False, True)  # the token of what is ordered stands first
    assert not lower(lambda x: x, shape(8), platform=platform)[0].jaxpr["opaque"]


def test_a_donation_that_cannot_be_used_is_told_and_not_printed(recwarn):
    lowered, _ = lower(lambda p: p.astype(jnp.bfloat16).sum(), shape(64), options={"donate_argnums": 0})
    assert any("donated buffers were not usable" in text for text in lowered.warnings) and not recwarn.list


@pytest.mark.parametrize(
    ("dtype", "count", "size"),
    [("float32", 3, 12), ("bool", 3, 3), ("bfloat16", 3, 6), ("float8_e4m3fn", 3, 3), ("int4", 3, 2), ("int2", 5, 2)],
)
def test_bytes_of_an_array_are_packed_below_a_byte(dtype, count, size):
    assert array_bytes((count,), jnp.dtype(dtype)) == size
    assert array_bytes((), jax.random.key(0).dtype) == 8


class Raising:
    def __call__(self, x):
        raise KeyError("missing\nand more")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lower(3), "cannot be called"),
        (lambda: lower(lambda x: x @ x, shape(4, 8)), "dot_general requires contracting dimensions"),
        (lambda: lower(lambda x: x), "missing 1 required positional argument: 'x'"),
        (lambda: lower(lambda x: x, shape(4), options={"donate_argnums": 7}), "donate_argnums"),
        (lambda: lower(lambda x: x, shape(4), options={"donate": 7}), "not an option"),
        (lambda: lower(Raising(), shape(4)), "KeyError: 'missing"),
        (lambda: lower(lambda x: float(x), shape()), "ConcretizationTypeError|TracerArrayConversion"),
        (lambda: lower(lambda x: x + 1, shape(*jax.export.symbolic_shape("b"))), "cannot be compiled|symbolic"),
    ],
)
def test_what_jax_says_is_one_problem_with_its_first_line(call, said):
    with pytest.raises(RejectedError, match=said) as error:
        call()
    (problem,) = error.value.problems
    assert "\n" not in problem.rule and "Traceback" not in problem.rule and problem.remedy
