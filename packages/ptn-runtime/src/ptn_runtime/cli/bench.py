"""`ptn bench`: timings of several engines, taken in turns so that a busy machine treats them alike."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ptn_runtime.cli.common import (
    add_input_arguments,
    add_option_argument,
    format_seconds,
    gather_inputs,
    parse_options,
    pick_method,
    print_refused,
    summarize_inputs,
    table,
)
from ptn_runtime.errors import ExecutionError, InputError

if TYPE_CHECKING:
    from ptn_runtime.model import Model


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="time a method, on several engines side by side",
        description=(
            "Times calls of a method on given or made-up inputs. Several engines take turns call by call, "
            "and are compared to the first."
        ),
    )
    parser.add_argument("package", help="a .ptn file")
    add_input_arguments(parser, made_up=True)
    parser.add_argument(
        "--engine",
        metavar="NAME[@DEVICE]",
        action="append",
        default=[],
        help="engine to time; may be repeated (default: the best one)",
    )
    add_option_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads, for the engines that have that option")
    parser.add_argument("--repeat", type=int, default=50, metavar="N", help="timed calls per engine (default: 50)")
    parser.add_argument(
        "--warmup", type=int, default=5, metavar="N", help="calls before those, at least 1 (default: 5)"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=60.0, metavar="S", help="stop after this time (default: 60)"
    )
    parser.add_argument("--profile", action="store_true", help="also show where the time goes, node by node")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.repeat < 1:
        raise InputError(f"--repeat must be at least 1, got {arguments.repeat}.")
    with ExitStack() as stack:
        models = [stack.enter_context(model) for model in _load(arguments)]
        method = pick_method(models[0].methods, arguments.method)
        inputs = gather_inputs(models[0].describe(method), arguments)
        print(f"{method}, inputs: {summarize_inputs(inputs)}")
        for model in models:
            print_refused(model.refused)
        times = _time(models, method, inputs, arguments)
        print(_report(models, times))
        if len(models) > 1:
            print("  ratio: how many times the median of the first engine")
        if arguments.profile:
            for model in models:
                _print_profile(model, method, inputs)
    return 0


def _print_profile(model: Model, method: str, inputs: dict[str, Any]) -> None:
    try:
        print(f"\n{model.profile(method, **inputs)}")
    except ExecutionError as error:  # not every engine can; the timings stand without it
        print(f"\n{error}")


def _load(arguments: argparse.Namespace) -> list[Model]:
    from ptn_runtime.model import load

    models: list[Model] = []
    try:
        for text in arguments.engine or [None]:
            name, _, device = (text or "").partition("@")
            options = parse_options(arguments.option)
            if arguments.threads is not None:
                options |= _thread_option(name or None, arguments.threads)
            models.append(load(arguments.package, name or None, device or None, **options))
    except BaseException:
        for model in models:
            model.close()
        raise
    return models


def _thread_option(engine: str | None, threads: int) -> dict[str, int]:
    """The engine's own name for the number of threads, where it has one."""
    from ptn_runtime.registry import registry

    if engine is None:
        return {"threads": threads}
    names = registry().engine(engine).options()
    return next(({name: threads} for name in ("threads", "n_threads", "num_threads") if name in names), {})


def _time(
    models: list[Model], method: str, inputs: dict[str, np.ndarray[Any, np.dtype[Any]]], arguments: argparse.Namespace
) -> list[list[float]]:
    def call(model: Model) -> float:
        if len(model.state):
            model.state.reset()  # every call does the same work
        begin = time.perf_counter()
        model.run(method, **inputs)
        return time.perf_counter() - begin

    start = time.perf_counter()
    first = [call(model) for model in models]
    print(f"first call: {', '.join(map(format_seconds, first))}")
    for _ in range(arguments.warmup - 1):
        for model in models:
            call(model)
    times: list[list[float]] = [[] for _ in models]
    for turn in range(arguments.repeat):
        if turn and time.perf_counter() - start > arguments.max_seconds:
            break
        for model, taken in zip(models, times, strict=True):
            taken.append(call(model))
    return times


def _report(models: list[Model], times: list[list[float]]) -> str:
    base = float(np.median(times[0]))
    rows = []
    for model, taken in zip(models, times, strict=True):
        median, low, high = (float(np.quantile(taken, q)) for q in (0.5, 0.1, 0.9))
        seconds = [format_seconds(value) for value in (median, low, high)]
        rows.append((model.engine, model.device, *seconds, f"{median / base:.2f}", len(taken)))
    header = ["engine", "device", "median", "p10", "p90", "ratio", "calls"]
    return table(rows, header, right=[2, 3, 4, 5, 6])
