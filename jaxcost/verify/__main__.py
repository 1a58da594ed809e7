"""`python -m jaxcost.verify`: the command `jaxcost verify`.

python -m jaxcost.verify                                        # the default suite on every target available
python -m jaxcost.verify toy-tied --phase prefill --seq 4       # one case
python -m jaxcost.verify --fuzz 200 --seed 1 --target cpu:1     # random cases
"""

import sys

from jaxcost.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["verify", *sys.argv[1:]]))
