"""An audit on a terminal and in a pipe: the numbers, whose word they are, and nothing unknown shown as zero."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from jaxcost.audits.document import audit_document
from jaxcost.audits.tree import COLUMNS, added, share
from jaxcost.report import audit_rows as gather
from jaxcost.report.audited import show_audit, size
from tests.audits.test_attribution import recorded
from tests.report.test_audit_page import HOSTILE, hostile, uncounted
from tests.test_readme import ROOT, missing_lines

PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return audit_document(recorded("llama-3.1-8b_training_h100-8_0c6f51ab").program, mesh={"fsdp": 8})


def printed(document: dict[str, Any], capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    show_audit(document, **options)
    return capsys.readouterr().out


def test_the_table_has_the_numbers_and_where_they_are(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(document, capsys)
    for part in (
        "program on h100:8", "mesh=fsdp=8", "523 TFLOP", "522,800,599,138,304", "30.90 GiB", "33,177,945,588",
        "fits: 39.1% of 79.11 GiB", "softmax", "attention.py:87 materialised", "all-gather", "27.96 GiB",
        "while.38", "right", "donation: 11.22 GiB of results take over an argument, what was donated in vain is not",
        "what would lower the peak",
    ):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text  # plain in a pipe


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal(
    document: dict[str, Any], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for options in ({}, {"rows": True}):
        text = printed(document, capsys, **options)
        assert max(map(len, text.splitlines())) <= width
        assert "523 TFLOP" in text and "30.90 GiB" in text


def test_rows_adds_what_the_tables_leave_out(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    short, full = printed(document, capsys), printed(document, capsys, rows=True)
    assert "rsqrt" in full and "rsqrt" not in short and len(full) > 2 * len(short)


def test_what_is_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    document = uncounted()
    text = printed(document, capsys)
    assert "+ unknown" in text and "no exact total of FLOPs" in text and "not known, and not zero" in text
    assert document["unknowns"][0]["reason"].split(":")[0] in " ".join(text.split())
    assert re.search(r"live peak +unknown", text)


def test_names_of_others_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    document = hostile()
    document["findings"].append({"kind": "markup", "text": "[bold red]not red[/]"})
    for row in (*document["attribution"]["scopes"], *document["attribution"]["lines"]):
        row["name"] = f"[red]{row['name']}[/][/nothing]\x1b]0;title\x07"
    document["findings"].append({"kind": "escape", "text": "\x1b[2J gone"})
    text = printed(document, capsys, rows=True)
    assert "[bold red]not red[/]" in text and HOSTILE in text and "[red]program[/][/nothing]" in text
    assert "\x1b" not in text and "\x07" not in text


def test_the_short_tree_is_a_walk_of_the_largest(document: dict[str, Any]) -> None:
    nodes = document["attribution"]["scopes"]
    walked = gather.largest(document, "scopes", 0.01, 24)
    found = [row for row in walked if row[1]["name"] != gather.REST]
    assert 10 < len(found) <= 24 and found[0] == (0, nodes[0])
    assert all(share(node, nodes[0]) >= 0.01 for _, node in found)
    assert all(depth <= before + 1 for (before, _), (depth, _) in pairwise(found))
    assert {"q_proj", "softmax", "head"} <= {node["name"] for _, node in found}
    assert unequal(walked) == []
    assert unequal(found) != []  # without the rows of what is left out they do not add up


def unequal(walked: list[tuple[int, Any]]) -> list[str]:
    """Names of the shown nodes whose shown children do not add up to them."""
    found = []
    for at, (depth, node) in enumerate(walked):
        below = []
        for deeper, child in walked[at + 1 :]:
            if deeper <= depth:
                break
            if deeper == depth + 1:
                below.append(child["total"])
        sums = {column: added(one.get(column, 0) for one in below) for column in COLUMNS}
        if below and any(sums[column] != node["total"].get(column, 0) for column in COLUMNS):
            found.append(node["name"])
    return found


@pytest.mark.parametrize("rows", [3, 8, None])
def test_the_lines_add_up_to_the_program(document: dict[str, Any], rows: int | None) -> None:
    shown = gather.lines(document, rows)
    assert len(shown) > 3 or rows == 3
    root = document["attribution"]["calls"][0]["total"]
    for column in ("flops", "bytes", "collective_bytes"):
        assert added(row["total"].get(column, 0) for row in shown) == root.get(column, 0)


def test_arguments_are_shown_where_no_scope_tells_the_layers(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "argument multiplied" not in printed(document, capsys)
    every = printed(document, capsys, rows=True)
    assert "argument multiplied" in every and "weight" in every
    flops = {**document["attribution"]["columns"]["flops"], "no_scope": document["flops"]["total"]}
    columns = {**document["attribution"]["columns"], "flops": flops}
    unnamed = {**document, "attribution": {**document["attribution"], "columns": columns}}
    assert "argument multiplied" in printed(unnamed, capsys)
    older = {name: part for name, part in unnamed["attribution"].items() if name != "weights"}
    assert "argument multiplied" not in printed({**unnamed, "attribution": older}, capsys)


def test_a_saving_shows_both_its_ends(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "donate", "target": "x", "action": "donate x", "saves_bytes": 2**20, "bound": "interval"}
    shown = {
        "interval": {"at_least_bytes": 4}, "upper": {"at_least_bytes": None}, "exact": {"at_least_bytes": 2**20},
    }  # fmt: skip
    for bound, more in shown.items():
        saving = {**row, **more, "bound": bound}
        text = printed({**document, "memory": {**document["memory"], "savings": {"rows": [saving]}}}, capsys)
        (found,) = [line for line in text.splitlines() if line.startswith(" donate x ")]
        wanted = "4 B .. 1.00 MiB" if bound == "interval" else "1.00 MiB"
        assert re.fullmatch(rf" donate x +{re.escape(wanted)} +{bound} *", found), found


def test_memory_beside_the_devices_is_one_line(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert "beside device memory" not in printed(document, capsys)
    spaces = [("device", 0, 8), ("scalar memory", 4, 4096), ("scalar memory", 6, 2048), ("on chip", 1, 23_811_072)]
    by_space = [dict(zip(("space", "color", "bytes"), row, strict=True)) for row in spaces]
    text = printed({**document, "memory": {**document["memory"], "by_space": by_space}}, capsys)
    line = "beside device memory, and in none of these numbers: 22.71 MiB on chip, 6,144 B scalar memory"
    assert line in " ".join(text.split())


def test_wrong_figures_come_first_and_unused_host_memory_takes_no_row(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"where": "", "measured": 0, "value": 0, "verdict": "right", "reason": "equal"}
    verdicts = [{**row, "figure": f"host_{i}"} for i in range(5)]
    verdicts += [{**row, "figure": f"right_{i}"} for i in range(12)]
    verdicts += [{**row, "figure": "host_used", "value": 8, "measured": 8}]
    verdicts += [{**row, "figure": "peak", "verdict": "wrong", "value": 3, "reason": "it says otherwise"}]
    changed = {**document, "xla": {**document["xla"], "verdicts": verdicts}}
    text = printed(changed, capsys)
    assert text.index(" peak ") < text.index(" right_0 ")
    assert "peak: it says otherwise" in text and "2 more with --rows" in text
    assert "host_0" not in text and "5 figures of host memory, each 0" in text
    assert "host_used" in printed(changed, capsys, rows=True) and "host_0" in printed(changed, capsys, rows=True)


def test_sizes_say_how_much_is_known() -> None:
    assert [size(value, "bytes") for value in (None, 0, 260, 2**31)] == ["unknown", "0", "260 B", "2.00 GiB"]
    assert size({"minimum": 0, "maximum": None}, "FLOPs") == "unknown"
    assert size({"minimum": 10**6, "maximum": None}, "FLOPs") == "1.00 MFLOP + unknown"
    assert size({"minimum": 1, "maximum": 10**6}, "FLOPs", whole=True) == "1 to 1,000,000"


def test_transfers_are_summed_by_kind_axes_and_link(document: dict[str, Any]) -> None:
    found = gather.collectives(document)
    assert [row.kind for row in found] == ["all-gather", "reduce-scatter", "all-to-all", "all-reduce"]
    assert sum(row.bytes for row in found) == document["attribution"]["columns"]["collective_bytes"]["total"]
    assert sum(row.wire for row in found) == document["collective_totals"]["total"]["wire_bytes"]


def test_the_page_of_documentation_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```text\n\$ jaxcost audit hlo_dumps/toy[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    toy = audit_document(recorded("toy-tied_training_cpu-1_62ac7e0b").program)
    toy["program"]["name"] = "training_step"
    text = printed(toy, capsys)
    assert not missing_lines(tuple(block.splitlines()), text), text
    assert missing_lines(("FLOPs 130 kFLOP ...",), text)
    named = {name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert set(toy) - {"schema", "evidence_class"} <= named


def test_a_name_of_any_length_takes_a_few_lines(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 10_000
    long = {**document, "program": {**document["program"], "name": name}, "unknowns": [
        {"what": name, "kind": "kernel", "reason": "none", "scope": name}]}  # fmt: skip
    text = printed(long, capsys)
    assert text.count("x" * 50) < 20 and "\u2026" in text and name[:100] in text.replace("\n", "")


def test_a_cell_of_another_kind_is_shown_as_text(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = document["memory"]["at_peak"]
    odd = {**document, "memory": {**document["memory"], "at_peak": [{**first, "source": {"odd": 1}}, *rest]}}
    assert "{'odd': 1}" in printed(odd, capsys)
