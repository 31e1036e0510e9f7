"""A convolutional classifier of handwritten digits, with batch norm and dropout: one training step, two model families.

    python examples/digits.py                       # mutable objects: lift.Module, lift.Param, ...
    python examples/digits.py --family equinox      # immutable modules: eqx.Module, eqx.nn.State, ...

`train_step` and `predict` know nothing of the family. Calling a model gives its logits and the model after the call: an
own object updates its statistics and random stream in place and returns itself, an Equinox module returns a new one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import equinox as eqx
import jax
import numpy as np
import optax
from common import BatchNorm, Conv, Dense, Dropout
from matplotlib.figure import Figure
from tqdm import tqdm

import liftcore as lift

CHANNELS = (1, 32, 64, 64)
STRIDES = (1, 2, 2)
DROPOUT = 0.3


# ---- the training step, for both families


def loss_fn(model: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    """Mean cross-entropy over a batch, and the model with the state that the call left in it."""
    logits, model = model(images, training=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), model


@lift.jit
def train_step(
    model: Any, moments: Any, optimizer: optax.GradientTransformation, images: jax.Array, labels: jax.Array
) -> tuple[Any, Any, jax.Array]:
    """One step of the optimizer: returns the model, the optimizer's moments and the loss."""
    differentiate = lift.value_and_grad(loss_fn, has_aux=True)
    (loss, model), gradients = differentiate(model, images, labels)
    weights = lift.state(model, "param")
    updates, moments = optimizer.update(gradients, moments, weights)
    model = lift.update(model, optax.apply_updates(weights, updates))
    return model, moments, loss


@lift.jit
def predict(model: Any, images: jax.Array) -> Any:
    """The digit in each image, by running statistics and without dropout."""
    logits, _ = model(images, training=False)
    return logits.argmax(axis=-1)


# ---- own objects: mutable, with sharing (every layer that draws holds the same streams)


