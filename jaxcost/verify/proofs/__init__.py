"""Published closed forms proved from the ledgers, for all sizes: `jaxcost verify --proofs`.

`kinds` holds the cases on symbols, `prove` carries one proof out; the proofs stand by subject.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxcost.verify.proofs import memory, movement, parameters, work
from jaxcost.verify.proofs.kinds import Derivations
from jaxcost.verify.proofs.prove import Proof, Proved, prove

PROOFS: tuple[Proof, ...] = (*parameters.PROOFS, *work.PROOFS, *memory.PROOFS, *movement.PROOFS)


def run_proofs(progress: Callable[[str], None] = lambda message: None) -> tuple[Proved, ...]:
    """Carry out every proof; kinds of case are built and folded once."""
    derivations, found, said = Derivations(), list[Proved](), ""
    for index, proof in enumerate(PROOFS):
        subject = proof.name.partition(".")[0]
        if subject != said:
            progress(f"[{index}/{len(PROOFS)}] {subject}")
            said = subject
        found.append(prove(proof, derivations))
    return tuple(found)


__all__ = ["PROOFS", "Proof", "Proved", "prove", "run_proofs"]
