"""The functional forms of in-place operators, against PyTorch's own schemas."""

from __future__ import annotations

import torch
from ptn_runtime.lowering.names import IN_PLACE_VIEWS, canonical_name, functional_name, is_in_place
from ptn_runtime.shapes import OPERATORS


def test_functional_forms_have_the_same_arguments():
    checked = 0
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        name = canonical_name(f"torch.ops.aten.{schema.name[6:]}.{schema.overload_name or 'default'}")
        if not is_in_place(name) or name.rpartition(".")[0] in IN_PLACE_VIEWS:
            continue
        functional = functional_name(name)
        if functional not in OPERATORS:
            continue
        _, base, overload = functional.split(".")
        wanted = getattr(getattr(torch.ops.aten, base), overload)._schema
        # Placement and layout have no meaning here, and one in-place operator has a flag for speed.
        given = [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name != "unsafe"]
        assert given == [(arg.name, str(arg.type)) for arg in wanted.arguments], (name, functional)
        checked += 1
    assert checked > 100
