"""How results look: exact numbers, unknown shown as unknown, pages that stand alone, documents that fit a schema."""

from __future__ import annotations

import copy
import re
import sys
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from jaxcost.catalog import load_architecture
from jaxcost.cli.estimate import estimate_body
from jaxcost.cli.output import document
from jaxcost.contracts.case import prefill, training
from jaxcost.prediction.ledgers import predict
from jaxcost.report import gather
from jaxcost.report.numbers import about, exact, flat, signed, unit_of
from jaxcost.report.page import estimate_page, verify_page
from jaxcost.report.progress import progress
from jaxcost.report.tables import show_estimate
from jaxcost.report.values import unknown_reasons
from jaxcost.report.verified import show_verify, summary
from jaxcost.schema import names, schema


@pytest.fixture(scope="module")
def estimate() -> dict[str, Any]:
    """The document of a training estimate."""
    case = training(load_architecture("toy-untied").replaced(name="<toy & co>"), seq=4, remat="block")
    return document("jaxcost.estimate.v1", **estimate_body(case, predict(case).to_dict()))


def row(counter: str, prediction: Any, observation: Any, status: str, **more: Any) -> dict[str, Any]:
    residual = observation - prediction if isinstance(prediction, int) and isinstance(observation, int) else None
    return {
        "counter": counter,
        "scope": "group0/attn",
        "phase": "forward",
        "unit": "FLOPs",
        "prediction": prediction,
        "observation": observation,
        "residual": residual,
        "explanations": [],
        "status": status,
        **more,
    }


@pytest.fixture
def verified() -> dict[str, Any]:
    """The document of a verification with a row of each kind."""
    case = prefill(load_architecture("toy-tied"), seq=4)
    explanation = {"amount": -256, "reason": "the head's one row became <multiply> and reduce", "evidence": "fusion.3"}
    rows = [
        row("flops", 8960, 8960, "exact"),
        row("flops", 8960, 8704, "explained", explanations=[explanation]),
        row("memory", {"lower": 10, "upper": 20, "maximum_ratio": 4}, 15, "bounded"),
        row("bytes", 1408, None, "unmeasured", reason="not supplied"),
        row("flops", 8960, 8961, "open"),
        row("xla_flops", 8960, 448, "open", verdict="a loop body counts once"),
    ]
    report = {
        "name": "toy <tied>",
        "case": {"digest": case.digest, **case.to_data()},
        "target": "cpu:1",
        "rows": rows,
        "environment": {"versions": {"jax": "0.10.2"}},
        "status": "open",
        "findings": [{"kind": "remat", "text": "undone", "evidence": ["dot.1"]}],
    }
    return document(
        "jaxcost.verify.v1",
        status="open",
        reports=[report],
        unavailable=[{"family": "tpu", "reason": "libtpu is not installed", "remedy": "pip install x"}],
        claims=[{"claim": "flops is exact on cpu", "outcome": "broken", "rows": ["flops"]}],
        failures=[{"fault": "a", "symptom": "b", "check": "c", "status": "caught"}],
        fuzz={
            "status": "failed",
            "count": 2,
            "seed": 1,
            "target": "cpu:1",
            "drawn": 2,
            "checks": 3,
            "compiled": 1,
            "seconds": 1.0,
            "failures": [{"draw": 1, "property": "tying", "message": "off by one", "case_file": {"phase": "prefill"}}],
        },
        seconds=3.25,
        calibration_seconds=0.5,
    )


@pytest.mark.parametrize(
    ("value", "unit", "text", "rounded"),
    [
        (8_030_261_248, "scalars", "8,030,261,248", "8.03 G"),
        (68_719_476_736, "bytes", "68,719,476,736", "64.00 GiB"),
        (70_274_254_897_152, "FLOPs", "70,274,254,897,152", "70.27 TFLOP"),
        (448, "bytes", "448", ""),
        (0, "bytes", "0", ""),
        (None, "bytes", "unknown", ""),
        (True, "", "yes", ""),
        ("4513/282", "bytes/parameter", "4513/282", "16.00"),
        ({"lower": 1, "upper": None, "expected": None}, "bytes", "1 .. unknown", ""),
        ({"lower": 1, "upper": 3, "expected": 2}, "bytes", "1 .. 3 (2 expected)", ""),
        (10**30, "FLOPs", f"{10**30:,}", "1,000,000,000,000 EFLOP"),
    ],
)
def test_numbers(value: Any, unit: str, text: str, rounded: str) -> None:
    assert (exact(value), about(value, unit)) == (text, rounded)


