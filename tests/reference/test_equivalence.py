"""Different ways to run one step give the same loss and gradients."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.execution import REMATS
from jaxcost.reference import attention
from jaxcost.reference.model import Place
from jaxcost.reference.stack import LAYER_POLICIES
from tests.reference.small import (
    ARCHITECTURES,
    FAMILY,
    difference,
    gradients_of,
    loss_and_gradients,
    make_case,
    model_of,
    tokens_of,
)

SMALL = {"batch": 4, "seq": 8}
KEY = jnp.array([3, 5], jnp.uint32)


def unstacked(case, model):
    """The same weights with every scanned group written out as a tuple of layers."""
    groups = tuple(
        tuple(jax.tree.map(lambda x, i=i: x[i], layers) for i in range(group.repeat))
        for group, layers in zip(case.architecture.groups, model.groups, strict=True)
    )
    return eqx.tree_at(lambda m: m.groups, model, groups)


@cache
def plain(name):
    """Weights, loss and gradients of the scanned, materialised, unsharded step without dropout."""
    case = make_case(ARCHITECTURES[name], **SMALL)
    model = model_of(case)
    return case, model, loss_and_gradients(case, model)


# Each way differs from the scanned, materialised step that recomputes nothing in two independent respects.
WAYS = {
    "unrolled, blockwise": {"layers": "unrolled", "attention": "blockwise", "attention_block": 2},
    "block remat": {"remat": "block"},
    "attention remat, blockwise": {"remat": "attention", "attention": "blockwise", "attention_block": 4},
}


@pytest.mark.parametrize("name", ["llama", "gpt2", *FAMILY])
def test_ways_to_run_a_step_agree(name):
    scan, model, (loss, gradients) = plain(name)
    for way, options in WAYS.items():
        case, unrolled = make_case(ARCHITECTURES[name], **SMALL, **options), "layers" in options
        found = loss_and_gradients(case, unstacked(scan, model) if unrolled else model)
        expected = (loss, unstacked(scan, gradients) if unrolled else gradients)
        assert difference(found, expected) < 2e-5, way


def test_scan_equals_unrolled_with_dropout():
    scan = make_case(ARCHITECTURES["gpt2"], **SMALL, dropout=True)
    unrolled = make_case(ARCHITECTURES["gpt2"], **SMALL, dropout=True, layers="unrolled")
    model = model_of(scan)
    loss, gradients = loss_and_gradients(scan, model, key=KEY)
    other = loss_and_gradients(unrolled, unstacked(scan, model), key=KEY)
    assert difference((loss, unstacked(scan, gradients)), other) < 1e-5


def test_a_swapped_layer_shows():
    scan, model, (loss, _) = plain("llama")
    unrolled = make_case(ARCHITECTURES["llama"], **SMALL, layers="unrolled")
    layers = unstacked(scan, model)
    first, second, third = layers.groups[0]
    swapped = eqx.tree_at(lambda m: m.groups, layers, ((second, first, third),))
    assert difference(loss_and_gradients(unrolled, swapped)[0], loss) > 1e-4


def test_every_policy_has_its_rule():
    """Policies of one rule are one program, so each rule is run once above; a new name must be given a rule."""
    outside = set(REMATS) - set(LAYER_POLICIES)
    by_name = {"save_only_these_names", "save_and_offload_only_these_names"}  # built from the case's own names
    assert outside == {"none", "everything"} | by_name
    assert LAYER_POLICIES["attention"] is LAYER_POLICIES["dots_with_no_batch_dims_saveable"]
    assert LAYER_POLICIES["block"] is LAYER_POLICIES["nothing_saveable"]


def test_a_mask_that_hides_the_own_row_shows(monkeypatch):
    _, model, expected = plain("llama")
    blocks = make_case(ARCHITECTURES["llama"], **SMALL, attention="blockwise", attention_block=2)
    own = attention._visible
    monkeypatch.setattr(attention, "_visible", lambda first, *rest: own(first - 1, *rest))
    assert difference(loss_and_gradients(blocks, model), expected) > 1e-3


@pytest.mark.parametrize(
    ("name", "blocks", "remats"),
    [
        ("gpt2", {}, ("none", "attention", "block", "everything", "dots_saveable")),
        ("gpt2", {"attention": "blockwise", "attention_block": 4}, ("none", "everything")),
        ("neox", {}, ("none", "block")),
        ("olmo", {}, ("none", "dots_saveable")),
    ],
    ids=["materialised", "blockwise", "parallel", "post_branch"],
)
def test_every_recomputation_gives_the_same_gradients(name, blocks, remats):
    """Dropout acts, so a replay that drew other numbers would give other gradients."""
    cases = {remat: make_case(ARCHITECTURES[name], **SMALL, dropout=True, remat=remat, **blocks) for remat in remats}
    model, tokens = model_of(cases["none"]), tokens_of(cases["none"])
    expected = loss_and_gradients(cases["none"], model, key=KEY)
    for remat in remats[1:]:
        run = gradients_of(cases[remat])
        assert difference(run(model, tokens, KEY), expected) < 2e-6, remat
        assert difference(run(model, tokens, KEY + 1), expected) > 1e-3


def test_dropout_acts():
    case = make_case(ARCHITECTURES["gpt2"], **SMALL, dropout=True)
    _, model, (loss, _) = plain("gpt2")
    assert difference(loss_and_gradients(case, model, key=KEY)[0], loss) > 1e-4


def test_sites_and_layers_draw_different_numbers():
    """Two places that fold the same number into the key would drop the same elements."""
    keys = [Place(jnp.int32(0), None, key=jax.random.fold_in(jax.random.key(0), layer)) for layer in (1, 2)]
    drawn = {tuple(jax.random.bits(place.site_key(site), (4,)).tolist()) for place in keys for site in (0, 1, 2)}
    assert len(drawn) == 6


@pytest.mark.parametrize(("name", "count"), [("qwen", 2), ("gpt2", 4)])
def test_accumulated_microbatches_equal_the_full_batch(name, count):
    _, model, expected = plain(name)
    parts = make_case(ARCHITECTURES[name], **SMALL, accumulate=count)
    assert difference(loss_and_gradients(parts, model), expected) < 1e-5
    half = make_case(ARCHITECTURES[name], batch=2, seq=8)
    assert difference(loss_and_gradients(half, model), expected) > 1e-3


def test_a_tied_table_gathers_both_gradients():
    """The gradient of the tied table is that of the embedding plus that of the head, transposed."""
    _, one, (loss, gradients) = plain("qwen")
    untied = make_case(ARCHITECTURES["qwen"].replaced(tied=False), **SMALL)
    two = model_of(untied)
    two = eqx.tree_at(lambda m: (m.embed, m.groups, m.final_norm), two, (one.embed, one.groups, one.final_norm))
    two = eqx.tree_at(lambda m: m.head.weight, two, one.embed.tokens.weight.T)
    other_loss, others = loss_and_gradients(untied, two)
    lookup, head = others.embed.tokens.weight, others.head.weight.T
    assert difference((loss, gradients.embed.tokens.weight), (other_loss, lookup + head)) < 1e-5
    assert difference(gradients.embed.tokens.weight, head) > 1e-3
    assert difference(gradients.embed.tokens.weight, lookup) > 1e-3


def test_padded_vocabulary_rows_take_no_part():
    plain = make_case(ARCHITECTURES["llama"], **SMALL)
    padded = make_case(ARCHITECTURES["llama"], **SMALL, vocabulary_multiple=32)
    model = model_of(padded)
    assert model.embed.tokens.weight.shape == (32, 16)
    cut = eqx.tree_at(
        lambda m: (m.embed.tokens.weight, m.head.weight),
        model,
        (model.embed.tokens.weight[:24], model.head.weight[:, :24]),
    )
    loss, gradients = loss_and_gradients(padded, model)
    expected, others = loss_and_gradients(plain, cut)
    assert difference((loss, gradients.head.weight[:, :24]), (expected, others.head.weight)) < 1e-5
    assert float(jnp.max(jnp.abs(gradients.head.weight[:, 24:]))) == 0


def test_a_frozen_component_has_no_gradient():
    _, model, (expected, others) = plain("llama")
    frozen = make_case(ARCHITECTURES["llama"], **SMALL, frozen=("embed", "group0/attn"))
    loss, gradients = loss_and_gradients(frozen, model)
    assert gradients.embed.tokens.weight is None
    assert jax.tree.leaves(gradients.groups[0].attn) == []
    assert (
        difference((loss, gradients.groups[0].mlp, gradients.head), (expected, others.groups[0].mlp, others.head))
        < 1e-5
    )
