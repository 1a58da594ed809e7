"""What is known about HLO opcodes: which exist, how many operands those jaxcost reads take, what they do to data."""

from __future__ import annotations

import sys

KNOWN_OPCODES = frozenset(
    """abs acos acosh add add-dependency after-all all-gather all-gather-done all-gather-start all-reduce
    all-reduce-done all-reduce-start all-to-all and asin asinh async-done async-start async-update atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil cholesky
    clamp collective-broadcast collective-permute collective-permute-done collective-permute-start compare complex
    concatenate conditional constant convert convolution copy copy-done copy-start cosh cosine count-leading-zeros
    custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf exponential
    exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element imag infeed iota is-finite log
    log-plus-one logistic map maximum minimum multiply negate not opt-barrier or outfeed pad parameter partition-id
    popcnt power ragged-all-to-all ragged-dot real recv recv-done reduce reduce-precision reduce-scatter reduce-window
    remainder replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter send send-done set-dimension-size
    shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt stochastic-convert subtract
    tan tanh topk transpose triangular-solve tuple while xor""".split()
)

_MANY = sys.maxsize
_ANY = (0, _MANY)

_OPERANDS: dict[str, tuple[int, int]] = {
    "parameter": (0, 0), "constant": (0, 0), "get-tuple-element": (1, 1), "dot": (2, _MANY), "convolution": (2, 2),
    "while": (1, 1), "conditional": (2, _MANY), "dynamic-slice": (1, _MANY), "dynamic-update-slice": (2, _MANY),
    "reduce": (2, _MANY), "compare": (2, 2), "add": (2, 2), "subtract": (2, 2), "multiply": (2, 2), "maximum": (2, 2),
    "minimum": (2, 2), "negate": (1, 1), "copy": (1, 1), "convert": (1, 1), "bitcast": (1, 1), "reshape": (1, 1),
    "transpose": (1, 1), "broadcast": (1, 1), "slice": (1, 1), "pad": (2, 2), "gather": (2, 2), "scatter": (3, _MANY),
    "concatenate": (1, _MANY), "copy-start": (1, 1), "copy-done": (1, 1), "all-gather": (1, _MANY),
    "all-reduce": (1, _MANY), "reduce-scatter": (1, _MANY), "all-gather-start": (1, _MANY),
    "all-reduce-start": (1, _MANY), "all-gather-done": (1, 1), "all-reduce-done": (1, 1), "async-done": (1, 1),
    "collective-permute": (1, _MANY), "collective-permute-start": (1, _MANY), "collective-permute-done": (1, 1),
    "ragged-dot": (3, 3), "async-update": (1, 1),
}  # fmt: skip

_CALLED: dict[str, tuple[int, int]] = {"while": (2, 2), "fusion": (1, 1), "call": (1, 1), "conditional": (1, _MANY)}

# Nothing is read or written: names, views, and frames whose inside is counted instead.
BOOKKEEPING = frozenset(
    """parameter tuple get-tuple-element bitcast while call conditional constant after-all add-dependency opt-barrier
    partition-id replica-id domain get-dimension-size set-dimension-size""".split()
)

# The second half of a started operation; the start is counted.
DONE = frozenset(
    """async-done async-update all-gather-done all-reduce-done collective-permute-done copy-done send-done
    recv-done""".split()
)

COLLECTIVES = frozenset(
    """all-gather all-reduce reduce-scatter all-to-all ragged-all-to-all collective-permute collective-broadcast
    all-gather-start all-reduce-start collective-permute-start""".split()
)

# Values keep their meaning through these (a weight stays that weight, a counter that counter).
MOVEMENT = frozenset(
    """bitcast bitcast-convert copy copy-start copy-done convert reshape transpose all-gather all-gather-start
    all-gather-done async-start async-done opt-barrier dynamic-slice slice reduce-precision""".split()
)

# Custom calls that compute nothing: hints, markers and placement.
HARMLESS_TARGETS = frozenset(
    """AssumeGatherIndicesInBound GatherScatterIndicesBitpacked AsyncCollectiveStart AsyncCollectiveDone AllocateBuffer
    CreateBuffer Sharding SPMDFullToShardShape SPMDShardToFullShape annotate_device_placement MoveToHost MoveToDevice
    xla.sdy.FuncResultSharding ConsumeBuffer Pin Unpin LayoutConstraint NopInstruction
    ConcatBitcast""".split()
)


def operands_of(opcode: str) -> tuple[int, int]:
    """How few and how many operands an instruction takes."""
    return _OPERANDS.get(opcode, _ANY)


def called_by(opcode: str) -> tuple[int, int]:
    """How few and how many computations an instruction calls."""
    return _CALLED.get(opcode, _ANY)
