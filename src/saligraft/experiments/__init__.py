"""The paper's tables and figures, the demo, comparisons of runs and of methods, and the benchmark."""
