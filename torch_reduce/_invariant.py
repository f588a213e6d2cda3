"""The batch-invariant mode: inside it, what torch reduces is reduced here, and a model needs no change."""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

import torch

from . import _C

_OFF, _WARNS, _STRICT = range(3)  # csrc/torch/invariant.h

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class InvariantOp:
    """An op that ran in the mode.

    Attributes:
        name: as torch's dispatcher has it: `"aten::sum.dim_IntList"`.
        ours: calls that were computed here.
        torchs: calls that were left to torch, whose result keeps the promise: see `reason`.
        uncovered: calls that were left to torch, whose result may depend on the batch.
        reason: why torch's keeps the promise.
    """

    name: str
    ours: int
    torchs: int
    uncovered: int
    reason: str


class InvariantReport(tuple[InvariantOp, ...]):
    """What ran, in the order of the mode's table; `print` shows it as a table."""

    def __str__(self) -> str:
        if not self:
            return "no op that reduces ran in batch_invariant"
        width = max(len(op.name) for op in self)
        lines = [f"{'op':{width}}  {'ours':>8}  {'torch':>8}  {'uncovered':>9}"]
        for op in self:
            line = f"{op.name:{width}}  {op.ours:8}  {op.torchs:8}  {op.uncovered:9}"
            reason = op.reason or "integers: exact in any order"
            lines.append(f"{line}  torch: {reason}" if op.torchs else line)
        return "\n".join(lines)


def _since(before: list[int]) -> InvariantReport:
    """What ran since `_C.invariant_counts()` was `before`: three numbers an op, and none of those that came later."""
    found = []
    for n, e in enumerate(_C.invariant_entries()):
        was = before[3 * n : 3 * n + 3] or (0, 0, 0)
        calls = (e["ours"] - was[0], e["torchs"] - was[1], e["uncovered"] - was[2])
        if any(calls):
            found.append(InvariantOp(e["op"], *calls, e["reason"]))
    return InvariantReport(found)


class WhenImported(MetaPathFinder):
    """Calls `then` when a module has been imported that is not there yet."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module, self._then = module, then
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Compiled:
    """Our backend compiles torch.compile's functions while a thread is in the mode: inductor has sums of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = 0
        self._stance: Any = None
        self._waits = False

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            if "torch._dynamo" in sys.modules:
                self._force()
            elif not self._waits:  # importing it takes seconds, and most who enter never compile
                self._waits = True
                WhenImported("torch._dynamo", self._force)

    def _force(self) -> None:
        with self._lock:
            if self._inside > 0 and self._stance is None:
                self._stance = torch.compiler.set_stance("default", force_backend=_backend)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


_compiled = _Compiled()


def _backend(graph: Any, inputs: Any) -> Any:
    from ._compile import backend  # imports inductor, which takes seconds

    return backend(graph, inputs)


# Their bodies run after the call has returned.
_PAUSING = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


class batch_invariant:
    """Inside it, a result is a function of its values: not of the batch or the run. No model need change.

        with torch_reduce.batch_invariant():
            logits = model(tokens)

    aten ops that reduce are computed here, forward and backward, on the CPU and on CUDA: products, sums, means, maxima,
    variances, norms, softmax, layer, RMS and group norms, losses, attention, convolution, additions where an index says
    (gradients of embeddings); on the CPU also functions such as silu and gelu, which torch computes otherwise at the
    end of an array. Gradients follow the thread that calls `backward`. Other ops are torch's and cost what they cost
    outside.

    It holds in the thread that enters it, and in autograd's threads that work for it. It can be entered again inside
    itself, and what held before holds again when it is left, also by an exception. It is a decorator, too. Functions
    of torch.compile are compiled again, by a backend of ours, while any thread is inside: they have eager's bits.

    Args:
        strict: whether an op that reduces in an order nobody promises raises NotImplementedError. By default torch's
            runs, and a UserWarning names the op, and where it was called, once for each op and process.

    Raises:
        NotImplementedError: in the strict mode, as above.
        TypeError: as a decorator, of a generator or a coroutine, or without a call of its own.

    Determinism:
        A row of a result has the same bits alone and in any batch, and on every run. Gradients of weights are sums over
        the batch: the same on every run.
    """

    def __new__(cls, *given: object, **strict: bool) -> "batch_invariant":
        if given:
            raise TypeError(
                "batch_invariant is called before it decorates, @batch_invariant(), and takes strict by name"
            )
        return super().__new__(cls)

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._before: list[int] = []
        self._counts: list[int] = []

    def __enter__(self) -> "batch_invariant":
        self._before.append(_C.invariant_mode())
        if len(self._before) == 1:
            self._counts = _C.invariant_counts()
        _compiled.enter()
        _C.set_invariant_mode(_STRICT if self.strict else _WARNS)
        return self

    def __exit__(self, *exception: object) -> None:
        _C.set_invariant_mode(self._before.pop())
        _compiled.leave()

    def __call__(self, function: _F) -> _F:
        if any(is_one(function) for is_one in _PAUSING):
            raise TypeError(f"{function.__name__} pauses, and others run meanwhile: enter batch_invariant inside it")

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with batch_invariant(strict=self.strict):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def report(self) -> InvariantReport:
        """What ran in the mode, in any thread, since this one was entered."""
        return _since(self._counts)


_enabled = threading.local()


def enable_batch_invariant(*, strict: bool = False) -> None:
    """Enters `batch_invariant` until `disable_batch_invariant`, in this thread; once enabled, it changes `strict`."""
    if getattr(_enabled, "mode", None) is None:
        _enabled.mode = batch_invariant(strict=strict)
        _enabled.mode.__enter__()
    else:
        _C.set_invariant_mode(_STRICT if strict else _WARNS)


def disable_batch_invariant() -> None:
    """Ends what `enable_batch_invariant` began in this thread; without it, nothing happens."""
    mode = getattr(_enabled, "mode", None)
    if mode is not None:
        _enabled.mode = None
        mode.__exit__()


def is_batch_invariant() -> bool:
    """Whether this thread is in `batch_invariant`."""
    return _C.invariant_mode() != _OFF
