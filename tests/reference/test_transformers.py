"""Our logits are those of Hugging Face transformers, for two layers of each family."""

from __future__ import annotations

import functools
import importlib.util
import json

import jax
import numpy as np
import pytest

from jaxcost.contracts.architecture import Architecture
from jaxcost.reference.serving import make_prefill_step
from tests.reference import record_transformers, seeded
from tests.reference.small import LITTLE_EFFORT, PLAIN

TOLERANCE = 1e-4
HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None


def logits_with(case, arrays, tokens):
    step = jax.jit(make_prefill_step(case, PLAIN), compiler_options=LITTLE_EFFORT)
    return np.asarray(step(seeded.model_of(case, arrays), tokens)[0])


@functools.cache
def ours(name):
    """Case, weights and compiled step of a configuration."""
    case = seeded.case_of(seeded.CONFIGS[name])
    return case, seeded.weights_of(case), jax.jit(make_prefill_step(case, PLAIN), compiler_options=LITTLE_EFFORT)


def our_logits(name, changes=None):
    case, arrays, step = ours(name)
    return np.asarray(step(seeded.model_of(case, arrays | (changes or {})), seeded.tokens_of(seeded.CONFIGS[name]))[0])


def recorded(name):
    return np.load(seeded.RECORDS / f"{name}.npz")


@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_logits_equal_the_recorded_ones(name):
    record = json.loads((seeded.RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    assert record["config"] == seeded.CONFIGS[name] and record["seed"] == seeded.SEED
    assert set(record["versions"]) >= {"torch", "transformers"}
    data = recorded(name)
    np.testing.assert_array_equal(data["tokens"], seeded.tokens_of(record["config"]))
    assert np.abs(our_logits(name) - data["logits"]).max() < TOLERANCE
    assert data["logits"].std() > 0.5  # far above the tolerance


@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_every_weight_matters(name):
    """Any array changed a little moves some logit by more than the tolerance, so none is left out of the comparison."""
    expected, arrays = recorded(name)["logits"], ours(name)[1]
    for path in [p for p in arrays if p.startswith((".embed", ".groups[0][1]", ".final_norm", ".head"))]:
        if name in ("gpt2", "opt", "opt-post") and path.endswith("k_proj.bias"):
            continue  # without rotation q . b is the same for all keys of a query, and softmax cancels it
        # One column of a matrix, one element of a vector: a shift common to all would hide in a softmax.
        changed = arrays[path].copy()
        changed[..., 0] += 0.05
        assert np.abs(our_logits(name, {path: changed}) - expected).max() > TOLERANCE, path


# What has no weights of its own: a field of the architecture, and another value of it.
UNSEEN = [
    ("mistral", "groups.0.windows", []),
    ("mistral", "groups.0.windows", [8]),
    ("gemma2", "groups.0.windows", [0, 7]),
    ("gemma2", "groups.0.layer.attention.score_softcap", None),
    ("gemma2", "groups.0.layer.attention.scale", None),
    ("gemma2", "logit_softcap", None),
    ("gemma", "embedding_scale", None),
    ("bloom", "groups.0.layer.attention.alibi", False),
    ("opt", "learned_positions.offset", 0),
    ("gpt_neox", "groups.0.layer.attention.rotary.interleaved", True),
    ("gpt_neox", "groups.0.layer.attention.rotary.dimensions", 8),
    ("falcon-7b", "groups.0.layer.mlp.activation", "gelu_tanh"),
    ("falcon-40b", "groups.0.layer.residual", "pre"),
]


@pytest.mark.parametrize(("name", "field", "value"), UNSEEN)
def test_what_has_no_weights_matters_too(name, field, value):
    case, arrays, _ = ours(name)
    data = case.architecture.to_data()
    *path, last = field.split(".")
    inner = data
    for key in path:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    inner[last] = value
    other = case.replaced(architecture=Architecture.from_data(data))
    logits = logits_with(other, arrays, seeded.tokens_of(seeded.CONFIGS[name]))
    assert np.abs(logits - recorded(name)["logits"]).max() > 10 * TOLERANCE


@pytest.mark.skipif(not HAS_TORCH, reason="torch and transformers are not installed; pip install torch transformers")
@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_logits_equal_those_of_the_installed_transformers(name):
    assert np.abs(our_logits(name) - record_transformers.logits_of(seeded.CONFIGS[name])).max() < TOLERANCE


def test_records_are_small():
    assert sum(path.stat().st_size for path in seeded.RECORDS.iterdir()) < 400_000
