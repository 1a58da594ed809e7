"""What a plan answers, in sentences, and what stands against signing it.

A complete plan answers six questions: how long, whether it fits, what the batch means, which communication remains
exposed, how restart works, what the cost includes. What is not known is said to be not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from jaxcost.planning.run.inputs import BOUNDARY
from jaxcost.planning.run.plan import RunPlan
from jaxcost.planning.run.sheet import Unknown
from jaxcost.report.numbers import about

# Spare memory below this share of the limit is fragile: a workspace or an unexpected shape takes it.
FRAGILE = Fraction(5, 100)
MEMORY = ("peak_lower_bytes", "peak_upper_bytes", "memory_limit_bytes")
# Findings that make a plan infeasible; any other is a remark.
INFEASIBLE = ("over budget", "over the calendar", "does not fit", "above the peak", "transfers over the step")


def status(plan: RunPlan, noted: list[dict[str, str]]) -> str:
    """Return `infeasible`, `open` (a check or claim disagrees), `incomplete` (an answer is not known) or `complete`."""
    if any(item["kind"] in INFEASIBLE for item in noted):
        return "infeasible"
    if any(item.status == "open" for item in (*plan.checks, *plan.claims)):
        return "open"
    return "complete" if all(item["known"] for item in answers(plan)) else "incomplete"


def answers(plan: RunPlan) -> list[dict[str, Any]]:
    """Return the six questions with their answers; `known` says whether the plan can answer."""
    parts = (
        ("How long?", _duration(plan)),
        ("Does it fit?", _fit(plan)),
        ("What does a batch mean?", _batch(plan)),
        ("Which communication remains exposed?", _communication(plan)),
        ("How does restart work?", _restart(plan)),
        ("What does the cost include?", _cost(plan)),
    )
    return [{"question": question, "known": known, "answer": text} for question, (known, text) in parts]


def _number(value: Any, digits: int = 4) -> str:
    """Return a number for a sentence: whole ones in full up to a million, others with some digits."""
    exact = Fraction(value)
    if exact.denominator == 1 and abs(exact) < 10**9:
        return f"{int(exact):,}"
    return f"{float(exact):,.{digits}g}" if abs(exact) < 10**6 else f"{float(exact):.{digits}g}"


def _why(plan: RunPlan, name: str, stage: str = "") -> str:
    found = plan.sheet.value(name, stage or plan.inputs.parts[0].name)
    return found.reason if isinstance(found, Unknown) else ""


def _duration(plan: RunPlan) -> tuple[bool, str]:
    healthy, calendar = plan.known("healthy_days"), plan.known("calendar_days")
    if healthy is None and calendar is None:
        return False, f"Not known: {_why(plan, 'healthy_days')}."
    tokens = plan.known("total_tokens")
    steps = plan.known("total_steps")
    work = f"{_number(tokens)} tokens" + (f" in {steps:,} steps" if steps is not None else "")
    if calendar is None:
        return False, (
            f"{_number(healthy)} days of healthy steps for {work}. That is no calendar: pauses, rollback and restarts "
            f"come on top ({_why(plan, 'productive_fraction')})."
        )
    days, left = plan.known("days"), plan.known("spare_days")
    lasting = plan.known("productive_fraction")
    share = f", {float(100 * lasting):.1f}% of the calendar productive" if lasting and healthy is not None else ""
    healthy_text = f" from {_number(healthy)} of healthy steps" if healthy is not None else ""
    used = plan.known("budget_used")
    spent = f", {float(100 * used):.2f}% of the main run's budget" if used is not None else ""
    where = "of the allocation" if plan.inputs.downtime == "in_reserve" else "of the main run's share"
    return True, (
        f"{_number(calendar)} days on the calendar{healthy_text}{share}, for {work}{spent}; {_number(left)} days "
        f"{where} of {_number(days)} are left for everything else."
    )


def _fit(plan: RunPlan) -> tuple[bool, str]:
    texts, known = [], True
    for stage in plan.inputs.parts:
        label = f"{stage.name}: " if plan.inputs.stages else ""
        found = plan.known("fits", stage)
        lower, upper, limit = (
            plan.known(n, stage) for n in ("peak_lower_bytes", "peak_upper_bytes", "memory_limit_bytes")
        )
        if found is None:
            known = False
            held = f" At least {about(int(lower), 'bytes')} of {about(int(limit), 'bytes')}." if lower and limit else ""
            why = _why(plan, "peak_upper_bytes", stage.name) or _why(plan, "fits", stage.name)
            texts.append(f"{label}Not known: {why}.{held}")
        else:
            ends = f"{about(int(lower), 'bytes')}" + (
                f" to {about(int(upper), 'bytes')}" if upper is not None else " at least"
            )
            texts.append(
                f"{label}{found.capitalize()}: {ends} at the peak, {about(int(limit), 'bytes')} may be filled."
            )
    return known, " ".join(texts)


def _batch(plan: RunPlan) -> tuple[bool, str]:
    texts, known = [], True
    for stage in plan.inputs.parts:
        label = f"{stage.name}: " if plan.inputs.stages else ""
        positions = plan.known("step_positions", stage)
        if positions is None:
            known = False
            texts.append(f"{label}Not known: {_why(plan, 'step_positions', stage.name)}.")
            continue
        factors = [plan.inputs.exact(name, stage) for name in ("micro_batch", "seq", "accumulate")]
        replicas = plan.known("data_parallel_degree", stage)
        names = ("sequences a microbatch", "context", "microbatches", "replicas")
        made = zip((*factors, replicas), names, strict=True)
        how = ""
        if None not in (*factors, replicas):
            how = " = " + " x ".join(f"{value:,} {name}" for value, name in made)
            group = plan.known("devices_per_replica", stage)
            if group != 1:
                how += f"; the {_number(group)} devices of a replica share its sequences"
        useful = plan.known("step_useful_tokens", stage)
        step = plan.known("step_seconds", stage)
        texts.append(
            f"{label}{_number(positions)} positions a step{how}; {_number(useful)} useful tokens, a step of "
            f"{_number(step)} s."
        )
    return known, " ".join(texts)


def _communication(plan: RunPlan) -> tuple[bool, str]:
    texts, known = [], True
    for stage in plan.inputs.parts:
        label = f"{stage.name}: " if plan.inputs.stages else ""
        count = plan.known("collectives_per_step", stage)
        if count is None:
            known = False
            texts.append(f"{label}Not known: {_why(plan, 'collectives_per_step', stage.name)}.")
            continue
        largest, often = plan.known("largest_payload_bytes", stage), plan.known("collectives_per_s", stage)
        text = f"{label}{count:,} collectives a step on each device"
        text += f" ({_number(often)} a second)" if often is not None else ""
        text += f", the largest of {about(int(largest), 'bytes') or f'{largest} bytes'}"
        inside = plan.known("inside_seconds", stage)
        text += f"; inside a node {_number(inside)} s of transfers if nothing overlaps" if inside else ""
        need = plan.known("network_bytes_per_s_needed", stage)
        text += f"; between nodes {_number(need / 10**9)} GB/s of each device" if need else ""
        rest = plan.known("seconds_beyond_arithmetic", stage)
        text += (
            f". {_number(rest)} s of a step are not arithmetic at peak: what is exposed has to fit there"
            if rest
            else ""
        )
        texts.append(text + "; how much it is only a profile can say.")
    return known, " ".join(texts)


def _restart(plan: RunPlan) -> tuple[bool, str]:
    size, transfer = plan.known("checkpoint_bytes"), plan.known("transfer_seconds")
    fraction, failures = plan.known("productive_fraction"), plan.known("expected_failures")
    text = "" if size is None else f"A checkpoint ({plan.inputs.checkpoint}) holds {_number(size / 10**9)} GB"
    text += f", at least {_number(transfer)} s to move" if transfer is not None else ""
    if fraction is None:
        why = _why(plan, "productive_fraction")
        return False, f"{text}. Productive share not known: {why}." if text else f"Not known: {why}."
    interval, young, daly = (
        plan.known(n) for n in ("useful_interval_seconds", "young_interval_seconds", "daly_interval_seconds")
    )
    many = f"{_number(failures, 3)} failures to expect; " if failures is not None else ""
    return True, (
        f"{text}. One after every {_number(interval)} s of work (Young {_number(young)} s, Daly {_number(daly)} s); "
        f"{many}each takes back {_number(plan.known('rollback_seconds'))} s of work and "
        f"{_number(plan.known('restart_seconds'))} s of restart on average."
    )


def _cost(plan: RunPlan) -> tuple[bool, str]:
    hours, cost = plan.known("accelerator_hours"), plan.known("cost")
    inside = ", ".join(plan.inputs.includes) or "nothing"
    outside = ", ".join(item for item in BOUNDARY if item not in plan.inputs.includes)
    text = f"{_number(hours)} accelerator-hours"
    if cost is None:
        return False, f"{text}; no price is given. Included: {inside}. Excluded: {outside}."
    low, high = plan.known("cost_low"), plan.known("cost_high")
    ends = f" ({_number(low)} to {_number(high)})" if low is not None and high is not None else ""
    price = plan.inputs.price
    date = price.date if price is not None else ""
    return True, (
        f"{text}: {_number(cost)} {plan.inputs.currency}{ends} at rates of {date}, a scenario and no quotation. "
        f"Included: {inside}. Excluded: {outside}."
    )


def findings(plan: RunPlan) -> list[dict[str, str]]:
    """Return what stands against the plan, or should be known before it is signed."""
    return [
        {"kind": kind, "text": text} for kind, text in (*_budget(plan), *_stages(plan), *_restarts(plan), *_rest(plan))
    ]


def _budget(plan: RunPlan) -> Iterator[tuple[str, str]]:
    used, healthy, calendar = (plan.known(name) for name in ("budget_used", "healthy_days", "calendar_days"))
    room, days = plan.known("main_run_days"), plan.known("days")
    uniform = all(stage.mfu is None for stage in plan.inputs.stages)
    if used is not None and used > 1 and uniform:
        yield "over budget", f"the plan spends {float(100 * used):.2f}% of the main run's budget"
    if healthy is not None and room is not None and healthy > room and not uniform:
        yield "over budget", f"{_number(healthy)} healthy days in the {_number(room)} that the reserve leaves"
    spare = plan.known("spare_days")
    if calendar is not None and spare is not None and spare < 0:
        whole = days if plan.inputs.downtime == "in_reserve" else room
        yield "over the calendar", f"{_number(calendar)} days in the {_number(whole)} that there are"
    if plan.inputs.downtime == "in_reserve" and plan.known("downtime_days") is not None:
        down, reserve = plan.known("downtime_days"), plan.known("reserve_days")
        if down > reserve:
            yield "over the calendar", f"{_number(down)} days of downtime in a reserve of {_number(reserve)}"
    if calendar is None and healthy is not None:
        yield "no calendar", "healthy steps only: the duration is a lower bound of the calendar"


def _stages(plan: RunPlan) -> Iterator[tuple[str, str]]:
    inputs = plan.inputs
    for stage in inputs.parts:
        label = f"{stage.name}: " if inputs.stages else ""
        shortfall, seq = plan.known("six_p_shortfall", stage), inputs.exact("seq", stage)
        six = plan.sheet.given["work"] == "six_p"
        if six and shortfall is not None and shortfall:
            yield (
                "6P is not exact",
                (f"{label}at a context of {seq:,} the ledger counts {_number(1 / Fraction(1 - shortfall))} times 6P"),
            )
        elif six and shortfall is None:
            at = f" at a context of {seq:,}" if seq is not None else ""
            yield "6P is not exact", f"{label}attention is left out, by an unknown share{at}: only a MODEL can tell"
        if plan.known("fits", stage) == "no":
            lower, limit = plan.known("peak_lower_bytes", stage), plan.known("memory_limit_bytes", stage)
            yield "does not fit", f"{label}at least {about(int(lower), 'bytes')} of {about(int(limit), 'bytes')}"
        executed = plan.known("executed_utilisation", stage)
        if executed is not None and executed > 1:
            text = f"{label}with the recomputation the utilisation is {float(100 * executed):.1f}% of peak"
            yield "above the peak", text
        inside, step = plan.known("inside_seconds", stage), plan.known("step_seconds", stage)
        if inside is not None and step is not None and inside > step:
            text = f"{label}{_number(inside)} s of transfers inside a node in a step of {_number(step)} s"
            yield "transfers over the step", text
        spare = plan.known("headroom_bytes", stage)
        if spare is not None and 0 <= spare < FRAGILE * plan.known("memory_limit_bytes", stage):
            yield "fragile", f"{label}{about(int(spare), 'bytes') or f'{spare} bytes'} to spare at the peak"
        if len(inputs.stages) > 1 and stage.mfu is None:
            yield (
                "utilisation reused",
                f"{label}the run's utilisation is taken for a stage with its own context and batch",
            )


def _restarts(plan: RunPlan) -> Iterator[tuple[str, str]]:
    pause, transfer = plan.known("checkpoint_pause"), plan.known("transfer_seconds")
    if pause is not None and transfer is not None and pause < transfer:
        yield (
            "pause below transfer",
            (
                f"a pause of {_number(pause)} s, {_number(transfer)} s to move a checkpoint: only asynchronous saving "
                "hides the rest, with a consistent snapshot and completion before the last one is retired"
            ),
        )
    interval, best = plan.known("productive_fraction"), plan.known("best_productive_fraction")
    if interval is not None and best is not None and interval < 0.99 * best:
        yield (
            "interval",
            (
                f"Daly's interval of {_number(plan.known('daly_interval_seconds'))} s would raise the productive share "
                f"from {100 * interval:.1f}% to {100 * best:.1f}%"
            ),
        )


def _rest(plan: RunPlan) -> Iterator[tuple[str, str]]:
    need, have = plan.known("burst_bytes_per_s"), plan.known("batches_in_flight")
    if need is not None and have is not None and have > 1:
        yield "prefetch", f"{have} batches have to be in flight, or steps wait for data"
    if plan.inputs.price is not None and plan.inputs.includes == ("accelerators",):
        yield (
            "accelerators only",
            "hosts, network, storage and people are not in the cost",
        )
