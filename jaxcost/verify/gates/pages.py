"""Checks on the pages of a checkout: links that lead somewhere, fences and formulas that are closed."""

from __future__ import annotations

import re
from pathlib import Path

from jaxcost.verify.gates.common import Items, holds
from jaxcost.verify.gates.package import Package

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


@holds(
    "pages.links", "every local link of the pages leads to a file, and to a heading of it where it names one", "package"
)
def _links(package: Package) -> Items:
    for page, text in package.pages.items():
        for _, label, target in _LINK.findall(_prose(text)):
            if not re.match(r"[a-z]+:", target):
                yield "" if _leads(page, target) else f"{page.name}: [{label}]({target}) leads nowhere"


def _leads(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return False
    if not anchor or file.suffix != ".md":
        return True
    heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in {_anchor(head) for head in heads}


def _anchor(head: str) -> str:
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower()).replace(" ", "-")


@holds("pages.pictures", "every picture on a page says in words what it shows", "package")
def _pictures(package: Package) -> Items:
    for page, text in package.pages.items():
        for mark, label, target in _LINK.findall(_prose(text)):
            if mark:
                yield "" if label.strip() else f"{page.name}: the picture {target} has no words"


@holds("pages.delimiters", "every fence and every formula on a page is closed", "package")
def _delimiters(package: Package) -> Items:
    for page, text in package.pages.items():
        fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
        yield f"{page.name}: a fence is open" if fences % 2 else ""
        prose = _prose(text)
        yield f"{page.name}: a formula is open" if prose.count("$$") % 2 else ""
        for paragraph in re.split(r"\n\s*\n", prose):
            inline = re.sub(r"``.*?``", "", paragraph, flags=re.DOTALL).count("`")
            yield f"{page.name}: a code span is open in {paragraph.strip()[:60]!r}" if inline % 2 else ""


def _prose(text: str) -> str:
    return re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.MULTILINE | re.DOTALL)
