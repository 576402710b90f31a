"""How a decoder of `transformers` exports with the library's own static cache; the page shows it, a test runs it."""

from __future__ import annotations

CONTEXT = 48
CODE = f"""\
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

model.generation_config.cache_implementation = "static"
model.generation_config.cache_config = {{"batch_size": 1, "max_cache_len": {CONTEXT}}}
module = TorchExportableModuleWithStaticCache(model)
length = torch.export.Dim("length", min=1, max={CONTEXT})
dynamic = {{"input_ids": {{1: length}}, "cache_position": {{0: length}}}}
prompt = {{"input_ids": torch.tensor([[5, 6, 7]]), "cache_position": torch.arange(3)}}
token = {{"input_ids": torch.tensor([[8]]), "cache_position": torch.tensor([3])}}
methods = {{
    "prefill": torch.export.export(module, (), prompt, dynamic_shapes=dynamic),
    "decode": torch.export.export(module, (), token),
}}
"""
SECTION = f"""
## With a cache

A causal model of `transformers` exports with the library's own static cache. Both methods share the weights and the
cache, which is state of the package: `prefill` takes a prompt and its positions, `decode` one token after the other.
Greedy tokens equal those of `generate` on both engines.

```python
{CODE}ptn_export.to_native(methods).save("decoder.ptn")
```
"""
