"""The laboratory: command line, baselines, models, data, trainer, experiments, explorer and benchmarks."""
