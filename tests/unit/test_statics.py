"""Static values: what is the same, what is not, and where arrays hide."""

import collections
import dataclasses
import enum
import functools
import gc
import math
import operator
import struct
import sys
import threading
import types
import typing
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from liftcore import registry
from liftcore.errors import LiftError
from liftcore.protocol import Family, Node
from liftcore.statics import find_array, key


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


class Place(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@dataclasses.dataclass(frozen=True)
class Config:
    width: typing.Any
    note: str = dataclasses.field(default="", compare=False)

    def area(self):
        return self.width**2


@dataclasses.dataclass
class Options:
    width: typing.Any


@dataclasses.dataclass(eq=False)
class Plain:
    width: typing.Any


@dataclasses.dataclass(frozen=True)
class Loose:
    width: typing.Any

    def __eq__(self, other):
        return isinstance(other, Loose)

    def __hash__(self):
        return 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Names(list):
    pass


class Words(str):
    pass


class Slotted(list):
    __slots__ = ("extra",)


class Thing:
    def method(self, x):
        return x


class Layer(eqx.Module):
    weight: jax.Array
    width: int = eqx.field(static=True, default=3)

    def __call__(self, x):
        return self.weight * x


nan_bits = struct.unpack("d", bytes.fromhex("010000000000f87f"))[0]

# Each entry makes a value afresh; no two entries may be the same, although many are equal for Python.
DIFFERENT = [
    lambda: 1,
    lambda: True,
    lambda: 1.0,
    lambda: 1 + 0j,
    lambda: np.float32(1),
    lambda: np.float64(1),
    lambda: np.int32(1),
    lambda: np.int64(1),
    lambda: np.bool_(True),
    lambda: Level.LOW,
    lambda: 0.0,
    lambda: -0.0,
    lambda: complex(0.0, 0.0),
    lambda: complex(0.0, -0.0),
    lambda: float("nan"),
    lambda: nan_bits,
    lambda: math.inf,
    lambda: np.float32("nan"),
    lambda: np.float32(0.0),
    lambda: np.float32(-0.0),
    lambda: np.datetime64(1, "s"),
    lambda: np.datetime64(1, "m"),
    lambda: 10**400,
    lambda: "a",
    lambda: b"a",
    lambda: bytearray(b"a"),
    lambda: np.str_("a"),
    lambda: Words("a"),
    lambda: None,
    lambda: ...,
    lambda: NotImplemented,
    lambda: np.dtype("float32"),
    lambda: np.dtype([("a", "i4")]),
    lambda: np.float32,
    lambda: jnp.float32,
    lambda: jnp.bfloat16,
    lambda: int,
    lambda: Thing,
    lambda: Color.RED,
    lambda: Color.BLUE,
    lambda: math,
    lambda: len,
    lambda: dict.fromkeys,
    lambda: str.upper,
    lambda: np.add,
    lambda: np.multiply,
    lambda: jnp.add,
    lambda: jnp.tanh,
    lambda: jax.nn.relu,
    lambda: jax.nn.gelu,
    lambda: list[int],
    lambda: int | None,
    lambda: jax.sharding.PartitionSpec("d"),
    lambda: jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)),
    lambda: jax.sharding.AbstractMesh((1,), ("d",)),
    lambda: jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec("d")),
    lambda: jax.devices()[0],
    lambda: jax.lax.add_p,
    lambda: jax.checkpoint_policies.save_only_these_names("a"),
    lambda: jax.checkpoint_policies.save_only_these_names("b"),
    lambda: jax.checkpoint_policies.everything_saveable,
    lambda: jax.ShapeDtypeStruct((2,), "float32"),
    lambda: range(3),
    lambda: range(0, 3, 2),
    lambda: slice(3),
    lambda: slice(None, 3, None).indices(3),
    lambda: (),
    lambda: [],
    lambda: {},
    lambda: set(),
    lambda: frozenset(),
    lambda: (1,),
    lambda: (True,),
    lambda: (1.0,),
    lambda: [1],
    lambda: [1, 2],
    lambda: [2, 1],
    lambda: [[1], 2],
    lambda: [[1, 2]],
    lambda: Names([1]),
    lambda: collections.deque([1]),
    lambda: collections.deque([1], maxlen=2),
    lambda: {1: "a"},
    lambda: {True: "a"},
    lambda: {"a": 1, "b": 2},
    lambda: {"b": 2, "a": 1},
    lambda: types.MappingProxyType({"a": 1, "b": 2}),
    lambda: types.SimpleNamespace(a=1, b=2),
    lambda: collections.OrderedDict(a=1, b=2),
    lambda: collections.Counter(a=1, b=2),
    lambda: collections.defaultdict(int, a=1, b=2),
    lambda: collections.defaultdict(list, a=1, b=2),
    lambda: {1, 2},
    lambda: {True, 2},
    lambda: frozenset({1, 2}),
    lambda: (1, 2),
    lambda: Point(1, 2),
    lambda: Point(1, True),
    lambda: Place(1, 2),
    lambda: Config(1),
    lambda: Config(True),
    lambda: Config([1]),
    lambda: Options(1),
    lambda: functools.partial(len),
    lambda: functools.partial(jnp.sum, axis=0),
    lambda: functools.partial(jnp.sum, axis=False),
    lambda: functools.partial(jnp.sum, 0),
    lambda: jax.tree_util.Partial(jnp.sum, 0),
]


