"""Healthy models of many architectures: what a rule about layers must not report.

Each function builds one from a number, and returns a function that takes a training step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[int], None]
Loss = Callable[[int], Tensor]
WIDTH, ROWS, LETTERS, LENGTH = 16, 16, 24, 8


def training(parameters: Iterable[nn.Parameter], pick: random.Random, loss: Loss) -> Step:
    """A step of a usual optimizer with a usual rate, now and then with warm-up and clipping."""
    trained = list(parameters)
    name = pick.choice(("SGD", "Adam", "AdamW"))
    rate = pick.choice((0.01, 0.03)) if name == "SGD" else pick.choice((3e-4, 1e-3, 3e-3))
    more: dict[str, Any] = {"momentum": pick.choice((0.0, 0.9))} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(trained, lr=rate, **more)
    warmup, clip, parts = pick.choice((0, 10)), pick.choice((None, 1.0)), pick.choice((1, 2))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, n / warmup if warmup else 1.0)
    )

    def step(number: int) -> None:
        optimizer.zero_grad()
        for _ in range(parts):
            (loss(number) / parts).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        schedule.step()

    return step


def regression(model: nn.Module, inputs: Callable[[], Tensor] | None = None) -> Loss:
    """Squared error of a smooth function of vectors."""

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH) if inputs is None else inputs()
        return F.mse_loss(model(x), x.flatten(1)[:, :2].sin())

    return loss


def letters() -> tuple[Tensor, Tensor]:
    """Sequences and their next letters; a part of the letters is never used."""
    start = torch.randint(LETTERS // 2, (ROWS, 1))
    text = (start + 5 * torch.arange(LENGTH + 1)) % (LETTERS // 2)
    return text[:, :-1], text[:, 1:]


def language(model: nn.Module) -> Loss:
    """Cross entropy of the next letter."""

    def loss(number: int) -> Tensor:
        x, y = letters()
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return loss


# ---------------------------------------------------------------- stacks of layers


def deep_mlp(pick: random.Random) -> Step:
    """Up to 24 layers, initialised for their activation."""
    depth, kind = pick.randint(4, 24), pick.choice(("relu", "tanh", "selu"))
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "selu": nn.SELU}[kind]
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(WIDTH, WIDTH)
        gain = {"relu": math.sqrt(2), "tanh": 5 / 3, "selu": 1.0}[kind]
        nn.init.normal_(linear.weight, std=gain / math.sqrt(WIDTH))
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    return training(model.parameters(), pick, regression(model))


def default_mlp(pick: random.Random) -> Step:
    """As PyTorch initialises layers: up to 8 of them, of several activations."""
    activation = pick.choice((nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid))
    depth = pick.randint(2, 4 if activation is nn.Sigmoid else 8)
    layers = [part for _ in range(depth) for part in (nn.Linear(WIDTH, WIDTH), activation())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    return training(model.parameters(), pick, regression(model))


def normalised_mlp(pick: random.Random) -> Step:
    """With batch or layer normalisation: the biases before it have a gradient of rounding."""
    norm = pick.choice((nn.LayerNorm, nn.BatchNorm1d))
    layers: list[nn.Module] = []
    for _ in range(pick.randint(4, 24)):
        layers += [nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    return training(model.parameters(), pick, regression(model))


class ConvBlock(nn.Module):
    """A residual block whose last normalisation may start at 0."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        nn.init.constant_(self.bn2.weight, 0.0 if zero else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """The output, as large as the input."""
        inner: Tensor = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(x + inner)


def resnet(pick: random.Random) -> Step:
    """Up to 12 residual blocks."""
    zero = pick.random() < 0.5
    blocks = [ConvBlock(zero) for _ in range(pick.randint(3, 12))]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *blocks, *pool)
    inputs = lambda: torch.randn(ROWS, 1, 8, 8)  # noqa: E731
    return training(model.parameters(), pick, regression(model, inputs))


def plain_convolutions(pick: random.Random) -> Step:
    """Up to 8 convolutions that halve the picture three times."""
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()]
    for index in range(pick.randint(3, 8)):
        conv = nn.Conv2d(8, 8, 3, stride=2 if index < 3 else 1, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 2))
    inputs = lambda: torch.randn(ROWS, 1, 8, 8)  # noqa: E731
    return training(model.parameters(), pick, regression(model, inputs))


class Attention(nn.Module):
    """A transformer block with its normalisation before or after."""

    def __init__(self, pre: bool, drop: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.pre, self.drop = pre, drop

    def attend(self, x: Tensor) -> Tensor:
        """Causal attention of one head."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """The output, as large as the input; the block may be left out."""
        if self.drop and float(torch.rand(())) < self.drop:
            return x
        if self.pre:
            x = x + self.attend(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A language model; its head may be tied to the embedding."""

    def __init__(self, depth: int, pre: bool, drop: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Attention(pre, drop) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)
        if tied:
            nn.init.normal_(self.embed.weight, std=0.02)
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next letter."""
        x = self.embed(x) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def pre_norm(pick: random.Random) -> Step:
    """A transformer with normalisation before its layers, some of which may be dropped."""
    drop, tied = pick.choice((0.0, 0.2)), pick.random() < 0.5
    model = Transformer(pick.randint(2, 12), True, drop, tied)
    return training(model.parameters(), pick, language(model))


def post_norm(pick: random.Random) -> Step:
    """A transformer with normalisation after its layers."""
    model = Transformer(pick.randint(2, 12), False)
    return training(model.parameters(), pick, language(model))


def recurrent(pick: random.Random) -> Step:
    """Stacked recurrent layers over up to 40 positions."""
    kind, length = pick.choice((nn.RNN, nn.LSTM, nn.GRU)), pick.randint(5, 40)
    inner = kind(4, WIDTH, num_layers=pick.randint(1, 4), batch_first=True)
    head = nn.Linear(WIDTH, 2)

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, length, 4)
        return F.mse_loss(head(inner(x)[0][:, -1]), x[:, -1, :2].sin())

    return training([*inner.parameters(), *head.parameters()], pick, loss)


def autoencoder(pick: random.Random) -> Step:
    """Variational, with a weight of the divergence that is 0 at first."""
    encoder = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8))
    decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, WIDTH))

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        mean, log_variance = encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).mean()
        total: Tensor = F.mse_loss(decoder(z), x) + min(1.0, number / 40) * divergence
        return total

    return training([*encoder.parameters(), *decoder.parameters()], pick, loss)


# ---------------------------------------------------------------- layers that wait


def lora(pick: random.Random) -> Step:
    """A frozen transformer with products of two factors, the second of which starts at 0."""
    model = Transformer(pick.randint(2, 6), True).requires_grad_(False)
    factors = nn.ParameterList()
    for layer in model.layers:
        assert isinstance(layer, Attention)
        for linear in (layer.q, layer.v):
            a, b = nn.Parameter(torch.randn(2, WIDTH) * 0.1), nn.Parameter(torch.zeros(WIDTH, 2))
            factors.extend([a, b])
            linear.register_forward_hook(lambda _, x, y, a=a, b=b: y + x[0] @ a.T @ b.T)
    return training(factors.parameters(), pick, language(model))


def gated(pick: random.Random) -> Step:
    """Branches behind factors that start at 0, and a last layer of zeros."""
    branches = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        for _ in range(pick.randint(2, 10))
    )
    gains = nn.Parameter(torch.zeros(len(branches)))
    head = nn.Linear(WIDTH, 2)
    nn.init.zeros_(head.weight)

    def loss(number: int) -> Tensor:
        x = first = torch.randn(ROWS, WIDTH)
        for branch, gain in zip(branches, gains, strict=True):
            x = x + gain.tanh() * branch(x)
        return F.mse_loss(head(x), first[:, :2].sin())

    return training([*branches.parameters(), gains, *head.parameters()], pick, loss)


def experts(pick: random.Random) -> Step:
    """A mixture of experts, of which some are rarely chosen."""
    some = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
    router, head = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 2)
    rare = pick.randint(4, 10)

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        weights = router(x).softmax(1)
        chosen = weights[:, :3].argmax(1)
        chosen[0] = 3 if number % rare == rare - 1 else chosen[0]
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(some):
            rows = (chosen == index).nonzero()[:, 0]
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, index, None])
        return F.mse_loss(head(x + mixed), x[:, :2].sin())

    return training([*some.parameters(), *router.parameters(), *head.parameters()], pick, loss)


def tasks(pick: random.Random) -> Step:
    """Heads that appear in some windows only."""
    trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(pick.randint(2, 8)))

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        return F.mse_loss(heads[number % len(heads)](trunk(x)), x[:, :2].sin())

    return training([*trunk.parameters(), *heads.parameters()], pick, loss)


def two_towers(pick: random.Random) -> Step:
    """A contrastive loss with a learnt temperature."""
    left, right = (nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in "ab")
    temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        a = F.normalize(left(x), dim=1)
        b = F.normalize(right(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = a @ b.T * temperature.exp()
        labels = torch.arange(ROWS)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return training([*left.parameters(), *right.parameters(), temperature], pick, loss)


def unfrozen_later(pick: random.Random) -> Step:
    """A backbone whose layers are unfrozen one after the other."""
    backbone = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    head = nn.Linear(WIDTH, 2)
    backbone.requires_grad_(False)
    step = training([*backbone.parameters(), *head.parameters()], pick, _through(backbone, head))

    def unfreeze(number: int) -> None:
        if number % 12 == 11:
            backbone[3 - number // 12 % 4].requires_grad_(True)
        step(number)

    return unfreeze


def branches(pick: random.Random) -> Step:
    """Each step takes one of several ways through the model, in half precision now and then."""
    ways = nn.ModuleList(nn.ModuleList([nn.Linear(WIDTH, WIDTH)]) for _ in range(4))
    head = nn.Linear(WIDTH, 2)
    precision = pick.choice((torch.float32, torch.bfloat16))
    ways.to(precision)
    head.to(precision)
    chances = [0.4, 0.3, 0.2, 0.1]

    def loss(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH, dtype=precision)
        (way,) = pick.choices(range(4), chances)
        for layer in ways[way]:  # type: ignore[attr-defined]
            x = x + torch.relu(layer(x))
        return F.mse_loss(head(x), x[:, :2].sin())

    return training([*ways.parameters(), *head.parameters()], pick, loss)


def _through(*modules: nn.Module) -> Loss:
    return regression(nn.Sequential(*modules))


def adversarial(pick: random.Random) -> Step:
    """Two optimizers, of which the second waits."""
    generator = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(), nn.Linear(WIDTH, 1))
    waits = pick.randint(0, 50)

    def made(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        fake = generator(x[:, :8])
        adversary = F.softplus(-critic(fake)).mean() if number >= waits else 0.0
        return F.mse_loss(fake, x) + 0.1 * adversary

    def judged(number: int) -> Tensor:
        x = torch.randn(ROWS, WIDTH)
        weight = float(number >= waits)
        fake = generator(x[:, :8]).detach()
        return weight * (F.softplus(critic(fake)).mean() + F.softplus(-critic(x)).mean())

    first = training(generator.parameters(), pick, made)
    second = training(critic.parameters(), pick, judged)

    def step(number: int) -> None:
        first(number)
        second(number)

    return step


HEALTHY: tuple[Callable[[random.Random], Step], ...] = (
    *(deep_mlp, default_mlp, normalised_mlp, resnet, plain_convolutions, pre_norm, post_norm),
    *(recurrent, autoencoder, lora, gated, experts, tasks, two_towers, unfrozen_later),
    *(adversarial, branches),
)
