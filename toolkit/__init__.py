"""Fine-tune Hugging Face models: one YAML, two engines, any number of processes, the same numbers."""

__version__ = "0.1.0"
