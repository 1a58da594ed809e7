"""A supplied bundle against the toy's prefill: schema before totals, each residual against its explanations.

The bundle is the one of examples/, whose names and sizes were written by hand; the mutations are those that equal
totals would hide.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import load
from jaxcost.cli import main
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.contracts.observation import Observation
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation.rows import Report
from jaxcost.reconciliation.supplied import load_bundle, reconcile_supplied
from tests.reconciliation.recorded import row_of

Bundle = dict[str, Any]
Change = Callable[[Bundle], object]
Q, HEAD, EMBED = "model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def example(root: Path) -> Bundle:
    data: Bundle = json.loads((root / "examples" / "toy_observation.json").read_text(encoding="utf-8"))
    return data


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    return _predicted()


def _predicted(**options: Any) -> Prediction:
    manifest = load("toy-tied")
    chosen = {"phase": "prefill", "batch": 1, "seq": 4, **options}
    liveness = manifest.liveness.to_data() if manifest.liveness else None
    return predict(build_case(manifest.architecture, chosen, liveness))


def changed(bundle: Bundle, change: Change | None = None) -> Bundle:
    made = copy.deepcopy(bundle)
    if change is not None:
        change(made)
    return made


def compared(predicted: Prediction, bundle: Bundle, change: Change | None = None) -> Report:
    return reconcile_supplied(predicted, Observation.from_data(changed(bundle, change)))


def tensor(bundle: Bundle, name: str) -> dict[str, Any]:
    return next(item for item in bundle["tensors"] if item["name"] == name)


def counter(bundle: Bundle, name: str) -> dict[str, Any]:
    return next(item for item in bundle["counters"] if item["counter"] == name)


def opened(found: Report) -> set[str]:
    return {row.key for row in found.rows if row.status == "open"}


def test_the_bundle_closes(predicted: Prediction, example: Bundle) -> None:
    found = compared(predicted, example)
    assert found.status == "explained" and not opened(found)
    peak, traffic = row_of(found, "activations.peak_bytes"), row_of(found, "traffic.attention_bytes")
    assert (peak.prediction, peak.observation, peak.residual, peak.status) == (448, 576, 128, "explained")
    assert (traffic.prediction, traffic.observation, traffic.residual) == (1408, 1536, 128)
    assert traffic.status == "explained"
    assert (row_of(found, "parameters.named").observation, row_of(found, "parameters.unique").observation) == (
        1256,
        1128,
    )
    assert row_of(found, "flops.forward").status == row_of(found, "kv_cache.bytes").status == "exact"
    assert len([row for row in found.rows if row.counter == "tensor"]) == 21
    assert found.environment["evidence_class"] == "synthetic_contract_test"
    assert "no driver" in found.environment["visibility"]["activations.peak_bytes"]
    assert "no driver" in peak.reason


@pytest.mark.parametrize("name", ["activations.peak_bytes", "traffic.attention_bytes"])
@pytest.mark.parametrize("amount", [64, 127, 129, -128, 0])
def test_half_an_explanation_leaves_the_row_open(
    predicted: Prediction, example: Bundle, name: str, amount: int
) -> None:
    found = compared(predicted, example, lambda b: counter(b, name)["explanations"][0].update(amount=amount))
    assert opened(found) == {name}
    row = row_of(found, name)
    assert row.residual == 128 and row.prediction in (448, 1408)  # nothing was added to the prediction


def test_no_explanation_at_all_is_open(predicted: Prediction, example: Bundle) -> None:
    found = compared(predicted, example, lambda b: counter(b, "activations.peak_bytes").pop("explanations"))
    assert opened(found) == {"activations.peak_bytes"}


def _rename(name: str, to: str) -> Change:
    return lambda bundle: tensor(bundle, name).update(name=to)


def _remove(name: str) -> Change:
    return lambda bundle: bundle["tensors"].remove(tensor(bundle, name))


def _add(**fields: Any) -> Change:
    base = {"name": "extra", "shape": [2], "dtype": "bf16", "kind": "parameter", "trainable": True, "alias": "extra"}
    return lambda bundle: bundle["tensors"].append({**base, **fields})


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        (lambda b: tensor(b, Q).update(shape=[4, 16]), {f"tensor:{Q}"}, "stored axes [4, 16], declared [8, 8]"),
        (lambda b: tensor(b, Q).update(shape=[64]), {f"tensor:{Q}"}, "stored axes [64]"),
        (
            lambda b: tensor(b, "model.layers.1.mlp.down_proj.weight").update(shape=[12, 8]),
            {"tensor:model.layers.1.mlp.down_proj.weight"},
            "stored axes [12, 8], declared [8, 12]",
        ),
        (
            lambda b: tensor(b, HEAD).update(alias="storage:lm_head"),
            {"parameters.unique", "parameters.ties"},
            "declared to share one storage, stored apart",
        ),
        (
            lambda b: tensor(b, Q).update(alias="storage:model.layers.1.self_attn.q_proj.weight"),
            {"parameters.unique", "parameters.ties"},
            "stored as one, not declared so",
        ),
        (
            _remove(Q),
            {f"tensor:{Q}", "parameters.named", "parameters.unique", "parameters.ties"},
            "the name is missing",
        ),
        (
            _rename(Q, "model.layers.0.attention.wq.weight"),
            {f"tensor:{Q}", "tensor:model.layers.0.attention.wq.weight"},
            "no declared parameter has this name",
        ),
        (_add(), {"tensor:extra", "parameters.named", "parameters.unique", "parameters.ties"}, "no declared parameter"),
        (lambda b: tensor(b, Q).update(dtype="fp32"), {f"tensor:{Q}"}, "type fp32, declared bf16"),
        (
            lambda b: tensor(b, Q).update(kind="buffer"),
            {f"tensor:{Q}", "parameters.named", "parameters.unique", "parameters.ties"},
            "kind buffer, declared parameter",
        ),
        (lambda b: tensor(b, Q).update(trainable=False), {f"tensor:{Q}"}, "trainable false, declared true"),
    ],
)
def test_a_difference_of_schema_is_open(
    predicted: Prediction, example: Bundle, change: Change, keys: set[str], said: str
) -> None:
    found = compared(predicted, example, change)
    assert found.status == "open" and opened(found) == keys
    assert said in "; ".join(row.reason for row in found.rows if row.status == "open")


def test_a_swap_of_two_ties_keeps_every_total_and_is_open(predicted: Prediction, example: Bundle) -> None:
    """One array too few is stored apart and another of its size too many: the totals cannot tell."""

    def swap(bundle: Bundle) -> None:
        one, other = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
        tensor(bundle, one)["alias"] = tensor(bundle, other)["alias"]
        bundle["tensors"].append({**tensor(bundle, one), "name": "spare", "alias": "spare", "kind": "parameter"})

    found = compared(predicted, example, swap)
    assert row_of(found, "parameters.unique").residual == 0
    assert row_of(found, "parameters.ties").status == "open"


def test_a_buffer_is_told_apart_and_not_counted(predicted: Prediction, example: Bundle) -> None:
    found = compared(predicted, example, _add(name="model.rotary_emb.inv_freq", kind="buffer", dtype="fp32"))
    assert found.status == "explained"
    assert [finding.text for finding in found.findings if finding.kind == "buffer"] == [
        "model.rotary_emb.inv_freq is a buffer of 2 scalars; it is no parameter"
    ]


def test_what_nothing_freezes_is_trainable_in_every_phase(predicted: Prediction, example: Bundle) -> None:
    def none(bundle: Bundle) -> None:
        for item in bundle["tensors"]:
            item["trainable"] = False

    found = compared(predicted, example, none)
    assert found.status == "open" and len(opened(found)) == len(example["tensors"])


def test_in_training_the_declared_flag_counts(example: Bundle) -> None:
    training = _predicted(phase="training", precision="bf16")
    frozen = _predicted(phase="training", precision="bf16", frozen=["embed"])

    def bare(bundle: Bundle) -> None:
        bundle["counters"] = []

    assert compared(training, example, bare).status == "exact"
    assert opened(compared(frozen, example, bare)) == {f"tensor:{EMBED}", f"tensor:{HEAD}"}


def test_names_of_the_package_s_own_layout(predicted: Prediction) -> None:
    shapes = {
        "attn_norm/scale": [8], "attn/q_proj/weight": [8, 4, 2], "attn/k_proj/weight": [8, 2, 2],
        "attn/v_proj/weight": [8, 2, 2], "attn/o_proj/weight": [4, 2, 8], "mlp_norm/scale": [8],
        "mlp/gate/weight": [8, 12], "mlp/up/weight": [8, 12], "mlp/down/weight": [12, 8],
    }  # fmt: skip
    stored = {f"group0/{layer}/{name}": shape for layer in range(2) for name, shape in shapes.items()}
    stored |= {"embed/tokens/weight": [16, 8], "final_norm/scale": [8], "head/weight": [16, 8]}
    tensors = [
        {
            "name": name, "shape": shape, "dtype": "bf16", "kind": "parameter", "trainable": True,
            "alias": "embed/tokens/weight" if name == "head/weight" else name,
        }
        for name, shape in stored.items()
    ]  # fmt: skip
    bundle = {"schema": "jaxcost.observation.v1", "evidence_class": "synthetic_contract_test", "producer": "by hand"}
    found = compared(predicted, {**bundle, "layout": "jaxcost", "tensors": tensors})
    assert found.status == "exact"
    wrong = compared(predicted, {**bundle, "layout": "huggingface-llama", "tensors": tensors})
    assert wrong.status == "open"  # names are not rewritten to match


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"counter": "flops.forward", "value": 8960}, "exact", ""),
        ({"counter": "flops.forward", "value": 8961}, "open", ""),
        ({"counter": "flops.forward", "value": 8960, "unit": "bytes"}, "open", "the counter is in bytes"),
        ({"counter": "flops.forward", "value": 1024, "scope": "group0/attn/scores"}, "open", ""),
        ({"counter": "flops.forward", "value": 512, "scope": "group0/attn/scores"}, "exact", ""),
        ({"counter": "flops.forward", "value": 1, "scope": "group9"}, "unmeasured", "no row in scope"),
        ({"counter": "time.step", "value": 5, "unit": "us"}, "unmeasured", "no ledger total is called time.step"),
        ({"counter": "state.bytes", "value": 2256, "unit": "bytes"}, "exact", ""),
    ],
)
def test_counters(predicted: Prediction, example: Bundle, fields: Bundle, status: str, said: str) -> None:
    entry = {"unit": "FLOPs", "visibility": "contractions of the operator list", **fields}
    found = compared(predicted, example, lambda b: b.update(counters=[entry], tensors=None))
    row = next(row for row in found.rows if row.counter == fields["counter"])
    assert row.status == status and said in row.reason


def test_what_the_case_does_not_supply_is_not_zero(example: Bundle) -> None:
    manifest = load("toy-tied")
    bare = predict(build_case(manifest.architecture, {"phase": "prefill", "batch": 1, "seq": 4}))
    row = row_of(compared(bare, example), "activations.peak_bytes")
    assert (row.prediction, row.observation, row.status) == (None, 576, "unmeasured")
    assert row.reason


def test_a_bundle_that_calls_itself_unmeasured_measures_nothing(predicted: Prediction, example: Bundle) -> None:
    found = compared(predicted, example, lambda b: b.update(evidence_class="unmeasured", tensors=None))
    assert found.status == "unmeasured" and {row.observation for row in found.rows} == {None}


def test_an_empty_bundle_is_unmeasured(predicted: Prediction, example: Bundle) -> None:
    found = compared(predicted, example, lambda b: b.update(counters=[], tensors=None))
    assert found.status == "unmeasured"


# Through the command line -----------------------------------------------------------------------------------------

CASE = ["toy-tied", "--phase", "prefill", "--batch", "1", "--seq", "4"]


def run(folder: Path, bundle: Bundle, *words: str) -> int:
    path = folder / "bundle.json"
    path.write_text(json.dumps(bundle), encoding="utf-8")
    return main(["verify", *CASE, "--observation", str(path), *words])


def test_the_commands_of_the_example(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, bundle = root / "examples" / "toy_prefill.toml", root / "examples" / "toy_observation.json"
    assert main(["verify", "--case", str(case), "--observation", str(bundle), "--fail-on-mismatch", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["reports"]
    assert found["status"] == "explained"
    assert {row["status"] for row in found["rows"] if row["counter"].startswith("expected.")} == {"exact"}
    assert main(["verify", "--case", str(case), "--observation", str(bundle)]) == 0
    text = capsys.readouterr().out
    assert "+128" in text and "sector padding" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda b: counter(b, "activations.peak_bytes")["explanations"][0].update(amount=64),
        lambda b: tensor(b, Q).update(shape=[4, 16]),
        lambda b: tensor(b, HEAD).update(alias="storage:lm_head"),
    ],
)
def test_an_open_row_is_exit_code_1(
    tmp_path: Path, example: Bundle, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, changed(example), "--json") == 0
    capsys.readouterr()
    assert run(tmp_path, changed(example, change), "--json") == 1
    assert json.loads(capsys.readouterr().out)["status"] == "open"


def _set(**fields: Any) -> Change:
    return lambda bundle: bundle.update(fields)


MALFORMED: dict[str, Change] = {
    "locally measured without hardware": _set(evidence_class="locally_measured"),
    "locally measured without artefacts": _set(
        evidence_class="locally_measured", hardware="H100", framework="jax 0.10"
    ),
    "locally measured with no artefact in the list": _set(
        evidence_class="locally_measured", hardware="H100", framework="jax", artefacts=[]
    ),
    "source reported without its source": _set(evidence_class="source_reported"),
    "compiled without versions": _set(evidence_class="compiled", target="cpu", flags={}, module_digest="0"),
    "an unknown class": _set(evidence_class="measured"),
    "an unknown schema": _set(schema="jaxcost.observation.v9"),
    "an unknown key": _set(hardwares="H100"),
    "an unknown layout": _set(layout="torch"),
    "no producer": lambda b: b.pop("producer"),
    "a name twice": lambda b: b["tensors"].append(dict(b["tensors"][0])),
    "a counter twice": lambda b: b["counters"].append(dict(b["counters"][0])),
    "a counter without visibility": lambda b: b["counters"][0].pop("visibility"),
    "an empty visibility": lambda b: b["counters"][0].update(visibility=""),
    "a boolean for a count": lambda b: b["counters"][0].update(value=True),
    "a fraction for a count": lambda b: b["counters"][0].update(value=576.5),
    "text for a count": lambda b: b["counters"][0].update(value="576"),
    "a negative extent": lambda b: b["tensors"][0].update(shape=[-16, 8]),
    "a huge extent": lambda b: b["tensors"][0].update(shape=[10**30, 8]),
    "a boolean extent": lambda b: b["tensors"][0].update(shape=[True, 8]),
    "tensors as a mapping": _set(tensors={"a": 1}),
    "an explanation without a reason": lambda b: b["counters"][0]["explanations"][0].pop("reason"),
    "an unknown kind": lambda b: b["tensors"][0].update(kind="tensor"),
    "text for a flag": lambda b: b["tensors"][0].update(trainable="yes"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_bundle_is_rejected_with_a_remedy(
    tmp_path: Path, example: Bundle, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = changed(example, MALFORMED[name])
    assert run(tmp_path, bundle, "--json") == 2
    out, err = capsys.readouterr()
    errors = json.loads(out)["errors"]
    assert errors and all(item["path"] and item["rule"] and item["remedy"] for item in errors)
    assert "Traceback" not in out + err
    with pytest.raises(RejectedError):
        Observation.from_data(bundle)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"3", b"{", b"\xff\xfe{}", b'{"schema": "jaxcost.observation.v1", "schema": "x"}', b"[" * 100_000,
        b'{"schema": NaN}', b"null",
    ],
)  # fmt: skip
def test_what_is_no_bundle_is_rejected(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(data)
    assert main(["verify", *CASE, "--observation", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["errors"][0]["remedy"] and "Traceback" not in out + err


def test_a_missing_bundle_is_exit_code_3(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        load_bundle(tmp_path / "none.json")
    assert main(["verify", *CASE, "--observation", str(tmp_path / "none.json")]) == 3


def test_a_prediction_is_no_observation_and_an_explanation_has_evidence(example: Bundle) -> None:
    peak = "activations.peak_bytes"
    for change in (
        lambda bundle: bundle.update(evidence_class="analytical"),
        lambda bundle: counter(bundle, peak)["explanations"][0].update(evidence=""),
        lambda bundle: counter(bundle, peak)["explanations"][0].pop("evidence"),
    ):
        with pytest.raises(RejectedError) as caught:
            Observation.from_data(changed(example, change))
        assert "evidence" in caught.value.problems[0].path
