"""A formula found at one case's sizes gives the numbers of other cases, where the same decisions fall.

The folds run on traced integers, so a size that got lost on the way (in a loop, in a text) would leave a number in the
formula that is right for one case and wrong for the next. Other sizes find it; a fault planted in the tracing shows
that they do.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from jaxcost.catalog import catalogue_names, load
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction import flops as flops_fold
from jaxcost.prediction.forms import Call, Form, total
from jaxcost.prediction.formulas import CaseFormulas, case_formulas, numbers
from jaxcost.prediction.ledgers import FOLDS, Prediction, predict
from jaxcost.prediction.symbols import as_form, divided, formulas, symbolic
from jaxcost.prediction.traced import Decisions, Traced, form_of, recording
from jaxcost.verify.fuzz import draw_cases
from tests.prediction.cases import architecture

# Options with the names of sizes that a draw fills in; meshes as axis to degree.
OPTIONS: dict[str, dict[str, Any]] = {
    "training": {"phase": "training"},
    "everything": {"phase": "training", "dropout": True, "remat": "block", "precision": "a16_six_object"},
    "selective": {"phase": "training", "remat": "attention", "optimizer": "lion", "layers": "unrolled"},
    "blockwise": {"phase": "training", "attention": "blockwise", "attention_block": 8},
    "prefill": {"phase": "prefill", "logits": "all"},
    "decode": {"phase": "decode"},
    "zero": {"phase": "training", "mesh": ("data",), "zero": 2, "accumulate": 2},
    "zero3": {"phase": "training", "mesh": ("data",), "zero": 3, "fsdp_group": "block"},
    "fsdp": {"phase": "training", "mesh": ("fsdp",), "gradient_sync": "last_microbatch", "accumulate": 2},
    "tensor": {"phase": "training", "mesh": ("tensor",), "sequence_parallel": True},
    "three axes": {"phase": "training", "mesh": ("data", "fsdp", "tensor"), "zero": 1, "remat": "block"},
    "context": {"phase": "training", "mesh": ("context",)},
    "ring": {"phase": "training", "mesh": ("context",), "context_method": "ring"},
    "pipeline": {"phase": "training", "mesh": ("pipeline", "tensor"), "accumulate": 4, "pipeline_schedule": "1f1b"},
    "host": {"phase": "training", "offload": ["optimizer"], "accumulate": 2},
}


def drawn(options: dict[str, Any], rng: random.Random) -> Case:
    """A case with random sizes that are multiples of all degrees drawn."""
    degree = {axis: rng.choice((2, 4)) for axis in options.get("mesh", ())}
    if "pipeline" in degree:
        degree["pipeline"] = 2  # stages act as numbers
    shards = 4 * rng.randint(1, 3)
    k = shards * rng.randint(1, 2)
    g, e = rng.randint(2, 3), 4 * rng.randint(1, 3)
    # MLPs wider than the residual stream, tables larger than both: what is largest stays largest.
    d = 16 * rng.randint(2, 4)
    arch = architecture(
        L=4 * rng.randint(1, 4), d=d, h=k * g, k=k, e=e, f=16 * rng.randint(100, 120), V=16 * rng.randint(1000, 1100),
        form=options.get("form", "gated"), dropout=0.1, bias="dropout" in options,
    )  # fmt: skip
    phase, micro = options["phase"], options.get("accumulate", 1)
    chosen = {name: value for name, value in options.items() if name not in ("mesh", "form")}
    chosen["batch"] = micro * 16 * rng.randint(1, 3)
    if phase == "decode":
        chosen["past"] = rng.randint(30, 60)
    else:
        chosen["seq"] = 16 * rng.randint(2, 5)
    if degree:
        chosen["mesh"] = [{"name": axis, "size": size} for axis, size in degree.items()]
    return build_case(arch, chosen)


def disagreements(found: CaseFormulas, sizes: dict[str, int], prediction: Prediction) -> list[str]:
    """The totals and rows whose formula gives another number than the prediction."""
    wrong = []
    for item in found.totals:
        if item.form is not None and item.form.value(sizes) != prediction.value(item.path):
            wrong.append(f"{item.path} = {item.form}: {item.form.value(sizes)}, not {prediction.value(item.path)}")
    rows = [(name, row) for name, ledger in prediction.ledgers.items() for row in ledger.rows]
    kept = [(name, row) for name, row in rows if not row.object.startswith("peak, ")]
    for (name, row), made in zip(kept, found.rows, strict=True):
        assert (made.ledger, made.row.object, made.row.scope) == (name, row.object, row.scope)
        if made.form is not None and made.form.value(sizes) != row.value:
            wrong.append(f"{name} {row.object} {row.scope} = {made.form}")
        if made.device is not None and made.device.value(sizes) != row.per_device:
            wrong.append(f"{name} {row.object} {row.scope} on a device = {made.device}")
    return wrong


@pytest.mark.parametrize("name", OPTIONS)
def test_a_formula_gives_the_numbers_of_other_sizes(name: str) -> None:
    rng = random.Random(name)
    first = case_formulas(drawn(OPTIONS[name], rng))
    assert not disagreements(first, first.sizes, predict(first.case))
    compared = False
    for _ in range(12):
        other = drawn(OPTIONS[name], rng)
        second = case_formulas(other)
        if second.conditions != first.conditions:
            continue
        assert not disagreements(first, second.sizes, predict(other))
        compared = True
        break
    assert compared, [set(second.conditions[x]) ^ set(first.conditions[x]) for x in first.conditions]


@pytest.mark.parametrize("model", catalogue_names())
def test_formulas_of_the_catalogue_give_its_numbers(model: str) -> None:
    manifest = load(model).architecture
    rows = manifest.learned_positions.rows if manifest.learned_positions else 4096
    seq = min(rows // 2, 64)
    for options in (
        {
            "phase": "training",
            "batch": 4,
            "seq": seq,
            "remat": "block",
            "mesh": [{"name": "data", "size": 2}],
            "zero": 1,
        },
        {"phase": "prefill", "batch": 3, "seq": seq},
        {"phase": "decode", "batch": 5, "past": seq},
    ):
        found = case_formulas(build_case(manifest, options))
        assert not disagreements(found, found.sizes, predict(found.case))
        assert {total.path.split(".")[0] for total in found.totals} == set(FOLDS)
        named = set(found.fields)
        assert all(item.form is None or item.form.symbols <= named for item in found.totals)


def test_a_size_that_gets_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = flops_fold.contraction_flops

    def untraced(*args: Any) -> Any:
        return int.__index__(real(*args))

    rng = random.Random(1)
    case = drawn(OPTIONS["training"], rng)
    with monkeypatch.context() as patch:
        patch.setattr(flops_fold, "contraction_flops", untraced)
        lossy = case_formulas(case, ("flops",))
    assert lossy.of("flops.forward").form == Form.of(predict(case).value("flops.forward"))
    other = drawn(OPTIONS["training"], rng)
    assert lossy.of("flops.forward").form.value(case_formulas(other).sizes) != predict(other).value("flops.forward")  # type: ignore[union-attr]


def test_peaks_are_exempt_and_say_so() -> None:
    found = case_formulas(build_case(architecture(), {"phase": "training", "seq": 4}))
    exempt = {item.path for item in found.totals if item.form is None}
    assert "device.peak_bytes.lower" in exempt and "activations.program_order_peak_bytes" in exempt
    assert all("peak" in path for path in exempt)
    assert all(item.reason for item in found.totals if item.form is None)
    with pytest.raises(KeyError, match=r"flops\.nothing"):
        found.of("flops.nothing")


def test_conditions_say_what_was_decided() -> None:
    manifest = load("gemma-2-2b").architecture
    short = case_formulas(build_case(manifest, {"phase": "prefill", "seq": 64}))
    long = case_formulas(build_case(manifest, {"phase": "prefill", "seq": 8192}))
    assert "W ≥ S" in short.conditions["flops"] and "W < S" in long.conditions["flops"]
    assert short.of("flops.forward").form == long.of("flops.forward").form
    assert short.of("flops.forward_causal").form != long.of("flops.forward_causal").form
    assert long.fields["W"].field == "architecture.groups.0.windows.0" and long.fields["W"].value == 4096


def test_padding_stays_in_the_formula() -> None:
    arch = architecture(V=50)
    found = case_formulas(build_case(arch, {"phase": "prefill", "seq": 4, "vocabulary_multiple": 16}))
    form = found.of("parameters.padding").form
    assert form is not None and form.text() == "2*d*(Vp - V)"
    assert found.fields["Vp"].field.startswith("architecture.vocabulary_size up to") and found.fields["Vp"].value == 64
    assert form.value(found.sizes) == 2 * 14 * 8
    uneven = case_formulas(
        build_case(
            architecture(L=3),
            {"phase": "training", "batch": 5, "seq": 4, "mesh": [{"name": "data", "size": 5}], "zero": 1},
        )
    )
    assert "ceil" in uneven.of("ownership.persistent_bytes").form.text()  # type: ignore[union-attr]


def test_schedules_and_lengths_act_as_numbers() -> None:
    piped = build_case(
        architecture(L=4),
        {"phase": "training", "batch": 4, "seq": 4, "accumulate": 4, "mesh": [{"name": "pipeline", "size": 2}]},
    )
    assert numbers(piped) == ("execution.mesh.pipeline", "workload.accumulate")
    assert not {"pipeline", "m"} & set(case_formulas(piped).fields)
    ragged = build_case(architecture(), {"phase": "training", "batch": 2, "seq": 4, "lengths": [4, 3]})
    assert numbers(ragged) == ("workload.lengths",)
    found = case_formulas(ragged)
    assert not disagreements(found, found.sizes, predict(ragged))


def test_rows_visible_over_a_cache_are_a_size_of_their_own() -> None:
    case = build_case(architecture(), {"phase": "prefill", "seq": 4})
    later = case.model_copy(update={"workload": case.workload.replaced(past_tokens=6)})
    found = case_formulas(later)
    assert found.fields["T"].value == 10
    assert found.of("kv_cache.bytes").form.text() == "4*B*L*T*K*E"  # type: ignore[union-attr]


x, y, n = (Form.of(name) for name in "xyn")


@pytest.mark.parametrize(
    ("form", "text", "pretty"),
    [
        (x * y + x, "x*(y + 1)", "x·(y + 1)"),
        (x * x * y - y, "y*(x**2 - 1)", "y·(x² − 1)"),
        (Form.of(Fraction(1, 2)) * x * (x + Form.of(1)), "x*(x + 1)/2", "x·(x + 1)/2"),
        (x - x / n, "x*(n - 1)/n", "x·(n − 1)/n"),
        (Form.of(16) * x * y + Form.of(16) * x + Form.of(4), "16*x*(y + 1) + 4", "16·x·(y + 1) + 4"),
        (Form.of(3) - x, "3 - x", "3 − x"),
        (-x - y, "-(x + y)", "−(x + y)"),
        (x / (x + y), "(x)/(x + y)", "(x)/(x + y)"),
        (n / (x / (x + y)), "n/((x)/(x + y))", "n/((x)/(x + y))"),
        (Form.of(Call("ceil", (x / n,))) * y, "y*ceiling(x/n)", "y·⌈x/n⌉"),
        (Form.of(0), "0", "0"),
    ],
)
def test_forms_are_written_factored(form: Form, text: str, pretty: str) -> None:
    assert form.text() == text and form.text(pretty=True) == pretty


def test_form_arithmetic() -> None:
    sizes = {"x": 7, "y": 3, "n": 2}
    assert ((x + y) * (x - y)) == x * x - y * y
    assert (x * y / y) == x and (x * Form.of(4) / Form.of(6)).value(sizes) == Fraction(14, 3)
    assert ((x + y) * Form.of(3) / (x + y)) == Form.of(3)
    assert -Form.of(Call("floor", (Form.of(-1) * x / n,))) == Form.of(Call("ceil", (x / n,)))
    assert Form.of(Call("mod", (x, y))).value(sizes) == 1 and Form.of(Call("max", (x, y))).value(sizes) == 7
    assert total([x, y, Form.of(-1) * x]) == y
    with pytest.raises(ZeroDivisionError):
        x / Form.of(0)
    with pytest.raises(KeyError):
        x.value({})
    assert (x * (x + Form.of(1)) / Form.of(2)).is_integral() and not (x / Form.of(2)).is_integral()
    assert (n - Form.of(1)).is_positive({"n": 2}) and not (n - Form.of(1)).is_positive({})
    assert (n - Form.of(1)).is_positive({}, strictly=False) and not (x - y).is_positive({})


def test_traced_integers_are_integers() -> None:
    a, b = Traced(12, Form.of("a")), Traced(5, Form.of("b"))
    with recording() as found:
        assert a + b == 17 and (1 + a - b) == 8 and (20 - a) == 8 and a * b == 60 and 2 * a == 24
        assert form_of(a + b) == Form.of("a") + Form.of("b") and form_of(a - a) == Form.of(0)
        assert type(a - a) is int
        assert a // 4 == 3 and form_of(a // 4) == Form.of("a") / Form.of(4)
        assert a // b == 2 and form_of(a // b).text() == "floor(a/b)" and -(-a // b) == 3
        assert form_of(-(-a // b)).text() == "ceiling(a/b)"
        assert a % 4 == 0 and form_of(a % b).text() == "Mod(a, b)" and 17 % b == 2 and 60 // b == 12
        assert a**2 == 144 and form_of(a**2) == Form.of("a") * Form.of("a")
        assert a > b and not a <= b and a != b and max(a, b) is a and sorted([a, b]) == [b, a]
        assert form_of(a / b) == Form.of("a") / Form.of("b") and a / b == Fraction(12, 5)
        assert form_of(1 / b) == Form.of(1) / Form.of("b")
        assert form_of(Fraction(a, 8)) == Form.of("a") / Form.of(8)
        assert hash(a) == hash(12) and {12: "x"}[a] == "x" and f"{a}" == "12" and list(range(b)) == [0, 1, 2, 3, 4]
    assert (Form.of("a") - Form.of("b"), ">") in found.compared
    assert Form.of("a") / Form.of(4) in found.whole
    # What is a multiple of a quotient that came out whole says nothing more.
    whole = {Form.of("a") / Form.of(4): None, Form.of("a") / Form.of(2): None}
    assert Decisions(whole=whole).said_whole() == [Form.of("a") / Form.of(4)]
    for wrong in (lambda: a + "x", lambda: a - "x", lambda: a * None, lambda: a // "x", lambda: a / "x"):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("case", draw_cases(10, seed=11), ids=lambda case: case.digest[:8])
def test_formulas_of_drawn_cases_give_their_numbers(case: Case) -> None:
    found = case_formulas(case)
    assert not disagreements(found, found.sizes, predict(case))
    assert all(item.form is None or (item.form.text() and item.form.text(pretty=True)) for item in found.totals)


SAME_OPTIONS: dict[str, dict[str, Any]] = {
    "training": {"phase": "training", "batch": 2, "seq": 64, "remat": "block"},
    "prefill": {"phase": "prefill", "batch": 2, "seq": 64},
    "decode": {"phase": "decode", "batch": 2, "past": 64},
}


@pytest.mark.parametrize("model", catalogue_names())
def test_symbols_and_traced_integers_agree(model: str) -> None:
    """Two ways to a formula, which share the folds and nothing else, and both give the catalogue's numbers."""
    manifest = load(model).architecture
    for options in SAME_OPTIONS.values():
        rows = manifest.learned_positions.rows if manifest.learned_positions else 4096
        fewer = {name: min(value, rows // 2) if name in ("seq", "past") else value for name, value in options.items()}
        case = build_case(manifest, fewer)
        expressions = formulas(case)
        traced = case_formulas(case, tuple({path.split(".")[0]: None for path in expressions}))
        prediction = predict(case)
        for path, expression in expressions.items():
            form = as_form(expression)
            assert form.value(traced.sizes) == prediction.value(path), (path, form)
            if "Min" not in form.text():  # symbols keep the choice between window and rows, integers have made it
                assert form == traced.of(path).form, path


def test_symbols_of_a_mesh_give_its_numbers() -> None:
    arch = load("llama-3.2-1b").architecture
    for axis, options in (("data", {"zero": 1}), ("fsdp", {})):
        case = build_case(
            arch, {"phase": "training", "batch": 4, "seq": 64, "mesh": [{"name": axis, "size": 4}], **options}
        )
        built, prediction = symbolic(case, {axis: axis}), predict(case)
        sizes = case_formulas(case).sizes
        for ledger, path in (("activations", "saved_bytes_per_device"), ("collectives", "ring_send_bytes"),
                             ("flops", "per_device"), ("device", "argument_bytes")):  # fmt: skip
            expression = FOLDS[ledger](built).totals[path]
            exact, whole = divided(expression)
            assert as_form(exact).value(sizes) == prediction.value(f"{ledger}.{path}"), path
            assert all(as_form(quotient).value(sizes).denominator == 1 for quotient in whole)


def test_several_groups_are_numbered() -> None:
    two = build_case(architecture(split=(2, 3)), {"phase": "prefill", "seq": 4})
    found = case_formulas(two)
    assert {"L0", "L1", "H0", "F1"} <= set(found.fields)
    assert found.fields["L1"].field == "architecture.groups.1.repeat"
    assert not disagreements(found, found.sizes, predict(two))


def test_symbols_are_of_one_device_and_one_microbatch_unless_a_mesh_is_named() -> None:
    options = {"phase": "training", "batch": 4, "seq": 8, "accumulate": 2, "remat": "block", "zero": 1}
    case = build_case(architecture(), {**options, "mesh": [{"name": "data", "size": 2}]})
    alone = symbolic(case).case
    assert (alone.execution.mesh, alone.execution.zero, alone.execution.device_count) == ((), 0, 1)
    assert (alone.execution.remat, alone.workload.accumulate) == ("block", 1)
    meshed = symbolic(case, {"data": "N", "tensor": "T"}).case
    assert [(axis.name, str(axis.size)) for axis in meshed.execution.mesh] == [("data", "N"), ("tensor", "T")]
    assert (meshed.execution.zero, meshed.workload.accumulate) == (1, 1)
    assert str(meshed.execution.degree("tensor")) == "T" and meshed.execution.degree("fsdp") == 1
    own = architecture()
    assert alone.architecture == meshed.architecture == own
