"""Tiny language models, a tokenizer made here, and made-up text of unequal lengths."""

from __future__ import annotations

import random
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{number}" for number in range(40)]


def tokenizer() -> Any:
    """One token for each word, and a chat template that marks what the assistant says."""
    special = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    made.chat_template = (
        "{% for message in messages %}{{ message['role'] + ' ' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}{{ ' ' }}"
        "{% else %}{{ message['content'] + ' ' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
    )
    return made


def sentence(chosen: random.Random, least: int, most: int) -> str:
    """Words, some of them."""
    return " ".join(chosen.choices(WORDS, k=chosen.randint(least, most)))


def llama(**more: Any) -> Any:
    """A Llama of one layer, the same at every call."""
    transformers.set_seed(0)
    return transformers.LlamaForCausalLM(config(transformers.LlamaConfig, **more))


def mixtral(**more: Any) -> Any:
    """A mixture of four experts, with its router loss."""
    transformers.set_seed(0)
    options = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.02}
    return transformers.MixtralForCausalLM(config(transformers.MixtralConfig, **options | more))


def config(kind: Any, **more: Any) -> Any:
    """A configuration with the sizes that all models here have."""
    sizes = {
        "vocab_size": 48,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return kind(**sizes | more)
