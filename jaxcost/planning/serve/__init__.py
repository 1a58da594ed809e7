"""A serving plan: what fits on a replica, how fast a token can be, how many requests that serves, what is left out.

from jaxcost.planning.serve import Asked, Engine, Workload, serve_plan, target_of
plan = serve_plan(Asked(load("llama-3.1-8b"), target_of("h100:1"), Engine(max_model_len=8192), Workload(), {}))
"""

from jaxcost.planning.serve.inputs import Engine, Lifetime, Speculation, Workload
from jaxcost.planning.serve.plan import Asked, filled, serve_plan, target_of

__all__ = ["Asked", "Engine", "Lifetime", "Speculation", "Workload", "filled", "serve_plan", "target_of"]