def test_an_interval_is_written_in_words():
    assert exact({"minimum": 65537, "maximum": 131073}) == "65,537 to 131,073"
    assert exact({"minimum": 65537, "maximum": None}) == "at least 65,537"


def test_signs_and_units() -> None:
    assert [signed(value) for value in (5, -5, 0, None)] == ["+5", "-5", "0", ""]
    assert unit_of("state", "bytes_per_parameter") == "bytes/parameter"
    assert (unit_of("state", "loaded"), unit_of("ownership", "by_zero_stage.1")) == ("scalars", "bytes")
    assert (unit_of("flops", "per_device_forward"), unit_of("activations", "saved_bytes_per_device")) == (
        "FLOPs",
        "bytes",
    )
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": {}, "g": {"lower": 1, "upper": 2}}) == [
        ("a", 1),
        ("b.c", 2),
        ("b.d.e", 3),
        ("g", {"lower": 1, "upper": 2}),
    ]


def test_reasons_of_unknown_totals() -> None:
    assert unknown_reasons({"totals": {"a": 1}}) == {}
    assert unknown_reasons({"totals": {"a": None, "reason": "not supplied"}}) == {"a": "not supplied"}
    assert unknown_reasons({"totals": {"a": None, "b": None}, "reasons": {"a": "x", "b": "x"}}) == {"a, b": "x"}
    assert unknown_reasons({"totals": {"p": {"lower": 1, "upper": None}}}) == {"p": "no reason given"}
    inside = {"totals": {"p": {"lower": 1, "upper": None}}, "reasons": {"p.upper": "not derived"}}
    assert unknown_reasons(inside) == {"p": "not derived"}


