"""The search for what to keep: equal to trying every set, and its bounds hold."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.recompute import every_set, names_of, plan_recompute
from jaxcost.prediction.ledgers import predict
from jaxcost.schema import schema
from tests.reference.small import ARCHITECTURES, make_case


@pytest.mark.parametrize("attention", ["materialised", "blockwise"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo", "neox"])
def test_equals_trying_every_set(name, attention):
    case = make_case(ARCHITECTURES[name], batch=2, seq=8, attention=attention, precision="mixed")
    draw = random.Random(f"{name} {attention}")
    names = draw.sample(names_of(case), 6)
    sets = list(every_set(case, names))
    sizes = sorted({item.saved_bytes for item in sets})
    for budget in (sizes[0], *draw.sample(sizes, 3), sizes[-1]):
        best = min((item.replay_flops, item.saved_bytes) for item in sets if item.saved_bytes <= budget)
        plan = plan_recompute(case, budget, names)
        assert (plan.best.replay_flops, plan.best.saved_bytes) == best
    assert plan_recompute(case, sizes[0]).visited < 2 ** len(names_of(case))


def test_the_answer_is_what_the_ledgers_say_of_that_policy():
    arch = ARCHITECTURES["llama"]
    case = make_case(arch, batch=2, seq=8, precision="mixed")
    plan = plan_recompute(case, 12_000)
    assert plan.least.saved_bytes < plan.best.saved_bytes <= 12_000 < plan.most.saved_bytes
    chosen = make_case(
        arch, batch=2, seq=8, precision="mixed", remat="save_only_these_names", remat_names=list(plan.best.names)
    )
    ledgers = predict(chosen).ledgers
    assert ledgers["activations"].totals["saved_bytes_per_device"] == plan.best.saved_bytes
    assert ledgers["flops"].totals["recompute"] >= plan.best.replay_flops > 0


def test_what_cannot_be_planned_is_refused():
    case = make_case(ARCHITECTURES["llama"], batch=2, seq=8)
    with pytest.raises(RejectedError, match="already"):
        plan_recompute(case, 10)
    with pytest.raises(RejectedError, match="training"):
        plan_recompute(make_case(ARCHITECTURES["llama"], phase="prefill", batch=2, seq=8), 10)


def test_the_command(run_jaxcost):
    case = ("toy-untied", "--phase", "training", "--batch", "2", "--seq", "64", "--budget")
    data = json.loads(run_jaxcost("plan", "recompute", *case, "64KiB", "--json").stdout)
    jsonschema.validate(data, schema("jaxcost.plan.v1"))
    assert data["best"]["saved_bytes"] <= 65_536
    assert data["best"]["options"] in run_jaxcost("plan", "recompute", *case, "64KiB").stdout
    for words in (("recompute", *case, "64kb"), ("everything", *case, "64KiB")):
        assert run_jaxcost("plan", *words).returncode == 2
