"""Every proof holds, and every proof can fail: through its closed form, and through the folds it is derived from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy

from jaxcost.contracts.case import Case
from jaxcost.prediction import (
    activations,
    algorithms,
    flops,
    kv_cache,
    parameters,
    sharding,
    sizes,
    traffic,
)
from jaxcost.prediction.forms import Form
from jaxcost.prediction.ledgers import FOLDS, predict
from jaxcost.prediction.symbols import as_form, degree, divided, symbol
from jaxcost.verify.proofs import PROOFS, Proof, prove, run_proofs
from jaxcost.verify.proofs.kinds import KINDS, Derivations
from jaxcost.verify.proofs.outcome import ProofsOutcome

DOCS = Path(__file__).resolve().parents[2] / "docs"
BY_NAME = {proof.name: proof for proof in PROOFS}
SHARED = Derivations()


@pytest.mark.parametrize("name", BY_NAME)
def test_it_holds(name: str) -> None:
    found = prove(BY_NAME[name], SHARED)
    assert found.status == "holds", (found.residual, found.reason)
    assert found.residual == "0" and found.ledger


def mutants(closed: str) -> list[str]:
    """The closed form with one coefficient raised by one, for each of its coefficients; or one more of the whole."""
    found = []
    for match in re.finditer(r"\d+", closed):
        raised = closed[: match.start()] + str(int(match[0]) + 1) + closed[match.end() :]
        if closed[: match.start()].rstrip().endswith("**"):
            continue
        found.append(raised)
    return [*found, f"2*({closed})"]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_changed_coefficient_fails(name: str) -> None:
    proof = BY_NAME[name]
    for closed in mutants(proof.closed):
        assert prove(replace(proof, closed=closed), SHARED).status == "fails", closed


def test_an_error_that_is_none_fails() -> None:
    proof = replace(BY_NAME["megatron.equation_3"], difference="B*S - S*B")
    assert prove(proof, SHARED).reason == "the stated error is zero"


def test_terms_that_do_not_sum_to_the_ledger_fail() -> None:
    proof = BY_NAME["korthikanti.layer"]
    assert proof.terms is not None
    found = prove(replace(proof, terms=lambda derivations: list(proof.terms(derivations))[1:]), SHARED)  # type: ignore[misc]
    assert (found.status, found.reason) == ("fails", "the listed terms do not sum to the ledger")


def test_korthikantis_terms_are_those_of_the_paper() -> None:
    terms = dict(prove(BY_NAME["korthikanti.layer"], SHARED).terms)
    assert len(terms) == 15
    assert terms["attn/softmax/dropout_mask"] == "B*S**2*H"  # one byte a mask element
    assert terms["mlp/up/biased"] == "8*B*S*d"  # the GELU's input, two bytes of width 4d


# -- faults in the folds ----------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def scaled(module: Any, name: str, factor: int) -> Plant:
    """A function whose result is multiplied."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)
        patch.setattr(module, name, lambda *args, **options: factor * real(*args, **options))

    return plant