def test_schemas_hold_and_can_fail(estimate: dict[str, Any], verified: dict[str, Any]) -> None:
    assert set(names()) >= {"jaxcost.estimate.v1", "jaxcost.verify.v1", "jaxcost.rejected.v1", "jaxcost.reconcile.v1"}
    for data in (estimate, verified):
        found = schema(data["schema"])
        jsonschema.Draft202012Validator.check_schema(found)
        jsonschema.validate(data, found)
        for key in found["required"]:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({name: value for name, value in data.items() if name != key}, found)
    wrong = {**estimate, "ledgers": {**estimate["ledgers"], "flops": {"totals": {"forward": 1}, "rows": []}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema("jaxcost.estimate.v1"))
    verified["reports"][0]["rows"][0]["observation"] = 8960.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(verified, schema("jaxcost.verify.v1"))


class Page(HTMLParser):
    """Balanced tags, and every address and text of a page."""

    VOID = ("meta", "rect", "br")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_estimate_page_stands_alone_and_is_escaped(estimate: dict[str, Any]) -> None:
    text = estimate_page(estimate)
    page = Page(text)
    assert not page.addresses and "script" not in page.tags and "svg" in page.tags
    assert not re.search(r"https?://|url\(|@import", text)
    assert "<toy & co>" in page.text and "<toy" not in text
    assert exact(estimate["ledgers"]["flops"]["totals"]["total"]) in page.text


def test_verify_page_stands_alone_and_is_escaped(verified: dict[str, Any]) -> None:
    page = Page(verify_page(verified))
    assert not page.addresses and "script" not in page.tags
    for part in (
        "toy <tied> on cpu:1",
        "<multiply>",
        "-256",
        "10 .. 20",
        "unknown",
        "a loop body counts once",
        "caught",
    ):
        assert part in page.text


def test_verify_table(
    verified: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show_verify(verified)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "8,960",
        "8,704",
        "-256",
        "+1",
        "10 .. 20",
        "not supplied",
        "<multiply>",
        "finding (remat): undone",
        "jax 0.10.2",
        "claim broken",
        "libtpu is not installed",
        "draw 1, tying: off by one",
        '{"phase": "prefill"}',
        "caught",
    ):
        assert part in text, part
    assert summary(verified) == (
        "1 report, 1 row open, 1 row unmeasured, 1 row bounded, 1 row explained, 1 row exact, 1 failure row caught. "
        "Status: open. 3.2 s (a calibration compile takes 0.5 s here)"
    )


@pytest.mark.parametrize("columns", ["60", "100", "160"])
def test_estimate_table_keeps_its_numbers_whole(
    estimate: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show_estimate(estimate, rows=True)
    text = capsys.readouterr().out
    assert f" {exact(estimate['ledgers']['flops']['totals']['total'])} " in text
    assert "\x1b" not in text and "peak_bytes unknown" in text
    for assumption in estimate["assumptions"]:
        assert assumption.split()[0] in text


def test_headline_names_what_agreed_and_what_was_not_measured() -> None:
    rows = [row("a", 1, 1, "exact"), row("b", 1, 2, "explained"), row("c", 1, None, "unmeasured")]
    assert gather.headline("unmeasured", rows) == ("explained", "(1 row unmeasured)")
    assert gather.headline("open", [*rows, row("d", 1, 3, "open")]) == ("open", "")
    assert gather.headline("unmeasured", rows[2:]) == ("unmeasured", "")
    assert gather.headline("exact", rows[:1]) == ("exact", "")


def test_what_reports_share_is_said_once(
    verified: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    first = {**verified["reports"][0], "findings": [{"kind": "assumption", "text": "ties are by name", "evidence": []}]}
    other = copy.deepcopy(first) | {"name": "again", "target": "h100:1"}
    other["case"]["workload"]["new_tokens"] = 5
    other["environment"]["versions"]["plugin"] = "1"
    show_verify({**verified, "reports": [first, other]})
    text = capsys.readouterr().out
    for once in (
        "phase=prefill",
        "jax 0.10.2  plugin 1",
        "- ties are by name (all reports)",
        "- bytes:",
        "not supplied",
    ):
        assert text.count(once) == 1, once
    assert "values used: seq=4" in text and "values used: seq=5" in text

    # Different versions, a value of its own and an assumption of one report only: nothing is shared wrongly.
    other["environment"]["versions"]["jax"] = "0.11.0"
    other["findings"] = []
    show_verify({**verified, "reports": [first, other]})
    text = capsys.readouterr().out
    assert "jax 0.10.2" in text and "jax 0.11.0" in text and "- ties are by name (1 of 2 reports)" in text
    page = Page(verify_page({**verified, "reports": [first, other]}))
    assert "ties are by name (1 of 2 reports)" in page.text and "again on h100:1" in page.text


def test_overview_counts_rows_by_status(verified: dict[str, Any]) -> None:
    columns, lines = gather.overview([verified["reports"][0]])
    assert columns == ["exact", "explained", "bounded", "unmeasured", "open"]
    assert lines == [("toy <tied>", "cpu:1", [1, 1, 1, 1, 1], "open")]


def test_a_verdict_of_one_word_comes_with_its_reason() -> None:
    words = {"exact": "exact", "misleading": "misleading: no temporary is in it", "wrong: 2 times": "wrong: 2 times"}
    for verdict, shown in words.items():
        item = row("xla.flops", 1, 2, "unmeasured", verdict=verdict, reason="no temporary is in it")
        assert gather.verdict(item) == shown


def test_exact_rows_of_single_scopes_are_counted_and_listed_on_demand(
    verified: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show_verify(verified)
    folded = capsys.readouterr().out
    show_verify(verified, rows=True)
    listed = capsys.readouterr().out
    assert "1 row exact, listed by --rows: flops forward" in folded and "listed by" not in listed
    assert (folded.count("8,960  "), listed.count("8,960  ")) == (2, 4)  # prediction and observation


def test_one_explanation_of_two_rows_is_one_note() -> None:
    item = {"amount": -1, "reason": "merged", "evidence": "dot.1"}
    rows = [row("flops", 2, 1, "explained", explanations=[item]), row("flops", 2, 1, "open", explanations=[item])]
    (note,) = gather.notes(rows)
    assert (note.amount, note.keys) == (-1, ["flops:group0/attn:forward"] * 2)
    assert len(gather.notes([*rows, row("flops", 3, 1, "open", explanations=[item | {"amount": -2}])])) == 2


def test_progress_is_plain_lines_into_a_pipe_and_silent_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, expected in ((False, "compiling ...\n[1/2] toy cpu:1\n"), (True, "")):
        with progress("compiling", quiet) as say:
            say("[1/2] toy cpu:1")
        seen = capsys.readouterr()
        assert (seen.out, seen.err) == ("", expected)


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("compiling") as say:
        say("[1/2] toy [cpu:1]")
        say("a line of its own")
    seen = capsys.readouterr()
    assert "a line of its own" in seen.err and "[1/2]" not in seen.err and not seen.out


def walk() -> dict[str, Any]:
    """A row's walk, cut down to two steps."""
    line = {"what": "q <proj>", "predicted": [2, 8], "observed": [8, 2], "unit": "", "agrees": False, "note": "b s"}
    same = [{**line, "what": f"w{n}", "observed": [2, 8], "agrees": True} for n in range(14)]
    steps = [
        {"number": 1, "step": "shapes", "question": "which arrays", "rows": [*same, line], "agrees": False},
        {"number": 2, "step": "FLOPs", "question": "products", "rows": [], "agrees": None},
    ]
    ends = "the first step that disagrees is 1, shapes"
    return {"report": "toy", "target": "cpu:1", "row": "tensor:q", "status": "open", "steps": steps, "conclusion": ends}


def test_a_walk_is_shown_alone(verified: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    show_verify({**verified, "explain": [walk()]})
    text = capsys.readouterr().out
    assert "1. shapes: which arrays  disagrees" in text and "nothing of this row" in text
    assert "q <proj>" in text and "differs" in text and "[8, 2]" in text  # what differs stands in the first lines
    assert "and 3 more, listed by --json" in text
    assert "The first step that disagrees is 1, shapes." in text and "xla_flops" not in text


def test_a_walk_stands_on_the_page(verified: dict[str, Any]) -> None:
    html = verify_page({**verified, "explain": [walk()]})
    assert "tensor:q of toy on cpu:1" in html and "q &lt;proj&gt;" in html and "<proj>" not in html
    assert "1. shapes: which arrays" in html and "The first step that disagrees is 1, shapes" in html


def test_a_narrow_terminal_drops_what_may_be_left_out_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxcost.report.console import console, table

    for width, shown in (("120", {"first", "second", "third"}), ("58", {"first", "third"})):
        monkeypatch.setenv("COLUMNS", width)
        made = table("name", "first", "second", "third", right=("first", "second", "third"), optional=("second",))
        made.add_row("a" * 24, "1" * 12, "2" * 12, "3" * 12)
        console().print(made)
        printed = capsys.readouterr().out
        assert {word for word in ("first", "second", "third") if word in printed.split("\n")[1]} == shown
        assert ("not shown at this width: second" in printed) == (width == "58")
        assert "3" * 12 in printed


def test_a_table_too_wide_for_its_terminal_is_printed_in_parts_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxcost.report.console import console, table

    monkeypatch.setenv("COLUMNS", "80")
    numbers = ("base", "value", "difference")
    made = table("field", "total", *numbers, "fits 0.75", "why", title="moves", right=numbers)
    made.add_row("heads 8 -> 32", "parameters", "1" * 21, "2" * 21, "3" * 21, "no", "one word after another " * 3)
    made.add_row("", "state", "4" * 21, "5" * 21, "x words that may break " * 3, "yes", "because")
    made.add_row("batch", "state", "7" * 21, "8" * 21, "9" * 21, "no", "because")
    console().print(made)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    heads = [line for line in printed.splitlines() if line.startswith(" field")]
    assert len(heads) > 1 and all("total" in line for line in heads)
    assert printed.count("moves") == 1 and {"fits", "0.75"} <= set(printed.split())
    assert all(digit * 21 in printed for digit in "12345789")
    assert printed.count("because") == 2 and printed.count("break") == 3
