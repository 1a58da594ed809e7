"""Checks on work: products with their axes, gradients, replay, pairs, logits, and what is no product at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxcost.contracts.kernels import SPLASH_ROWS
from jaxcost.prediction.rows import Row
from jaxcost.prediction.sizes import AXIS_FIELDS
from jaxcost.verify.gates.common import Items, Subject, at, each, equal, holds
from jaxcost.verify.gates.recount import product_axes


def parsed(spec: str) -> tuple[list[str], list[str], list[str]]:
    """Return the axes of the left operand, the right operand and the result of a product."""
    operands, _, result = spec.partition("->")
    left, _, right = operands.partition(",")
    return left.split(), right.split(), result.split()


def is_pairwise(row: Row) -> bool:
    """Whether a FLOP row is a product of queries with keys, or of probabilities with values."""
    return {"s", "t"} <= set(product_axes(row))


def forward(subject: Subject) -> Iterator[tuple[str, Row]]:
    """Yield the FLOP rows of the forward pass."""
    return ((ledger, row) for ledger, row in subject.rows("flops") if row.phase == "forward")


@holds("flops.axes", "every product names the axes of both operands and of its result, each with its extent")
def _axes(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops"):
        left, right, result = parsed(str(row.fields.get("contraction", "")))
        named = bool(left and right and result)
        sized = all(type(row.fields.get(axis)) is int for axis in product_axes(row))
        known = all(axis in AXIS_FIELDS for axis in (*left, *right, *result))
        yield "" if named and sized and known else f"{at(ledger, row)}: its axes, or their extents, are not named"


@holds("flops.matrix", "every executed product reads as m x k by k x n over its own axes, gradients with theirs")
def _matrix(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops"):
        forward_spec = parsed(str(row.fields.get("contraction", "")))
        left, right, result = parsed(str(row.fields.get("product", row.fields.get("contraction", ""))))
        parts = {name: str(axes).split() for name, axes in dict(row.fields.get("matrix", {})).items()}
        batch, m, n, k = (parts.get(name, []) for name in ("batch", "m", "n", "k"))
        whole = (
            set(batch + m + k) == set(left) and set(batch + k + n) == set(right) and set(batch + m + n) == set(result)
        )
        apart = len(batch + m + n + k) == len({*batch, *m, *n, *k}) and bool(k)
        if row.phase == "backward":
            # The output's gradient takes part, and what comes out has the axes of an operand.
            whole = whole and forward_spec[2] in (left, right) and result in forward_spec[:2]
        yield "" if whole and apart else f"{at(ledger, row)}: m, n, k do not read the product that is executed"


@holds("flops.pairs", "a pairwise product names its convention of pairs, which is the case's; any other names its rows")
def _pairs(subject: Subject) -> Items:
    declared, splash = subject.case.convention.attention_pairs, subject.case.workload.attention == "splash"
    for ledger, row in subject.rows("flops"):
        if not is_pairwise(row):
            right = "pairs" not in row.fields and type(row.fields.get("rows")) is int
        else:
            right = row.fields.get("pairs") == declared
            if splash and row.fields.get("s", 0) % SPLASH_ROWS == 0:
                right = right and type(row.fields.get("scheduled_pairs")) is int
        yield "" if right else f"{at(ledger, row)}: which rows or pairs are counted is not said"


@holds("flops.heads", "pairwise products count every query head, however few key/value heads there are")
def _heads(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops"):
        if is_pairwise(row):
            heads = row.fields.get("h") or row.fields.get("k", 0) * row.fields.get("g", 0)
            yield equal(f"{at(ledger, row)}, heads", heads, subject.case.query_heads(_group(row)))


def _group(row: Row) -> int:
    return int(row.scope.split("/")[0].removeprefix("group"))


@holds("flops.logits", "the product with the vocabulary counts the rows of logits that are declared")
def _logits(subject: Subject) -> Items:
    work = subject.case.workload
    if work.lengths is None:
        want = work.batch * work.logits_rows_per_sequence
    else:
        want = sum(min(length, work.logits_rows_per_sequence) for length in work.lengths)
    found = [row for _, row in forward(subject) if "v" in product_axes(row)]
    yield "" if len(found) == 1 else f"{len(found)} forward products with the vocabulary"
    for row in found:
        yield equal(at("flops", row), row.fields.get("rows"), want)


@holds("flops.gradients", "every backward product is one forward product again, and names whose gradient it makes")
def _gradients(subject: Subject) -> Items:
    made = [(row.scope, row.object, row.fields.get("contraction"), row.value) for _, row in forward(subject)]
    learned = {row.object for _, row in subject.rows("parameters")}
    backward = [row for _, row in subject.rows("flops") if row.phase == "backward"]
    for row in backward:
        again = (row.scope, row.object, row.fields.get("contraction"), row.value) in made
        operand = str(row.fields.get("gradient_of", ""))
        weight = operand in learned or operand.rsplit("/", 1)[-1] == "weight"
        right = again and bool(operand) and row.part == ("dw" if weight else "dx")
        yield "" if right else f"{at('flops', row)}: no gradient of a forward product"
    if subject.training and not subject.case.state.frozen:
        weights = [row for row in backward if row.part == "dw"]
        products = [row for _, row in forward(subject) if not is_pairwise(row)]
        yield equal("weight gradients", len(weights), len(products))
    if not subject.training:
        yield equal("backward products outside of training", len(backward), 0)


@holds(
    "replay.named", "work that is done again stands in rows of its own, which name the cause, the region and its layers"
)
def _replay(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops", "primitives"):
        if row.phase == "replay":
            named = bool(row.fields.get("cause")) and bool(row.region) and row.fields.get("layers", 0) > 0
            yield "" if named else f"{at(ledger, row)}: done again, and no cause, region or layers"
        else:
            yield f"{at(ledger, row)}: names a cause of replay outside of it" if "cause" in row.fields else ""


@holds("replay.only_in_training", "nothing is replayed, saved for a backward pass or updated outside of training")
def _replay_elsewhere(subject: Subject) -> Items:
    if subject.training:
        return
    for ledger, row in subject.rows("flops", "primitives", "traffic", "activations", "collectives"):
        saved = ledger == "activations" and "needed_by" in row.fields
        elsewhere = row.phase in ("forward", "", "activations") and not saved
        yield "" if elsewhere else f"{at(ledger, row)}: belongs to training"


@holds("primitives.terms", "work that is no product is listed by kind, with the op and the axes of each term")
def _terms(subject: Subject) -> Items:
    def right(row: Row) -> bool:
        terms = row.fields.get("terms", ())
        return bool(row.fields.get("op")) and bool(terms) and all(_is_term(term) for term in terms)

    yield from each(subject.rows("primitives"), right, "no op, or no coefficient, axes and extent")
    yield "" if any(True for _ in subject.rows("primitives")) else "no primitive is counted at all"


def _is_term(term: Any) -> bool:
    return (
        type(term.get("coefficient")) is int and isinstance(term.get("axes"), str) and type(term.get("extent")) is int
    )


@holds("primitives.families", "every op that is no product has its primitives, and no product is counted among them")
def _families(subject: Subject) -> Items:
    counted = {row.scope for _, row in subject.rows("primitives")}
    products = {row.scope for _, row in subject.rows("flops")}
    made = subject.prediction.program
    for op in made.ops:
        if op in made.contractions or not (getattr(op, "forward", ()) or type(op).__name__ == "Lookup"):
            continue
        yield "" if op.scope in counted else f"{op.scope} has work that is not counted"
    for scope in products:
        kinds = [row.object for _, row in subject.rows("primitives") if row.scope == scope]
        yield f"{scope}: {kinds} beside its FLOPs" if "fma" in kinds else ""


@holds("update.apart", "the update is counted by itself, per updated scalar, where an optimizer is declared")
def _update(subject: Subject) -> Items:
    rows = [row for _, row in subject.rows("primitives") if row.phase == "optimizer"]
    named = subject.case.state.optimizer
    yield "" if bool(rows) == (named != "none") else f"optimizer {named} has {len(rows)} rows"
    for row in rows:
        right = row.fields.get("optimizer") == named and row.fields.get("per") == "updated scalar"
        yield "" if right else f"{at('primitives', row)}: does not say whose update, per what"
    in_products = [row for _, row in subject.rows("flops") if row.phase == "optimizer"]
    yield equal("FLOP rows of the optimizer", len(in_products), 0)
