"""Record the counts in released/*.json with transformers, on torch's meta device (no weights are made).

    pip install torch transformers
    python tests/catalog/record_counts.py

Not a test and not collected. The kept counts were made with transformers 5.24.0; 4.57.6 gives the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def counts(config: dict[str, Any]) -> dict[str, int]:
    """Unique and named parameters, ties, and persistent buffers of the model class of a config."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    rest = {key: value for key, value in config.items() if key not in ("model_type", "architectures", "auto_map")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**rest))
    model.tie_weights()
    named = list(model.named_parameters(remove_duplicate=False))
    stored = model.state_dict()
    return {
        "unique": sum(parameter.numel() for parameter in model.parameters()),
        "named": sum(parameter.numel() for _, parameter in named),
        "ties": len(named) - len({id(parameter) for _, parameter in named}),
        "persistent_buffer_elements": sum(b.numel() for name, b in model.named_buffers() if name in stored),
    }


def main(folder: Path) -> int:
    """Rewrite the counts of every file; return 1 where one changed."""
    changed = 0
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        found = counts(data["config"])
        if found != data["counts"]:
            print(f"{path.name}: {data['counts']} -> {found}")
            changed = 1
        data["counts"] = found
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return changed


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent / "released"))
