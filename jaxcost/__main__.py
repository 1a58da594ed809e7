"""`python -m jaxcost`: the same program as `jaxcost`."""

from jaxcost.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
