"""From the graph of the file to the graph that engines get."""
