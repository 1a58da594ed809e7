"""What is claimed, run: suites of cases, claims, known gaps, failure rows, and Hypothesis strategies and properties.

`python -m jaxcost.verify` is the command `jaxcost verify`.
"""
