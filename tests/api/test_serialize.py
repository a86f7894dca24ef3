"""What the notebook defines travels by value, and comes home as its own."""

from __future__ import annotations

import linecache
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest
from serialize_peer import Notebook, Peer, through

from serverless_gpu import serialize
from serverless_gpu.errors import RankFailure


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def test_a_function_takes_along_all_it_uses_however_late_it_was_defined(peer: Peer) -> None:
    notebook = Notebook().cell("""
        def run(x):
            return helper(x) + SCALE
        """)
    notebook.cell("""
        import math
        SCALE = 3.0
        def helper(x):
            return math.sqrt(x) if x > 1 else helper(x + 1)
        """)
    assert peer.run(notebook.run, 0) == 2**0.5 + 3.0


def test_a_redefined_helper_and_a_redefined_class_are_sent_anew(peer: Peer) -> None:
    notebook = Notebook().cell("""
        def helper(): return "old"
        class Model:
            name = "old"
        def run(): return helper(), Model.name, Model().name
        """)
    assert peer.run(notebook.run) == ("old", "old", "old")
    notebook.cell("""
        def helper(): return "new"
        class Model:
            name = "new"
        """)
    assert peer.run(notebook.run) == ("new", "new", "new")


def test_an_attribute_changed_on_a_known_class_is_sent_too(peer: Peer) -> None:
    notebook = Notebook().cell("""
        class Model:
            size = 1
        def run(): return Model.size
        """)
    assert peer.run(notebook.run) == 1
    notebook.cell("Model.size = 2")
    assert peer.run(notebook.run) == 2


def test_methods_closures_decorated_functions_lambdas_and_recursion_work(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import functools
        def twice(function):
            @functools.wraps(function)
            def wrapper(*args): return 2 * function(*args)
            return wrapper
        @twice
        def fib(n): return n if n < 2 else (fib(n - 1) + fib(n - 2)) // 2
        class Counter:
            def __init__(self, start): self.start = start
            def add(self, n): return self.start + n
            @classmethod
            def make(cls): return cls(10)
            @staticmethod
            def three(): return 3
            @property
            def double(self): return 2 * self.start
        class Sub(Counter):
            def add(self, n): return super().add(n) + 100
        def adder(k): return lambda x: x + k
        def use(counter):
            return counter.add(1), counter.double, counter.three(), type(counter).make().start
        """)
    assert peer.run(notebook.fib, 6) == notebook.fib(6)
    assert peer.run(notebook.Counter(5).add, 1) == 6
    assert peer.run(notebook.adder(3), 4) == 7
    assert peer.run(notebook.use, notebook.Sub(5)) == (106, 10, 3, 10)


def test_cached_and_dispatching_functions_work(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import functools
        @functools.lru_cache(maxsize=7)
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        @functools.singledispatch
        def size(x): return 0
        @size.register
        def _(x: list): return len(x)
        def run(): return fib(20), fib.cache_info().maxsize, size([1, 2]), size(5)
        """)
    assert peer.run(notebook.run) == (6765, 7, 2, 0)
    assert peer.run(notebook.fib, 10) == 55
    assert notebook.fib.cache_info().currsize == 0


def test_a_class_made_inside_the_function_sees_the_globals_it_names(peer: Peer) -> None:
    notebook = Notebook().cell("""
        WIDTH = 7
        class Base: pass
        def run():
            class Inner(Base):
                width = WIDTH
            return Inner.width
        """)
    assert peer.run(notebook.run) == 7


CLASSES = """
    import abc, collections, dataclasses, enum, typing
    T = typing.TypeVar("T")
    @dataclasses.dataclass
    class Config:
        lr: float = 0.1
        tags: list = dataclasses.field(default_factory=list)
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        x: int
    @dataclasses.dataclass(slots=True)
    class Record:
        x: int
        y: list = dataclasses.field(default_factory=list)
    class Named:
        __slots__ = ("__name",)
        def __init__(self, name): self.__name = name
        def __eq__(self, other): return self.__name == other.__name
    class Colour(enum.Enum):
        RED = 1
        BLUE = "b"
    class Flag(enum.IntFlag):
        A = 1
        B = 2
    Point = collections.namedtuple("Point", "x y")
    class Pair(typing.NamedTuple):
        a: int
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...
    class Square(Shape):
        def area(self): return 4
    class Box(typing.Generic[T]):
        def __init__(self, value): self.value = value
    class IntBox(Box[int]): pass
    def same(values): return values
    """


def test_instances_come_home_as_instances_of_the_notebooks_own_classes(peer: Peer) -> None:
    notebook = Notebook().cell(CLASSES)
    notebook.cell("""
        values = [Config(0.5), Slotted(1), Colour.RED, Flag.A | Flag.B, Point(1, 2), Pair(3),
                  Square(), Box(1), IntBox(2), Record(2), Named("n")]
        """)
    home = peer.run(notebook.same, notebook.values)
    assert [type(value) for value in home] == [type(value) for value in notebook.values]
    assert home[:6] == notebook.values[:6]
    assert home[2] is notebook.Colour.RED
    assert isinstance(home[6], notebook.Shape)
    assert home[8].value == 2
    assert home[9:] == notebook.values[9:]


