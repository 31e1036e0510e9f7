"""Eight classifiers of handwritten digits, trained at once by one `vmap`; what do they gain by voting?

    python examples/ensemble.py

`AXES` says how the members of the ensemble share what they are made of: each has weights and random streams of its own
(axis 0), while the running statistics of the normalisation layers are one set for all of them (no axis). The layers
average over the mapped axis "member" whatever they write there, so that it is the same in every lane.

There are few training images here, drawn with replacement for each member, so that the members differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import jax
import numpy as np
import optax
from common import BatchNorm, Dense, Dropout
from matplotlib.figure import Figure
from tqdm import tqdm

import liftcore as lift

AXES = lift.StateAxes({lift.BatchStat: None, ...: 0})


class Member(lift.Module):
    """A perceptron with two hidden layers."""

    def __init__(self, key: jax.Array, width: int = 64) -> None:
        rngs = lift.Rngs(key)
        self.norms = [BatchNorm(size, axis_name=("member",)) for size in (64, width, width)]
        self.layers = [Dense(inputs, width, rngs) for inputs in (64, width)]
        self.dropout = Dropout(0.1, rngs)
        self.head = Dense(width, 10, rngs)

    def __call__(self, images: jax.Array, *, training: bool) -> Any:
        """Logits `[batch, 10]` of images `[batch, 8, 8]`."""
        first, *others = self.norms
        x = first(images.reshape(len(images), -1), training=training)
        for layer, norm in zip(self.layers, others, strict=True):
            x = self.dropout(jax.nn.relu(norm(layer(x), training=training)), training=training)
        return self.head(x)


@lift.vmap(in_axes=0, out_axes=AXES)
def make_members(key: jax.Array) -> Member:
    """One member for each key, in one object."""
    return Member(key)


def loss_fn(member: Member, images: jax.Array, labels: jax.Array) -> Any:
    """Mean cross-entropy over a batch."""
    logits = member(images, training=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@lift.jit
def train_step(
    members: Member, moments: Any, optimizer: optax.GradientTransformation, images: jax.Array, labels: jax.Array
) -> tuple[Any, jax.Array]:
    """One step for all members: images `[member, batch, 8, 8]`; returns the moments and the losses `[member]`."""
    differentiate = lift.vmap(lift.value_and_grad(loss_fn), in_axes=(AXES, 0, 0), axis_name="member")
    losses, gradients = differentiate(members, images, labels)
    weights = lift.state(members, lift.Param)
    updates, moments = optimizer.update(gradients, moments, weights)
    lift.update(members, optax.apply_updates(weights, updates))
    return moments, losses


@lift.jit
@lift.vmap(in_axes=(AXES, None), axis_name="member")
def predict(member: Member, images: jax.Array) -> jax.Array:
    """The probabilities `[member, image, digit]` that each member gives."""
    return jax.nn.softmax(member(images, training=False))


# ---- the program


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How often guesses are right, by how sure they are, in bins of equal width that are not empty.

    Attributes:
      confidence: mean probability of the guessed digit, in each bin.
      accuracy: share of right guesses, in each bin.
      share: share of all guesses, in each bin.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    share: np.ndarray

    def error(self) -> float:
        """Expected calibration error: mean distance of accuracy from confidence over all guesses."""
        return float((self.share * abs(self.accuracy - self.confidence)).sum())


def calibrate(probabilities: np.ndarray, labels: np.ndarray, bins: int = 10) -> Calibration:
    """Compares probabilities `[..., image, digit]` with the labels `[image]`."""
    confidence, right = probabilities.max(axis=-1).ravel(), (probabilities.argmax(axis=-1) == labels).ravel()
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(number, minlength=bins)
    filled = count > 0
    sums = [np.bincount(number, weights, bins)[filled] for weights in (confidence, right)]
    return Calibration(sums[0] / count[filled], sums[1] / count[filled], count[filled] / count.sum())


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> Any:
    """Share of right guesses: over images, for probabilities `[..., image, digit]`."""
    return (probabilities.argmax(axis=-1) == labels).mean(axis=-1)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, prints a summary and saves a plot.

    Args:
      argv: arguments of the command line; None: those of this process.

    Returns:
      The ensemble's gain: its accuracy less the mean of its members'.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--images", type=int, default=400, help="how many images to train on; the others are the test")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument(
        "--rate", type=float, default=1e-2, help="the first learning rate; it falls to 0 along a cosine"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=common.OUT / "ensemble.png", help="where the plot goes")
    options = parser.parse_args(argv)

    data = common.digits(train=options.images)
    steps = options.images // options.batch
    optimizer = optax.adam(optax.cosine_decay_schedule(options.rate, options.epochs * steps))
    members = make_members(jax.random.split(jax.random.key(options.seed), options.members))
    moments = optimizer.init(lift.state(members, lift.Param))

    rng = np.random.default_rng(options.seed)
    drawn = rng.integers(options.images, size=(options.members, options.images))
    start = time.perf_counter()
    for _ in (bar := tqdm(range(options.epochs), desc=f"{options.members} members", unit="epoch")):
        drawn = rng.permuted(drawn, axis=1)
        for index in np.split(drawn[:, : steps * options.batch], steps, axis=1):
            images, labels = data.train_images[index], data.train_labels[index]
            moments, losses = train_step(members, moments, optimizer, images, labels)
        bar.set_postfix(loss=f"{losses.mean():.4f}")
    seconds = time.perf_counter() - start

    each, labels = np.asarray(predict(members, data.test_images)), data.test_labels
    together = each.mean(axis=0)
    alone, voting = accuracy(each, labels), accuracy(together, labels)
    print(f"training: {options.members} members, {options.epochs * steps} steps in {seconds:.1f} s")
    print(f"members:  {', '.join(f'{one:.2%}' for one in alone)}; mean {alone.mean():.2%}")
    print(f"ensemble: {voting:.2%}, a gain of {100 * (voting - alone.mean()):.2f} points on {len(labels)} test images")
    errors = [calibrate(probabilities, labels).error() for probabilities in (each, together)]
    print(f"expected calibration error: {errors[0]:.2%} of the members, {errors[1]:.2%} of the ensemble")
    common.save(plot(each, labels), options.out)
    return float(voting - alone.mean())


def plot(each: np.ndarray, labels: np.ndarray) -> Figure:
    """Accuracy by the number of members that vote, and how far confidence can be trusted."""
    figure, (votes, reliability) = common.panels(4.6, 4.6, height=4.2)
    sizes = range(1, len(each) + 1)
    groups = [[list(group) for group in itertools.combinations(range(len(each)), size)] for size in sizes]
    scores = [100 * accuracy(np.stack([each[group].mean(axis=0) for group in some]), labels) for some in groups]
    for size, score in zip(sizes, scores, strict=True):
        votes.scatter(np.full(len(score), size), score, color=common.PALE, s=8, linewidths=0)
    votes.plot(sizes, [score.mean() for score in scores], color=common.BLUE, marker="o", markersize=4)
    votes.set_xticks(sizes)
    common.label(votes, "Accuracy of every group of members", "members that vote", "% of test images (line: mean)")

    reliability.plot([0, 1], [0, 1], color=common.GREY, linestyle=":", linewidth=1)
    for name, color, side, probabilities in (
        ("one member", common.RED, -0.01, each),
        ("all together", common.BLUE, 0.01, each.mean(axis=0)),
    ):
        found = calibrate(probabilities, labels)
        few = found.share * probabilities[..., 0].size < 5
        right, text = np.where(few, np.nan, found.accuracy), f"{name}: error {found.error():.1%}"
        reliability.plot(found.confidence, right, color=color, marker="o", markersize=4, label=text)
        reliability.bar(found.confidence + side, found.share, width=0.02, color=color, alpha=0.35)
    reliability.legend(frameon=False, loc="upper left")
    reliability.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    common.label(reliability, "Calibration (bars: share of guesses)", "confidence", "accuracy")
    return figure


if __name__ == "__main__":
    main()
