"""Checks on what a prediction is of: one frozen case with its digest, and walks over the layers that know no fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.record import Record
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.program import program
from jaxcost.prediction.rows import Ledger
from jaxcost.verify.gates.common import CHECKS, Check, Items, Subject, equal, holds
from jaxcost.verify.holding import predicting_with
from jaxcost.verify.properties import PROPERTIES


@holds(
    "case.records", "the document carries every record of the case with its digest, and all ledgers are of that case"
)
def _records(subject: Subject) -> Items:
    written = subject.document["case"]
    yield equal("the digest written", written.get("digest"), subject.case.digest)
    yield equal("the case predicted", subject.prediction.case.digest, subject.case.digest)
    yield equal("the case of the program", subject.prediction.program.case.digest, subject.case.digest)
    yield equal("the ledgers", sorted(subject.document["ledgers"]), sorted(FOLDS))
    yield equal("the schema", subject.document["schema"], "jaxcost.estimate.v1")
    for name in Case.model_fields:
        yield "" if name in written else f"the document lacks {name}"


@holds("case.absences", "every optional part of the architecture is written out, present or absent")
def _absences(subject: Subject) -> Items:
    yield from _written(subject.case.architecture, subject.document["case"].get("architecture", {}), "architecture")


def _written(record: Record, data: Any, path: str) -> Items:
    for name in type(record).model_fields:
        there = isinstance(data, dict) and name in data
        yield "" if there else f"{path}.{name} is not written"
        value = getattr(record, name)
        if not there:
            continue
        if isinstance(value, Record):
            yield from _written(value, data[name], f"{path}.{name}")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Record):
                    yield from _written(item, data[name][index], f"{path}.{name}.{index}")


@holds("case.frozen", "no field of the case can be set")
def _frozen(subject: Subject) -> Items:
    for record in (subject.case, *(getattr(subject.case, name) for name in Case.model_fields)):
        if isinstance(record, Record):
            yield "" if record.model_config.get("frozen") else f"{type(record).__name__} can be changed"


# Walks over the declared layers, written apart from the folds; each is a property that random cases are held against
# too. Those that alter the workload are for cases of one device, since a mesh may not divide what they make of it.
WALKS: dict[str, bool] = {
    "parameters_equal_the_walk": False,
    "parameters_ignore_the_workload": True,
    "state_equals_the_walk": False,
    "forward_equals_the_walk": False,
    "training_is_six_n_d": False,
    "backward_counts_gradients_needed": False,
    "kv_heads_leave_pairwise_work": True,
    "logits_rows_scale_the_head": True,
    "cache_equals_the_walk": False,
    "attention_moves_eight_payloads": False,
    "one_pass_keeps_all_operands": False,
    "owned_state_equals_the_walk": False,
    "gathered_groups_equal_the_walk": False,
    "partial_sums_keep_their_extent": False,
    "one_gradient_is_reduced": False,
}


class Folded:
    """A prediction that folds a ledger when it is asked for."""

    def __init__(self, case: Case):
        self.ledgers = _Ledgers(case)


class _Ledgers(dict[str, Ledger]):
    def __init__(self, case: Case):
        super().__init__()
        self.program = program(case)

    def __missing__(self, name: str) -> Ledger:
        self[name] = FOLDS[name](self.program)
        return self[name]


def walk(name: str, alone: bool) -> Callable[[Subject], Items]:
    """Return the check that holds a property against the subject's own prediction."""

    def run(subject: Subject) -> Items:
        entry = PROPERTIES[name]
        if subject.case.workload.phase not in entry.phases or (alone and not subject.one_device):
            return

        def answer(case: Case) -> Any:
            return subject.prediction if case.digest == subject.case.digest else Folded(case)

        try:
            with predicting_with(answer):
                entry.check(subject.case)
        except AssertionError as error:
            yield str(error) or name
        else:
            yield ""

    return run


for _name, _alone in WALKS.items():
    CHECKS[f"walk.{_name}"] = Check(f"walk.{_name}", PROPERTIES[_name].claim, "case", walk(_name, _alone))
