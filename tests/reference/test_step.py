"""A step: what it takes, returns, donates and refuses; loss, optimizer state, precision policies."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxcost.contracts.architecture import Mlp
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.state import OPTIMIZERS
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.reference import abstract_model, make_mesh, make_step, random_arguments, support
from jaxcost.reference.training import cross_entropy, init_state
from tests.reference.small import (
    ARCHITECTURES,
    GPT2,
    LITTLE_EFFORT,
    LLAMA,
    RMS,
    ROTARY,
    architecture,
    compiled,
    layer,
    make_case,
    model_of,
    tokens_of,
)

POLICIES = [(p, o) for p in ("fp32", "bf16", "mixed") for o in OPTIMIZERS] + [
    (p, "adam") for p in ("masterless_bf16", "fp32_autocast_adam", "bf16_master_adam", "a16_six_object")
]


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)


@pytest.mark.parametrize(("precision", "optimizer"), POLICIES)
def test_a_step_returns_the_state_it_takes(precision, optimizer):
    """Same structure, shapes and dtypes, so that it can be donated and the step repeated."""
    case = build_case(
        LLAMA, {"phase": "training", "batch": 2, "seq": 8, "precision": precision, "optimizer": optimizer}
    )
    step = make_step(case)
    state, loss = jax.eval_shape(step.function, *step.arguments)
    assert shapes(state) == shapes(step.arguments[0])
    assert shapes(loss) == ((), "float32")
    kept = {leaf.dtype.name for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim}
    expected = "bfloat16" if precision == "bf16" else "float32"
    assert kept <= {expected} and (kept or optimizer == "sgd")
    assert (state.master is not None) == (precision in ("bf16_master_adam", "a16_six_object"))


@pytest.mark.parametrize("phase", ["training", "prefill", "decode"])
def test_real_arguments_match_the_abstract_ones(phase):
    rows = {"past": 7} if phase == "decode" else {"seq": 8}
    case = make_case(GPT2, phase=phase, batch=2, **rows, **({"dropout": True} if phase == "training" else {}))
    step = make_step(case)
    assert shapes(jax.eval_shape(partial(random_arguments, case), jax.random.key(0))) == shapes(step.arguments)
    names = {
        "training": ("state", "tokens", "key"),
        "prefill": ("parameters", "tokens"),
        "decode": ("parameters", "caches", "tokens", "position"),
    }
    assert step.argument_names == names[phase]
    assert step.donate == {"training": (0,), "prefill": (), "decode": (1,)}[phase]


def test_the_key_is_an_argument_only_where_dropout_acts():
    assert make_step(make_case(GPT2, batch=2, seq=8)).argument_names == ("state", "tokens")
    silent = GPT2.replaced(dropout=GPT2.dropout.replaced(embedding=0.0, attention=0.0, residual=0.0))
    assert make_step(make_case(silent, batch=2, seq=8, dropout=True)).argument_names == ("state", "tokens")


def test_training_lowers_the_loss_and_takes_over_the_state():
    case = make_case(LLAMA, batch=2, seq=8, precision="bf16_master_adam")
    step = make_step(case)
    state, tokens = compiled(partial(init_state, case), model_of(case)), tokens_of(case)
    run = step.trace().lower().compile(compiler_options=LITTLE_EFFORT)
    first = state
    losses = []
    for _ in range(40):
        state, loss = run(state, tokens)
        losses.append(float(loss))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    assert losses[-1] < 0.8 * losses[0]
    working = jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), state.master)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, working, state.parameters)))


def test_nothing_is_donated_when_the_case_says_so():
    case = make_case(LLAMA, batch=2, seq=8)
    kept = case.replaced(execution=case.execution.replaced(donate=False))
    assert make_step(case).donate == (0,) and make_step(kept).donate == ()


def test_frozen_components_stay_and_have_no_optimizer_state():
    case = make_case(LLAMA, batch=2, seq=8, frozen=("embed", "group0/mlp"))
    step = make_step(case)
    state, tokens = compiled(partial(init_state, case), model_of(case)), tokens_of(case)
    moments = state.optimizer[0].mu
    assert moments.embed.tokens.weight is None and moments.groups[0].mlp.up.weight is None
    assert moments.head.weight.shape == state.parameters.head.weight.shape
    after, _ = compiled(step.function, state, tokens)
    same = jax.tree.map(np.array_equal, state.parameters, after.parameters)
    assert all(jax.tree.leaves((same.embed, same.groups[0].mlp)))
    assert not any(jax.tree.leaves((same.head, same.groups[0].attn, same.final_norm)))


def test_the_loss_is_the_mean_over_supervised_rows():
    logits = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    tokens = np.random.default_rng(1).integers(0, 7, (2, 5))
    exp = np.exp(logits)
    expected = -np.mean([np.log(exp[b, s, tokens[b, s + 1]] / exp[b, s].sum()) for b in range(2) for s in range(4)])
    found = float(cross_entropy(jnp.asarray(logits), jnp.asarray(tokens, jnp.int32)))
    assert found == pytest.approx(expected, rel=1e-5)
    logits[:, -1] += np.arange(7)  # the last row has no successor
    assert float(cross_entropy(jnp.asarray(logits), jnp.asarray(tokens, jnp.int32))) == pytest.approx(found, rel=1e-6)
    logits[:, 0] += np.arange(7)
    assert abs(float(cross_entropy(jnp.asarray(logits), jnp.asarray(tokens, jnp.int32))) - found) > 1e-2


def test_moments_are_sharded_like_their_parameters():
    wide = architecture(
        [(2, layer(32, 16, 256, rotary=ROTARY))],
        ["rotary_positions"],
        hidden_size=128,
        vocabulary_size=160,
        final_norm=RMS,
    )
    for optimizer in ("adam", "adafactor"):
        case = make_case(wide, batch=8, seq=8, optimizer=optimizer, mesh={"fsdp": 4, "tensor": 2})
        state = make_step(case, make_mesh(case, jax.devices())).arguments[0]
        specs = jax.tree.map(lambda x: x.sharding.spec, state)
        assert specs.parameters.groups[0].mlp.up.weight == PartitionSpec(None, "fsdp", "tensor")
        assert specs.parameters.groups[0].attn_norm.scale == PartitionSpec(None, None)
        kept = specs.optimizer[0]
        if optimizer == "adam":
            assert kept.mu == kept.nu == specs.parameters
            assert kept.count == PartitionSpec()
            continue
        # up is [layer, d = 128, f = 256]: rows lack f, columns lack d.
        factors = [
            inner for inner in jax.tree.leaves(kept, is_leaf=lambda x: hasattr(x, "v_row")) if hasattr(inner, "v_row")
        ]
        assert factors[0].v_row.groups[0].mlp.up.weight == PartitionSpec(None, "fsdp")
        assert factors[0].v_col.groups[0].mlp.up.weight == PartitionSpec(None, "tensor")


def test_every_contraction_lies_in_its_scope():
    case = make_case(LLAMA, batch=2, seq=8, remat="block")
    found = {(row.scope, row.phase) for row in count_jaxpr(make_step(case).trace().jaxpr).rows}
    layer_scopes = [f"attn/{n}" for n in ("q_proj", "k_proj", "v_proj", "scores", "values", "o_proj")]
    layer_scopes += [f"mlp/{n}" for n in ("gate", "up", "down")]
    expected = {("head", phase) for phase in ("forward", "backward")}
    expected |= {(f"group0/{n}", phase) for n in layer_scopes for phase in ("forward", "backward", "replay")}
    # Nothing in backward reads the output of the block's last contraction, so JAX does not replay it.
    expected -= {("group0/mlp/down", "replay")}
    assert found == expected


def test_blockwise_attention_replays_the_scores_once():
    """Two products per pair in forward, five in backward, of which one is a replay, whatever the block."""
    pair = 2 * 3 * 2 * 4 * 4 * 8 * 8  # FLOPs of one product: layers, sequences, heads, head width, rows, rows
    for block in (2, 8):
        case = make_case(LLAMA, batch=2, seq=8, attention="blockwise", attention_block=block)
        rows = count_jaxpr(make_step(case).trace().jaxpr).rows
        by_place = {}
        for row in rows:
            if row.scope in ("group0/attn/scores", "group0/attn/values"):
                key = (row.scope.rsplit("/")[-1], row.phase)
                by_place[key] = by_place.get(key, 0) + row.total.value
        assert by_place == {
            ("scores", "forward"): pair, ("values", "forward"): pair, ("scores", "replay"): pair,
            ("scores", "backward"): 2 * pair, ("values", "backward"): 2 * pair,
        }  # fmt: skip


def test_what_the_network_cannot_execute_is_refused_together():
    case = make_case(LLAMA, batch=2, seq=8, attention="splash", lengths=[8, 4], mesh={"data": 2}, zero=1)
    with pytest.raises(RejectedError) as caught:
        make_step(case)
    assert [p.path for p in caught.value.problems] == ["workload.new_tokens", "workload.lengths", "execution.zero"]


def test_a_field_the_network_does_not_read_is_refused(monkeypatch):
    """As if the contracts had learned a field that a manifest now uses: nothing runs as if it were not there."""
    case = make_case(LLAMA, batch=2, seq=8)
    make_step(case)
    monkeypatch.setitem(support.READ, Mlp, support.READ[Mlp] - {"activation"})
    for function in (make_step, abstract_model):
        with pytest.raises(RejectedError, match=r"architecture\.groups\.0\.layer\.mlp\.activation"):
            function(case)


def test_a_mesh_needs_its_devices():
    case = make_case(ARCHITECTURES["llama"], batch=8, seq=8, mesh={"fsdp": 8})
    with pytest.raises(RejectedError, match="needs 8 devices"):
        make_mesh(case, jax.devices()[:4])