def test_what_a_rank_makes_of_a_notebook_class_is_of_that_class(peer: Peer) -> None:
    notebook = Notebook().cell(CLASSES)
    notebook.cell("def make(): return Config(2.0), Colour('b')")
    config, colour = peer.run(notebook.make)
    assert isinstance(config, notebook.Config)
    assert colour is notebook.Colour.BLUE


def test_a_class_that_came_home_still_uses_the_notebooks_helpers(peer: Peer) -> None:
    notebook = Notebook().cell("""
        def helper(): return "old"
        class Model:
            def go(self): return helper()
        def make(): return Model()
        """)
    model = peer.run(notebook.make)
    notebook.cell("def helper(): return 'new'")
    assert model.go() == "new"


def test_a_class_that_only_a_rank_defined_arrives_and_goes_back_as_one(peer: Peer) -> None:
    notebook = Notebook().cell("""
        def make():
            import types, sys
            names = {"__name__": "__main__"}
            exec("class There:\\n    value = 5", names)
            sys.there = names["There"]
            return names["There"]()
        def is_same(obj):
            import sys
            return type(obj) is sys.there
        """)
    made = peer.run(notebook.make)
    assert made.value == 5
    assert peer.run(notebook.is_same, made)


def test_arguments_share_what_they_shared() -> None:
    shared = [1]
    function, (first,), kwargs = through((len, (shared,), {"again": shared, "x": {"y": shared}}))
    assert function is len
    assert first is kwargs["again"] is kwargs["x"]["y"]


def test_a_tuple_like_a_call_comes_back_whole() -> None:
    call = (print, (1, "a"), {"b": 2}, {"env": "c"}, 5)
    assert through(call) == call


def test_a_traceback_elsewhere_shows_the_lines_of_the_cell(peer: Peer) -> None:
    notebook = Notebook("/tmp/ipykernel_77").cell("""
        def outer(x):
            return [inner(value) for value in (x,)]

        def inner(x):
            raise ValueError("bad batch")  # here
        """)
    failure = peer.run(notebook.outer, 1)
    assert isinstance(failure, RankFailure)
    assert 'raise ValueError("bad batch")  # here' in failure.traceback
    assert 'File "/tmp/ipykernel_77/1.py", line 5, in inner' in failure.traceback


def test_only_the_sources_of_the_code_sent_travel() -> None:
    notebook = Notebook("/tmp/ipykernel_78").cell("SECRET = 'not needed elsewhere'")
    notebook.cell("def run(): return 1")
    stream = b"".join(serialize.dump(notebook.run).frames)
    assert b"def run" in stream
    assert b"not needed elsewhere" not in stream


def test_source_lines_survive_a_check_of_the_line_cache(peer: Peer) -> None:
    notebook = Notebook("/tmp/ipykernel_79").cell("""
        def run():
            import inspect, linecache
            linecache.checkcache()
            return inspect.getsource(run)
        """)
    assert peer.run(notebook.run).startswith("def run():")
    assert linecache.getline("/tmp/ipykernel_79/1.py", 1) == "def run():\n"


def test_a_submodule_reached_through_its_package_is_imported_there(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import xml.dom.minidom
        def run(): return xml.dom.minidom.parseString("<a/>").documentElement.tagName
        """)
    assert peer.run(notebook.run) == "a"


def test_a_module_that_exists_only_in_the_notebook_travels_by_value(peer: Peer) -> None:
    helpers = types.ModuleType("made_by_hand")
    exec("def double(x): return x * FACTOR\nFACTOR = 2", helpers.__dict__)
    sys.modules["made_by_hand"] = helpers
    try:
        notebook = Notebook().cell("""
            import made_by_hand
            from made_by_hand import double
            def run(x): return made_by_hand.double(x) + double(x)
            """)
        assert peer.run(notebook.run, 3) == 12
    finally:
        del sys.modules["made_by_hand"]


def test_standard_output_is_the_receivers_own(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import sys
        class Logger:
            def __init__(self, to): self.to = to
        def run(logger):
            import sys
            return logger.to is sys.stdout
        """)
    assert peer.run(notebook.run, notebook.Logger(sys.stdout))


def test_torch_is_not_imported_by_serialisation() -> None:
    script = "import sys; from serverless_gpu import serialize as s; s.dump([1, print]).close();"
    script += "assert not {'torch', 'mlflow', 'IPython'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_plain_values_come_back_and_a_number_too_long_for_a_message_goes_beside_it() -> None:
    for value in (None, True, 7, 0.5, {}, 1 << 8 * 100_000):
        with serialize.dump(value) as payload:
            assert sum(map(len, payload.frames)) < 64 * 1024
            assert serialize.load(payload.frames, payload.detach()) == value
