"""What the examples share: a few layers made of own objects, the data, and the look of the plots.

A layer is an ordinary Python class. What changes stands in variables: `lift.Param` for weights, `lift.BatchStat` for
running statistics; `lift.Rngs` has random streams, which change too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import liftcore as lift

__all__ = [
    "BLUE",
    "GREY",
    "OUT",
    "PALE",
    "RED",
    "BatchNorm",
    "Conv",
    "Data",
    "Dense",
    "Dropout",
    "batches",
    "digits",
    "gallery",
    "label",
    "panels",
    "save",
]

#: Where plots go, unless told otherwise.
OUT = Path(__file__).parent / "out"

BLUE, RED, GREY, PALE = "#2f6db3", "#c8553d", "#7d828a", "#c5d5ea"


class Dense(lift.Module):
    """A dense layer."""

    def __init__(self, inputs: int, outputs: int, rngs: lift.Rngs) -> None:
        self.kernel = lift.Param(jax.nn.initializers.he_uniform()(rngs.params(), (inputs, outputs)))
        self.bias = lift.Param(jnp.zeros(outputs))

    def __call__(self, x: jax.Array) -> Any:
        """From features `[..., inputs]` to `[..., outputs]`."""
        return x @ self.kernel + self.bias


class Conv(lift.Module):
    """A 3 x 3 convolution, which keeps the size of images or divides it by `stride`."""

    def __init__(self, inputs: int, outputs: int, rngs: lift.Rngs, stride: int = 1) -> None:
        self.kernel = lift.Param(jax.nn.initializers.he_uniform()(rngs.params(), (3, 3, inputs, outputs)))
        self.bias = lift.Param(jnp.zeros(outputs))
        self.stride = stride

    def __call__(self, x: jax.Array) -> Any:
        """From images `[batch, height, width, inputs]` to `[batch, height / stride, width / stride, outputs]`."""
        strides, layout = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, self.kernel.value, strides, "SAME", dimension_numbers=layout) + self.bias


class BatchNorm(lift.Module):
    """Normalises features over a batch.

    Args:
      size: length of the last axis.
      axis_name: names of mapped axes over which statistics are averaged too, so that they are the same in every lane.
      momentum: how much of a running statistic each call keeps.
    """

    def __init__(self, size: int, axis_name: Sequence[str] = (), momentum: float = 0.9) -> None:
        self.scale, self.bias = lift.Param(jnp.ones(size)), lift.Param(jnp.zeros(size))
        self.mean, self.var = lift.BatchStat(jnp.zeros(size)), lift.BatchStat(jnp.ones(size))
        self.axis_name, self.momentum = tuple(axis_name), momentum

    def __call__(self, x: jax.Array, *, training: bool) -> Any:
        """From `[..., size]` to the same; by the statistics of the batch in training, else by the running ones."""
        mean, var = self.mean.value, self.var.value
        if training:
            mean = self._average(x)
            var = self._average((x - mean) ** 2)
            self.mean.value = self.momentum * self.mean + (1 - self.momentum) * mean
            self.var.value = self.momentum * self.var + (1 - self.momentum) * var
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * self.scale + self.bias

    def _average(self, x: jax.Array) -> Any:
        return jax.lax.pmean(x.mean(range(x.ndim - 1)), self.axis_name)


class Dropout(lift.Module):
    """Sets a share of the values to zero, drawn by the stream `dropout`."""

    def __init__(self, rate: float, rngs: lift.Rngs) -> None:
        self.rate, self.rngs = rate, rngs

    def __call__(self, x: jax.Array, *, training: bool) -> jax.Array:
        """Of any shape; does nothing unless in training."""
        if not training:
            return x
        keep = jax.random.bernoulli(self.rngs.dropout(), 1 - self.rate, x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0)


@dataclasses.dataclass(frozen=True)
class Data:
    """Handwritten digits: images `[n, 8, 8]` with values from 0 to 1, and labels `[n]`."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits(train: int, seed: int = 0) -> Data:
    """scikit-learn's bundled digits (1797 of them), split so that both parts have the same share of each digit.

    Args:
      train: how many to train on; the others are the test.
      seed: of the split.

    Returns:
      The two parts.
    """
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int32)
    parts = train_test_split(images, labels, train_size=train, stratify=labels, random_state=seed)
    return Data(train_images=parts[0], test_images=parts[1], train_labels=parts[2], test_labels=parts[3])


def batches(size: int, batch: int, seed: int) -> np.ndarray:
    """Indices `[n, batch]` of one epoch over `size` examples, in a new order; what is left over is in no batch."""
    return np.random.default_rng(seed).permutation(size)[: size - size % batch].reshape(-1, batch)


def panels(*widths: float, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure of plots side by side, with the given widths in inches."""
    figure = Figure(figsize=(sum(widths), height), dpi=150, layout="constrained")
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        return figure, list(figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0])


def label(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Writes the title, flush left, and what the axes are."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xlabel=x, ylabel=y)


def gallery(axes: Axes, images: np.ndarray, captions: Sequence[str], rows: int = 3, columns: int = 3) -> None:
    """Shows small images `[n, height, width]`, the first rows * columns of them, each with its caption below."""
    axes.set_axis_off()
    for number, (image, caption) in enumerate(zip(images[: rows * columns], captions, strict=False)):
        row, column = divmod(number, columns)
        cell = axes.inset_axes((column / columns, 1 - (row + 0.9) / rows, 0.85 / columns, 0.8 / rows))
        cell.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        cell.set_axis_off()
        cell.text(0.5, -0.05, caption, transform=cell.transAxes, ha="center", va="top", fontsize=8)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as the file's ending says, and tells where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plot: {path}")
