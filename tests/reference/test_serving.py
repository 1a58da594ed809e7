"""Prefill and decode, step by step, give the logits of the full forward pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.reference.serving import make_decode_step, make_prefill_step
from tests.reference.small import (
    ARCHITECTURES,
    LITTLE_EFFORT,
    PLAIN,
    compiled,
    difference,
    make_case,
    model_of,
    tokens_of,
)

ROWS, PROMPT = 8, 5
PLANS = {
    "scan": {"layers": "scan"},
    "unrolled blockwise": {"layers": "unrolled", "attention": "blockwise", "attention_block": 4},
}


def full_and_stepwise(arch, options, shift=0):
    """Logits `[b, rows, v]` of one pass over all rows, and of a prompt followed by single tokens."""
    whole = make_case(arch, phase="prefill", batch=2, seq=ROWS, logits="all", **options)
    prompt = make_case(arch, phase="prefill", batch=2, seq=PROMPT, logits="all", **options)
    one = make_case(arch, phase="decode", batch=2, past=ROWS - 1, **options)
    model, tokens = model_of(whole), tokens_of(whole)
    expected, _ = compiled(make_prefill_step(whole, PLAIN), model, tokens)
    logits, caches = compiled(make_prefill_step(prompt, PLAIN), model, tokens[:, :PROMPT])

    def room(x):  # rows are the third axis from the end
        return jnp.pad(x, [(0, ROWS - PROMPT) if axis == x.ndim - 3 else (0, 0) for axis in range(x.ndim)])

    caches, found = jax.tree.map(room, caches), [logits]
    decode = jax.jit(make_decode_step(one, PLAIN), compiler_options=LITTLE_EFFORT)
    for position in range(PROMPT, ROWS):
        step, caches = decode(model, caches, tokens[:, position : position + 1], jnp.int32(position + shift))
        found.append(step)
    return expected, jnp.concatenate(found, axis=1)


# The plan of each architecture; windows, linear biases and soft caps go through both.
CHOSEN = {
    "llama": "scan", "qwen": "unrolled blockwise", "gpt2": "scan", "gemma": "scan", "opt": "unrolled blockwise",
    "olmo": "unrolled blockwise", "neox": "scan",
}  # fmt: skip


@pytest.mark.parametrize(("name", "plan"), [*CHOSEN.items(), ("gemma", "unrolled blockwise")])
def test_prefill_and_decode_equal_the_full_pass(name, plan):
    expected, found = full_and_stepwise(ARCHITECTURES[name], PLANS[plan])
    assert difference(found, expected) < 1e-5
    assert float(jnp.std(expected)) > 0.1  # there is something to compare


def test_a_position_off_by_one_shows():
    expected, found = full_and_stepwise(ARCHITECTURES["llama"], PLANS["scan"], shift=1)
    assert difference(found[:, :PROMPT], expected[:, :PROMPT]) < 1e-5
    assert difference(found, expected) > 1e-2


def test_only_the_rows_asked_for_are_projected():
    options = {"phase": "prefill", "batch": 2, "seq": ROWS}
    everything = make_case(ARCHITECTURES["llama"], **options, logits="all")
    model, tokens = model_of(everything), tokens_of(everything)
    expected, _ = compiled(make_prefill_step(everything, PLAIN), model, tokens)
    for rows, asked in (("final", 1), (3, 3)):
        some = make_case(ARCHITECTURES["llama"], **options, logits=rows)
        found, caches = compiled(make_prefill_step(some, PLAIN), model, tokens)
        assert found.shape == (2, asked, 24)
        assert difference(found, expected[:, -asked:]) < 1e-5
        assert caches[0].keys.shape == (3, 2, ROWS, 2, 4)