def without_gradient(patch: pytest.MonkeyPatch) -> None:
    """Backward counts one product where there are two."""
    real = flops._row

    def row(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        return replace(made, value=0 * made.value) if made.part == "dx" else made

    patch.setattr(flops, "_row", row)


def replayed_head(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint around each block replays the head too."""
    from jaxcost.prediction import replay

    real = replay.declared
    patch.setattr(flops, "declared", lambda program, remat=None: real(program, "everything"))


def unreplayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flops, "declared", lambda program, remat=None: ())


def ring_of_all(kind: str, payload: Any, participants: Any) -> Any:
    return payload if kind != "all-reduce" else 2 * payload


def whole_array(patch: pytest.MonkeyPatch) -> None:
    """A shard keeps the whole array."""
    patch.setattr(sharding, "ceil_div", lambda a, b: a)


def shared_pairs(self: Any, window: Any = 0) -> Any:
    return self.values["b"] * self.values["s"] * self.values["t"]


FAULTS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "every product counted twice": (
        scaled(flops, "contraction_flops", 2),
        (
            "flops.classic_block", "flops.running_block", "six_nd.closure.expanded", "megatron.equation_3",
            "megatron.equation_3.expanded", "megatron.wrong.head_replayed", "korthikanti.equation_7",
            "korthikanti.equation_8", "korthikanti.equation_8.one_replay", "korthikanti.equation_9",
            "korthikanti.equation_9.one_replay", "palm.attention", "kv_intensity.gqa", "kv_intensity.mha",
            "kv_intensity.mqa", "gemm.one_pass", "gemm.one_pass.cube", "gemm.one_pass.one_row",
            "six_nd.wrong.all_scalars", "six_nd.wrong.non_embedding", "six_nd.wrong.kaplan_context",
        ),
    ),
    "no gradient of activations": (without_gradient, ("flops.backward", "flops.backward.frozen", "six_nd.closure")),
    "the head replayed with the blocks": (replayed_head, ("megatron.equation_3", "megatron.wrong.four_forwards")),
    "no pairwise product of values": (
        lambda patch: patch.setattr(
            flops, "contraction_flops",
            lambda program, op, pairs="rectangular": 0 if op.name == "values"
            else 2 * program.sizes.over_layers(op.axes, op.group, op.first, op.repeat, pairs),
        ),
        ("flops.pairwise_over_linear", "six_nd.closure.expanded", "kv_intensity.gqa", "flops.classic_block"),
    ),
    "replay left out": (unreplayed, ("korthikanti.equation_8", "korthikanti.equation_9", "megatron.equation_3")),
    "parameters of one layer": (
        lambda patch: patch.setattr(
            parameters, "entry", lambda program, tensor, real=parameters.entry: replace(
                real(program, tensor), scalars=real(program, tensor).scalars / tensor.repeat
            )
        ),
        (
            "parameters.classic_block", "parameters.classic_model", "parameters.running_block",
            "parameters.megatron_equation_2", "parameters.kaplan_n", "parameters.kv_heads", "six_nd.closure",
        ),
    ),
    "a tied head stored again": (
        lambda patch: patch.setattr(parameters.Entry, "is_alias", property(lambda self: False)),
        ("parameters.tie", "parameters.megatron_equation_2"),
    ),
    "shards that hold everything": (
        whole_array,
        tuple(f"zero.stage_{stage}.{policy}_bytes" for stage in (1, 2, 3) for policy in (16, 20)),
    ),
    "optimizer state four times": (
        scaled(sharding, "rank_bytes", 4),
        tuple(f"zero.stage_{stage}.{policy}_bytes" for stage in range(4) for policy in (16, 20)),
    ),
    "saved bytes at double width": (
        scaled(activations, "payload_bytes", 2),
        tuple(f"korthikanti.{name}" for name in (
            "layer", "attention", "mlp", "norms", "selective", "full", "tensor", "tensor.selective", "sequence",
            "sequence.selective",
        )),
    ),
    "a ring that sends all": (
        lambda patch: patch.setattr(algorithms, "ring_send_bytes", ring_of_all),
        ("ring.all_gather", "ring.reduce_scatter", "ring.all_reduce", "ring.fsdp_sweep", "ring.data_parallel"),
    ),
    "every pair legal": (
        lambda patch: patch.setattr(sizes.Sizes, "legal_pairs", shared_pairs),
        ("pairs.legal", "pairs.legal.past", "pairs.window", "pairs.window.sum"),
    ),
    "no pair of the diagonal": (
        lambda patch: patch.setattr(
            sizes.Sizes, "legal_pairs",
            lambda self, window=0, real=sizes.Sizes.legal_pairs: real(self, window)
            - self.values["b"] * self.values["s"],
        ),
        ("pairs.legal", "pairs.legal.past", "pairs.legal.decode"),
    ),
    "keys cached without values": (
        lambda patch: patch.setattr(
            kv_cache, "payload_bytes", lambda count, dtype, real=kv_cache.payload_bytes: real(count, dtype) / 2
        ),
        ("kv_cache.bytes", "kv_intensity.gqa"),
    ),
    "one-pass payload without its result": (
        lambda patch: patch.setattr(
            traffic, "_operands", lambda op: [(op.inputs[0], "read"), (op.inputs[1], "read")]
        ),
        ("gemm.one_pass", "gemm.one_pass.cube"),
    ),
    "no quadratic tensor saved": (
        lambda patch: patch.setattr(
            activations, "payload_bytes",
            lambda count, dtype, real=activations.payload_bytes: 0 if count.has(symbol("H")) else real(count, dtype),
        ),
        ("korthikanti.crossover", "korthikanti.layer", "korthikanti.attention"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_fold_fails_the_proofs_that_rest_on_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, names = FAULTS[fault]
    with monkeypatch.context() as patch:
        plant(patch)
        derivations = Derivations()
        held = [name for name in names if prove(BY_NAME[name], derivations).status == "holds"]
    assert not held


def test_every_proof_fails_under_some_fault() -> None:
    assert {name for _, names in FAULTS.values() for name in names} == set(BY_NAME)


# -- the same symbols as numbers ---------------------------------------------------------------------------------------


def numbers_of(kind: str) -> tuple[Case, dict[str, int]]:
    """The case of a kind with widths that satisfy its relations, and the value of each symbol."""
    found, case = KINDS[kind], KINDS[kind].case()
    work, arch = case.workload, case.architecture
    (group,) = arch.groups
    attention, mlp = group.layer.attention, group.layer.mlp
    sizes = {
        "B": work.batch, "S": work.new_tokens, "T": work.visible_tokens, "L": group.repeat, "d": arch.hidden_size,
        "V": arch.vocabulary_size, "H": attention.query_heads, "K": attention.kv_heads, "E": attention.head_dim,
        "F": mlp.width, "W": max(group.windows, default=0),
        **{name: case.execution.degree(axis) for axis, name in found.mesh.items()},
    }  # fmt: skip
    names = {name: symbol(name) for name in sizes}
    for name, text in found.relations.items():
        sizes[name] = int(sympy.sympify(text, locals=names).subs({names[key]: value for key, value in sizes.items()}))
    layer = group.layer.replaced(
        attention=attention.replaced(kv_heads=sizes["K"], head_dim=sizes["E"]), mlp=mlp.replaced(width=sizes["F"])
    )
    return case.replaced(architecture=arch.replaced(groups=(group.replaced(layer=layer),))), sizes


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_of_a_kind_give_its_numbers(kind: str) -> None:
    """What is proved on symbols is what `predict` counts: every total that proofs of the kind use, and the others."""
    case, sizes = numbers_of(kind)
    prediction = predict(case)
    wanted = {path.split(".")[0] for proof in PROOFS if proof.kind == kind for path in proof.totals}
    compared = set()
    for name in FOLDS:
        try:
            ledger = SHARED.ledger(kind, name)
        except TypeError:  # a choice by the size of a symbol: no proof rests on this ledger
            assert name not in wanted
            continue
        for path, value in flat(ledger.totals):
            expected = prediction.value(f"{name}.{path}")
            if value is None or expected is None:
                continue
            values = {known: sizes[str(known)] for known in sympy.sympify(value).free_symbols}
            assert sympy.sympify(value).subs(values) == expected, (name, path, value)
            compared.add(name)
    assert wanted - {"activations", "kv_cache"} <= compared


def flat(totals: Any, above: str = "") -> list[tuple[str, Any]]:
    """The totals of a ledger with dotted paths, texts left out."""
    found = []
    for name, value in totals.items():
        if isinstance(value, dict):
            found += flat(value, f"{above}{name}.")
        elif not isinstance(value, str):
            found.append((f"{above}{name}", value))
    return found


# -- the run ----------------------------------------------------------------------------------------------------------


def test_names_and_kinds() -> None:
    assert len(BY_NAME) == len(PROOFS) and {proof.kind for proof in PROOFS} == set(KINDS)
    assert all(proof.source and proof.statement and proof.totals for proof in PROOFS)


def test_the_page_lists_the_proofs() -> None:
    page = (DOCS / "proofs.md").read_text(encoding="utf-8")
    rows = [
        (match[1], match[2], match[3], match[4])
        for match in re.finditer(r"^\| `([\w.]+)` \| (.*?) \| `(.*?)` \| (.*?) \|", page, re.MULTILINE)
    ]
    expected = [(p.name, p.statement, p.closed, "0" if p.difference == "0" else f"`{p.difference}`") for p in PROOFS]
    assert rows == expected


def test_all_of_them_in_seconds() -> None:
    said: list[str] = []
    found = run_proofs(said.append)
    assert {proved.status for proved in found} == {"holds"} and len(found) == len(PROOFS)
    assert said and all(re.fullmatch(r"\[\d+/\d+\] \w+", text) for text in said)
    assert ProofsOutcome(found, 0.0).exit_code == 0
    broken = prove(replace(PROOFS[0], closed="0"), SHARED)
    outcome = ProofsOutcome((*found, broken), 0.0)
    assert outcome.exit_code == 1 and outcome.to_dict()["status"] == "open"
    assert broken.to_dict()["status"] == "fails" and broken.to_dict()["residual"] != "0"


def test_a_choice_by_size_is_a_failure_and_no_guess() -> None:
    def chooses(found: Derivations) -> Any:
        return 1 if symbol("S") < symbol("T") else 2

    found = prove(Proof("x.y", "", (), "decode", chooses, "1", ""), SHARED)
    assert found.status == "fails" and "truth value" in found.reason


# -- symbols of a mesh ------------------------------------------------------------------------------------------------


def test_a_degree_is_above_one() -> None:
    n = degree("n")
    assert n > 1 and n > 0 and n != 1 and n == degree("n")
    with pytest.raises(TypeError):
        bool(n > 2)


def test_ceilings_are_exact_under_what_is_named() -> None:
    n, d = degree("n"), symbol("d")
    value, whole = divided(n * sympy.ceiling(3 * d / n) + sympy.ceiling(1 / n))
    assert value == 3 * d + sympy.ceiling(1 / n) and whole == (3 * d / n,)


def test_expressions_become_forms() -> None:
    x, y = symbol("x"), symbol("y")
    assert as_form(x * (y + 2) / 3 - 1 / x).value({"x": 2, "y": 4}) == 4 - sympy.Rational(1, 2)
    assert as_form(sympy.Min(x, y) + sympy.ceiling(x / y)).value({"x": 5, "y": 3}) == 5
    assert as_form(sympy.Integer(0)) == Form.of(0)
    with pytest.raises(ValueError, match="sin"):
        as_form(sympy.sin(x))
