"""A residual network of 48 layers, scanned over its layers and recomputed in the backward pass.

    python examples/deep.py

`lift.vmap` makes all layers at once, as one `Block` whose arrays have a leading axis "layer". `lift.scan` compiles that
block once, however many layers there are; `lift.remat` keeps only what goes from layer to layer. The same training step
is compiled for the ordinary Python loop over a list of blocks, and its cost is written beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import Dense
from matplotlib.figure import Figure
from tqdm import tqdm

import liftcore as lift


class Block(lift.Module):
    """One layer."""

    def __init__(self, width: int, rngs: lift.Rngs) -> None:
        self.scale = lift.Param(jnp.ones(width))
        self.up, self.down = Dense(width, 2 * width, rngs), Dense(2 * width, width, rngs)
        self.down.kernel *= 0.1

    def __call__(self, x: jax.Array) -> Any:
        """Normalises `[batch, width]` by the root mean square, goes through a wider space, and adds what results."""
        normal = x * jax.lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
        return x + self.down(jax.nn.gelu(self.up(normal * self.scale)))


class Deep(lift.Module):
    """A stack of blocks between two dense layers.

    Args:
      blocks: a list of blocks, or one block whose arrays have a leading axis "layer".
      remat: whether the backward pass computes again what is inside a block.
      width: number of features between blocks.
      rngs: where the dense layers draw their weights.
    """

    def __init__(self, blocks: Block | list[Block], *, remat: bool, width: int, rngs: lift.Rngs) -> None:
        self.embed, self.blocks, self.head = Dense(64, width, rngs), blocks, Dense(width, 10, rngs)
        self.remat = remat

    def __call__(self, images: jax.Array) -> Any:
        """Logits `[batch, 10]` of images `[batch, 8, 8]`."""
        x = self.embed(images.reshape(len(images), -1))
        step = lift.remat(Block.__call__) if self.remat else Block.__call__
        if isinstance(self.blocks, list):
            for block in self.blocks:
                x = step(block, x)
        else:
            x, _ = lift.scan(lambda x, block: (step(block, x), None), x, self.blocks)
        return self.head(x)


def make(layers: int, width: int, *, scan: bool, remat: bool, seed: int) -> Deep:
    """A model; the same weights for the same seed, whatever the loop over layers is."""
    keys = jax.random.split(jax.random.key(seed), layers)
    stacked = lift.vmap(lambda key: Block(width, lift.Rngs(key)))(keys)
    return Deep(stacked if scan else lift.unstack(stacked), remat=remat, width=width, rngs=lift.Rngs(seed + 1))


def loss_fn(model: Deep, images: jax.Array, labels: jax.Array) -> Any:
    """Mean cross-entropy over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@lift.jit
def train_step(
    model: Deep, moments: Any, optimizer: optax.GradientTransformation, images: jax.Array, labels: jax.Array
) -> tuple[Any, jax.Array]:
    """One step of the optimizer: updates the model, returns the moments and the loss."""
    loss, gradients = lift.value_and_grad(loss_fn)(model, images, labels)
    weights = lift.state(model, lift.Param)
    updates, moments = optimizer.update(gradients, moments, weights)
    lift.update(model, optax.apply_updates(weights, updates))
    return moments, loss


# ---- the program


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a training step costs before it runs.

    Attributes:
      trace: seconds to trace and lower it.
      compile: seconds to compile it.
      memory: bytes of temporary memory of the compiled program.
    """

    trace: float
    compile: float
    memory: int


def compile_step(model: Deep, *arguments: Any) -> tuple[Any, Cost]:
    """The compiled training step for this model, and its cost."""
    start = time.perf_counter()
    lowered = train_step.lower(model, *arguments)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    return compiled, Cost(traced - start, done - traced, compiled.memory_analysis().temp_size_in_bytes)


def main(argv: Sequence[str] | None = None) -> dict[str, Cost]:
    """Compiles the training step in four ways, trains the scanned and recomputed one, and saves a plot.

    Args:
      argv: arguments of the command line; None: those of this process.

    Returns:
      The costs, by the name of the way.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=common.OUT / "deep.png", help="where the plot goes")
    options = parser.parse_args(argv)

    data, optimizer = common.digits(train=1437), optax.adam(options.rate)
    first = data.train_images[: options.batch], data.train_labels[: options.batch]
    costs, ways = {}, [(scan, remat) for scan in (False, True) for remat in (False, True)]
    for scan, remat in (bar := tqdm(ways, desc="compile", unit="way")):
        name = ("scan" if scan else "loop") + (" + remat" if remat else "")
        bar.set_postfix_str(name)
        model = make(options.layers, options.width, scan=scan, remat=remat, seed=options.seed)
        moments = optimizer.init(lift.state(model, lift.Param))
        compiled, costs[name] = compile_step(model, moments, optimizer, *first)

    # The last way, scanned and recomputed, goes on with the program that it has.
    losses = []
    for epoch in (bar := tqdm(range(options.epochs), desc=f"train, {name}", unit="epoch")):
        for index in common.batches(len(data.train_images), options.batch, seed=options.seed + epoch):
            moments, loss = compiled(model, moments, optimizer, data.train_images[index], data.train_labels[index])
            losses.append(float(loss))
        bar.set_postfix(loss=f"{losses[-1]:.4f}")
    guesses = lift.jit(lambda model, images: model(images).argmax(axis=-1))(model, data.test_images)
    accuracy = float((guesses == data.test_labels).mean())

    print(f"{options.layers} layers   trace, s   compile, s   temporary memory, MB")
    for name, cost in costs.items():
        print(f"{name:12}{cost.trace:8.2f}{cost.compile:13.2f}{cost.memory / 1e6:17.1f}")
    print(f"trained for {len(losses)} steps: test accuracy {accuracy:.2%} of {len(data.test_labels)} images")
    common.save(plot(costs, losses, accuracy), options.out)
    return costs


def plot(costs: dict[str, Cost], losses: Sequence[float], accuracy: float) -> Figure:
    """Bars of compile time and memory, and the loss of each step."""
    figure, (times, memory, loss) = common.panels(4.2, 3.4, 3.8)
    names = list(costs)
    trace, compiling = [cost.trace for cost in costs.values()], [cost.compile for cost in costs.values()]
    megabytes = [cost.memory / 1e6 for cost in costs.values()]
    times.barh(names, trace, color=common.PALE, label="trace")
    bars = times.barh(names, compiling, left=trace, color=common.BLUE, label="compile")
    times.bar_label(bars, [f"{a + b:.1f}" for a, b in zip(trace, compiling, strict=True)], padding=3)
    times.legend(frameon=False, loc="lower right")
    common.label(times, "Time before the first step", "seconds")
    memory.bar_label(memory.barh(names, megabytes, color=common.RED), fmt="%.1f", padding=3)
    memory.set_yticklabels([])
    common.label(memory, "Temporary memory of a step", "MB")
    for axes in (times, memory):
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.tick_params(axis="y", length=0)
    loss.semilogy(np.arange(1, 1 + len(losses)), losses, color=common.BLUE)
    common.label(loss, f"{names[-1]}: test accuracy {accuracy:.1%}", "step", "cross-entropy")
    return figure


if __name__ == "__main__":
    main()
