"""A package, so that `--function examples.audit_step:step` finds this folder and not another of its name."""
