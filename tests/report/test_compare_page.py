"""The page and the tables of a comparison; and the page in a browser, its cursor moved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.report.compare_page import compare_page
from jaxcost.report.compared import percent, show_compare, unit_for, verdict
from jaxcost.report.schedule import CLASSES
from jaxcost.schema import schema
from tests.planning.columns import compared, died, document_of, refused, rematerialised, requiring, same
from tests.report.browser import WHY_SKIPPED, browser, chromium

LIMIT = 80_695_830_118


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    """A column that fits, one too large, one refused, one whose worker died, and one that was not compiled."""
    return document_of(
        compared(same, rematerialised(2 * LIMIT), refused("<RESOURCE_EXHAUSTED> & more"), died("timed_out"), None)
    )


@pytest.fixture(scope="module")
def file(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "compare.html"
    path.write_text(compare_page(data), encoding="utf-8")
    return path


def test_the_document_fits_its_schema_and_the_schema_can_fail(data: dict[str, Any]) -> None:
    jsonschema.validate(data, schema("jaxcost.compare.v1"))
    broken = {**data, "columns": [{**data["columns"][0], "fits": {"0.75": "yes"}}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema("jaxcost.compare.v1"))


def test_the_table_says_what_fits_and_why_not(
    data: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show_compare(data)
    text = capsys.readouterr().out
    for part in (
        "1 of 5 fit 0.95 of the device, 1 of 5 predicted to fit 0.95, 1 refused, 1 failed, 1 unmeasured",
        "XLA would rematerialise silently (1,000 FLOPs more, +0.0%) and still not fit",
        "the compiler refuses: <RESOURCE_EXHAUSTED> & more",
        "failed: timed out: no answer within 1 s",
        "84,942,979,072 bytes of device memory (79.11 GiB)",
        "matmul_flops explained: dead replay dropped by differentiation (-30,786,325,577,728 FLOPs)",
        "a=8 -> b=8 on h100:8 (compiled)",
        "what to change first",
    ):
        assert part in text, part
    assert "12,048,220,164" not in text
    show_compare(data, rows=True)
    assert "12,048,220,164" in capsys.readouterr().out


def test_the_page_stands_alone_and_escapes_what_others_wrote(data: dict[str, Any]) -> None:
    page = compare_page(data)
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "<RESOURCE_EXHAUSTED>" not in page and "&lt;RESOURCE_EXHAUSTED&gt; &amp; more" in page
    assert "&lt;llama &amp; co&gt;" in page and "<llama" not in page
    assert "12,048,220,164" in page and "11.22 GiB" in page


def test_a_script_cannot_be_ended_by_a_name_in_its_data() -> None:
    def named(document: dict[str, Any]) -> None:
        for buffer in document["memory"]["timeline"]["buffers"].values():
            buffer["source"] = "</script><script>alert(1)</script>"

    page = compare_page(document_of(compared(named)))
    assert page.count("<script") == 2 == page.count("</script>")


def test_every_class_of_the_observation_has_a_colour() -> None:
    from jaxcost.observation.hlo.classes import CLASSES as OBSERVED

    assert set(OBSERVED) <= set(CLASSES) and len({CLASSES[name] for name in OBSERVED}) == len(OBSERVED)


def test_small_texts() -> None:
    assert [percent(value) for value in (None, 0.0, 0.0123, -0.5)] == ["", "0", "+1.23%", "-50.00%"]
    assert [unit_for(sizes) for sizes in ([0], [None, 2000], [2**31], [])] == [
        (1, "B"), (1024, "KiB"), (2**30, "GiB"), (1, "B"),
    ]  # fmt: skip
    found = document_of(compared(requiring(LIMIT), requiring(LIMIT + 1)))
    assert verdict(found) == "0 of 2 fit 0.75 of the device, 1 of 2 fit 0.95 of the device"


@pytest.mark.skipif(chromium() is None, reason=WHY_SKIPPED)
def test_the_page_in_a_browser_shows_what_is_live_under_the_cursor(data: dict[str, Any], file: Path) -> None:
    timeline = data["columns"][0]["compiled"]["timeline"]
    points = timeline["points"]
    with browser(str(chromium())) as page:
        page.open(file)
        assert page.errors == [] and page.requests == [file.as_uri()]

        # It opens at the peak: its bytes, its classes, its largest buffers.
        peak = next(i for i, point in enumerate(points) if point["step"] == timeline["peak_step"])
        assert "(the peak)" in page.text("#live-head") and f"{points[peak]['bytes']:,} bytes" == page.value(
            "document.querySelector('#live-head b').title"
        )
        assert shown(page) == expected(timeline, peak)

        # The pointer: a third into the plot, what lies there; the whole plot passed once, more than one answer.
        box = page.box("#plot")
        left, right = 66 / 960, 12 / 960
        span = points[-1]["step"] - points[0]["step"]
        at = len(points) // 3
        share = (points[at]["step"] - points[0]["step"]) / span
        x = box["x"] + box["width"] * (left + share * (1 - left - right)) + 0.5
        page.move(x, box["y"] + box["height"] / 2)
        index = int(page.value("document.getElementById('cursor').value"))
        assert abs(points[index]["step"] - points[at]["step"]) <= span / 200
        assert shown(page) == expected(timeline, index) and "(the peak)" not in page.text("#live-head")

        # The keyboard moves the same cursor; the button goes back.
        page.value("document.getElementById('cursor').focus()")
        page.key("ArrowRight", 39)
        assert int(page.value("document.getElementById('cursor').value")) == index + 1
        assert shown(page) == expected(timeline, index + 1)
        assert "live" in page.value("document.getElementById('cursor').getAttribute('aria-valuetext')")
        page.click("#to-peak")
        assert "(the peak)" in page.text("#live-head")

        # Another column, another program.
        page.value("document.querySelectorAll('input[name=column]')[1].click()")
        assert "b=8 on h100:8" in page.value("document.getElementById('plot').getAttribute('aria-label')")

        # The switch shows exact integers.
        exact = f"{data['columns'][0]['compiled']['required_bytes']:,}"
        assert exact not in page.text("table")
        page.click("#exact")
        assert exact in page.text("table")


@pytest.mark.skipif(chromium() is None, reason=WHY_SKIPPED)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window_and_text_can_be_told_from_its_ground(file: Path, dark: bool) -> None:
    with browser(str(chromium())) as page:
        for width in (1280, 700):
            page.open(file, width=width, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        colour = "getComputedStyle(document.body).color"
        assert page.value(colour) == ("rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)")


def shown(page: Any) -> list[list[str]]:
    """Class, exact bytes and shape of each buffer that the page lists."""
    found = page.value(
        "[...document.querySelectorAll('#live tr')].map(row =>"
        "[row.cells[0].innerText.trim(), row.cells[1].title, row.cells[2].innerText])"
    )
    return [list(row) for row in found]


def expected(timeline: dict[str, Any], index: int) -> list[list[str]]:
    """The same from the document."""
    buffers = [timeline["buffers"][str(key)] for key in timeline["points"][index]["live"]]
    return [[item["class"].replace("_", " "), f"{item['bytes']:,} bytes", item["shape"]] for item in buffers]
