"""The dense family against a walk that shares nothing with the folds: gradients under frozen parts, windows, state."""

from __future__ import annotations

import random

import pytest

from jaxcost.contracts.case import Case
from jaxcost.prediction import predict
from jaxcost.verify import recount
from tests.prediction.family import case_of, dense, draw_family

FREEZABLE = (
    "embed",
    "final_norm",
    "head",
    "group0",
    "group0/attn",
    "group0/mlp",
    "group0/attn_norm",
    "group0/mlp_norm",
)


def training_case(seed: int) -> Case:
    """Return a random training case with frozen parts, where the drawn parts exist and leave something to train."""
    sizes, options = draw_family(seed)
    rng, architecture = random.Random(seed), dense(**sizes)
    known = case_of(architecture, "training", **options).frozen_names
    frozen = [name for name in rng.sample(FREEZABLE, rng.randint(0, 4)) if name in known]
    if set(frozen) >= {name for name in known if "/" not in name}:
        frozen.remove("group0")
    options |= {
        "frozen": frozen,
        "layers": rng.choice(["scan", "unrolled"]),
        "pairs": rng.choice(["legal", "rectangular"]),
    }
    return case_of(architecture, "training", optimizer=rng.choice(["adam", "adafactor", "lion"]), **options)


@pytest.mark.parametrize("seed", range(60))
def test_training_equals_the_walk(seed: int) -> None:
    case = training_case(seed)
    found = predict(case)
    assert found.value("parameters.unique") == recount.unique_parameters(case)
    assert found.value("parameters.trainable") == recount.trainable_parameters(case)
    assert found.value("flops.forward") == recount.forward_flops(case)
    assert found.value("flops.backward") == recount.backward_flops(case)
    assert found.value("state.by_role") == recount.state_bytes(case)


@pytest.mark.parametrize("seed", range(30))
def test_serving_equals_the_walk(seed: int) -> None:
    sizes, options = draw_family(seed)
    for phase, rows in (("prefill", {"seq": options["seq"]}), ("decode", {"past": options["seq"]})):
        case = case_of(dense(**sizes), phase, batch=2, pairs="legal", **rows)
        found = predict(case)
        assert found.value("flops.forward") == recount.forward_flops(case)
        assert found.value("kv_cache.bytes") == recount.cache_bytes(case)
        assert found.value("kv_cache.minimum_bytes") == recount.least_cache_bytes(case)


@pytest.mark.parametrize("seed", range(20))
def test_device_bytes_equal_the_walk(seed: int) -> None:
    """A narrow token table has no hidden axis and is cut over tensor alone; projections over fsdp alone."""
    sizes, _ = draw_family(seed)
    doubled = {name: 2 * sizes[name] for name in ("h", "k", "f", "V")} | {"d": 4 * sizes["d"], "fused": False}
    narrow = 6 if sizes["embedding_width"] else None
    mesh = {"fsdp": 2, "tensor": 2}
    case = case_of(dense(**{**sizes, **doubled, "embedding_width": narrow}), "prefill", batch=4, seq=4, mesh=mesh)
    local, _ = recount.device_parameter_bytes(case)
    assert predict(case).value("ownership.by_role.parameter") == local


def test_the_walk_notices_a_wrong_form() -> None:
    """Reading parallel branches as one after the other gives other gradients where parts are frozen."""
    options = {"seq": 4, "layers": "unrolled", "frozen": ["embed", "group0/attn_norm", "group0/mlp"]}
    norms = {"L": 1, "shared": True}
    parallel, pre = (case_of(dense(residual=form, **norms), "training", **options) for form in ("parallel", "pre"))
    assert predict(parallel).value("flops.backward") == recount.backward_flops(parallel)
    assert recount.backward_flops(parallel) < recount.backward_flops(pre)


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("residual", ["post", "post_branch"])
def test_a_norm_after_a_branch_alone_may_train(residual: str, layers: str) -> None:
    """With all products frozen its gradient needs those of the layers above; scanned layers are one program."""
    options = {"seq": 4, "layers": layers, "frozen": ["embed", "group0/attn", "group0/mlp"]}
    case = case_of(dense(L=3, residual=residual), "training", **options)
    found = predict(case)
    assert found.value("flops.backward") == recount.backward_flops(case) > 0
    assert found.value("state.trainable") == recount.trainable_parameters(case)
