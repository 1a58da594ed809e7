"""`jaxcost plan run`: the document against its schema, the page, exit codes, and what the options mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.cli.program import main
from jaxcost.planning.run.document import plan_document
from jaxcost.report.run_plan_page import run_plan_page
from jaxcost.schema import schema
from tests.planning.run.plans import scenario, with_model

BASE = ("--devices", "256", "--device", "h100", "--days", "90", "--mfu", "0.40", "--reserve", "0.25")
SIZE = ("--parameters", "30e9")
MODEL = ("llama-3.2-1b", "--seq", "4096", "--mesh", "data=8,fsdp=8,tensor=4", "--remat", "block")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["plan", "run", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def document(plan: Any, base: Any = None) -> dict[str, Any]:
    return {"schema": "jaxcost.plan_run.v1", "jaxcost": "0", **plan_document(plan, base)}


@pytest.mark.parametrize(
    "plan",
    [
        scenario(),
        scenario(job_mtbf_hours=None),
        with_model(),
        with_model(stages=[{"name": "a", "tokens": "1e12"}, {"name": "b", "tokens": "1e11", "seq": 8192}]),
        with_model(seq=None, mesh=None),
        scenario(tokens=None, batch_tokens=None, price=None, currency=None),
    ],
    ids=["scenario", "no calendar", "model", "stages", "model without a mesh", "bare"],
)
def test_documents_follow_their_schema(plan: Any) -> None:
    data = document(plan)
    jsonschema.validate(data, schema("jaxcost.plan_run.v1"))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for item in data["figures"]:
        assert item["unit"] or item["name"] == "fits"
        assert item["convention"] and item["fields"] and (item["value"] is not None or item["reason"])


def test_a_comparison_follows_the_schema_too() -> None:
    data = document(scenario(mfu="0.35"), scenario())
    jsonschema.validate(data, schema("jaxcost.plan_run.v1"))
    assert data["changes"]["moved"]


def test_the_scenario_by_flags(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run(capsys, *BASE, *SIZE, "--peak", "989")
    assert code == 0 and data["status"] == "incomplete"
    figures = {item["name"]: item for item in data["figures"]}
    assert figures["affordable_tokens"]["value"] == 3_281_264_640_000
    assert figures["accelerator_hours"]["value"] == 552_960


def test_the_scenario_by_file(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    code, data = run(capsys, "--plan", str(root / "examples" / "plan_30b.toml"))
    assert code == 0 and data["trust"]["least"] == "mfu"
    assert [check["status"] for check in data["checks"]] == ["exact", "bounded"]
    figures = {item["name"]: item["value"] for item in data["figures"]}
    assert (figures["optimizer_steps"], figures["checkpoint_bytes"]) == (820_000, 480 * 10**9)


def test_a_flag_overrides_the_file(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    _, data = run(capsys, "--plan", str(root / "examples" / "plan_30b.toml"), "--mfu", "0.30")
    (item,) = [item for item in data["assumptions"] if item["name"] == "mfu"]
    assert (item["printed"], item["low"]) == ("0.30", None)


def test_a_plan_of_a_model_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run(
        capsys, *MODEL, *BASE, "--micro-batch", "1", "--checkpoint-pause", "30", "--checkpoint-interval", "1800",
        "--job-mtbf-hours", "12", "--restart-seconds", "600", "--price", "3..6..10", "--price-date", "2026-10",
        "--currency", "EUR",
    )  # fmt: skip
    assert (code, data["status"]) == (0, "complete")
    assert all(item["known"] for item in data["answers"])


def test_global_sequences_give_the_microbatch(capsys: pytest.CaptureFixture[str]) -> None:
    _, data = run(capsys, *MODEL, *BASE, "--batch", "512", "--accumulate", "4")
    (item,) = [item for item in data["assumptions"] if item["name"] == "micro_batch"]
    assert item["value"] == 2


def test_a_case_file_gives_model_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.toml"
    path.write_text('model = "llama-3.2-1b"\nphase = "training"\nbatch = 64\nseq = 4096\nremat = "block"\n'
                    "mesh = { data = 8, fsdp = 8, tensor = 4 }\n", encoding="utf-8")  # fmt: skip
    code, data = run(capsys, "--case", str(path), *BASE)
    assert code == 0 and data["model"] == "llama-3.2-1b"
    chosen = {item["name"]: item["value"] for item in data["choices"]}
    assert chosen["mesh"] == "data=8,fsdp=8,tensor=4" and chosen["remat"] == "block"
    plan = tmp_path / "plan.toml"
    plan.write_text('model = "gpt2"\n', encoding="utf-8")
    _, data = run(capsys, "--plan", str(plan), "--case", str(path), *BASE)
    assert data["model"] == "llama-3.2-1b" == data["inputs"]["model"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*BASE, *SIZE, "--tokens", "4e12"), 1),
        ((*BASE, *SIZE, "--tokens", "3e12", "--claim", "healthy_days=60"), 1),
        ((*BASE, *SIZE, "--measured-step", "1", "--batch-tokens", "4000000"), 1),
        (("gpt2", *BASE, "--work", "ledger"), 0),
        (BASE, 2),
        ((*BASE, *SIZE, "--mfu", "1.2"), 2),
        ((*BASE, *SIZE, "--mfu", "forty"), 2),
        ((*BASE, *SIZE, "--reserve", "0"), 2),
        ((*BASE, *SIZE, "--price", "6", "--currency", "EUR"), 2),
        ((*BASE, *SIZE, "--price-date", "2026"), 2),
        ((*BASE, *SIZE, "--phase", "decode"), 2),
        ((*BASE, *SIZE, "--batch", "3"), 2),
        ((*BASE, *SIZE, "--mesh", "data=2,data=128"), 2),
        ((*BASE, *SIZE, "--evidence", "mfu"), 2),
        ((*BASE, *SIZE, "--evidence", "tokens=unmeasured,"), 2),
        ((*BASE, *SIZE, "--evidence", "mfu=locally_measured,"), 2),
        ((*BASE, *SIZE, "--claim", "joy=1"), 2),
        ((*BASE, *SIZE, "--change", "joy=1"), 2),
        ((*BASE, *SIZE, "--plan", "no-such.toml"), 3),
        (("--plan", "."), 2),
        ((*BASE, *SIZE, "--html", "/no/such/folder/x.html"), 2),
    ],
)
def test_exit_codes(words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "run", *words, "--quiet"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_hostile_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(("devices = 1\ndevices = 2", "[[[", "devices = nan", "[devices]\nvalue = inf", "\x00",
                                   "price = 2026-10-01", "stages = 3", "claims = 3", "case = 3")):  # fmt: skip
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        assert main(["plan", "run", "--plan", str(path)]) == 2, text
    assert "Traceback" not in capsys.readouterr().err


def test_dates_of_toml_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('currency = "EUR"\nprice = { value = 6, date = 2026-10-01 }\n', encoding="utf-8")
    code, data = run(capsys, "--plan", str(path), *BASE, *SIZE)
    assert code == 0 and [i["date"] for i in data["assumptions"] if i["name"] == "price"] == ["2026-10-01"]


def test_the_table_shows_answers_checks_and_what_moves(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*BASE, *SIZE, "--tokens", "3e12", "--batch-tokens", "4000000", "--change", "mfu=0.38")
    assert main(["plan", "run", *words]) == 0
    text = capsys.readouterr().out
    for part in ("How long?", "healthy duration two ways", "least trustworthy", "changed: mfu from 0.40 to 0.38",
                 "did not move: accelerator_hours", "incomplete"):  # fmt: skip
        assert part in text
    assert main(["plan", "run", *words, "--rows"]) == 0
    assert "counted as" in capsys.readouterr().out


def test_another_plan_can_be_the_base(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    path = str(root / "examples" / "plan_30b.toml")
    _, data = run(capsys, "--plan", path, "--kept", "5", "--against", path)
    assert [item["name"] for item in data["changes"]["inputs"]] == ["kept"]
    assert [item["name"] for item in data["changes"]["moved"]] == ["retained_bytes"]


class _Page(HTMLParser):
    """Collects tags and text; `void` elements need no end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br", "line", "circle", "rect", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "circle", "rect", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("make", [scenario, with_model])
def test_the_page_is_whole_and_asks_nothing_of_the_network(make: Callable[..., Any]) -> None:
    text = run_plan_page(document(make(), make(mfu="0.35")))
    page = _Page()
    page.feed(text)
    assert page.open == [] and "script" not in page.seen and "svg" in page.seen
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    for part in ("Training lead, date", "Checked two ways", "What is assumed", "What a change moves"):
        assert part in "".join(page.text)


def test_every_name_of_the_page_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    plan = scenario(name=evil, note=evil, currency="<b>", mfu={"value": "0.4", "source": evil, "test": evil,
                                                               "low": "0.3", "high": "0.5"})  # fmt: skip
    assert "<script" not in run_plan_page(document(plan)) and "<b>EUR" not in run_plan_page(document(plan))