@pytest.fixture(scope="module")
def keys():
    return [(key(make()), key(make())) for make in DIFFERENT]


def test_a_value_made_again_is_the_same(keys):
    for make, (one, two) in zip(DIFFERENT, keys, strict=True):
        assert one == two, make()
        assert hash(one) == hash(two), make()


def test_different_values_are_different(keys):
    for number, (one, _) in enumerate(keys):
        for other, (two, _) in enumerate(keys):
            assert (one == two) == (number == other), (DIFFERENT[number](), DIFFERENT[other]())


def test_sets_have_no_order():
    # 0 and 8 collide in a small hash table, so that the order of insertion is the order of iteration.
    assert list({0, 8}) != list({8, 0})
    assert key({0, 8}) == key({8, 0})


def test_sets_count_what_is_equal_by_bits_only():
    one, two = float("nan"), float("nan")
    assert key({one}) != key({one, two})


def test_attributes_of_a_subclass_of_a_container_count():
    named, other = Names([1]), Names([1])
    named.name = other.name = "a"
    assert key(named) == key(other) != key(Names([1]))
    other.name = "b"
    assert key(named) != key(other)
    odd = Names([1, {}])
    assert key(odd) != key(Names([1]))


def test_slots_beside_the_content_mean_identity():
    value = Slotted([1])
    assert key(value) == key(value) != key(Slotted([1]))


def test_content_is_taken_when_the_key_is_made():
    config = Options(1)
    before = key(config)
    config.width = 2
    assert key(config) != before == key(Options(1))


def test_fields_that_do_not_compare_do_not_count():
    assert key(Config(1, "a")) == key(Config(1, "b"))


def test_a_written_equality_is_used_among_one_type():
    assert key(Loose(1)) == key(Loose(2))
    assert key(Plain(1)) != key(Plain(1))


def test_dataclass_with_an_array_never_calls_its_equality():
    array = np.ones(2)
    assert key(Config(array)) == key(Config(array)) != key(Config(np.ones(2)))


def test_cycles_compare_by_shape():
    def ring(length, last=()):
        first = [0]
        inner = first
        for _ in range(length - 1):
            inner.append([0])
            inner = inner[-1]
        inner.extend([first, *last])
        return first

    assert key(ring(1)) == key(ring(1))
    assert key(ring(3)) == key(ring(3)) != key(ring(2))
    assert key(ring(2)) != key(ring(2, last=[1]))


def test_endless_values_compare_by_identity():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    wide = ()
    for _ in range(200):
        wide = (wide, wide)
    for value in (deep, wide):
        assert key(value) == key(value)
    while deep:  # by hand: CPython's own deallocation of deep lists is slow
        deep = deep.pop()


def test_deep_values_compare_by_identity():
    def nest(depth):
        return functools.reduce(lambda inner, _: [inner], range(depth), [])

    assert key(nest(40)) == key(nest(40))
    assert key(nest(70)) != key(nest(70))


def test_a_full_stack_means_identity_at_worst():
    nested = ([[[[[[]]]]]],)

    def sink():
        try:
            return sink()
        except RecursionError:
            return key(nested)

    assert sink() in (key(nested), sink())


# Functions


def scaled(factor, *, shift=0):
    def inner(x, power=2):
        return (x * factor) ** power + shift

    return inner


