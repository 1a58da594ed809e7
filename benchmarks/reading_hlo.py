#!/usr/bin/env python
"""What does it cost to read a compiled program, against compiling it?

    python benchmarks/reading_hlo.py

For each case and target: the seconds that XLA compiled, and the seconds that the reader needed for contractions with
trip counts, memory, traffic and collectives of the same module. Both are taken inside one worker, in one run. The aim
is under 15%.
"""

from __future__ import annotations

import argparse

from measuring import Answer, run

QUESTION = "Reading HLO against compiling it: which part of it? (aim: under 0.15)"
TOY = ("toy-tied", {"batch": 2, "seq": 8}, ("cpu:1", "h100:1"))
LLAMA = (
    "llama-3.1-8b",
    {"batch": 16, "seq": 4096, "remat": "block", "mesh": {"fsdp": 8}},
    ("cpu:8", "h100:8"),
)


def measure(options: argparse.Namespace) -> Answer:
    import jaxcost
    from jaxcost.observation.pool import Pool
    from jaxcost.observation.targets import Unavailable, availability, parse_target

    chosen = [(*TOY[:2], ("cpu:1",))] if options.smallest else [TOY, LLAMA]
    answer = Answer({"cases": [f"{model} training {arguments}" for model, arguments, _ in chosen]})
    with Pool(size=1) as pool:
        for model, arguments, targets in chosen:
            case = jaxcost.training(jaxcost.load(model), **arguments)
            for target in targets:
                if isinstance(availability(parse_target(target)), Unavailable):
                    answer.notes.append(f"{target}: no compiler here")
                    continue
                name = f"{model} on {target}"
                for index in range(options.repeat + 1):
                    seen = jaxcost.observe(case, target, pool=pool)
                    # The first call also pays for importing and starting; it is not what is asked.
                    if index or options.smallest:
                        found = seen.data["environment"]
                        for part in ("reading", "compile"):
                            answer.seconds.setdefault(f"{name}: {part}", []).append(found[f"{part}_seconds"])
                    if options.smallest:
                        break
                answer.ratio(f"{name}: reading / compiling", f"{name}: reading", f"{name}: compile")
    return answer


if __name__ == "__main__":
    run(QUESTION, measure, argparse.ArgumentParser(description=__doc__,
                                                   formatter_class=argparse.RawDescriptionHelpFormatter))  # fmt: skip
