"""Record what torch counts of Hugging Face's own model classes, on the meta device: no weights, no arithmetic.

    pip install torch transformers
    python -m tests.differential.record_torch [NAME ...]      write records/NAME.json of the models named, or of all
    python -m tests.differential.record_torch --check [NAME ...]    write nothing; exit 1 where a record differs

For each released configuration of tests/catalog/released: unique parameters, names and shapes of what is stored, and
the FLOPs that `torch.utils.flop_counter.FlopCounterMode` sees in one forward and one backward pass, by the module in
which they happen. It counts two FLOPs for a multiply-add of every dispatched matrix product, under the model's own
Python, and knows nothing of jaxcost. Attention is the eager one: two dense products, no mask skipped.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RELEASED = HERE.parent / "catalog" / "released"
RECORDS = HERE / "records"
BATCH, ROWS = 2, 48


def model_of(config: dict[str, Any]) -> Any:
    """Return the causal language model of a config.json on the meta device, with eager attention, in training mode."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    rest = {key: value for key, value in config.items() if key not in ("model_type", "architectures", "auto_map")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[config["model_type"]](**rest), attn_implementation="eager"
        )
    model.tie_weights()
    return model.train()


def stored(model: Any) -> dict[str, Any]:
    """Return names and shapes of the parameters; those inside the stack once, where every layer has the same."""
    layers: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    outside: dict[str, list[int]] = {}
    stack = ""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        match = re.fullmatch(r"(.*?)\.(\d+)\.(.*)", name)
        if match is None:
            outside[name] = list(parameter.shape)
            continue
        assert stack in ("", match[1]), (stack, name)
        stack = match[1]
        layers.setdefault(match[3], []).append((int(match[2]), tuple(parameter.shape)))
    count = 1 + max(index for found in layers.values() for index, _ in found)
    for name, found in layers.items():
        assert [index for index, _ in found] == list(range(count)), name
        assert len({shape for _, shape in found}) == 1, name
    return {
        "stack": stack,
        "layers": count,
        "parameters": {name: list(found[0][1]) for name, found in layers.items()},
        "outside": outside,
    }


def role(module: str, stack: str) -> str:
    """Return which part of the network a module is: the stack's sublayers by their own name, the rest by theirs."""
    if module == "Global":
        return "total"
    path = module.split(".", 1)[1] if "." in module else ""
    match = re.fullmatch(rf"{re.escape(stack)}\.\d+\.([^.]+)", path)
    if match is not None:
        return f"layer/{match[1]}"
    return path if "." not in path else ""


def flops(model: Any, stack: str) -> tuple[dict[str, int], int]:
    """Return the forward FLOPs by role, and those of the whole backward pass of a scalar that every logit feeds."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    tokens = torch.zeros((BATCH, ROWS), dtype=torch.int64, device="meta")
    # With a mask given, no model asks the tokens (which have no values here) whether several sequences are packed.
    mask = torch.ones((BATCH, ROWS), dtype=torch.int64, device="meta")
    forward = FlopCounterMode(display=False)
    with forward:
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    assert logits.shape[:2] == (BATCH, ROWS), logits.shape
    backward = FlopCounterMode(display=False)
    with backward:
        logits.sum().backward()
    roles: Counter[str] = Counter()
    for module, found in forward.get_flop_counts().items():
        name = role(module, stack)
        if name:
            roles[name] += sum(found.values())
    return dict(sorted(roles.items())), sum(backward.get_flop_counts()["Global"].values())


def record(name: str) -> dict[str, Any]:
    """Return the record of one released configuration."""
    import torch
    import transformers

    config = json.loads((RELEASED / f"{name}.json").read_text(encoding="utf-8"))["config"]
    model = model_of(config)
    kept = stored(model)
    forward, backward = flops(model, kept["stack"])
    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "batch": BATCH,
        "rows": ROWS,
        "unique_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "stored": kept,
        "forward_flops": forward,
        "backward_flops": backward,
    }


def main(arguments: list[str]) -> int:
    """Record, or compare with what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a record differs")
    given = parser.parse_args(arguments)
    known = sorted(path.stem for path in RELEASED.glob("*.json"))
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"no released configuration {', '.join(unknown)}; there are {', '.join(known)}")
    differ = 0
    for name in given.names or known:
        found = record(name)
        path = RECORDS / f"{name}.json"
        versions = ("torch", "transformers")
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        same = {k: v for k, v in kept.items() if k not in versions} == {
            k: v for k, v in found.items() if k not in versions
        }
        print(f"{name}: {found['class']}, {'as recorded' if same else 'differs' if kept else 'new'}", flush=True)
        differ += not same
        if not given.check:
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(given.check and differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