def test_closures_by_code_and_cells():
    assert key(scaled(2)) == key(scaled(2))
    assert hash(key(scaled(2))) == hash(key(scaled(2)))
    assert len({key(scaled(factor)) for factor in (1, True, 1.0, 2, np.float32(1))}) == 5
    assert key(scaled(2, shift=1)) != key(scaled(2))
    assert key(scaled(scaled(2))) == key(scaled(scaled(2))) != key(scaled(scaled(3)))
    assert key(scaled([1])) == key(scaled([1])) != key(scaled((1,)))
    assert key(scaled(jnp.tanh)) == key(scaled(jnp.tanh)) != key(scaled(jnp.sin))


def test_defaults_and_attributes_count():
    def make(default=1, keyword=1, attribute=None):
        def inner(x, y=default, *, z=keyword):
            return x + y + z

        if attribute is not None:
            inner.attribute = attribute
        return inner

    made = [make(), make(2), make(True), make(keyword=2), make(keyword=1.0), make(attribute=1), make(attribute=2)]
    assert len(set(map(key, made))) == len(made)
    assert key(make(2, 3, 4)) == key(make(2, 3, 4))


def test_the_same_values_in_other_places_are_different():
    def make():
        def inner(x, y, *, z):
            return x + y + z

        return inner

    default, keyword = make(), make()
    default.__defaults__ = (1,)
    keyword.__kwdefaults__ = {"z": 1}
    assert key(default) != key(keyword)


def test_partials_by_their_parts():
    assert key(functools.partial(scaled(2), power=3)) == key(functools.partial(scaled(2), power=3))
    assert key(functools.partial(scaled(2), power=3)) != key(functools.partial(scaled(3), power=3))
    thing = Thing()
    partial = functools.partial(scaled(2), thing)
    assert key(partial) == key(partial) != key(functools.partial(scaled(2), thing))


def test_code_knows_its_place():
    # Two lambdas with one text are two code objects that differ in line or column: they retrace, which is safe.
    one, two = (lambda x: x), (lambda x: x)
    assert key(one) != key(two)


scale = 1
real = 1


def named():
    return lambda x: x * scale


def nested():
    return lambda xs: [(lambda y: y * scale)(x) for x in xs]


def class_in():
    def inner():
        class Inner:
            value = scale

        return Inner

    return inner


@pytest.mark.parametrize("make", [named, nested, class_in])
def test_globals_that_the_code_loads(make, monkeypatch):
    # `for scale in (1, 2, 3): m.act = lambda x: x * scale`, each with the same code.
    made = []
    for value in (1, 2, 3, True):
        monkeypatch.setitem(globals(), "scale", value)
        made.append((make(), key(make())))
    assert len({made_key for _, made_key in made}) == 4
    monkeypatch.setitem(globals(), "scale", 2)
    assert key(make()) == made[1][1]
    monkeypatch.delitem(globals(), "scale")
    assert key(make()) not in {made_key for _, made_key in made}


def test_attribute_names_are_no_globals(monkeypatch):
    def make():
        return lambda x: x.real

    before = key(make())
    monkeypatch.setitem(globals(), "real", 2)
    assert key(make()) == before


def helper(x):
    return deeper(x) + 1


def deeper(x):
    return x * scale if x else helper(x)


def test_globals_of_helpers_in_the_same_module(monkeypatch):
    def make():
        return lambda x: helper(x)

    before = key(make())
    assert key(make()) == before
    monkeypatch.setitem(globals(), "scale", 2)
    assert key(make()) != before
    monkeypatch.undo()
    assert key(make()) == before
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert key(make()) != before


def test_unsafe_globals_of_helpers_do_not_hurt(monkeypatch):
    def make():
        return lambda x: helper(x)

    monkeypatch.setitem(globals(), "scale", Thing())
    assert key(make()) == key(make())


def test_builtins_are_found(monkeypatch):
    def make():
        return lambda x: abs(x)

    before = key(make())
    monkeypatch.setitem(globals(), "abs", jnp.abs)
    assert key(make()) != before


def test_functions_of_two_namespaces_differ():
    source = "act = lambda x: x * scale"
    one, two = ({"scale": 1, "__name__": __name__} for _ in range(2))
    exec(source, one)
    exec(source, two)
    assert one["act"].__code__ == two["act"].__code__
    assert key(one["act"]) == key(one["act"]) != key(two["act"])


def test_functions_of_two_modules_differ():
    modules = [types.ModuleType(name) for name in ("liftcore_statics_one", "liftcore_statics_two")]
    made = []
    for module in modules:
        sys.modules[module.__name__] = module
        exec("make = lambda: lambda x: x", vars(module))
        made.append((key(module.make()), key(module.make())))
        del sys.modules[module.__name__]
    assert made[0][0] == made[0][1] != made[1][0] == made[1][1]


