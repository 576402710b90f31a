"""Turns mutation into dataflow: which slot holds the contents of a tensor at a point of the program.

In PyTorch several names may share one storage: views of a base. A write through any of them is seen by all others.
Here every name is a `Handle`. A handle either owns a storage (a root) or is a view: a view operator applied to its
parent. A write gives the root new contents, by writing back through the chain of views, and moves the storage to its
next version; a handle whose version is older recomputes its view from its parent when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ptn_runtime.lowering.plan import Call, Scatter, Step
from ptn_runtime.lowering.views import KEEP_ORDER

__all__ = ["Handle", "Storage", "Tracker"]


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that handles share.

    Attributes:
        label: what it is, for messages, such as `constant 'weight'`.
        frozen: why the program may not write to it, as a relative clause; None where it may.
        version: number of writes so far.
    """

    label: str
    frozen: str | None = None
    version: int = 0

    def freeze(self, reason: str) -> None:
        """Forbids writes from here on."""
        self.frozen = self.frozen or reason


@dataclass(eq=False, slots=True)
class Handle:
    """One tensor name.

    Attributes:
        storage: the memory that it refers to.
        slot: holds the contents as of `version`.
        version: the storage's version that `slot` belongs to.
        parent: the handle that this one is a view of.
        view: the call that makes the view from `parent`.
        index: which result of `view`.
    """

    storage: Storage
    slot: int
    version: int = 0
    parent: Handle | None = None
    view: Call | None = None
    index: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether PyTorch surely has the elements in order: roots are contiguous, and so are reshapes of them."""
        handle = self
        while handle.parent is not None:
            if handle.view is None or handle.view.op not in KEEP_ORDER:
                return False
            handle = handle.parent
        return True


class Tracker:
    """Reads and writes handles of one graph body, adding the steps that this takes.

    Args:
        steps: where new steps go.
        new_slot: makes a slot.
    """

    def __init__(self, steps: list[Step], new_slot: Callable[[], int]) -> None:
        self._steps = steps
        self._new_slot = new_slot

    def root(self, slot: int, label: str, frozen: str | None = None) -> Handle:
        """A handle with a storage of its own."""
        return Handle(Storage(label, frozen), slot)

    def view(self, parent: Handle, slot: int, call: Call, index: int = 0) -> Handle:
        """A handle for result `index` of the view `call` of `parent`, which `slot` holds now."""
        return Handle(parent.storage, slot, parent.storage.version, parent, call, index)

    def read(self, handle: Handle) -> int:
        """The slot with the handle's current contents."""
        behind: list[Handle] = []
        current = handle
        # A root is never behind: writes bring it up to date.
        while current.version != current.storage.version and current.parent is not None:
            behind.append(current)
            current = current.parent
        for item in reversed(behind):
            assert item.view is not None
            item.slot = self._replay(item.view, current.slot, item.index)
            item.version = item.storage.version
            current = item
        return handle.slot

    def write(self, handle: Handle, slot: int) -> None:
        """Makes `slot` the contents of `handle`, and so of everything that shares its storage."""
        written: list[tuple[Handle, int]] = []
        current = handle
        while current.parent is not None:
            assert current.view is not None
            base = self.read(current.parent)
            written.append((current, slot))
            output = self._new_slot()
            # The view's own arguments are read again: its first one is the base.
            view = _with_base(current.view, base)
            self._steps.append(Scatter(view, current.index, base, slot, output))
            slot, current = output, current.parent
        written.append((current, slot))
        storage = handle.storage
        storage.version += 1
        for item, contents in written:
            item.slot, item.version = contents, storage.version

    def _replay(self, view: Call, base: int, index: int) -> int:
        outputs = tuple(self._new_slot() for _ in view.outputs)
        self._steps.append(replace(_with_base(view, base), outputs=outputs))
        return outputs[index]


def _with_base(view: Call, base: int) -> Call:
    first = view.tensors[0][0]
    return replace(view, tensors=((first, base), *view.tensors[1:]))
