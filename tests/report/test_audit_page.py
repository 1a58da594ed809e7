"""The page of an audit: whole without a network, inert whatever names it prints, and at work in a browser."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxcost.audits.document import audit_document
from jaxcost.audits.regression import compare_audits
from jaxcost.audits.tree import least
from jaxcost.observation.sources import Program
from jaxcost.report.audit_page import MOST_SCRIPT_BYTES, audit_page
from jaxcost.report.schedule import CLASSES, package_file
from tests.audits.test_attribution import dot, large, loop, products, recorded, stacked
from tests.observation.hlo.building import Program as Module
from tests.report.browser import WHY_SKIPPED, browser, chromium

HOSTILE = "</script><img src=x onerror=alert(1)>"
in_browser = pytest.mark.skipif(chromium() is None, reason=WHY_SKIPPED)


def audited(hlo: bytes, name: str = "step") -> dict[str, Any]:
    return audit_document(Program("proto", name, hlo, "cuda"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The training step of Llama-3.1-8B on eight H100."""
    evidence = recorded("llama-3.1-8b_training_h100-8_0c6f51ab")
    return audit_document(evidence.program, mesh={"fsdp": 8})


@pytest.fixture(scope="module")
def file(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "audit.html"
    path.write_text(audit_page(document), encoding="utf-8")
    return path


def script_bytes(page: str) -> int:
    """Bytes of all scripts of a page, their data included."""
    return sum(len(part.split("</script>")[0].encode()) for part in page.split("<script")[1:])


def data_of(page: str) -> Any:
    """What the script of the tree reads."""
    return json.loads(page.split('id="audit-data">')[1].split("</script>")[0])


def test_the_page_stands_alone_and_has_every_section(document: dict[str, Any]) -> None:
    page = audit_page(document)
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", page)
    for title in (
        "where the cost is",
        "FLOPs",
        "memory of one device",
        "memory over the schedule",
        "collectives",
        "loops",
    ):
        assert title in titles
    for text in ("523 TFLOP", f"{document['flops']['total']:,}", "30.90 GiB", "all-gather", "while.38", "group0"):
        assert text in page, text
    assert script_bytes(page) <= MOST_SCRIPT_BYTES


def test_no_script_writes_markup() -> None:
    for name in ("audit.js", "compare.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", package_file(name)
        )


def test_the_trees_of_the_page_weigh_what_the_program_costs(document: dict[str, Any]) -> None:
    for tree in data_of(audit_page(document))["trees"]:
        root = tree["nodes"][0]
        assert root[4][0] == document["flops"]["total"]
        assert root[4][2] == (document["memory"]["live_peak_bytes"] if tree["key"] != "weights" else 0)
        own = [sum(node[5][column] for node in tree["nodes"]) for column in range(4)]
        assert own == root[4]
        for number, node in enumerate(tree["nodes"]):  # and so do the children of each
            below = [child[4] for child in tree["nodes"] if child[0] == number]
            assert not below or [sum(column) for column in zip(*below, strict=True)] == node[4]


def hostile() -> dict[str, Any]:
    """A program whose scopes, functions, files, kernels and loops have names that would run as markup."""
    program = products(f"jit(f)/{HOSTILE}/dot_general")
    program = stacked([(f"/home/{HOSTILE}.py", HOSTILE, 3)], program)
    program.add(
        "custom-call", ("f32", 2, 2), custom_call_target=HOSTILE, name=HOSTILE, op_name=f"jit(f)/{HOSTILE}/call"
    )
    document = audited(program.bytes(), HOSTILE)
    document["findings"].append({"kind": HOSTILE, "text": HOSTILE, "where": HOSTILE, "bytes": 10**6})
    document["memory"]["savings"] = {"rows": [
        {**dict.fromkeys(("kind", "target", "action", "bound", "derivation"), HOSTILE), "saves_bytes": 5}
    ]}  # fmt: skip
    document["memory"]["donation"] = {"arguments": [{"path": HOSTILE, "shape": HOSTILE, "bytes": 1, "used": False}]}
    document["memory"]["constants"] = {HOSTILE: [{HOSTILE: HOSTILE}]}
    document["program"] |= {"refused": HOSTILE, "notes": [HOSTILE], "environment": {"versions": {HOSTILE: HOSTILE}}}
    document["jaxpr"] = {HOSTILE: HOSTILE}
    return document


def test_names_are_inert() -> None:
    page = audit_page(hostile())
    assert "<img" not in page and page.count("<script") == page.count("</script>") == 2
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    # It can fail: one name that is not escaped is seen.
    assert "<img" in page.replace("&lt;img", "<img", 1)


@in_browser
def test_names_are_inert_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(audit_page(hostile()), encoding="utf-8")
    with browser(str(chromium())) as page:
        page.open(path)
        page.value("document.getElementById('all-open').click()")
        assert page.errors == [] and page.requests == [path.as_uri()]
        assert page.value("document.querySelectorAll('img').length") == 0
        scope = HOSTILE.split("/")[1]  # a scope is cut where it has a slash
        assert scope in page.text("#flame") and scope in page.text("#tree-body")
        page.value("document.getElementById('by-calls').click()")
        assert HOSTILE in page.text("#flame")


def test_a_large_program_keeps_its_page_small_and_says_what_it_left_out() -> None:
    document = audited(large(count=20_000, stacks=4000))
    for tree in ("scopes", "calls"):
        for node in document["attribution"][tree][1:]:
            node["name"] += "x" * 5000
    page = audit_page(document)
    assert script_bytes(page) <= MOST_SCRIPT_BYTES
    (calls,) = (tree for tree in data_of(page)["trees"] if tree["key"] == "calls")
    assert "are summed with their neighbours" in calls["note"]
    assert sum(least_of(node[5][1]) for node in calls["nodes"]) == least(
        document["attribution"]["calls"][0]["total"]["bytes"]
    )


def least_of(value: Any) -> int:
    return int(value[0] if isinstance(value, list) else value)


def uncounted() -> dict[str, Any]:
    """A program with a loop that nobody can count."""
    program = Module()
    loop(program, 0, 1, 4, "NE", per_trip=lambda inside: dot(inside, 2, 3, 5, "jit(f)/layers/dot_general") and None)
    condition = next(c for c in program.module.computations if c.name == "condition")
    condition.instructions[-1].comparison_direction = "TOTALORDER"
    dot(program, 2, 3, 5, "jit(f)/head/dot_general")
    return audited(program.bytes())


def test_what_is_unknown_is_shown_as_unknown_and_not_as_zero() -> None:
    document = uncounted()
    page = audit_page(document)
    assert document["flops"]["total"] is None and document["unknowns"]
    assert 'id="unknowns"' in page and "+ unknown" in page
    assert [None in node[4][0] for node in data_of(page)["trees"][0]["nodes"] if isinstance(node[4][0], list)]


def test_numbers_that_a_script_cannot_hold_stay_whole(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    for node in changed["attribution"]["scopes"]:
        for part in ("total", "own"):
            node[part] = {column: value * 10**9 for column, value in node[part].items()}
    (root, *_) = data_of(audit_page(changed))["trees"][0]["nodes"]
    assert root[4][0] == str(document["flops"]["total"] * 10**9)


def test_every_class_of_any_program_has_a_colour_of_its_own() -> None:
    from jaxcost.observation.hlo.purposes import PURPOSES

    assert set(PURPOSES) <= set(CLASSES) and len({CLASSES[name] for name in PURPOSES}) == len(PURPOSES)


@pytest.fixture(scope="module")
def opened(file: Path) -> Iterator[Any]:
    if chromium() is None:
        pytest.skip(WHY_SKIPPED)
    with browser(str(chromium())) as page:
        page.open(file)
        yield page


def rows_of(page: Any) -> list[str]:
    found: list[str] = page.value("[...document.querySelectorAll('#tree-body .label')].map(e => e.innerText)")
    return found


def widths_of(page: Any) -> dict[str, float]:
    """Name -> width as a part of the flame graph."""
    found: dict[str, float] = page.value(
        "Object.fromEntries([...document.querySelectorAll('#flame .frame')].map(e => [e.getAttribute('aria-label')"
        ".split(':')[0], e.getBoundingClientRect().width / document.getElementById('flame').clientWidth]))"
    )
    return found


@in_browser
def test_the_step_of_a_large_model_opens_without_an_error(opened: Any, file: Path) -> None:
    assert opened.errors == [] and opened.requests == [file.as_uri()]
    assert opened.text("#told").startswith("program 523 TFLOP")
    assert widths_of(opened)["group0"] == pytest.approx(496_979_255_754_752 / 522_800_599_138_304, abs=2e-3)


@in_browser
def test_the_tree_opens_and_closes_by_pointer_and_by_key(opened: Any) -> None:
    opened.value("document.getElementById('all-shut').click()")
    assert rows_of(opened)[:2] == ["program", "group0"] and "mlp" not in rows_of(opened)
    opened.click("#tree-body tr .fold")
    assert rows_of(opened) == ["program"]
    opened.click("#tree-body tr .fold")
    assert "group0" in rows_of(opened) and "mlp" not in rows_of(opened)
    opened.value("document.querySelector('#tree-body tr').focus()")
    opened.key("ArrowDown", 40)
    assert opened.value("document.activeElement.querySelector('.label').innerText") == "group0"
    opened.key("ArrowRight", 39)
    assert "mlp" in rows_of(opened)
    assert opened.value("document.activeElement.getAttribute('aria-expanded')") == "true"
    opened.key("ArrowRight", 39)
    assert opened.value("document.activeElement.querySelector('.label').innerText") == "mlp"
    opened.key("ArrowLeft", 37)
    opened.key("ArrowLeft", 37)
    assert "mlp" not in rows_of(opened)
    opened.key("Home", 36)
    opened.key("ArrowLeft", 37)
    assert rows_of(opened) == ["program"]


@in_browser
def test_the_flame_graph_zooms_and_finds(opened: Any) -> None:
    opened.click("#flame .frame[aria-label^='mlp:']")
    assert opened.text("#crumbs") == "program / group0 / mlp" and widths_of(opened)["mlp"] == pytest.approx(1, abs=1e-3)
    assert opened.value("location.hash").startswith("#tree=scopes&column=flops&node=")
    opened.value("document.querySelector('#flame [tabindex=\"0\"]').focus()")
    opened.key("Escape", 27)
    assert opened.text("#crumbs") == "program"
    opened.key("ArrowDown", 40)
    opened.key("Enter", 13)
    assert opened.text("#crumbs") == "program / group0"
    opened.value("document.querySelector('#crumbs button').click()")
    search = "document.getElementById('search')"
    opened.value(f"{search}.value = 'gate'; {search}.dispatchEvent(new Event('input'))")
    assert opened.text("#found").startswith("4 found, 23.6% of FLOPs")  # the product, and three arguments of its name
    assert opened.value("document.querySelectorAll('#flame .hit').length") == 1
    opened.value(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")


@in_browser
def test_other_columns_and_the_source_are_a_click_away(opened: Any) -> None:
    opened.move(1, 1)  # off the graph, whose text follows the pointer
    opened.value("document.getElementById('of-peak_bytes').click()")
    assert opened.text("#told").startswith("program 30.90 GiB (33,177,928,260 bytes)")
    assert widths_of(opened)["(arguments and results)"] == pytest.approx(12_048_220_472 / 33_177_928_260, abs=2e-3)
    opened.value("document.getElementById('by-calls').click()")
    assert "training.py" in opened.text("#tree-body")
    opened.value("location.hash = '#tree=scopes&column=bytes&search=softmax'")
    assert opened.value("new Promise(done => setTimeout(() => done(document.getElementById('found').innerText), 100))")
    assert opened.text("#told").startswith("program 2.65 TiB")
    opened.value("location.hash = '#tree=scopes&column=flops'")


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window_and_text_can_be_told_from_its_ground(file: Path, dark: bool) -> None:
    with browser(str(chromium())) as page:
        for width in (1280, 700, 420):
            page.open(file, width=width, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value("getComputedStyle(document.body).color") == ("rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)")
        ground = "getComputedStyle(document.querySelector('#flame .frame:nth-child(2)')).backgroundColor"
        bright = sum(int(part) for part in re.findall(r"\d+", page.value(ground))[:3]) / 3
        assert bright < 110 if dark else bright > 150


@in_browser
def test_what_is_unknown_is_marked_in_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "uncounted.html"
    path.write_text(audit_page(uncounted()), encoding="utf-8")
    with browser(str(chromium())) as page:
        page.open(path)
        assert page.errors == []
        assert page.value("document.querySelectorAll('#flame .unknown-part').length") >= 1
        assert "+ unknown" in page.text("#told")


def test_what_moved_against_a_recorded_audit_is_a_section(document: dict[str, Any]) -> None:
    assert 'id="against"' not in audit_page(document)
    document = copy.deepcopy(document)
    document["program"]["environment"] = {"versions": {"jax": "1"}}
    grown = copy.deepcopy(document)
    grown["memory"]["live_peak_bytes"] += 4096
    grown["program"]["environment"]["versions"]["jax"] = "<b>0"
    against = compare_audits(document, grown, against="step.json").to_dict()
    page = audit_page({**grown, "against": against})
    section = page[page.index('id="against"') :].split("<h2", 1)[0]
    assert "against step.json" in section and "memory.live_peak_bytes" in section and "+4,096" in section
    assert '<td class="unknown">grown</td>' in section and "beyond their bounds" in section
    assert "what differs" in section and "&lt;b&gt;0" in section and "<b>0" not in section
    same = compare_audits(document, document, against="step.json").to_dict()
    assert "nothing is beyond its bound" in audit_page({**document, "against": same})


def test_no_character_of_a_name_commands_a_terminal(document: dict[str, Any]) -> None:
    name = "a\x1b]0;b\x07\u202ec"
    page = audit_page({**document, "program": {**document["program"], "name": name, "notes": [name]}})
    assert not any(c in page for c in "\x1b\x07\u202e") and "a\ufffd]0;b" in page