class Unequal:
    """Default equality."""


@pytest.mark.parametrize(
    "reached",
    [
        jnp.ones(2),
        np.ones(2),
        np.ones(()),
        jax.random.key(0),
        Layer(jnp.ones(2)),
        Unequal(),
        Thing().method,
        Config(1).area,
        [].append,
        [1].__len__,
        weakref.ref(Thing),
        operator.itemgetter(1),
        scaled(Unequal()),
        [Unequal()],
        {"a": (1, Point(1, Unequal()))},
        functools.partial(len, Unequal()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_unsafe_in_reach_makes_the_function_compare_by_identity(reached):
    made = [scaled(reached), scaled(1, shift=reached)]
    again = [scaled(reached), scaled(1, shift=reached)]
    for one, two in zip(made, again, strict=True):
        assert key(one) == key(one) != key(two)


def test_classes_and_plain_sentinels_in_reach_are_safe():
    assert key(scaled(Layer)) == key(scaled(Layer)) != key(scaled(Thing))
    assert key(scaled(jax.devices()[0])) == key(scaled(jax.devices()[0]))
    sentinel = object()
    assert key(scaled(sentinel)) == key(scaled(sentinel)) != key(scaled(object()))


def test_a_tracer_in_reach_makes_the_function_compare_by_identity():
    @jax.jit
    def f(x):
        assert key(scaled(x)) != key(scaled(x))
        return x

    f(1.0)


def test_an_empty_cell_makes_the_function_compare_by_identity():
    def make():
        def inner():
            return later

        if not make:
            later = 1
        return inner

    one = make()
    assert key(one) == key(one) != key(make())


def test_recursive_closures():
    def make(step):
        def even(n):
            return n == 0 or odd(n - step)

        def odd(n):
            return n != 0 and even(n - step)

        return even, odd

    assert key(make(1)) == key(make(1))
    for one, two in zip(make(1), make(1), strict=True):
        assert key(one) == key(two)
    for one, two in zip(make(1), make(2), strict=True):
        assert key(one) != key(two)
    # In whatever order they are met.
    assert list(map(key, make(1))) == [key(f) for f in make(1)[::-1]][::-1]


def test_one_function_object_keeps_its_key():
    def make():
        factor = 1

        def inner(x):
            return x * factor

        def turn():
            nonlocal factor
            factor = 2

        return inner, turn

    inner, turn = make()
    before = key(inner)
    turn()
    assert key(inner) == before == key(make()[0])


def test_wrapped_functions():
    def make(factor):
        @functools.wraps(helper)
        def inner(x):
            return helper(x) * factor

        return inner

    assert key(make(1)) == key(make(1)) != key(make(2))


def test_bound_methods_by_function_and_object():
    thing = Thing()
    assert key(thing.method) == key(thing.method) != key(Thing().method)
    assert key(Config(1).area) == key(Config(1).area) != key(Config(2).area)


def test_jitted_and_cached_functions_by_identity():
    for wrap in (jax.jit, jax.custom_jvp, jax.custom_vjp, functools.lru_cache):
        one = wrap(helper)
        assert key(one) == key(one) != key(wrap(helper))
        assert key(scaled(one)) == key(scaled(one)) != key(scaled(wrap(helper)))


SIMPLE = """
    adabelief adafactor adagrad adam adamax adamaxw adamw amsgrad fromage lamb lars lion nadam novograd polyak_sgd radam
    rmsprop sgd sm3 yogi
"""
OPTIMIZERS = {
    **{name: functools.partial(getattr(optax, name), 1e-3) for name in SIMPLE.split()},
    "muon": lambda: optax.contrib.muon(1e-3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-3, 100))),
    "schedule": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.set_to_zero()}, {"w": "a", "v": "b"}
    ),
    "masked": lambda: optax.masked(optax.adam(1e-3), {"w": True}),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_built_again_are_the_same(make):
    one, two = key(make()), key(make())
    assert one == two
    assert hash(one) == hash(two)


def test_optimizers_that_differ_are_different():
    assert key(optax.adam(1e-3)) != key(optax.adam(2e-3)) != key(optax.adam(1e-3, b1=0.8))
    assert key(optax.adam(jnp.asarray(1e-3))) != key(optax.adam(jnp.asarray(1e-3)))
    assert key(optax.MultiSteps(optax.adam(1e-3), 4)) != key(optax.MultiSteps(optax.adam(1e-3), 4))