class Objects(lift.Module):
    """Three convolutions and a linear head."""

    def __init__(self, rngs: lift.Rngs) -> None:
        sizes = zip(CHANNELS, CHANNELS[1:], STRIDES, strict=False)
        self.convs = [Conv(inputs, outputs, rngs, stride) for inputs, outputs, stride in sizes]
        self.norms = [BatchNorm(size) for size in CHANNELS[1:]]
        self.dropout = Dropout(DROPOUT, rngs)
        self.head = Dense(CHANNELS[-1], 10, rngs)

    def __call__(self, images: jax.Array, *, training: bool) -> tuple[jax.Array, Objects]:
        """Logits `[batch, 10]` of images `[batch, 8, 8]`, and this model."""
        x = images[..., None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.relu(norm(conv(x), training=training))
        x = self.dropout(x.mean(axis=(1, 2)), training=training)
        return self.head(x), self


# ---- Equinox: the same network out of Equinox's own layers; one image at a time, as usual there


class Network(eqx.Module):
    """Three convolutions and a linear head."""

    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        *keys, last = jax.random.split(key, len(CHANNELS))
        self.convs = [
            eqx.nn.Conv2d(inputs, outputs, 3, stride, padding=1, key=key)
            for inputs, outputs, stride, key in zip(CHANNELS, CHANNELS[1:], STRIDES, keys, strict=False)
        ]
        self.norms = [eqx.nn.BatchNorm(size, "batch", momentum=0.9, mode="batch") for size in CHANNELS[1:]]
        self.dropout = eqx.nn.Dropout(DROPOUT)
        self.head = eqx.nn.Linear(CHANNELS[-1], 10, key=last)

    def __call__(self, image: jax.Array, state: eqx.nn.State, key: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        """Logits `[10]` of one image `[8, 8]`, and the new state."""
        x = image[None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, state = norm(conv(x), state)
            x = jax.nn.relu(x)
        x = self.dropout(x.mean(axis=(1, 2)), key=key)
        return self.head(x), state


class Equinox(eqx.Module):
    """A network with all that a call changes: the state of its layers, and the key that it draws from next."""

    network: Network
    state: eqx.nn.State
    key: jax.Array

    def __call__(self, images: jax.Array, *, training: bool) -> tuple[jax.Array, Equinox]:
        """Logits `[batch, 10]` of images `[batch, 8, 8]`, and the new model."""
        network = eqx.nn.inference_mode(self.network, value=not training)
        key, dropout = jax.random.split(self.key)
        each = lift.vmap(network, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        logits, state = each(images, self.state, jax.random.split(dropout, len(images)))
        return logits, Equinox(self.network, state, key)


FAMILIES: dict[str, Callable[[int], Any]] = {
    "objects": lambda seed: Objects(lift.Rngs(seed)),
    "equinox": lambda seed: Equinox(*eqx.nn.make_with_state(Network)(jax.random.key(seed)), jax.random.key(seed + 1)),
}


# ---- the program


def plot(
    family: str, losses: np.ndarray, accuracies: Sequence[float], data: common.Data, guesses: np.ndarray
) -> Figure:
    """The loss of each step, the accuracy after each epoch, and test images that were read wrongly."""
    figure, (loss, accuracy, wrong) = common.panels(4.2, 4.2, 3.4)
    epochs = np.arange(1, len(accuracies) + 1)
    loss.semilogy(np.arange(1, len(losses) + 1) * len(epochs) / len(losses), losses, color=common.PALE, linewidth=0.8)
    loss.semilogy(epochs - 0.5, losses.reshape(len(epochs), -1).mean(axis=1), color=common.BLUE)
    common.label(loss, f"{family}: loss, and its mean over an epoch", "epoch", "cross-entropy")
    accuracy.plot(epochs, 100 * np.asarray(accuracies), color=common.BLUE)
    accuracy.axhline(97, color=common.GREY, linestyle=":", linewidth=1)
    common.label(accuracy, f"Test accuracy: {accuracies[-1]:.2%}", "epoch", "% (dotted: 97)")
    missed = np.flatnonzero(guesses != data.test_labels)
    common.label(wrong, f"Read wrongly: {len(missed)} of {len(guesses)}")
    captions = [f"{data.test_labels[i]}, read as {guesses[i]}" for i in missed]
    common.gallery(wrong, data.test_images[missed], captions)
    return figure


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, prints a summary and saves a plot.

    Args:
      argv: arguments of the command line; None: those of this process.

    Returns:
      The accuracy on the test images.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="objects", help="what the model is made of")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, default=3e-3, help="the first learning rate; it falls to 0 along a cosine"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=common.OUT / "digits.png", help="where the plot goes")
    options = parser.parse_args(argv)

    data = common.digits(train=1437)
    steps = len(data.train_images) // options.batch
    optimizer = optax.adam(optax.cosine_decay_schedule(options.rate, options.epochs * steps))
    model = FAMILIES[options.family](options.seed)
    moments = optimizer.init(lift.state(model, "param"))

    losses, accuracies, start = [], [], time.perf_counter()
    for epoch in (bar := tqdm(range(options.epochs), desc=f"digits, {options.family}", unit="epoch")):
        for index in common.batches(len(data.train_images), options.batch, seed=options.seed + epoch):
            images, labels = data.train_images[index], data.train_labels[index]
            model, moments, loss = train_step(model, moments, optimizer, images, labels)
            losses.append(loss)
        accuracies.append(float((predict(model, data.test_images) == data.test_labels).mean()))
        bar.set_postfix(loss=f"{losses[-1]:.4f}", test=f"{accuracies[-1]:.2%}")
    seconds = time.perf_counter() - start

    guesses = np.asarray(predict(model, data.test_images))
    weights = sum(leaf.size for leaf in jax.tree.leaves(lift.state(model, "param")))
    print(f"family:   {options.family}, {weights} weights")
    print(f"training: {len(losses)} steps in {seconds:.1f} s, compilation included")
    print(f"test:     {accuracies[-1]:.2%} of {len(guesses)} images, {(guesses != data.test_labels).sum()} wrong")
    common.save(plot(options.family, np.asarray(losses), accuracies, data, guesses), options.out)
    return accuracies[-1]


if __name__ == "__main__":
    main()
