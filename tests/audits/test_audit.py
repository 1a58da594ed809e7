"""`jaxcost.audit`: functions of every kind on three targets, against what XLA says of the same program."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import jaxcost
from jaxcost.audits.audit import ALLOWED, Audit
from jaxcost.audits.paths import Asked, audit_path
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.pool import Pool
from jaxcost.schema import schema

P = PartitionSpec


def shape(*sizes, dtype=jnp.float32, **options):
    return jax.ShapeDtypeStruct(sizes, dtype, **options)


def step(w, x):
    y = jnp.tanh(x @ w)
    return w - 0.1 * y.mean(0), y.sum()


ARGUMENTS = (shape(128, 128), shape(64, 128))
FLOPS = 2 * 64 * 128 * 128
ONE = [
    "cpu",
    pytest.param("h100", marks=pytest.mark.cuda),
    pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu),
]
CUDA = [ONE[0], ONE[1]]
EIGHT = ["cpu:8", pytest.param("h100:8", marks=pytest.mark.cuda), pytest.param("tpu-v5e:2x4", marks=pytest.mark.tpu)]


def same_program(one, other):
    """The same module but for its number and the lines that made it."""
    names = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "required_bytes", "live_peak_bytes")
    sides = (
        ([a.memory[n] for n in names], a.flops, [a.data["program"][n] for n in ("module", "instructions")])
        for a in (one, other)
    )
    return next(sides) == next(sides)


@pytest.mark.parametrize("target", ONE)
def test_a_plain_and_a_jitted_function_are_one_program(pool, target):
    plain = jaxcost.audit(step, *ARGUMENTS, target=target, donate_argnums=0, pool=pool)
    jitted = jaxcost.audit(jax.jit(step, donate_argnums=0), *ARGUMENTS, target=target, pool=pool)
    kept = jaxcost.audit(step, *ARGUMENTS, target=target, pool=pool)
    assert plain.flops == jitted.flops == kept.flops == FLOPS and not plain.unknowns
    assert plain.memory["alias_bytes"] == 4 * 128 * 128 and kept.memory["alias_bytes"] == 0
    assert plain.memory["required_bytes"] == jitted.memory["required_bytes"] < kept.memory["required_bytes"]
    assert same_program(plain, jitted) and not same_program(plain, kept)
    jsonschema.validate(plain.to_dict(), schema("jaxcost.audit.v1"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain.to_dict(), "more": 1}, schema("jaxcost.audit.v1"))


@pytest.mark.parametrize("path", ["flops", "jaxpr", "memory.constants", "memory.donation"])
def test_the_schema_declares_what_a_list_leaves_out(pool, path):
    document = jaxcost.audit(step, *ARGUMENTS, pool=pool).to_dict()
    jsonschema.validate(document, schema("jaxcost.audit.v1"))
    section = document
    for name in path.split("."):
        section = section[name]
    assert section["not_listed"] in (0, {"count": 0, "total": 0})
    section["not_listed"] = "many"
    with pytest.raises(jsonschema.ValidationError, match="many"):
        jsonschema.validate(document, schema("jaxcost.audit.v1"))


def test_the_program_is_the_one_that_jax_compiles(pool):
    """XLA's own numbers of a compile in this process are those of the worker's."""
    compiled = jax.jit(step, donate_argnums=0).lower(*ARGUMENTS).compile()
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    audit = jaxcost.audit(step, *ARGUMENTS, donate_argnums=0, pool=pool)
    assert audit.data["xla"]["flops"] == costs["flops"]
    assert audit.memory["argument_bytes"] == memory.argument_size_in_bytes
    assert audit.memory["temp_bytes"] == memory.temp_size_in_bytes
    assert audit.memory["alias_bytes"] == memory.alias_size_in_bytes == 4 * 128 * 128


@pytest.mark.parametrize("target", EIGHT)
@pytest.mark.parametrize("kind", ["concrete", "abstract"])
def test_shardings_and_their_mesh_reach_the_compiler(pool, target, kind):
    mesh = AbstractMesh((2, 4), ("data", "model"))
    if kind == "concrete":
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    w = shape(128, 128, sharding=NamedSharding(mesh, P("model", None)))
    x = shape(64, 128, sharding=NamedSharding(mesh, P("data", "model")))
    audit = jaxcost.audit(step, w, x, target=target, pool=pool)
    assert audit.data["program"]["mesh"] == {"data": 2, "model": 4}
    assert audit.data["program"]["device_count"] == 8 and audit.flops == FLOPS // 8
    assert {"all-reduce"} <= {row["kind"] for row in audit.collectives}
    assert {axis for row in audit.collectives for axis in row["axes"]} == {"data", "model"}
    whole = jaxcost.audit(step, *ARGUMENTS, target=target, pool=pool)
    assert whole.flops == FLOPS and not whole.collectives and "1 device" in whole.data["program"]["notes"][0]


def test_a_bare_cpu_has_as_many_devices_as_the_program(pool):
    mesh = AbstractMesh((8,), ("data",))
    x = shape(64, 128, sharding=NamedSharding(mesh, P("data")))
    assert jaxcost.audit(step, ARGUMENTS[0], x, pool=pool).data["program"]["target"]["text"] == "cpu:8"
    for target in ("cpu:4", "h100"):
        with pytest.raises(RejectedError, match="for 8 devices") as error:
            jaxcost.audit(step, ARGUMENTS[0], x, target=target, pool=pool)
        assert error.value.problems[0].remedy.endswith(":8")


def train_step(kind):
    """A step of a two-layer network by each library: (function, arguments, keywords of the audit)."""
    x, y = shape(32, 8), shape(32, 4)
    adam = optax.adam(1e-3)
    if kind == "equinox":
        model = eqx.filter_eval_shape(lambda: eqx.nn.MLP(8, 4, 16, 1, key=jax.random.key(0)))

        def eqx_step(model, state, x, y):
            def loss(model):
                return jnp.mean((jax.vmap(model)(x) - y) ** 2)

            gradient = eqx.filter_grad(loss)(model)
            update, state = adam.update(gradient, state, model)
            return eqx.apply_updates(model, update), state

        arrays = eqx.filter(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        return eqx.filter_jit(eqx_step, donate="all"), (model, eqx.filter_eval_shape(adam.init, arrays), x, y)
    flax = pytest.importorskip("flax", reason="flax is not installed; add it with: pip install -e '.[dev]'")
    if kind == "linen":
        import flax.linen as nn
        from flax.training.train_state import TrainState

        class Network(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.Dense(4)(nn.relu(nn.Dense(16)(x)))

        network = Network()

        def create(key):
            return TrainState.create(apply_fn=network.apply, params=network.init(key, jnp.ones((1, 8))), tx=adam)

        def linen_step(state, x, y):
            def loss(parameters):
                return jnp.mean((state.apply_fn(parameters, x) - y) ** 2)

            return state.apply_gradients(grads=jax.grad(loss)(state.params))

        return jax.jit(linen_step, donate_argnums=0), (jax.eval_shape(create, jax.random.key(0)), x, y)
    from flax import nnx

    assert flax

    class Both(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    model = Both(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)

    @nnx.jit
    def nnx_step(model, optimizer, x, y):
        gradient = nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradient)

    return nnx_step, (model, optimizer, x, y)


@pytest.mark.parametrize("kind", ["equinox", "linen", "nnx"])
@pytest.mark.parametrize("target", CUDA)
def test_a_training_step_of_each_library(pool, kind, target):
    function, arguments = train_step(kind)
    audit = jaxcost.audit(function, *arguments, target=target, pool=pool)
    # Forward; the gradients of both weights and of what lies between them.
    assert audit.flops == 2 * 32 * (8 * 16 + 16 * 4) + 2 * 32 * (8 * 16 + 16 * 4) + 2 * 32 * 16 * 4
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    # Parameters, two moments, a counter or two, x and y.
    assert 3 * parameters + 4 * 32 * 12 <= audit.memory["argument_bytes"] <= 3 * parameters + 4 * 32 * 12 + 16
    assert audit.memory["alias_bytes"] >= (0 if kind == "nnx" else 3 * parameters)


@pytest.mark.parametrize("target", ONE)
def test_a_callback_is_named_unknown_and_compiled_around(pool, target):
    def function(x):
        jax.debug.print("{}", x.sum())
        return jax.pure_callback(lambda v: np.asarray(v), shape(64, 128), x) @ jnp.ones((128, 128))

    audit = jaxcost.audit(function, ARGUMENTS[1], target=target, pool=pool)
    assert audit.unknowns and audit.memory["required_bytes"] > 0
    assert audit.flops is None or audit.flops == FLOPS or audit.flops["minimum"] == FLOPS


@pytest.mark.parametrize("target", CUDA)
def test_stages_are_what_their_function_is(pool, target):
    jitted = jax.jit(step, donate_argnums=0)
    traced = jitted.trace(*ARGUMENTS)
    whole = jaxcost.audit(jitted, *ARGUMENTS, target=target, pool=pool)
    found = jaxcost.audit(traced, target=target, pool=pool)
    assert same_program(found, whole)
    family = "cpu" if target == "cpu" else "cuda"
    lowered = traced.lower(lowering_platforms=(family,))
    found = jaxcost.audit(lowered, target=target, pool=pool)
    assert same_program(found, whole)
    assert found.data["program"]["origin"] == "stage" and found.data["jaxpr"] is None
    other = "h100" if target == "cpu" else "cpu"
    with pytest.raises(RejectedError, match="the stage is lowered for"):
        jaxcost.audit(lowered, target=other, pool=pool)
    with pytest.raises(RejectedError, match="has its arguments already"):
        jaxcost.audit(traced, *ARGUMENTS, target=target, pool=pool)


def test_a_compiled_stage_knows_its_memory_but_no_moment_of_it(pool):
    compiled = jax.jit(step).lower(*ARGUMENTS).compile()
    audit = jaxcost.audit(compiled, pool=pool)
    whole = jaxcost.audit(step, *ARGUMENTS, pool=pool)
    assert audit.flops == FLOPS and audit.name == "step"
    assert audit.memory["required_bytes"] == whole.memory["required_bytes"]
    assert audit.memory["live_peak_bytes"] is None and audit.unknowns
    assert "lowered stage" in audit.data["program"]["notes"][0]
    with pytest.raises(RejectedError, match="compiled for 1 cpu device"):
        jaxcost.audit(compiled, target="h100", pool=pool)


def test_a_program_has_one_structure_in_every_form(pool, tmp_path):
    """The digest of bytes is another for each form; what the module computes is not."""
    compiled = jax.jit(step).lower(*ARGUMENTS).compile()
    (tmp_path / "step.txt").write_text(compiled.as_text())
    (module,) = compiled.runtime_executable().hlo_modules()
    (tmp_path / "step.pb").write_bytes(module.as_serialized_hlo_module_proto())
    forms = [jaxcost.audit(step, *ARGUMENTS, pool=pool)]
    for name in ("step.txt", "step.pb"):
        forms += audit_path(Asked(tmp_path / name, platform="cpu"), pool)[0]
    assert len({form.data["program"]["digest"] for form in forms}) == 3
    assert len({form.data["compiled"]["structure"] for form in forms}) == 1
    x, *rest = ARGUMENTS
    other = jaxcost.audit(lambda *given: step(*given), x, *rest, pool=pool)
    assert other.data["compiled"]["structure"] == forms[0].data["compiled"]["structure"], "no name is in it"
    more = jaxcost.audit(lambda *given: jnp.tanh(jax.tree.leaves(step(*given))[0]), x, *rest, pool=pool)
    assert more.data["compiled"]["structure"] != forms[0].data["compiled"]["structure"]


@pytest.mark.tpu
def test_a_program_the_compiler_refuses_is_audited_with_its_words(pool):
    audit = jaxcost.audit(lambda x: (x @ x).sum(), shape(65536, 65536), target="tpu-v5e:1x1", pool=pool)
    assert audit.refused and "memory" in audit.refused
    assert audit.flops is not None


def test_a_target_that_is_none_or_has_no_compiler(pool, monkeypatch):
    with pytest.raises(RejectedError, match="not a chip known here"):
        jaxcost.audit(step, *ARGUMENTS, target="h101", pool=pool)
    monkeypatch.setattr("jaxcost.observation.targets._version", lambda name: None if "cuda" in name else "0.10.2")
    with pytest.raises(UnavailableError, match="jax-cuda13-plugin"):
        jaxcost.audit(step, *ARGUMENTS, target="h100", pool=pool)


def test_a_program_that_takes_too_long_is_refused_by_name():
    def deep(x):
        for _ in range(60):
            x = jnp.sin(jnp.fft.fft(x).real @ x)
        return x

    with Pool(size=1, allow=ALLOWED, timeout_seconds=0.2) as pool, pytest.raises(RejectedError, match="took too long"):
        jaxcost.audit(deep, shape(64, 64), pool=pool)


def test_an_audit_is_saved_and_read_again(pool, tmp_path):
    audit = jaxcost.audit(step, *ARGUMENTS, pool=pool)
    path = audit.save(tmp_path / "step.json")
    again = Audit.from_dict(json.loads(path.read_text()))
    assert again == audit and str(again) == str(audit) and "step on cpu:1" in str(audit)
    assert f"{FLOPS:,}" in audit._repr_html_() and f"{FLOPS:,} FLOPs" in str(audit)
    odd = Audit.from_dict({**audit.data, "program": {**audit.data["program"], "name": "<b>"}, "flops": {"total": None}})
    assert "<b>" not in odd._repr_html_() and "unknown" in odd._repr_html_()
    assert "unknown FLOPs" in str(odd) and "None" not in str(odd)
    copied = audit.to_dict()
    copied["flops"]["total"] = 0
    assert audit.flops == FLOPS
    with pytest.raises(RejectedError, match="must be"):
        Audit.from_dict({"schema": "jaxcost.audit.v2"})
    with pytest.raises(RejectedError, match="cannot be written"):
        audit.save(tmp_path / "none" / "step.json")


def test_nothing_of_this_process_is_changed(pool):
    import os

    before, flags = dict(os.environ), jax.config.values
    audit = jaxcost.audit(step, *ARGUMENTS, target="cpu:4", pool=pool)
    assert dict(os.environ) == before and jax.config.values == flags
    assert audit.data["program"]["target"]["device_count"] == 4 and len(jax.devices()) == 8


@pytest.mark.parametrize(
    "given",
    [
        {"mesh": [("a", 2)]}, {"mesh": "a=2"}, {"mesh": {"a": 0}}, {"mesh": {"a": -1}}, {"mesh": {1: 2}},
        {"mesh": {"a": 2.5}}, {"mesh": {"a": True}}, {"trips": 4}, {"trips": {"while.5": -4}},
        {"trips": {"while.5": 2.5}}, {"trips": {"while.5": 2**80}}, {"pool": 3},
    ],
)  # fmt: skip
def test_what_is_given_beside_the_program_is_refused_by_its_name(pool, given):
    (name,) = given
    with pytest.raises(RejectedError) as error:
        jaxcost.audit(lambda x: x @ x, shape(8, 8), **{"pool": pool, **given})
    assert error.value.problems[0].path.startswith(name)


def test_a_function_that_leaves_does_not_end_the_caller(pool):
    def leaves(x):
        raise SystemExit(0)

    with pytest.raises(RejectedError, match="SystemExit"):
        jaxcost.audit(leaves, shape(8, 8), pool=pool)