def test_initializers_built_again_are_the_same():
    assert key(jax.nn.initializers.lecun_normal()) == key(jax.nn.initializers.lecun_normal())
    assert key(jax.nn.initializers.normal(0.1)) != key(jax.nn.initializers.normal(0.2))


# Objects


class Raises:
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    def __hash__(self):
        return 1


class Unhashable:
    def __eq__(self, other):
        return True

    __hash__ = None


class HashRaises(Raises):
    def __hash__(self):
        raise RuntimeError("not hashable")


class Elementwise(Raises):
    def __eq__(self, other):
        return np.ones(2, bool)

    __hash__ = Raises.__hash__


class Truthy(Raises):
    def __eq__(self, other):
        return 1

    __hash__ = Raises.__hash__


class DefaultHash:
    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class Liar(Raises):
    @property
    def __class__(self):
        raise RuntimeError("no class")

    @property
    def __dict__(self):
        raise RuntimeError("no attributes")


class OddMeta(type):
    def __eq__(cls, other):
        raise RuntimeError("not comparable")

    __hash__ = None


class Odd(metaclass=OddMeta):
    pass


class OddList(list, metaclass=OddMeta):
    pass


class OwnList(list):
    def __eq__(self, other):
        return True

    __hash__ = None


@dataclasses.dataclass
class Unset:
    width: int = dataclasses.field(init=False)


@pytest.mark.parametrize(
    "cls",
    [
        Raises,
        Unhashable,
        HashRaises,
        Elementwise,
        Truthy,
        DefaultHash,
        Liar,
        Odd,
        OddList,
        OwnList,
        Unset,
        Thing,
        object,
    ],
)
def test_odd_objects_compare_by_identity(cls):
    one, two = cls(), cls()
    for wrap in (lambda value: value, lambda value: (value, 1), lambda value: {"a": value}):
        assert key(wrap(one)) == key(wrap(one))
        assert hash(key(wrap(one))) == hash(key(wrap(one)))
        assert key(wrap(one)) != key(wrap(two))
    assert key(scaled(one)) != key(scaled(two))


@pytest.mark.parametrize("cls", [Unhashable, HashRaises, DefaultHash, Odd, OwnList])
def test_odd_objects_in_reach_make_a_function_compare_by_identity(cls):
    value = cls()
    assert key(scaled(value)) != key(scaled(value))


def test_odd_classes_compare_by_identity():
    assert key(Odd) == key(Odd) != key(OddList)


def test_hashables_by_their_own_equality_among_one_type():
    class Version:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return self.number == other.number

        def __hash__(self):
            return hash(self.number)

    class Newer(Version):
        pass

    assert key(Version(1)) == key(Version(1)) != key(Version(2))
    assert key(Version(1)) != key(Newer(1))
    assert key(scaled(Version(1))) == key(scaled(Version(1)))


def test_models_and_pytrees_are_never_compared():
    one, two = Layer(jnp.ones(2)), Layer(jnp.ones(2))
    assert key(one) == key(one) != key(two)
    assert key(scaled(one)) != key(scaled(two))

    @jax.tree_util.register_pytree_node_class
    class Tree(Raises):
        def tree_flatten(self):
            return (), None

        @classmethod
        def tree_unflatten(cls, auxiliary, children):
            return cls()

    tree = Tree()
    assert key(scaled(tree)) != key(scaled(tree))


def test_identity_is_held_weakly():
    for make in (Thing, lambda: scaled(Thing()), lambda: functools.partial(len, Thing()), lambda: Thing().method):
        value = make()
        reference = weakref.ref(value)
        held = [key(value), key([value]), key(Config(value))]
        del value
        gc.collect()
        assert reference() is None
        assert held[0] == held[0]


def test_keys_of_functions_hold_neither_them_nor_their_models():
    thing = Thing()
    function = scaled(thing)
    dead = [weakref.ref(thing), weakref.ref(function)]
    held = [key(function), key(scaled(3)), key([function])]
    del thing, function
    gc.collect()
    assert [reference() for reference in dead] == [None, None]
    assert len(set(held)) == 3


def test_what_is_dead_equals_nothing_but_itself():
    # Fresh objects take the addresses of dead ones, and with them their ids.
    dead = [key(Thing()) for _ in range(200)]
    assert len(set(dead)) == len(dead)
    living = Thing()
    assert key(living) not in dead
    assert all(one == one for one in dead)


