"""Speculative and multi-token decode: tokens a verification yields, and what drafting and verifying costs.

Each of k draft tokens is accepted with chance a, independently, until one is not; the model then gives one more:

    expected tokens a verification = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a)

(Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1.) A verification is a step with k + 1 rows a sequence: the
weights cross memory once for all of them. Heads that predict several tokens (next_n) draft with one layer and the head
for each further token. Acceptance that depends on the position or on what came before is not one number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.planning.quantities import share
from jaxcost.planning.serve.inputs import Speculation
from jaxcost.planning.serve.latency import Model
from jaxcost.planning.serve.weights import rank_weights, stored_program

STEPS = 64  # halvings of the interval in which the break-even acceptance lies


def expected_tokens(acceptance: Fraction, drafted: int) -> Fraction:
    """Return the expected tokens of one verification, exactly.

    >>> expected_tokens(Fraction(1, 2), 3)
    Fraction(15, 8)
    """
    if acceptance == 1:
        return Fraction(drafted + 1)
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def break_even(cost: Fraction, drafted: int) -> Fraction | None:
    """Return the acceptance from which speculation is faster, where a verification with its draft costs `cost` plain
    steps; 0 where it always is, None where it never is.
    """
    if cost <= 1:
        return Fraction(0)
    if cost >= drafted + 1:
        return None
    low, high = Fraction(0), Fraction(1)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, drafted) < cost else (low, middle)
    return high


def one_layer(architecture: Architecture) -> Architecture:
    """Return the architecture cut to one layer of its last group, norm and head kept: a head that drafts a token."""
    group = architecture.groups[-1]
    return architecture.replaced(groups=(group.replaced(repeat=1),))


def other_vocabulary(mine: Architecture, drafter: Architecture, name: str | None) -> tuple[Problem, ...]:
    """Return the problem of a draft model whose tokens are other ones than the model's."""
    own, its = mine.vocabulary_size, drafter.vocabulary_size
    if own == its:
        return ()
    rule = f"its vocabulary has {its} tokens and the model's {own}: its drafts are other tokens"
    return (Problem("--draft", name, rule, "choose a draft model with the same vocabulary"),)


def draft_bytes(drafter: Model, heads: bool) -> int:
    """Return the weights that drafting adds to a device: a whole model's, or a head's one layer."""
    weights = rank_weights(stored_program(drafter.architecture, drafter.engine), drafter.engine)[0]
    return weights.layers if heads else weights.total


def speculation(model: Model, drafter: Model, asked: Speculation, batch: int, context: int) -> dict[str, Any]:
    """Return what speculation yields at a batch and context, by bounds.

    Raises:
        RejectedError: the draft model has another vocabulary.
    """
    problems = other_vocabulary(model.architecture, drafter.architecture, asked.draft)
    if problems:
        raise RejectedError(problems)
    acceptance = share(asked.acceptance, "--acceptance")
    plain = model.decode(batch, context)
    draft = drafter.decode(batch, context)
    check = model.verify(batch, asked.tokens + 1, context)
    seconds = asked.tokens * draft.full_overlap + check.full_overlap
    tokens, cost = expected_tokens(acceptance, asked.tokens), seconds / plain.full_overlap
    even = break_even(cost, asked.tokens)
    data: dict[str, Any] = {
        "drafted": asked.tokens, "acceptance": float(acceptance), "draft": asked.draft or f"next_n={asked.next_n}",
        "batch": batch, "context": context, "expected_tokens": float(tokens),
        "expected_tokens_exact": exact(tokens), "step_seconds": float(seconds),
        "draft_seconds": float(asked.tokens * draft.full_overlap), "verify_seconds": float(check.full_overlap),
        "plain_seconds": float(plain.full_overlap), "verify_bound": check.by,
        "tpot_seconds": float(seconds / tokens), "speedup": float(tokens / cost), "pays": bool(tokens > cost),
        "break_even_acceptance": None if even is None else float(even),
        "extra_rows": batch * asked.tokens, "wasted_rows": float(batch * (asked.tokens + 1 - tokens)),
        "draft_weight_bytes": draft_bytes(drafter, asked.next_n is not None) * (asked.tokens if asked.next_n else 1),
        "memory": "weights and cache of the draft are not subtracted from the pages: give them in other_bytes",
        "convention": "full overlap of every step; acceptance the same at every position; sampling is free",
    }  # fmt: skip
    if even is None:
        data["break_even_reason"] = "a verification with its draft costs as much as all the tokens that it can yield"
    return data


def exact(value: Fraction) -> str:
    """Return a fraction as numerator/denominator, cut to its decimal where it is longer than a line."""
    text = str(value)
    return text if len(text) <= 60 else f"{float(value):.15g}"
