"""Fine-tune Hugging Face models on one YAML, exactly; see README.md."""

from toolkit.base.version import __version__ as __version__
