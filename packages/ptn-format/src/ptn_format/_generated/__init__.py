"""Code that flatc wrote from `schema/native_graph.fbs`; used for writing only."""
