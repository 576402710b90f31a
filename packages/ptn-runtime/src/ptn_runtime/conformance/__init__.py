"""The test suite for engines, shipped in the wheel.

```
pytest --pyargs ptn_runtime.conformance --ptn-engine NAME [--ptn-device DEVICE] [--ptn-report out.json]
```

Cases are data: one module per operator family gives `Case`s, each one call of one operator. A case is written to a
package in memory, loaded on the engine under test through the ordinary API, and its results are compared with the
literal values of the case where it has them, else with the numpy reference engine. An engine whose `supports()`
refuses a case's node is counted as not supporting it; one that accepts must be right. `test_contract.py` checks what
every engine owes beside numbers, `test_models.py` runs small whole models, and `test_golden.py` packages of upstream's
exporter. `docs/writing-an-engine.md` in the repository tells how to use it.
"""
