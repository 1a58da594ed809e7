"""Parameters, names, shapes, forward and backward FLOPs are those that torch counts of Hugging Face's own classes.

The records were made by `record_torch.py`; where torch and transformers are installed, the last test makes them again.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

import jaxcost
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import program
from jaxcost.reconciliation.checkpoint_names import choose_layout
from jaxcost.reconciliation.layouts import expected_tensors

RECORDS = Path(__file__).parent / "records"
RELEASED = Path(__file__).parents[1] / "catalog" / "released"
NAMES = sorted(path.stem for path in RECORDS.glob("*.json"))
HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None

# What transformers calls the parts of a layer and the projections outside it, in our scopes.
LAYER = {
    "attn": ("attn", "attention", "self_attn", "self_attention"),
    "mlp": ("mlp", "ffn", "feed_forward", "fc1", "fc2"),
}
OUTSIDE = {"head": ("lm_head", "embed_out")}


@functools.cache
def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def prediction(name):
    found = record(name)
    return predict(jaxcost.training(jaxcost.load(name), batch=found["batch"], seq=found["rows"]))


def ours_by_role(name):
    """Forward FLOPs of attention and MLP over all layers, and of what stands outside by its own scope."""
    found = Counter()
    for row in prediction(name).ledgers["flops"].rows:
        if row.phase == "forward":
            parts = row.scope.split("/")
            found[parts[1] if parts[0].startswith("group") else row.scope] += row.value
    return found


def theirs_by_role(forward):
    """The same parts by transformers' names."""
    found = Counter()
    for part, names in LAYER.items():
        found[part] = sum(forward.get(f"layer/{name}", 0) for name in names)
    for part, names in OUTSIDE.items():
        found[part] = sum(forward.get(name, 0) for name in names)
    return found


# transformers 5 renames this one when it reads a checkpoint; what is stored keeps the name.
STORED_AS = {"GPTNeoXForCausalLM": {"lm_head.weight": "embed_out.weight"}}


def stored(found):
    renamed = STORED_AS.get(found["class"], {})
    names = {renamed.get(name, name): tuple(shape) for name, shape in found["stored"]["outside"].items()}
    for layer in range(found["stored"]["layers"]):
        for name, shape in found["stored"]["parameters"].items():
            names[f"{found['stored']['stack']}.{layer}.{name}"] = tuple(shape)
    return names


def test_the_records_are_of_every_released_configuration():
    assert sorted(path.stem for path in RELEASED.glob("*.json")) == NAMES
    assert len({record(name)["class"] for name in NAMES}) >= 13


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_flops_are_those_torch_counts(name):
    found, ours = record(name), prediction(name)
    assert ours.value("parameters.unique") == found["unique_parameters"]
    assert ours.value("flops.forward") == found["forward_flops"]["total"]
    assert ours.value("flops.backward") == found["backward_flops"]


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_attention_mlp_and_head_are_those_of_the_modules(name):
    theirs, ours = theirs_by_role(record(name)["forward_flops"]), ours_by_role(name)
    assert {part: theirs[part] for part in ("attn", "mlp", "head")} == {
        part: ours[part] for part in ("attn", "mlp", "head")
    }


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_those_of_the_class(name):
    theirs = stored(record(name))
    built = program(jaxcost.prefill(jaxcost.load(name), seq=1))
    choice = choose_layout(built, list(theirs), None)
    ours = {item.name: item.shape for item in expected_tensors(built, choice.name)}
    assert ours == theirs


def test_the_comparison_sees_one_head_too_many_and_one_lost_product():
    """A model with one more K/V group, and a record less one product of a layer, both differ."""
    found = record("llama-3.2-1b")
    smaller = jaxcost.load("llama-3.2-3b")
    other = predict(jaxcost.training(smaller, batch=found["batch"], seq=found["rows"]))
    assert other.value("parameters.unique") != found["unique_parameters"]
    assert other.value("flops.forward") != found["forward_flops"]["total"]
    lost = {**found["forward_flops"], "layer/mlp": found["forward_flops"]["layer/mlp"] * 2 // 3}
    assert theirs_by_role(lost)["mlp"] != ours_by_role("llama-3.2-1b")["mlp"]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="torch and transformers are not installed; the records stand for them")
def test_torch_still_counts_what_is_recorded():
    from tests.differential import record_torch

    assert record_torch.main(["--check"]) == 0
