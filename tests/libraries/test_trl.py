"""Trainers of trl, watched, against the gradient of their own loss on the whole window."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libraries.language import config, llama, mixtral, sentence, tokenizer
from libraries.torchvision_import import import_torchvision
from libraries.trainers import K, arguments, trained
from libraries.watched import Watched

import_torchvision()
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
from trl.experimental import cpo, orpo  # noqa: E402

UNEVEN = ["reduction.token_weights_unequal"]
EXACT = 1e-4


def rows(make: Callable[[random.Random], dict[str, Any]], count: int = 40) -> Any:
    """A data set of made-up rows."""
    chosen = random.Random(0)
    return datasets.Dataset.from_list([make(chosen) for _ in range(count)])


def pair(chosen: random.Random) -> dict[str, Any]:
    prompt = "user " + sentence(chosen, 2, 4)
    return {"prompt": prompt, "chosen": sentence(chosen, 1, 9), "rejected": sentence(chosen, 1, 9)}


def chat(chosen: random.Random) -> dict[str, Any]:
    asked = {"role": "user", "content": sentence(chosen, 1, 6)}
    return {"messages": [asked, {"role": "assistant", "content": sentence(chosen, 1, 14)}]}


def labelled(chosen: random.Random) -> dict[str, Any]:
    prompt, label = "user " + sentence(chosen, 2, 4), bool(chosen.randint(0, 1))
    return {"prompt": prompt, "completion": sentence(chosen, 1, 9), "label": label}


def trainer(name: str, folder: Path, data: Any, of: Any = trl, **more: Any) -> Any:
    """A trainer of trl with a tiny model; ``more`` are its model or its arguments."""
    models: dict[str, Any] = {
        key: more.pop(key) for key in ("model", "ref_model", "reward_funcs") if key in more
    }
    options = arguments(getattr(of, name + "Config"), folder, **more)
    kind = getattr(of, name + "Trainer")
    models = {"model": llama()} | models
    return kind(args=options, train_dataset=data, processing_class=tokenizer(), **models)


def assert_right(watched: Watched, deviation: float = EXACT) -> None:
    """The applied gradient is the true one, and nothing is accused."""
    assert watched.answer == ("balanced", [])
    for truth in watched.truth:
        assert truth.factor == pytest.approx(1, abs=EXACT)
        assert truth.deviation < deviation


def assert_uneven(watched: Watched) -> None:
    """The applied gradient has another direction, and that is the only finding."""
    assert watched.answer[1] == UNEVEN
    assert max(truth.deviation for truth in watched.truth) > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"assistant_only_loss": True},
        {"packing": True, "max_length": 32},
        {"packing": True, "packing_strategy": "wrapped", "max_length": 32},
        {"loss_type": "dft"},
        {"label_smoothing_factor": 0.1},
    ],
)
def test_sft_is_right(tmp_path: Path, options: dict[str, Any]) -> None:
    data = rows(chat, 60)
    watched = trained(trainer("SFT", tmp_path, data, **{"max_length": 64} | options))
    assert_right(watched)
    assert list(watched.balances().values()) == [pytest.approx(1)]


def test_sft_divides_its_router_loss(tmp_path: Path) -> None:
    """A router loss is a product of statistics of one micro-batch: one large batch has others."""
    watched = trained(trainer("SFT", tmp_path, rows(chat, 60), model=mixtral()))
    assert_right(watched, deviation=0.02)


PAIRWISE = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard"),
    *("aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sigmoid_norm"),
)


@pytest.mark.parametrize("loss", PAIRWISE)
def test_dpo_is_a_mean_over_pairs(tmp_path: Path, loss: str) -> None:
    smoothing = {"label_smoothing": 0.1} if loss in ("robust", "exo_pair") else {}
    made = trainer("DPO", tmp_path, rows(pair), loss_type=[loss], ref_model=llama(), **smoothing)
    assert_right(trained(made), deviation=1e-3)


@pytest.mark.parametrize("losses", [["sft"], ["sigmoid", "sft"]])
def test_the_token_loss_of_dpo_is_a_mean_of_means(tmp_path: Path, losses: list[str]) -> None:
    made = trainer("DPO", tmp_path, rows(pair), loss_type=losses, ref_model=llama())
    assert_uneven(trained(made))


@pytest.mark.parametrize("options", [{}, {"desirable_weight": 2.0}])
def test_kto_is_right(tmp_path: Path, options: dict[str, Any]) -> None:
    data = rows(labelled, 60)
    made = trainer(
        "KTO", tmp_path, data, ref_model=llama(), per_device_train_batch_size=3, **options
    )
    assert_right(trained(made))


@pytest.mark.parametrize("options", [{}, {"center_rewards_coefficient": 0.01}])
def test_a_reward_model_is_right(tmp_path: Path, options: dict[str, Any]) -> None:
    transformers.set_seed(0)
    model = transformers.LlamaForSequenceClassification(
        config(transformers.LlamaConfig, num_labels=1)
    )
    assert_right(trained(trainer("Reward", tmp_path, rows(pair), model=model, **options)))


def test_the_token_loss_of_orpo_is_a_mean_of_means(tmp_path: Path) -> None:
    assert_uneven(trained(trainer("ORPO", tmp_path, rows(pair), orpo, max_length=40)))


@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "ipo"])
def test_the_token_loss_of_cpo_is_a_mean_of_means(tmp_path: Path, loss: str) -> None:
    assert_uneven(trained(trainer("CPO", tmp_path, rows(pair), cpo, max_length=40, loss_type=loss)))


@pytest.mark.parametrize("loss", ["simpo", "alphapo"])
def test_cpo_without_its_token_loss_is_right(tmp_path: Path, loss: str) -> None:
    options = {"max_length": 40, "loss_type": loss, "cpo_alpha": 0.0}
    assert_right(trained(trainer("CPO", tmp_path, rows(pair), cpo, **options)))


# ---------------------------------------------------------------------- with generated text


def rewards(completions: list[str], **_: Any) -> list[float]:
    """A reward of the text alone."""
    return [float(len(set(text.split())) % 5) for text in completions]


def generating(name: str, folder: Path, **more: Any) -> Watched:
    """A training on what the model generates. One large batch would generate something else."""
    llama().save_pretrained(folder / "model")  # where the reference model is loaded from
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "model")
    options = {"num_generations": 4, "max_completion_length": 20, "temperature": 1.0}
    prompts = rows(lambda chosen: {"prompt": "user " + sentence(chosen, 2, 4)}, 60)
    made = trainer(name, folder, prompts, model=model, reward_funcs=rewards, **options | more)
    return trained(made, None)


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": loss} for loss in ("grpo", "dapo", "cispo", "sapo", "luspo", "vespo")),
        {"loss_type": "grpo", "beta": 0.1},
        {"loss_type": "dapo", "beta": 0.1},
        {"loss_type": "dapo", "num_iterations": 2},
        {"loss_type": "dapo", "entropy_coef": 0.01},
        # each sequence weighs as many tokens as it has, of all of the window
        {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    ],
)
def test_grpo_is_right(tmp_path: Path, options: dict[str, Any]) -> None:
    assert generating("GRPO", tmp_path, **options).answer == ("balanced", [])


def test_bnpo_normalises_each_micro_batch(tmp_path: Path) -> None:
    watched = generating("GRPO", tmp_path, loss_type="bnpo")
    assert watched.answer[1] == UNEVEN
    (objective,) = watched.recorded.facts()[0].objectives
    for line in objective.ledger.lines:
        assert line.weight == pytest.approx(1 / (K * line.tokens), rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dr_grpo"},
        {"loss_type": "dapo", "top_entropy_quantile": 0.5},
    ],
)
def test_a_divisor_that_counts_positions_by_design_is_not_judged(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    assert generating("GRPO", tmp_path, **options).answer == ("incomplete", [])


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_rloo_is_right(tmp_path: Path, beta: float) -> None:
    assert generating("RLOO", tmp_path, beta=beta).answer == ("balanced", [])
