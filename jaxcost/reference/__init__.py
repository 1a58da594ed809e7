"""What is executed: an Equinox decoder, its training, prefill and decode steps, and its sharding rules.

This is the second witness. It is written from the papers and released implementations it cites, imports nothing of the
prediction and contains no ledger formula; a count of its work is made by whoever looks at the compiled step.

    step = make_step(case, make_mesh(case, jax.devices()))
    compiled = step.trace().lower().compile()
"""

from jaxcost.reference.model import Decoder as Decoder
from jaxcost.reference.model import Parameter as Parameter
from jaxcost.reference.model import abstract_model as abstract_model
from jaxcost.reference.model import init_model as init_model
from jaxcost.reference.model import parameter_tree as parameter_tree
from jaxcost.reference.model import parameters as parameters
from jaxcost.reference.sharding import make_mesh as make_mesh
from jaxcost.reference.step import Step as Step
from jaxcost.reference.step import make_step as make_step
from jaxcost.reference.step import random_arguments as random_arguments
from jaxcost.reference.training import TrainState as TrainState
