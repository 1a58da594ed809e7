"""How a prediction changes when one declared field changes and all else stays: `vary`.

fields       what may be varied, and what moves together as one field
scenario     one change, one new case; the base verified
totals       every total of every ledger, and its difference
derivatives  symbolic derivatives beside the differences
surface      what is varied where nothing is named
run          cases, vectors and their interactions
observed     the same differences of compiled programs
"""

from jaxcost.planning.sensitivity.run import Result, Sensitivity, vary
from jaxcost.planning.sensitivity.scenario import Base, Change

__all__ = ["Base", "Change", "Result", "Sensitivity", "vary"]
