"""What a run of `jaxcost verify` is worth: its exit code, its rows, and one row explained. Nothing is compiled here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxcost.cli import main
from jaxcost.contracts.case import Case
from jaxcost.data import room
from jaxcost.observation.observe import Wish
from jaxcost.observation.observed import Observed
from jaxcost.verify import command
from jaxcost.verify.request import VerifyRequest
from tests.reconciliation.recorded import named, observed

Capture = pytest.CaptureFixture[str]
CPU = named("toy-tied_training_cpu")
TRAINING = ["toy-tied", "--phase", "training", "--batch", "2", "--seq", "8"]
SECTIONS = ("hlo", "memory", "jaxpr", "compiler", "collectives", "parameters", "state", "rematerialisation")


class NoPool:
    """Stands where workers would be; nothing is compiled."""

    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> NoPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass


Seen = Callable[[Wish], Observed]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Seen]]:
    """A compiler that answers with `says`, by default the recorded training step of the toy on one CPU."""
    answers: dict[str, Seen] = {"says": lambda wish: observed(CPU)}
    monkeypatch.setattr(command, "Pool", NoPool)
    monkeypatch.setattr(command, "_calibrate", lambda pool: 1.5)
    monkeypatch.setattr(
        command, "observe_many", lambda wishes, pool: [answers["says"](wish) for wish in wishes], raising=True
    )
    yield answers


def failed(kind: str, reason: str, **rest: Any) -> Seen:
    def answer(wish: Wish) -> Observed:
        document = dict(observed(CPU).data)
        document.update(dict.fromkeys(SECTIONS), status="failed", reason=reason, evidence_class="unmeasured")
        document["failure"] = {"kind": kind, **rest}
        return Observed(document)

    return answer


def report_of(capsys: Capture) -> dict[str, Any]:
    (found,) = json.loads(capsys.readouterr().out)["reports"]
    assert isinstance(found, dict)
    return found


def test_agreement_is_0(compiler: dict[str, Seen], capsys: Capture) -> None:
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["calibration_seconds"] == 1.5
    assert {row["status"] for row in data["reports"][0]["rows"]} <= {"exact", "explained", "bounded", "unmeasured"}
    assert data["reports"][0]["environment"]["evidence_class"] == "compiled"


def test_strict_counts_what_is_unmeasured(compiler: dict[str, Seen], capsys: Capture) -> None:
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--strict", "--quiet"]) == 1
    capsys.readouterr()


def test_one_open_row_is_1(compiler: dict[str, Seen], capsys: Capture) -> None:
    def one_more(wish: Wish) -> Observed:
        def change(document: dict[str, Any]) -> None:
            document["hlo"]["flops"] += 1

        return observed(CPU, change)

    compiler["says"] = one_more
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 1
    assert report_of(capsys)["status"] == "open"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("crashed", "the worker died of signal 11"),
        ("timed_out", "the compile took more than 900 s"),
        ("memory", "killed"),
    ],
)
def test_a_compile_that_did_not_end_is_open_and_1(
    compiler: dict[str, Seen], kind: str, reason: str, capsys: Capture
) -> None:
    compiler["says"] = failed(kind, reason)
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 1
    found = report_of(capsys)
    assert found["status"] == "open"
    assert {row["observation"] for row in found["rows"]} == {None, 0}
    assert reason in json.dumps(found["findings"])


@pytest.mark.parametrize("kind", ["raised", "not_started"])
def test_a_fault_of_this_package_is_4(compiler: dict[str, Seen], kind: str, capsys: Capture) -> None:
    compiler["says"] = failed(kind, "KeyError: 'x'")
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--quiet"]) == 4
    capsys.readouterr()


def test_what_the_network_does_not_express_is_2(compiler: dict[str, Seen], capsys: Capture) -> None:
    problem = {"path": "execution.zero", "value": 3, "rule": "not expressed", "remedy": "use --zero 0"}
    compiler["says"] = failed("rejected", "rejected", problems=[problem])
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"] == [problem]


def test_a_sound_case_that_the_network_does_not_execute_is_predicted(
    compiler: dict[str, Seen], capsys: Capture
) -> None:
    problem = {"path": "execution.zero", "value": 3, "rule": "not executed", "remedy": "use --zero 0"}
    compiler["says"] = failed("rejected", "rejected", problems=[problem], details={"not_executed": True})
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 0
    report = report_of(capsys)
    assert report["status"] == "unmeasured" and {row["status"] for row in report["rows"]} == {"unmeasured"}
    assert "execution.zero: not executed" in report["findings"][0]["text"]
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--strict", "--quiet"]) == 1


def test_a_refusal_is_1(compiler: dict[str, Seen], capsys: Capture) -> None:
    def refused(wish: Wish) -> Observed:
        return observed(CPU, lambda d: d.update(status="refused", reason="RESOURCE_EXHAUSTED: out of memory"))

    compiler["says"] = refused
    assert main(["verify", *TRAINING, "--target", "cpu:1", "--json"]) == 1
    assert "RESOURCE_EXHAUSTED" in json.dumps(report_of(capsys))


def test_the_case_reaches_the_compiler(compiler: dict[str, Seen], capsys: Capture, tmp_path: Path) -> None:
    wished: list[Wish] = []

    def note(wish: Wish) -> Observed:
        wished.append(wish)
        return observed(CPU)

    compiler["says"] = note
    main(["verify", *TRAINING, "--target", "cpu:1", "--record", str(tmp_path), "--quiet"])
    (wish,) = wished
    assert wish.case == Case.from_data(observed(CPU).data["case"])
    assert (wish.target, wish.record) == ("cpu:1", tmp_path)
    capsys.readouterr()


# Without a compiler -----------------------------------------------------------------------------------------------


def test_the_running_fixture_without_a_bundle_is_unmeasured_and_0(tmp_path: Path, capsys: Capture) -> None:
    suite = tmp_path / "smoke.toml"
    suite.write_text(
        '[[case]]\nname = "smoke"\nmodel = "running"\ntargets = []\n'
        'options = { phase = "prefill", batch = 1, seq = 4096 }\n',
        encoding="utf-8",
    )
    assert main(["verify", "--suite", str(suite), "--json"]) == 0
    found = report_of(capsys)
    assert found["status"] == found["environment"]["evidence_class"] == "unmeasured"
    assert {(row["status"], row["observation"]) for row in found["rows"]} == {("unmeasured", None)}
    rows = {row["counter"]: row for row in found["rows"]}
    assert {name: row["prediction"] for name, row in rows.items()} | {"device.argument_bytes": None} == {
        "parameters.unique": 8_030_261_248,
        "parameters.named": 8_030_261_248,
        "parameters.bytes": 16_060_522_496,
        "flops.forward": 65_971_748_339_712,
        "flops.backward": 0,
        "flops.recompute": 0,
        "kv_cache.bytes": 536_870_912,
        "traffic.attention_bytes": 140_123_308_032,
        "activations.peak_bytes": None,
        "device.argument_bytes": None,
    }
    assert rows["activations.peak_bytes"]["reason"].startswith("not supplied")
    assert main(["verify", "--suite", str(suite)]) == 0
    assert "unknown" in capsys.readouterr().out
    assert main(["verify", "--suite", str(suite), "--strict", "--quiet"]) == 1


def test_a_bundle_belongs_to_one_case(root: Path, capsys: Capture) -> None:
    bundle = str(root / "examples" / "toy_observation.json")
    assert main(["verify", "--observation", bundle]) == 2
    assert main(["verify", "toy-tied", "toy-untied", "--phase", "prefill", "--seq", "4", "--observation", bundle]) == 2
    assert "one case" in capsys.readouterr().err


def test_replaying_nothing_is_3(tmp_path: Path, capsys: Capture) -> None:
    assert main(["verify", "--replay", str(tmp_path)]) == 3
    assert main(["verify", "--replay", str(tmp_path / "none")]) == 3
    assert "--record" in capsys.readouterr().err


def test_one_record_is_replayed_by_its_file(capsys: Capture) -> None:
    assert main(["verify", "--replay", str(room("hlo_dumps") / f"{CPU}.json"), "--json"]) == 0
    assert report_of(capsys)["environment"]["origin"] == "record"


def test_a_damaged_record_is_2(tmp_path: Path, capsys: Capture) -> None:
    for ending in (".json", ".hlo.xz"):
        data = (room("hlo_dumps") / f"{CPU}{ending}").read_bytes()
        (tmp_path / f"{CPU}{ending}").write_bytes(data[: len(data) // 2])
    assert main(["verify", "--replay", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["remedy"]


def test_the_result_of_a_run_is_worth_its_worst_part() -> None:
    empty = command.VerifyResult()
    assert (empty.exit_code, empty.status) == (0, "unmeasured")
    assert command.VerifyResult(faulty=True).exit_code == 4
    assert command.VerifyResult(failures=({"status": "caught"},)).exit_code == 0
    assert command.VerifyResult(failures=({"status": "caught"}, {"status": "missed"})).exit_code == 1
    assert command.VerifyResult(fuzz={"status": "passed"}).exit_code == 0
    assert command.VerifyResult(fuzz={"status": "failed"}).exit_code == 1
    assert command.VerifyResult(unavailable=({"family": "tpu"},)).exit_code == 0
    assert command.VerifyResult(unavailable=({"family": "tpu"},), strict=True).exit_code == 1


def test_options_without_a_model_are_rejected() -> None:
    from jaxcost.contracts.errors import RejectedError

    with pytest.raises(RejectedError, match="name a model"):
        command.verify(VerifyRequest(case_options={"batch": 2}))
