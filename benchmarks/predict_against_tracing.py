#!/usr/bin/env python
"""How long does a prediction take, against tracing the same step with jax?

    python benchmarks/predict_against_tracing.py

Tracing (`jax.make_jaxpr`, `jax.eval_shape`) is the least that any tool pays which learns costs from the program. The
step is the reference network's, with scanned layers, so that its trace does not grow with depth. Everything is warm.
"""

from __future__ import annotations

import argparse

from measuring import Answer, run, timed

QUESTION = "predict() against tracing the same step: how many times faster?"


def measure(options: argparse.Namespace) -> Answer:
    import jax

    import jaxcost
    from jaxcost.reference.step import make_step

    model, arguments = ("toy-tied", {"batch": 2, "seq": 8}) if options.smallest else (
        "llama-3.1-8b", {"batch": 1, "seq": 4096, "remat": "block"})  # fmt: skip
    case = jaxcost.training(jaxcost.load(model), **arguments)
    step = make_step(case)
    answer = Answer({"model": model, "phase": "training", **arguments})

    def again(trace):  # a new function each time: jax remembers the traces of the old one
        return trace(lambda *given: step.function(*given))(*step.arguments)

    tasks = {
        "predict": lambda: jaxcost.predict(case).to_dict(),
        "jax.make_jaxpr": lambda: again(jax.make_jaxpr),
        "jax.eval_shape": lambda: again(lambda function: lambda *given: jax.eval_shape(function, *given)),
    }
    for task in tasks.values():
        task()
    for name, task in tasks.items():
        answer.seconds[name] = timed(task, options.repeat)
    answer.ratio("make_jaxpr / predict", "jax.make_jaxpr", "predict")
    answer.ratio("eval_shape / predict", "jax.eval_shape", "predict")
    return answer


if __name__ == "__main__":
    run(QUESTION, measure, argparse.ArgumentParser(description=__doc__,
                                                   formatter_class=argparse.RawDescriptionHelpFormatter))  # fmt: skip