def test_what_allows_no_weak_reference_is_held():
    class Slots:
        __slots__ = ()

    keys = [key(Slots()) for _ in range(20)]
    assert len(set(keys)) == 20


def test_two_threads_agree():
    functions = [scaled(number) for number in range(200)]
    start = threading.Barrier(4)
    found = collections.defaultdict(list)

    def work(name):
        start.wait()
        found[name] = [key(function) for function in functions]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [key(scaled(number)) for number in range(200)]
    assert [found[name] for name in range(4)] == [expected] * 4


def test_objects_of_a_family_are_never_compared():
    class Model:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    Model.__module__ = "liftcore_foreign.models"
    node = Node(items=vars, make=object.__new__, fill=setattr)
    with registry.families.temporary("liftcore_foreign", Family("liftcore_foreign", lambda cls: node)):
        assert key(Model()) != key(Model())
        model = Model()
        assert key(scaled(model)) != key(scaled(model))


def test_a_plugin_that_does_not_load_fails_loudly():
    class Foreign:
        pass

    Foreign.__module__ = "liftcore_foreign.models"
    with registry.families.temporary("liftcore_foreign", "liftcore_no_such_module:family"), pytest.raises(LiftError):
        key(Foreign())
    assert key(Foreign()) is not None


# find_array


array = jnp.ones(2)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (array, ()),
        (np.ones(2), ()),
        (np.ones(()), ()),
        (jax.random.key(0), ()),
        (jax.new_ref(jnp.ones(2)), ()),
        ([1, (2, array)], (1, 1)),
        ({"a": {"b": array}}, ("a", "b")),
        ([[array], array], (1,)),
        (Point(1, array), ("y",)),
        (Config([array]), ("width", 0)),
        (Config(1, array), ("note",)),
        (Plain(array), ("width",)),
        (Names([1, array]), (1,)),
        (Slotted([array]), (0,)),
        (types.SimpleNamespace(a=array), ("a",)),
        (types.MappingProxyType({"a": array}), ("a",)),
        (collections.deque([1, array]), (1,)),
        (functools.partial(len, array), ("args", 0)),
        (functools.partial(len, x=array), ("keywords", "x")),
        (Layer(array), ("weight",)),
        (Layer(array).__call__, ("__self__", "weight")),
        ({Plain(array)}, ("element", "width")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_are_found(value, path):
    assert find_array(value) == path
    assert find_array(value, tracers_only=True) is None


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        np.float32(1),
        [np.int32(1)],
        np.dtype("float32"),
        jnp.float32,
        jax.ShapeDtypeStruct((2,), "float32"),
        scaled(array),
        [functools.partial(scaled(array), 1)],
        Thing(),
        Unset(),
        optax.adam(1e-3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_where_there_is_no_array_none_is_found(value):
    assert find_array(value) is None


def test_odd_objects_are_passed_over():
    assert find_array([Liar(), Odd(), Unset(), array]) == (3,)


def test_tracers_are_found_in_functions_too():
    def default(tracer):
        return lambda x, y, z=tracer: x

    def keyword(tracer):
        return lambda x, *, z=tracer: x

    def attribute(tracer):
        def inner():
            return None

        inner.tracer = tracer
        return inner

    def partly_empty(tracer):
        def inner():
            return later, tracer

        if tracer is None:
            later = 1
        return inner

    @jax.jit
    def f(x):
        cases = [
            (x, ()),
            ([1, {"a": x}], (1, "a")),
            (scaled(x), ("cell factor",)),
            (scaled(scaled([x])), ("cell factor", "cell factor", 0)),
            (default(x), ("default z",)),
            (keyword(x), ("default z",)),
            (attribute(x), ("__dict__", "tracer")),
            (partly_empty(x), ("cell tracer",)),
            (functools.partial(scaled(x), 1), ("func", "cell factor")),
            (types.MethodType(scaled(x), 1), ("__func__", "cell factor")),
        ]
        for value, path in cases:
            assert find_array(value, tracers_only=True) == path
        assert find_array([x]) == (0,)
        assert find_array(scaled(x)) is None
        return x

    f(1.0)


def test_searching_ends():
    ring = [1]
    ring.append(ring)
    assert find_array(ring) is None

    def loop():
        return loop

    assert find_array(loop, tracers_only=True) is None

    @dataclasses.dataclass
    class Growing:
        more: typing.Any = dataclasses.field(init=False)

        def __getattr__(self, name):
            return Growing()

    assert find_array(Growing()) is None
    assert key(Growing()) is not None
