"""Our logits are those of Hugging Face transformers, for Llama, Qwen2 and GPT-2 in small."""

from __future__ import annotations

import importlib.util
import json

import jax
import numpy as np
import pytest

from jaxcost.reference.serving import make_prefill_step
from tests.reference import record_transformers, seeded
from tests.reference.small import LITTLE_EFFORT, PLAIN, compiled

TOLERANCE = 1e-4
HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None


def our_logits(config):
    case = seeded.case_of(config)
    model = seeded.model_of(case, seeded.weights_of(case))
    return np.asarray(compiled(make_prefill_step(case, PLAIN), model, seeded.tokens_of(config))[0])


@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_logits_equal_the_recorded_ones(name):
    record = json.loads((seeded.RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    assert record["config"] == seeded.CONFIGS[name] and record["seed"] == seeded.SEED
    assert set(record["versions"]) >= {"torch", "transformers"}
    data = np.load(seeded.RECORDS / f"{name}.npz")
    np.testing.assert_array_equal(data["tokens"], seeded.tokens_of(record["config"]))
    logits = our_logits(record["config"])
    assert np.abs(logits - data["logits"]).max() < TOLERANCE
    assert data["logits"].std() > 0.5  # far above the tolerance


@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_every_weight_matters(name):
    """Any array changed a little moves some logit by more than the tolerance, so none is left out of the comparison."""
    config = seeded.CONFIGS[name]
    recorded = np.load(seeded.RECORDS / f"{name}.npz")["logits"]
    case = seeded.case_of(config)
    step = jax.jit(make_prefill_step(case, PLAIN), compiler_options=LITTLE_EFFORT)
    arrays = seeded.weights_of(case)
    for path in [p for p in arrays if p.startswith((".embed", ".groups[0][1]", ".final_norm", ".head"))]:
        if name == "gpt2" and path.endswith("k_proj.bias"):
            continue  # without rotation q . b is the same for all keys of a query, and softmax cancels it
        # One column of a matrix, one element of a vector: a shift common to all would hide in a softmax.
        changed = dict(arrays)
        changed[path] = arrays[path].copy()
        changed[path][..., 0] += 0.05
        logits = np.asarray(step(seeded.model_of(case, changed), seeded.tokens_of(config))[0])
        assert np.abs(logits - recorded).max() > TOLERANCE, path


@pytest.mark.skipif(not HAS_TORCH, reason="torch and transformers are not installed; pip install torch transformers")
@pytest.mark.parametrize("name", seeded.CONFIGS)
def test_logits_equal_those_of_the_installed_transformers(name):
    config = seeded.CONFIGS[name]
    assert np.abs(our_logits(config) - record_transformers.logits_of(config)).max() < TOLERANCE


def test_records_are_small():
    assert sum(path.stat().st_size for path in seeded.RECORDS.iterdir()) < 200_000
