"""A finished run on a page in the browser: inputs, answers, and examples of the run's validation rows."""
