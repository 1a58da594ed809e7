"""What the results come to: shares with Clopper-Pearson intervals, and each survivor with its reason."""

from __future__ import annotations

AIM = 0.92


def interval(killed: int, total: int) -> tuple[float, float]:
    """Return the 95% Clopper-Pearson interval of a share."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(killed, total, alpha=0.05, method="beta")
    return float(low), float(high)


def report(chosen, found, state, write):
    print("not yet")
