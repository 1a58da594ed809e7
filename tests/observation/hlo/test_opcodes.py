"""How many operands and computations an instruction takes: the form of each operation as XLA documents it."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES, called_by, operands_of

NONE = "parameter constant"
ONE = """get-tuple-element while negate copy convert bitcast reshape transpose broadcast slice copy-start copy-done
all-gather-done all-reduce-done collective-permute-done async-done async-update"""
TWO = "convolution compare add subtract multiply maximum minimum pad gather"
THREE = "ragged-dot"
ONE_OR_MORE = """dynamic-slice concatenate all-gather all-reduce reduce-scatter all-gather-start all-reduce-start
collective-permute collective-permute-start"""
TWO_OR_MORE = "dot conditional dynamic-update-slice reduce"
THREE_OR_MORE = "scatter"
ANY = "tuple fusion call custom-call after-all"


@pytest.mark.parametrize(("opcodes", "fewest", "bounded"), [
    (NONE, 0, True), (ONE, 1, True), (TWO, 2, True), (THREE, 3, True),
    (ONE_OR_MORE, 1, False), (TWO_OR_MORE, 2, False), (THREE_OR_MORE, 3, False), (ANY, 0, False),
])  # fmt: skip
def test_the_operands_of_an_operation(opcodes, fewest, bounded):
    for opcode in opcodes.split():
        low, high = operands_of(opcode)
        assert opcode in KNOWN_OPCODES
        assert (low, high == low if bounded else high > 1_000_000) == (fewest, True), opcode


def test_the_computations_that_an_operation_calls():
    assert called_by("while") == (2, 2)  # a body and a condition
    assert called_by("fusion") == called_by("call") == (1, 1)
    low, high = called_by("conditional")
    assert (low, high > 1_000_000) == (1, True)
    assert called_by("negate")[0] == 0 and called_by("reduce")[1] > 0
