"""Rows of a sequence split over devices: the step computes what one device computes, and divides the work evenly."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.reference import make_step
from tests.reference.small import ARCHITECTURES, difference, make_case
from tests.reference.test_sharded import compiled_on, flops, results, scoped, whole

BASE = {"batch": 8, "seq": 8, "optimizer": "momentum"}
BLOCKS = {"attention": "blockwise", "attention_block": 2}
TRAINING = {
    "context": ("llama", {"data": 2, "context": 4}, {}, {}),
    "context and tensor, blocks": ("llama", {"context": 4, "tensor": 2}, BLOCKS | {"remat": "block"}, {}),
    "every axis, unrolled": (
        "llama", {"fsdp": 2, "context": 2, "tensor": 2}, BLOCKS | {"remat": "attention", "layers": "unrolled"},
        {"sequence_parallel": True},
    ),
    "post norms": ("gemma", {"data": 2, "context": 2, "tensor": 2}, {}, {"sequence_parallel": True}),
    "ring": ("llama", {"data": 2, "context": 4}, BLOCKS, {"context_method": "ring"}),
}  # fmt: skip


@pytest.mark.parametrize("plan", TRAINING)
def test_training_equals_one_device(plan):
    name, mesh, options, split = TRAINING[plan]
    arguments, expected, count = whole(name, tuple((BASE | options).items()))
    step, program = compiled_on(name, BASE | options | split, mesh, "explicit")
    # Every rank of `tensor` computes the projections of the embedding.
    repeated = scoped(count, "project_in", "project_out") * (mesh.get("tensor", 1) - 1)
    assert flops(program) * 8 == count.total.value + repeated
    assert count_jaxpr(step.trace().jaxpr).total == count.total
    found = results(step, program, arguments)
    assert difference(found, expected) < 1e-5
    assert difference(results(step, program, (arguments[0], arguments[1][:, ::-1])), found) > 1e-4


@pytest.mark.parametrize(("name", "logits"), [("qwen", "all"), ("gemma", "final")])
def test_prefill_equals_one_device(name, logits):
    options = {"phase": "prefill", "batch": 4, "seq": 8, "logits": logits}
    arguments, expected, _ = whole(name, tuple(options.items()))
    split = {"sequence_parallel": True} if name == "gemma" else {}
    mesh = {"data": 2, "context": 2, "tensor": 2}
    step, program = compiled_on(name, options | split, mesh, "explicit")
    assert difference(results(step, program, arguments), expected) < 1e-5


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"context_method": "ring"}, "running softmax"),
        ({"context_method": "ring", "phase": "prefill", **BLOCKS}, "cache"),
        ({"sharding": "auto"}, "pinned"),
        ({"attention": "cudnn"}, "kernel"),
    ],
)
def test_what_is_not_written_down_is_refused(options, word):
    case = make_case(ARCHITECTURES["llama"], **{"batch": 8, "seq": 8, "mesh": {"context": 4}, **options})
    with pytest.raises(RejectedError, match=word):
        make_step(case)
