"""The page of a sensitivity: a tornado a ledger, the largest effect first; nothing on it is taken as markup."""

from __future__ import annotations

import copy
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from jaxcost.cli.output import document
from jaxcost.planning.sensitivity import vary
from jaxcost.report.sensitivity import change_text, ratio_text
from jaxcost.report.sensitivity_page import sensitivity_page
from jaxcost.report.tornado import tornado_svg
from jaxcost.verify.failures.subjects import prefill

SETS = ["kv_heads=1", "kv_heads=4", "batch=8", "kv_dtype=fp32", "mesh=tensor=2", "tied=no"]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    found = vary(prefill(), SETS, ["batch=8,visible=8"])
    return document("jaxcost.sensitivity.v1", model="<toy & co>", **found.to_dict(), exit_code=0)


def results(data: dict[str, Any]) -> list[Any]:
    return [*data["cases"], *data["vectors"]]


def bars(svg: str) -> list[tuple[str, float]]:
    """The title and the width of each bar, from above."""
    return [
        (title, float(width))
        for width, title in re.findall(r'<rect[^>]* width="([\d.]+)"[^>]*><title>(.*?)</title>', svg)
    ]


def test_bars_are_as_long_as_the_logarithm_of_the_ratio_and_sorted(data: dict[str, Any]) -> None:
    svg = tornado_svg("kv_cache.bytes", results(data), data["base"]["kv_cache.bytes"])
    widths = [width for _, width in bars(svg)]
    assert widths == sorted(widths, reverse=True) and len(widths) == 5
    names = [title.split(":")[0] for title, _ in bars(svg)]
    assert names == [
        "vector",
        "batch 1 -&gt; 8",
        "kv_heads 2 -&gt; 1",
        "kv_heads 2 -&gt; 4",
        "kv_dtype bf16 -&gt; fp32",
    ]
    by_name = dict(zip(names, widths, strict=True))
    assert math.isclose(by_name["kv_heads 2 -&gt; 1"], by_name["kv_heads 2 -&gt; 4"], abs_tol=0.1)  # 0.5x and 2x
    assert math.isclose(by_name["vector"], 4 / 3 * by_name["batch 1 -&gt; 8"], abs_tol=0.2)  # 16x and 8x
    assert "2 more do not move it" in svg


def test_each_side_of_one_has_its_colour_and_a_vector_its_own(data: dict[str, Any]) -> None:
    svg = tornado_svg("kv_cache.bytes", results(data), 1)
    assert [svg.count(f'<rect class="{kind}"') for kind in ("more", "less", "vector")] == [3, 1, 1]


def test_a_ledger_that_nothing_moves_and_one_without_a_ratio(data: dict[str, Any]) -> None:
    assert "no case moves it" in tornado_svg("flops.backward", results(data), 0)
    svg = tornado_svg("collectives.payload_bytes", results(data), 0)
    assert "the base is zero" in svg and "<rect" not in svg


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(page)
    return parser.tags


def test_the_page_has_a_panel_a_total_and_asks_for_nothing(data: dict[str, Any]) -> None:
    page = sensitivity_page(data)
    found = tags(page)
    assert sum(attrs.get("class") == "tornado" for _, attrs in found) >= 6
    assert not {tag for tag, _ in found} & {"script", "link", "img", "iframe"}
    assert not [value for _, attrs in found for name, value in attrs.items() if name in ("src", "href")]
    assert "default-src 'none'" in page and "&lt;toy &amp; co&gt;" in page and "interaction" in page


def test_nothing_is_taken_as_markup(data: dict[str, Any]) -> None:
    evil = copy.deepcopy(data)
    bad = "<b onload=x>'\"&"
    evil["model"] = bad
    for item in results(evil):
        item["name"], item["notes"] = bad, [bad]
        for row in item["totals"]:
            row["unit"], row["reason"], row["interaction_reason"] = bad, bad, bad
            if "derivative" in row:
                row["derivative"] |= {"formula": bad, "symbol": bad, "agrees": False, "reason": bad}
        for leaf in item["moved"]:
            leaf["path"] = bad
        item["moved"] = item["moved"] * 2
    evil["left_out"] = [{"field": bad, "value": bad, "reason": bad}]
    evil["formula_disagreements"] = [{"name": bad, "path": bad, "reason": bad}]
    row = {
        **dict.fromkeys(("counter", "scope", "phase", "unit", "reason"), bad), "prediction": 1, "observation": None,
        "residual": None, "explanations": [{"amount": 1, "reason": bad, "evidence": bad}], "status": "unmeasured",
    }  # fmt: skip
    evil["observed"] = [{"name": bad, "target": bad, "base_target": "x", "status": bad, "reason": bad, "rows": [row]}]
    page = sensitivity_page(evil)
    assert "<b onload" not in page
    assert {tag for tag, _ in tags(page)} == {tag for tag, _ in tags(sensitivity_page(data))} | {"ul", "li", "br"}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"invariant": True, "difference": 0, "ratio": 1.0, "unit": "bytes"}, "-"),
        ({"invariant": False, "difference": None, "ratio": None, "unit": "bytes"}, "unknown"),
        ({"invariant": False, "difference": 2**31, "ratio": None, "unit": "bytes"}, "+2.00 GiB"),
        ({"invariant": False, "difference": 1, "ratio": 1.1002, "unit": "scalars"}, "1.100x"),
        ({"invariant": False, "difference": 1, "ratio": 123456.7, "unit": "scalars"}, "1.23e+05x"),
        ({"invariant": False, "difference": -1, "ratio": 0.0, "unit": "scalars"}, "0x"),
    ],
)
def test_how_a_ratio_is_written(row: dict[str, Any], text: str) -> None:
    assert ratio_text(row) == text


def test_how_a_difference_is_written() -> None:
    assert [change_text(value, "bytes") for value in (5, -5, 2**20, -(2**20))] == ["+5", "-5", "+1.00 MiB", "-1.00 MiB"]
