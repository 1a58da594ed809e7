#!/usr/bin/env python
"""Which changes of the package do its tests notice?

    python benchmarks/mutation/run.py measure            all that is to be measured; stops and goes on where it was
    python benchmarks/mutation/run.py report [--write]   the shares with their intervals, and what survived
    python benchmarks/mutation/run.py check 40           forty mutants drawn from all, in minutes; exit code 1 below 92%

Needs mutmut, coverage and statsmodels beside the development tools (README.md has the line).
"""

from __future__ import annotations

import argparse
import ast
import collections
import fnmatch
import hashlib
import importlib
import itertools
import json
import os
import pickle
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]
os.environ |= {"HYPOTHESIS_PROFILE": "ci", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ |= {"PYTHONDONTWRITEBYTECODE": "1"}

import forks  # noqa: E402
import mutants  # noqa: E402
import reports  # noqa: E402
from mutants import Mutant  # noqa: E402

STATE = HERE / ".state"
PARTS = ("folds", "first", "second")
GROUPS = tomllib.loads((HERE / "tests.toml").read_text(encoding="utf-8"))["group"]
SAMPLES = tomllib.loads((HERE / "sample.toml").read_text(encoding="utf-8"))
# Imported before any fork; nothing of the package is.
PRELOADED = ("google.protobuf", "numpy", "pydantic", "sympy")
# Beyond the measured time of its tests a mutant may spend this much before it counts as never ending.
SPARE_CPU_S, SPARE_WALL_S = 10, 300


def drawn(room_mutants: dict[str, list[Mutant]], seed: str, count: int, not_in: Iterable[str] = ()) -> list[Mutant]:
    """Return `count` mutants, of every room in proportion to its mutants, those of least rank."""
    total = sum(map(len, room_mutants.values()))
    out, found = set(not_in), []
    for members in room_mutants.values():
        left = round(count * len(members) / total)
        for mutant in sorted(members, key=lambda at: at.rank(seed)):
            if left == 0:
                break
            if mutant.name not in out and mutant.is_one:
                found.append(mutant)
                left -= 1
    return sorted(found, key=lambda at: (at.module, at.line))


def population() -> tuple[list[Mutant], dict[str, list[Mutant]]]:
    """Return the mutants of the folds, and those of all other modules by room."""
    folds, rest = [], {room: [] for room in mutants.ROOMS}
    chosen = mutants.folds()
    for room, folder in mutants.ROOMS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = mutants_of(path)
            (folds if path.relative_to(ROOT).as_posix() in chosen else rest[room]).extend(found)
    return folds, rest


def mutants_of(path: Path) -> tuple[Mutant, ...]:
    """Return a module's mutants, kept for its text and these rules: finding them takes a second."""
    digest = hashlib.sha256(path.read_bytes() + (HERE / "mutants.py").read_bytes()).hexdigest()
    place = STATE / "mutants" / f"{digest[:24]}.pickle"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(pickle.dumps(mutants.Module(path).mutants))
    found: tuple[Mutant, ...] = pickle.loads(place.read_bytes())
    return found


def parts() -> dict[str, list[Mutant]]:
    """Return the mutants to run by part; kept for this package and these rules, since finding them takes a minute."""
    digest = hashlib.sha256()
    texts = [path for folder in mutants.ROOMS.values() for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in (HERE / "mutants.py", HERE / "sample.toml", *texts):
        digest.update(path.read_bytes())
    place = STATE / f"drawn-{digest.hexdigest()[:16]}.pickle"
    if place.exists():
        kept: dict[str, list[Mutant]] = pickle.loads(place.read_bytes())
        return kept
    folds, rest = population()
    first = drawn(rest, SAMPLES["first"]["seed"], SAMPLES["first"]["mutants"])
    taken = {mutant.name for mutant in first}
    second = drawn(rest, SAMPLES["second"]["seed"], SAMPLES["second"]["mutants"], taken)
    found = {"folds": [mutant for mutant in folds if mutant.is_one], "first": first, "second": second}
    sizes = {"folds": len(folds)} | {room: len(members) for room, members in rest.items()}
    STATE.mkdir(exist_ok=True)
    (STATE / "population.json").write_text(json.dumps(sizes), encoding="utf-8")
    place.write_bytes(pickle.dumps(found))
    return found


def group_of(module: str) -> dict[str, Any]:
    return next(group for group in GROUPS if any(fnmatch.fnmatch(module, pattern) for pattern in group["modules"]))


class Results:
    """What was found so far, one JSON line each; the last line of a mutant holds."""

    def __init__(self) -> None:
        STATE.mkdir(exist_ok=True)
        self.path = STATE / "results.jsonl"
        self.found: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[entry["name"]] = entry

    def add(self, mutant: Mutant, outcome: str, started: float, **rest: Any) -> None:
        entry = {
            "name": mutant.name, "module": mutant.module, "room": mutant.room, "line": mutant.line,
            "operator": mutant.operator, "before": mutant.before, "after": mutant.after, "context": mutant.context,
            "outcome": outcome, "seconds": round(time.monotonic() - started, 2), "text": text_of(mutant), **rest,
        }  # fmt: skip
        self.found[mutant.name] = entry
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def text_of(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.original.encode()).hexdigest()[:12]


class Functions:
    """Where the functions of a module stand: each line's outermost function, by its first line; 0 outside any."""

    def __init__(self, text: str):
        self.spans: list[tuple[int, int]] = []
        self._enter(ast.parse(text).body)

    def _enter(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.spans.append((node.body[0].lineno, node.end_lineno or node.lineno))
            elif isinstance(node, ast.ClassDef):
                self._enter(node.body)

    def at(self, line: int) -> int:
        return next((start for start, end in self.spans if start <= line <= end), 0)


def attribution(items: Sequence[Any]) -> dict[str, Any]:
    """Run each test alone, as if no cache were filled, and return the functions it runs and its CPU seconds."""
    import coverage

    caches = forks.Functions()
    watched = coverage.Coverage(data_file=None, include=[f"{ROOT}/{folder}/*" for folder in mutants.ROOMS.values()])
    watched.start()
    seconds, failing = {}, []
    for item, then in zip(items, [*items[1:], None], strict=True):
        caches.clear()
        watched.switch_context(item.nodeid)
        begun = time.process_time()
        if forks.run(item.session, [item], then):
            failing.append(item.nodeid)
        seconds[item.nodeid] = round(time.process_time() - begun, 4)
    watched.stop()
    data, runs = watched.get_data(), {}
    for path in data.measured_files():
        functions = Functions(Path(path).read_text(encoding="utf-8"))
        by_function: dict[int, set[str]] = collections.defaultdict(set)
        for line, contexts in data.contexts_by_lineno(path).items():
            by_function[functions.at(line)].update(name for name in contexts if name)
        runs[Path(path).relative_to(ROOT).as_posix()] = {str(at): sorted(names) for at, names in by_function.items()}
    return {"seconds": seconds, "failing": failing, "runs": runs}


class Chooser:
    """Chooses the tests of a mutant."""

    def __init__(self, group: dict[str, Any], known: dict[str, Any], results: Results):
        self.budget, self.known, self.results = group["budget_s"], known, results
        self.first = tuple(group.get("first", ()))
        self.killers: collections.Counter[tuple[str, int, str]] = collections.Counter()
        self.functions: dict[str, Functions] = {}

    def function(self, mutant: Mutant) -> int:
        if mutant.module not in self.functions:
            self.functions[mutant.module] = Functions(mutant.original)
        return self.functions[mutant.module].at(mutant.line)

    def is_run(self, mutant: Mutant) -> bool:
        """Does a test run the mutant's function?"""
        return bool(self.known["runs"].get(mutant.module, {}).get(str(self.function(mutant))))

    def killed(self, mutant: Mutant, by: str) -> None:
        self.killers[mutant.module, self.function(mutant), by] += 1
        self.killers[mutant.module, -1, by] += 1

    def tests(self, mutant: Mutant) -> list[str]:
        runs, at = self.known["runs"].get(mutant.module, {}), self.function(mutant)
        # What no test runs may have run at import, and then shows in any test of the module.
        names = set(runs.get(str(at), ()) if at else ()) or {name for of in runs.values() for name in of}
        names -= set(self.known["failing"])
        before = self.results.found.get(mutant.name, {}).get("by", "")

        stem = "test_" + Path(mutant.module).stem

        def order(name: str) -> tuple[Any, ...]:
            here, near = self.killers[mutant.module, at, name], self.killers[mutant.module, -1, name]
            told = not (stem in name or (self.first and name.startswith(self.first)))
            return name != before, -here, -near if not here else 0, told, self.known["seconds"][name], name

        return sorted(names, key=order)


def state_of_tests(group: dict[str, Any]) -> str:
    """A digest of the tests and the package: what an attribution holds for."""
    digest = hashlib.sha256(json.dumps([group["tests"], group.get("leave_out")]).encode())
    for folder in ("tests", "jaxcost"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure_group(group: dict[str, Any], todo: list[Mutant], results: Results, workers: int) -> None:
    """Run a group's mutants: in place where a function changes, then the rest from fresh imports."""
    place = STATE / f"tests-{group['name']}-{state_of_tests(group)}.json"

    def work(session: Any) -> None:
        items = [item for item in session.items if not any(part in item.nodeid for part in group.get("leave_out", ()))]
        if not place.exists():
            known = earlier(group, items)
            # Tests of one file stay together, since they share what a session sets up.
            new = [item for item in items if item.nodeid not in known["seconds"]]
            files = [list(found) for _, found in itertools.groupby(new, key=lambda item: item.nodeid.split("::")[0])]
            hands = [part for found in files for part in [found[at : at + 40] for at in range(0, len(found), 40)]]
            answers = forks.shared(
                hands,
                workers,
                lambda hand: attribution([item for part in hand for item in part]),
                STATE / f"attribution-{group['name']}",
            )
            joined = merged([known, *answers]) | {"files": digests(items)}
            place.write_text(json.dumps(joined), encoding="utf-8")
        known = json.loads(place.read_text(encoding="utf-8"))
        for name in known["failing"]:
            print("fails unchanged and is left out:", name, flush=True)
        forks.shared(
            todo, workers, lambda hand: in_place(session, hand, Chooser(group, known, results), results),
            STATE / "workers",
        )  # fmt: skip

    without = [part for part in group.get("leave_out", ()) if part.endswith(".py")]
    ended, _ = forks.child(
        lambda: forks.collect(group["tests"], work, without), 36000, 36000, STATE / f"{group['name']}.log"
    )
    results.read()
    if ended != "done":
        print(f"{group['name']}: the session {ended}, see {STATE / (group['name'] + '.log')}", flush=True)
        return
    known = json.loads(place.read_text(encoding="utf-8"))
    rest = [mutant for mutant in todo if results.found.get(mutant.name, {}).get("outcome") == "outside"]
    if rest:
        forks.shared(
            rest, workers, lambda hand: from_fresh(hand, Chooser(group, known, results), results), STATE / "fresh"
        )
        results.read()


def digests(items: Sequence[Any]) -> dict[str, str]:
    """Return the digest of each test file."""
    paths = {item.nodeid.split("::")[0] for item in items}
    return {path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:16] for path in sorted(paths)}


def earlier(group: dict[str, Any], items: Sequence[Any]) -> dict[str, Any]:
    """Return what the last attribution says of tests whose files are as they were.

    The package may have changed since: a test that now runs a function it did not run may then be missed, and a mutant
    it would have killed survives.
    """
    kept = sorted(STATE.glob(f"tests-{group['name']}-*.json"), key=lambda path: path.stat().st_mtime)
    if not kept:
        return {"seconds": {}, "failing": [], "runs": {}}
    known = json.loads(kept[-1].read_text(encoding="utf-8"))
    now, then = digests(items), known.get("files", {})
    same = {item.nodeid for item in items if now[item.nodeid.split("::")[0]] == then.get(item.nodeid.split("::")[0])}
    runs = {
        path: {at: [name for name in names if name in same] for at, names in functions.items()}
        for path, functions in known["runs"].items()
    }
    seconds = {name: spent for name, spent in known["seconds"].items() if name in same}
    return {"seconds": seconds, "failing": [name for name in known["failing"] if name in same], "runs": runs}


def merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the attributions of several hands."""
    seconds, failing, runs = {}, [], collections.defaultdict(dict)
    for answer in answers:
        seconds |= answer["seconds"]
        failing += answer["failing"]
        for path, functions in answer["runs"].items():
            for at, names in functions.items():
                runs[path].setdefault(at, []).extend(names)
    return {"seconds": seconds, "failing": sorted(failing), "runs": runs}


def in_place(session: Any, todo: list[Mutant], chooser: Chooser, results: Results) -> None:
    import gc

    for module in dict.fromkeys(mutant.module for mutant in todo):  # also those that are imported when first used
        importlib.import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    functions, items = forks.Functions(), {item.nodeid: item for item in session.items}
    gc.collect()
    gc.freeze()
    for mutant in todo:
        started, tests = time.monotonic(), chooser.tests(mutant)
        if not tests:
            results.add(mutant, "no_tests", started)
            continue
        pairs = forks.exchanged(mutant.original, mutant.source, mutant.module)
        if pairs is None or not chooser.is_run(mutant):
            results.add(mutant, "outside", started)
            continue

        def fork(mutant: Mutant = mutant, pairs: Any = pairs, tests: list[str] = tests) -> str:
            functions.clear()
            if not functions.exchange(str(ROOT / mutant.module), pairs):
                return "absent"
            return forks.run(session, [items[name] for name in tests], None, chooser.budget)

        ended, failed = forks.child(fork, chooser.budget * 3 + SPARE_CPU_S, SPARE_WALL_S, STATE / "mutant.log")
        keep(mutant, ended, failed, started, chooser, results)


def from_fresh(todo: list[Mutant], chooser: Chooser, results: Results) -> None:
    for mutant in todo:
        started, tests = time.monotonic(), chooser.tests(mutant)
        ended, failed = forks.child(
            lambda mutant=mutant, tests=tests: forks.fresh(mutant.module, mutant.source, tests, chooser.budget),
            chooser.budget * 3 + 2 * SPARE_CPU_S, SPARE_WALL_S, STATE / "mutant.log",
        )  # fmt: skip
        keep(mutant, ended, failed, started, chooser, results)


def keep(mutant: Mutant, ended: str, failed: Any, started: float, chooser: Chooser, results: Results) -> None:
    if ended == "timeout":
        results.add(mutant, "timeout", started)
    elif ended == "died":
        results.add(mutant, "killed", started, by="the process ended")
    elif failed == "absent" or ended == "stalled":
        results.add(mutant, "outside", started)  # once more, from a fresh import
    elif failed:
        if failed in chooser.known["seconds"]:
            chooser.killed(mutant, failed)
        results.add(mutant, "killed", started, by=failed)
    else:
        results.add(mutant, "survived", started)


def measure(chosen: dict[str, list[Mutant]], again: bool, survivors: bool, room: str = "", workers: int = 1) -> None:
    results = Results()
    todo: dict[str, Mutant] = {}
    for members in chosen.values():
        for mutant in members:
            entry = results.found.get(mutant.name)
            known = entry and entry["text"] == text_of(mutant) and entry["outcome"] != "outside"
            alive = entry and entry["outcome"] in ("survived", "no_tests")
            if room not in mutant.module or (survivors and not alive) or (known and not again and not survivors):
                continue
            todo[mutant.name] = mutant
    by_group: dict[str, list[Mutant]] = collections.defaultdict(list)
    # In an order that has nothing to do with the modules: what was run by the time one stops is a sample of the sample.
    for mutant in sorted(todo.values(), key=lambda at: at.name):
        by_group[group_of(mutant.module)["name"]].append(mutant)
    for module in PRELOADED:
        importlib.import_module(module)

    for group in GROUPS:
        members = by_group.get(group["name"], [])
        if members:
            started = time.monotonic()
            measure_group(group, members, results, workers)
            tally = collections.Counter(
                results.found[mutant.name]["outcome"] for mutant in members if mutant.name in results.found
            )
            print(f"{group['name']}: {len(members)} in {time.monotonic() - started:.0f} s, {dict(tally)}", flush=True)


def check(count: int) -> int:
    """Run mutants drawn from all by the day's seed; return 1 where even the interval's upper end is below the aim."""
    import datetime

    folds, rest = population()
    rest["prediction"] = rest["prediction"] + folds
    seed = datetime.datetime.now(datetime.UTC).date().isoformat()
    chosen = drawn(rest, seed, count)
    global STATE
    STATE = HERE / ".state" / "check"
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / "results.jsonl").unlink(missing_ok=True)
    measure({"check": chosen}, again=True, survivors=False)
    found = Results().found
    killed = sum(found[mutant.name]["outcome"] in ("killed", "timeout") for mutant in chosen)
    low, high = reports.interval(killed, len(chosen))
    print(f"seed {seed}: {killed} of {len(chosen)} killed, 95% interval {low:.1%} to {high:.1%}")
    for mutant in chosen:
        if found[mutant.name]["outcome"] in ("survived", "no_tests"):
            print(f"{mutant.module}:{mutant.line} {found[mutant.name]['outcome']}", *mutant.difference, sep="\n  ")
    return int(high < reports.AIM)


def alive(chosen: dict[str, list[Mutant]]) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    found = Results().found
    for members in chosen.values():
        for mutant in members:
            entry = found.get(mutant.name)
            if entry and entry["outcome"] in ("survived", "no_tests"):
                yield mutant, entry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    doing = commands.add_parser("measure", help="run what has no result yet")
    doing.add_argument("--part", action="append", choices=PARTS, help="one part of three (default: all)")
    doing.add_argument("--again", action="store_true", help="run what has a result, too")
    doing.add_argument("--survivors", action="store_true", help="run only what survived before")
    doing.add_argument("--workers", type=int, default=1, help="processes that share the work (default 1)")
    doing.add_argument("--module", default="", help="only modules whose path contains this")
    doing.add_argument("--limit", type=int, default=0, help="at most this many of each part, the first ones")
    showing = commands.add_parser("report", help="what was found")
    showing.add_argument("--write", action="store_true", help="keep it in results.json, and the table in README.md")
    surviving = commands.add_parser("survivors", help="the changes that no test noticed")
    surviving.add_argument("--module", default="")
    surviving.add_argument("--part", action="append", choices=PARTS)
    few = commands.add_parser("check", help="a few mutants, drawn by the day")
    few.add_argument("count", type=int)
    options = parser.parse_args()
    if options.command == "check":
        return check(options.count)
    wanted = getattr(options, "part", None) or PARTS
    chosen = {part: members for part, members in parts().items() if part in wanted}
    if options.command == "measure":
        if options.limit:
            chosen = {
                part: [at for at in members if options.module in at.module][: options.limit]
                for part, members in chosen.items()
            }
        measure(chosen, options.again, options.survivors, options.module, options.workers)
    elif options.command == "survivors":
        for mutant, entry in alive(chosen):
            if options.module in mutant.module:
                print(f"{mutant.name} {mutant.module}:{mutant.line} {entry['outcome']}", *mutant.difference, sep="\n  ")
    else:
        reports.report(chosen, Results().found, STATE, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
