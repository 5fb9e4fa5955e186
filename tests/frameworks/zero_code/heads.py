"""Tiny random models of transformers, one for each head that is measured, and data for them.

The models come from a config, so nothing is downloaded. Dropout is off, so that a gradient can be
computed twice. All sequences have one length: every micro-batch holds as many labels as any other,
and a missing division by their number is the only mistake that is possible.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 64
LENGTH = 12
CLASSES = 4
CHOICES = 2
PIXELS = 16

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": CLASSES,
}
ENCODER_DECODER = {"vocab_size": VOCABULARY, "d_model": 32, "num_labels": CLASSES}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "num_labels": CLASSES,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": CLASSES,
}
MODERN_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "num_labels": CLASSES,
}
DISTIL_BERT = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "hidden_dim": 64,
    "n_layers": 2,
    "n_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "num_labels": CLASSES,
}
BART = ENCODER_DECODER | {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
}
T5 = ENCODER_DECODER | {
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "image_size": PIXELS,
    "patch_size": 8,
    "num_labels": CLASSES,
}


@dataclass(frozen=True)
class Head:
    """One head: the config it is built from, and what its labels are."""

    config: str
    task: str
    settings: dict[str, Any] = field(default_factory=dict)


HEADS = {
    "BertForSequenceClassification": Head("BertConfig", "classes", BERT),
    "BertForTokenClassification": Head("BertConfig", "token classes", BERT),
    "BertForMaskedLM": Head("BertConfig", "tokens", BERT),
    "BertForMultipleChoice": Head("BertConfig", "choices", BERT),
    "BertForQuestionAnswering": Head("BertConfig", "spans", BERT | {"num_labels": 2}),
    "BertLMHeadModel": Head("BertConfig", "next tokens", BERT | {"is_decoder": True}),
    "RobertaForSequenceClassification": Head("RobertaConfig", "classes", BERT),
    "DistilBertForSequenceClassification": Head("DistilBertConfig", "classes", DISTIL_BERT),
    "ModernBertForSequenceClassification": Head("ModernBertConfig", "classes", MODERN_BERT),
    "ModernBertForMaskedLM": Head("ModernBertConfig", "tokens", MODERN_BERT),
    "DebertaV2ForSequenceClassification": Head("DebertaV2Config", "classes", BERT),
    "BartForConditionalGeneration": Head("BartConfig", "tokens", BART),
    "T5ForConditionalGeneration": Head("T5Config", "tokens", T5),
    "GPT2LMHeadModel": Head("GPT2Config", "next tokens", GPT2),
    "GPT2ForSequenceClassification": Head("GPT2Config", "classes", GPT2),
    "LlamaForCausalLM": Head("LlamaConfig", "next tokens", LLAMA),
    "LlamaForSequenceClassification": Head("LlamaConfig", "classes", LLAMA),
    "ViTForImageClassification": Head("ViTConfig", "image classes", VIT),
}


def build(name: str) -> torch.nn.Module:
    """A model with random weights, the same ones at each call."""
    torch.manual_seed(0)
    head = HEADS[name]
    model = getattr(transformers, name)(getattr(transformers, head.config)(**head.settings))
    assert isinstance(model, torch.nn.Module)
    return model


def samples(name: str, count: int) -> list[dict[str, Any]]:
    """Training data for a head, the same at each call."""
    rng = random.Random(0)
    return [_sample(HEADS[name].task, rng) for _ in range(count)]


def _tokens(rng: random.Random) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(LENGTH)]


def _sample(task: str, rng: random.Random) -> dict[str, Any]:
    if task == "image classes":
        image = torch.tensor([[[rng.random()] * PIXELS] * PIXELS] * 3)
        return {"pixel_values": image, "labels": rng.randrange(CLASSES)}
    if task == "choices":
        choices = [_tokens(rng) for _ in range(CHOICES)]
        return {"input_ids": choices, "labels": rng.randrange(CHOICES)}
    inputs = _tokens(rng)
    if task == "classes":
        return {"input_ids": inputs, "labels": rng.randrange(CLASSES)}
    if task == "token classes":
        return {"input_ids": inputs, "labels": [rng.randrange(CLASSES) for _ in inputs]}
    if task == "spans":
        start = rng.randrange(LENGTH)
        return {
            "input_ids": inputs,
            "start_positions": start,
            "end_positions": rng.randrange(start, LENGTH),
        }
    return {"input_ids": inputs, "labels": inputs if task == "next tokens" else _tokens(rng)}
