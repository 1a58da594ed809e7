"""FLOPs of one token: 6 x active parameters, or what the ledger counts at the context.

The shortcut counts every parameter once forward and twice backward. It leaves out the products of queries and keys,
which grow with the context, and counts an embedding table that is looked up, not multiplied. The ledger counts the
declared contractions of the model at that context.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import training
from jaxcost.planning.run.sheet import Unknown, figure
from jaxcost.prediction.flops import flops
from jaxcost.prediction.program import program


class TokenWork(NamedTuple):
    """FLOPs of one token at a context: `model` forward and backward, `executed` with what is computed again."""

    model: Fraction
    executed: Fraction


@lru_cache(maxsize=64)
def token_work(architecture: Architecture, seq: int, options: tuple[tuple[str, Any], ...] = ()) -> TokenWork:
    """Return the FLOPs of one token of a training step, from the ledger of one sequence of `seq` tokens.

    Raises:
        RejectedError: the model does not take the context, or an option does not fit it.
    """
    totals = flops(program(training(architecture, batch=1, seq=seq, **dict(options)))).totals
    return TokenWork(Fraction(totals["forward"] + totals["backward"], seq), Fraction(totals["total"], seq))


@figure(
    "work",
    "FLOPs/token",
    scope="stage",
    staged=True,
    convention="6 x active parameters, every one of them, embedding and output projection included",
    omitted="products of queries and keys; frozen parameters and selective gradients count as full",
)
def six_p_flops_per_token(active: Any) -> Any:
    """Work of one token by the shortcut."""
    return 6 * active


@figure(
    "work",
    "FLOPs/token",
    scope="stage",
    staged=True,
    convention="forward and backward of every contraction at this context, one FMA = 2 FLOPs",
    omitted="recomputation, non-matmul primitives, lookups",
)
def ledger_flops_per_token(token_work: Any) -> Any:
    """Work of one token by the model's ledger."""
    return token_work.model


@figure("work", "ratio", scope="stage", staged=True, convention="1 - 6P / ledger; negative where 6P counts more")
def six_p_shortfall(six_p_flops_per_token: Any, ledger_flops_per_token: Any) -> Any:
    """Share of the work that the shortcut does not see."""
    return 1 - six_p_flops_per_token / ledger_flops_per_token


@figure("work", "FLOPs/token", scope="stage", staged=True, convention="as `work` says: the ledger's or 6P")
def flops_per_token(work: Any, six_p_flops_per_token: Any, ledger_flops_per_token: Any = None) -> Any:
    """Work of one token that the plan is computed with."""
    if work == "six_p":
        return six_p_flops_per_token
    return ledger_flops_per_token if ledger_flops_per_token is not None else Unknown("the ledger needs a context: seq")


@figure(
    "work",
    "ratio",
    scope="stage",
    staged=True,
    convention="executed over model FLOPs; never applied to a rate of useful FLOPs, which contains it",
)
def executed_over_model(token_work: Any) -> Any:
    """Recomputation: what the devices execute for each useful FLOP."""
    return token_work.executed / token_work.model
