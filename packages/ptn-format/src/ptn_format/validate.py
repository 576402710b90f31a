"""Every structural rule of the format, checked on the decoded graph; all problems are found at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptn_format._rules_constants import check_constants, check_quantised, fixed_shape
from ptn_format._rules_graph import Say, Scope, check_graph
from ptn_format.codec import check_version
from ptn_format.errors import FormatError, GraphError
from ptn_format.graph import InputKind, Method, OpKind, OutputKind, Program, TensorMeta
from ptn_format.limits import MAX_METHODS
from ptn_format.signature import SIGNATURE_KEY, Signature, leaves

if TYPE_CHECKING:
    from ptn_format.weights import ConstantInfo

__all__ = ["Problem", "check_program", "validate_method", "validate_program"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule.

    Attributes:
        place: where, such as `method 'forward', node 'add_1'`.
        message: what is wrong, with the values.
        hint: what holds in a good program, or what to do.
    """

    place: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.hint}"


def validate_program(program: Program, constants: Mapping[str, ConstantInfo] | None = None) -> list[Problem]:
    """Checks a program against all rules of the format.

    The time grows with the size of the program.

    Args:
        program: the program.
        constants: what the package says of each constant's bytes, by data key (aliases included); None checks the
            program alone.

    Returns:
        All problems in the order of the program; none for a good one.
    """
    problems: list[Problem] = []
    say = _collector(problems)
    try:
        check_version(program.version)
    except FormatError as error:
        say("program", error.reason, "this release cannot vouch for it")
    names = [method.name for method in program.methods]
    if not names:
        say("program", "it has no method", "there must be something to call")
    if len(names) > MAX_METHODS:
        say("program", f"it has {len(names)} methods", f"at most {MAX_METHODS} are accepted")
    for name in _repeated(names):
        say("program", f"several methods are called '{name}'", "names of methods are unique")
    for method in program.methods:
        if not method.name:
            say("program", "a method has no name", "every method needs one to be called by")
        problems += validate_method(method, constants)
    _check_agreement(program.methods, say)
    return problems


def validate_method(method: Method, constants: Mapping[str, ConstantInfo] | None = None) -> list[Problem]:
    """Checks one method; see `validate_program`, which also compares the methods with each other."""
    problems: list[Problem] = []
    say = _collector(problems)
    place = f"method '{method.name}'"
    bound = {ref.name: ref for ref in method.constants}
    scope = Scope(bound, frozenset(spec.name for spec in method.mutable_buffers))
    check_graph(method.graph, place, say, scope)
    _check_bindings(method, place, say)
    check_constants(method, place, say, constants)
    by_key = {ref.data_key: ref for ref in method.constants}
    for where, meta in scope.quantised:
        shape = fixed_shape(meta)
        if shape is None:
            say(where, "it is quantised but its sizes are not fixed", "only constants are quantised")
        else:
            check_quantised(meta, shape, where, say, by_key)
    _check_output_specs(method, place, say)
    _check_signature(method, place, say)
    return problems


def check_program(
    program: Program, constants: Mapping[str, ConstantInfo] | None = None, *, file: str | None = None
) -> None:
    """Raises where `validate_program` finds problems.

    Raises:
        GraphError: lists the problems.
    """
    problems = validate_program(program, constants)
    if len(problems) == 1:
        raise GraphError(f"{problems[0].message}; {problems[0].hint}", file=file, place=problems[0].place)
    if problems:
        lines = [f"  {problem}" for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"  ... and {len(problems) - _SHOWN} more")
        raise GraphError("\n".join([f"the program breaks {len(problems)} rules of the format:", *lines]), file=file)


def _collector(problems: list[Problem]) -> Say:
    def say(place: str, message: str, hint: str) -> None:
        problems.append(Problem(place, message, hint))

    return say


def _check_bindings(method: Method, place: str, say: Say) -> None:
    """Each binding names a placeholder; no placeholder and no key is bound twice."""
    placeholders = {
        output.name for node in method.graph.nodes if node.op_kind is OpKind.PLACEHOLDER for output in node.outputs
    } | {node.name for node in method.graph.nodes if node.op_kind is OpKind.PLACEHOLDER and not node.outputs}
    names = [ref.name for ref in method.constants] + [spec.name for spec in method.mutable_buffers]
    keys = [ref.data_key for ref in method.constants] + [spec.fqn for spec in method.mutable_buffers]
    for name in names:
        if name not in placeholders:
            say(place, f"the constant or buffer '{name}' has no placeholder", "every bound value enters by one")
    for name in _repeated(names):
        say(place, f"'{name}' is bound more than once", "a placeholder stands for one constant or buffer")
    for key in _repeated(keys):
        say(place, f"the key '{key}' is bound more than once", "within a method each key has one placeholder")
    for spec in method.mutable_buffers:
        here = f"{place}, buffer '{spec.name}'"
        if not spec.fqn:
            say(here, "it has no key", "buffers are shared between methods by their key")
        meta = method.graph.tensor_values.get(spec.name)
        if meta is None:
            continue  # reported with the graph
        if fixed_shape(meta) is None:
            say(here, "its sizes are not fixed", "a buffer has exactly one shape")
        if meta.quant is not None:
            say(here, "it is quantised", "only constants with data are quantised")


