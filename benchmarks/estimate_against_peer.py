#!/usr/bin/env python
"""How long does an estimate take, against the public tool that counts the same: transformers on PyTorch's meta device?

    python benchmarks/estimate_against_peer.py --peer path/to/venv/bin/python

The peer builds the model of the same configuration without weights, counts its parameters, and counts the FLOPs of one
forward pass with `torch.utils.flop_counter.FlopCounterMode`. Both counts are compared, so that the same work is timed.
The peer lives in an environment of its own: python -m venv V && V/bin/pip install torch transformers
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measuring import Answer, fresh, run, timed

QUESTION = "An estimate against transformers on torch's meta device with FlopCounterMode: how many times faster?"
HINT = "peer not installed; python -m venv V && V/bin/pip install torch transformers, then --peer V/bin/python"
PEER = Path(__file__).resolve().parent / "peers" / "torch_meta.py"


def measure(options: argparse.Namespace) -> Answer:
    import jaxcost
    from jaxcost.contracts.case import prefill

    model, seq = ("toy-untied", 8) if options.smallest else (options.model, options.seq)
    architecture = jaxcost.load(model)
    case = prefill(architecture, batch=1, seq=seq, logits="all")
    answer = Answer({"model": model, "phase": "prefill", "batch": 1, "seq": seq, "logits": "all", "peer": "torch meta"})
    totals = jaxcost.predict(case).to_dict()["ledgers"]
    own = {"parameters": totals["parameters"]["totals"]["unique"], "flops": totals["flops"]["totals"]["forward"]}
    command = [sys.executable, "-m", "jaxcost", "estimate", model, "--phase", "prefill", "--seq", str(seq), "--json",
               "--logits", "all"]  # fmt: skip
    answer.seconds["jaxcost, in process"] = timed(lambda: jaxcost.predict(case).to_dict(), options.repeat)
    answer.seconds["jaxcost, from the shell"] = timed(lambda: fresh(command), options.repeat)
    if options.peer is None:
        answer.missing = HINT
        return answer
    peer = _peer(options, configuration(architecture), seq)
    if "missing" in peer:
        answer.missing = f"{HINT} ({peer['missing']})"
        return answer
    answer.versions = peer["versions"]
    answer.seconds["peer, in process"] = peer["seconds"]
    answer.seconds["peer, from the shell"] = timed(lambda: _peer(options, configuration(architecture), seq, 1), 1)
    answer.ratio("peer / jaxcost, in process", "peer, in process", "jaxcost, in process")
    answer.ratio("peer / jaxcost, from the shell", "peer, from the shell", "jaxcost, from the shell")
    for name in ("parameters", "flops"):
        verdict = "the same" if own[name] == peer[name] else f"the peer says {peer[name]:,}"
        answer.notes.append(f"{name}: {own[name]:,}; {verdict}")
    return answer


def configuration(architecture: Any) -> dict[str, Any]:
    """The manifest as the fields of a transformers LlamaConfig.

    Raises:
        SystemExit: the peer's model class has other parts.
    """
    if architecture.family not in ("llama", "toy") or len(architecture.groups) != 1:
        sys.exit(f"this benchmark builds Llama's class; {architecture.name} is of family {architecture.family}")
    group = architecture.groups[0]
    attention, mlp = group.layer.attention, group.layer.mlp
    return {
        "vocab_size": architecture.vocabulary_size, "hidden_size": architecture.hidden_size,
        "intermediate_size": mlp.width, "num_hidden_layers": group.repeat,
        "num_attention_heads": attention.query_heads, "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim, "tie_word_embeddings": architecture.tied,
    }  # fmt: skip


def _peer(options: argparse.Namespace, config: dict[str, Any], seq: int, repeat: int = 0) -> dict[str, Any]:
    return json.loads(fresh([options.peer, str(PEER), json.dumps(config), str(seq), str(repeat or options.repeat)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has torch and transformers")
    parser.add_argument("--model", default="llama-3.1-8b", help="a Llama of the catalogue (default llama-3.1-8b)")
    parser.add_argument("--seq", type=int, default=4096, help="tokens of the forward pass (default 4096)")
    run(QUESTION, measure, parser)
