"""Model types that are known and not read, each with the reason."""

from __future__ import annotations

_EXPERTS = "has routed experts, which a dense manifest has no place for"
_LATENT = "has latent attention and routed experts"
_ENCODER = "is an encoder, not a causal decoder"
_BOTH = "has an encoder beside its decoder"
_STATE = "has state-space or recurrent layers"
_VISION = "has parts beside the language model, and its config nests the language model (text_config)"
_HEAD_BIAS = "has a bias on the head"
_LOGITS = "scales its logits"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "granitemoe",
            "granitemoeshared",
            "gpt_oss",
            "olmoe",
            "phimoe",
            "dbrx",
            "jetmoe",
            "arctic",
            "ernie4_5_moe",
            "glm4_moe",
            "hunyuan_v1_moe",
            "minimax",
            "dots1",
            "llama4_text",
            "switch_transformers",
            "flex_olmo",
        ),
        _EXPERTS,
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "longcat_flash"), _LATENT),
    "minicpm3": "has latent attention",
    **dict.fromkeys(
        ("bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2", "albert", "modernbert", "xlm-roberta",
         "vit", "clip", "siglip", "esm"),
        _ENCODER,
    ),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "marian", "t5gemma"), _BOTH),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "jamba", "bamba", "zamba", "zamba2",
         "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "qwen3_next", "xlstm"),
        _STATE,
    ),
    **dict.fromkeys(
        ("llava", "llava_next", "mistral3", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma", "mllama",
         "llama4", "idefics3", "internvl", "smolvlm", "gemma3n"),
        _VISION,
    ),
    **dict.fromkeys(("phi", "gptj", "codegen"), _HEAD_BIAS),
    **dict.fromkeys(("cohere", "cohere2"), _LOGITS),
    "granite": "multiplies its residual branches and divides its logits",
    "gpt_neo": "has biases on some projections of a kind, and scores that are not scaled; not read yet",
    "gemma3_text": "has another rotary base on its windowed layers than on its full ones",
    "nemotron": "has squared ReLU and layer norms of one plus the scale",
    "arcee": "has squared ReLU",
    "persimmon": "has squared ReLU",
    "exaone4": "leaves rotary positions out on full layers beside windowed ones",
    "glm": "turns neighbouring coordinates of half of each head; not read yet",
    "glm4": "turns neighbouring coordinates of half of each head; not read yet",
    "hunyuan_v1_dense": "norms queries and keys after rotation",
    "RefinedWeb": "is the older remote form of falcon, with other keys",
    "RefinedWebModel": "is the older remote form of falcon, with other keys",
}  # fmt: skip


def refusal(kind: object) -> tuple[str, str]:
    """Return the rule and the remedy for a model type that no reader takes."""
    if not isinstance(kind, str) or kind not in REFUSED:
        return "not a model type that can be imported", "write a manifest for it"
    remedy = "ask for the language model alone (--text-only)" if REFUSED[kind] is _VISION else "write a manifest for it"
    return f"a {kind} model {REFUSED[kind]}", remedy