def _check_output_specs(method: Method, place: str, say: Say) -> None:
    """One spec for each tensor result; a mutation's target is a buffer or an input that may change."""
    named = [spec.name for spec in method.output_specs]
    if named != list(method.graph.outputs):
        say(
            place,
            f"it has {len(named)} output specs for {len(method.graph.outputs)} outputs, or in another order",
            "each output of the graph has one spec, in the same order",
        )
    by_key = {ref.data_key: ref for ref in method.constants}
    zeros = {spec.fqn for spec in method.mutable_buffers}
    inputs = set(method.graph.inputs)
    targets: set[tuple[OutputKind, str]] = set()
    for spec in method.output_specs:
        here = f"{place}, output '{spec.name}'"
        target = spec.target or ""
        if spec.kind is OutputKind.USER_OUTPUT:
            if target:
                say(here, f"a user output has the target '{target}'", "only mutations have targets")
            continue
        if (spec.kind, target) in targets:
            say(here, f"'{target}' is updated twice", "it can have one new value only")
        targets.add((spec.kind, target))
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            if target not in inputs:
                say(here, f"it updates '{target}', which is no input", "name the input as the graph does")
        elif target not in zeros:
            ref = by_key.get(target)
            if ref is None:
                say(here, f"it updates '{target}', which is no buffer of the method", "bind the buffer")
            elif ref.kind is not InputKind.BUFFER:
                say(here, f"it updates '{target}', a {ref.kind.name}", "only buffers change")
            elif not ref.mutated:
                say(here, f"it updates the buffer '{target}', which is not marked as mutated", "mark its binding")


def _check_signature(method: Method, place: str, say: Say) -> None:
    """The calling convention, where there is one, speaks of inputs and results that exist."""
    output = method.graph.nodes[-1] if method.graph.nodes else None
    text = output.metadata.get(SIGNATURE_KEY) if output is not None else None
    if output is None or text is None:
        return
    here = f"{place}, node '{output.name}'"
    try:
        signature = Signature.from_json(text)
    except FormatError as error:
        say(here, error.reason, f"the metadata under '{SIGNATURE_KEY}' is what the exporter wrote, or is left out")
        return
    mutations = sum(spec.kind is not OutputKind.USER_OUTPUT for spec in method.output_specs)
    used = [leaf.index for parameter in signature.parameters for leaf in leaves(parameter.tree)]
    given = [leaf.index for leaf in leaves(signature.result)]
    for what, indices, count in (
        ("inputs", used, len(method.graph.inputs)),
        ("results", given, len(output.inputs) - mutations),
    ):
        beyond = [index for index in indices if index >= count]
        if beyond:
            say(here, f"the signature names number {max(beyond)} of {count} {what}", "it counts from 0")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What all methods must agree on for one key; whether they mutate it may differ."""

    role: str
    initial: str
    dtype: str
    sizes: str
    quantisation: str


def _check_agreement(methods: Sequence[Method], say: Say) -> None:
    first: dict[str, tuple[str, _Facts]] = {}
    for method in methods:
        for key, facts in _facts(method):
            name, known = first.setdefault(key, (method.name, facts))
            if known != facts and name != method.name:
                differing = [
                    f"{field} {getattr(known, field)} there, {getattr(facts, field)} here"
                    for field in ("role", "initial", "dtype", "sizes", "quantisation")
                    if getattr(known, field) != getattr(facts, field)
                ]
                say(
                    f"method '{method.name}'",
                    f"'{key}' is not what it is in method '{name}': {'; '.join(differing)}",
                    "a key means the same tensor in every method",
                )


def _facts(method: Method) -> Iterable[tuple[str, _Facts]]:
    for ref in method.constants:
        yield ref.data_key, _tensor_facts(ref.kind.name, "stored", ref.meta)
    for spec in method.mutable_buffers:
        meta = method.graph.tensor_values.get(spec.name)
        if meta is not None:
            yield spec.fqn, _tensor_facts(InputKind.BUFFER.name, "zeros", meta)


def _tensor_facts(role: str, initial: str, meta: TensorMeta) -> _Facts:
    sizes = "[" + ", ".join(str(dim) for dim in meta.sizes) + "]"
    return _Facts(role, initial, meta.dtype.torch_name, sizes, str(meta.quant))


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for name in names:
        if name in seen:
            repeated[name] = None
        seen.add(name)
    return list(repeated)
