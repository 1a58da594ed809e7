"""Published accounting contracts: what each source counted, its tables reproduced, and when numbers may be compared.

Read in this order: `contract` (what a file of `papers/` declares), `registry` (which files there must be),
`translate` (a published formula beside jaxcost's own ledger, with signed differences), `reproduce` (tables row by row),
`gate` (when two papers' numbers may stand in one table).
"""
