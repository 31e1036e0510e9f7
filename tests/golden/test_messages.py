"""Every message in full: what was attempted, where, both sides, why, and ways out that run as they are written.

After a change of words: `python -m tests.golden.record`, and read the difference.
"""

from __future__ import annotations

import doctest
import re

import pytest

from liftcore import errors
from tests.golden import broken_calls, broken_objects, broken_state  # noqa: F401  (they note their cases)
from tests.golden.broken import CASES, MESSAGES, raised

# Names of classes and modules that are ours or JAX's and nobody else's business.
INTERNAL = re.compile(
    r"\b(Bucket|Opaque|Layout|Region|Departure|Assigned|Site|Spec|AxisSpec|MovedAxisSpec|Found|Place|Static|Lifted"
    r"|Prepared|\w*Tracer|_\w+)\b|<captured>|<unknown>|<function|object at 0x|<class|NoneType|\.py:"
)

each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_the_message_is_the_one_on_record(name):
    expected = (MESSAGES / f"{name}.txt").read_text()
    # An ellipsis stands for JAX's own words, which differ from version to version.
    actual = raised(name)
    assert doctest.OutputChecker().check_output(expected, actual, doctest.ELLIPSIS), f"{actual}\nnot\n{expected}"


@each_case
def test_the_ways_out_run(name):
    programs = CASES[name]()
    next(programs)
    for program in programs:
        program()


@each_case
def test_the_message_has_the_form_of_all_messages(name):
    kind, _, text = raised(name).partition(": ")
    # A lift type knows the transform and not the function, and a variable neither.
    assert re.match(r"(jit|vmap|scan|grad|value_and_grad|remat)( of [\w.<>]+)?: |write to ", text), text
    # What JAX refuses it says in its own words.
    assert "Way out: " in text or "Ways out:\n  1. " in text or ": refused\n" in text, text
    assert not INTERNAL.search(text.partition(": refused\n")[0]), text
    assert kind in errors.__all__


def test_every_recorded_message_belongs_to_a_case():
    assert {path.stem for path in MESSAGES.glob("*.txt")} == set(CASES)
