"""The peer of estimate_against_peer.py, run by an interpreter that has torch and transformers.

    PYTHON torch_meta.py CONFIG_JSON SEQ REPEAT

Prints one JSON document: parameters, forward FLOPs, seconds of each repetition (build and count), versions.
"""

from __future__ import annotations

import json
import sys
import time

try:
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit()

config = transformers.LlamaConfig(**json.loads(sys.argv[1]), attn_implementation="eager", use_cache=False)
seq, repeat = int(sys.argv[2]), int(sys.argv[3])
seconds = []
for _ in range(repeat):
    started = time.perf_counter()
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        tokens = torch.zeros((1, seq), dtype=torch.int64)
        mask = torch.zeros((1, 1, seq, seq))  # given whole: making one would read values, and meta tensors have none
    parameters = sum(parameter.numel() for parameter in model.parameters())
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(tokens, attention_mask=mask)
    seconds.append(time.perf_counter() - started)
versions = {"torch": torch.__version__, "transformers": transformers.__version__}
print(json.dumps({"parameters": parameters, "flops": counter.get_total_flops(), "seconds": seconds,
                  "versions": versions}))  # fmt: skip
