"""A pytest fixture that keeps the cost of a program where it was: `audit_regression`.

    def test_step_costs_what_it_did(audit_regression):
        audit_regression(train_step, state, batch, target="h100:8", bounds=["memory.live_peak_bytes=1%"])

The audit is compared with `audits/NAME.json` beside the test file, NAME being the test's own unless `name` is given.
`pytest --audit-update` writes the file; without it, growth beyond a bound fails and so does a missing file. Nothing is
imported before a test asks for the fixture, and a run that does not is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxcost.audits.audit import Audit
    from jaxcost.audits.regression import Bound, Comparison

FOLDER = "audits"
_TAKEN = pytest.StashKey[dict[Path, str]]()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--audit-update`."""
    group = parser.getgroup("jaxcost", "audits of JAX programs")
    group.addoption(
        "--audit-update", action="store_true", default=False,
        help="write the recorded audits that tests with the fixture audit_regression compare with",
    )  # fmt: skip


@pytest.fixture
def audit_regression(request: pytest.FixtureRequest) -> AuditRegression:
    """Compare the audit of a program with the one recorded beside the test file."""
    taken = request.config.stash.setdefault(_TAKEN, {})
    update = request.config.getoption("--audit-update")
    return AuditRegression(request.path.parent / FOLDER, request.node.name, update, request.node.nodeid, taken)


class AuditRegression:
    """What the fixture `audit_regression` is: call it with a function and its arguments, or with an audit."""

    def __init__(self, folder: Path, test: str, update: bool, node: str = "", taken: dict[Path, str] | None = None):
        self.folder, self.test, self.update, self.node = folder, test, update, node
        self._taken = {} if taken is None else taken  # of each record of this run, the test that it is of
        self._used: set[Path] = set()

    def __call__(
        self, function: Any, /, *args: Any, name: str | None = None,
        bounds: Iterable[str] | Mapping[str, Bound] = (), **keywords: Any,
    ) -> Comparison | None:  # fmt: skip
        """Audit a function and compare; fails the test on growth beyond a bound, or where nothing was recorded.

        Args:
            function: what `jaxcost.audit` takes, or an audit (an `Audit`, or its document).
            args, keywords: its arguments, and those of `jaxcost.audit` (`target`, `mesh`, `donate_argnums`, ...).
            name: of the record, where the test's own will not do: several audits in one test.
            bounds: such as `["flops=0", "memory.live_peak_bytes=1%"]`; see docs/audit.md for what holds without.

        Returns:
            The comparison; None where the record was written.
        """
        __tracebackhide__ = True
        from jaxcost.audits import regression
        from jaxcost.contracts.errors import JaxcostError

        path = self.path(name)
        other = self._taken.setdefault(path, self.node)
        if other != self.node or path in self._used:
            whose = f"of {other}" if other != self.node else "of an audit before it in this test"
            pytest.fail(f"the record {path} is {whose} too: give name= to one of them", pytrace=False)
        self._used.add(path)
        try:
            found = _bounds(bounds)
            document = _document(function, args, keywords)
            if self.update:
                regression.checked(document, "audit")
                _write(path, document)
                return None
            if not path.exists():
                pytest.fail(
                    f"there is no recorded audit {path}: run pytest --audit-update once and commit the file",
                    pytrace=False,
                )
            recorded = regression.read_recorded(path)
            compared = regression.compare_audits(recorded, document, found, against=str(path))
        except JaxcostError as error:
            pytest.fail(str(error), pytrace=False)
        if compared.failed:
            remedy = "if this is meant, run pytest --audit-update and commit the file"
            pytest.fail(f"{compared.to_text()}\n{remedy}", pytrace=False)
        return compared

    def path(self, name: str | None = None) -> Path:
        """The file of a record."""
        if name is not None and not _NAME.fullmatch(name):
            pytest.fail(f"name = {name!r}: letters, digits, '.', '_' and '-' make a file's name", pytrace=False)
        # A parametrised test has brackets in its name, and whatever its parameters print as.
        return self.folder / f"{name or re.sub(r'[^A-Za-z0-9._-]+', '-', self.test).strip('-')[:150]}.json"


def _bounds(bounds: Iterable[str] | Mapping[str, Bound]) -> dict[str, Bound]:
    from jaxcost.audits.regression import bounds_of

    return dict(bounds) if isinstance(bounds, Mapping) else bounds_of(bounds, "bounds")


def _document(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The document of an audit, made here where `function` is none."""
    if isinstance(function, Mapping):
        return dict(function)
    made: Audit
    if hasattr(function, "data") and hasattr(function, "to_dict") and not args and not keywords:
        made = function
    else:
        from jaxcost.audits.audit import audit

        made = audit(function, *args, **keywords)
    return made.to_dict()


def _write(path: Path, document: Mapping[str, Any]) -> None:
    from jaxcost.audits.regression import kept
    from jaxcost.contracts.errors import reject

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(kept(document), encoding="utf-8")
    except OSError as error:
        raise reject("--audit-update", str(path), f"cannot be written ({error.strerror})", "mend the folder") from None
