"""Puts the recipes and the launcher's configurations into the wheel; pyproject.toml configures everything else."""

from setuptools import find_packages, setup

SHIPPED = "toolkit.shipped"  # the folder that toolkit.base.package looks for

setup(
    packages=[*find_packages(include=["toolkit*"]), f"{SHIPPED}.recipes", f"{SHIPPED}.accelerate_configs"],
    package_dir={f"{SHIPPED}.recipes": "recipes", f"{SHIPPED}.accelerate_configs": "accelerate_configs"},
    package_data={
        "toolkit": ["py.typed", "document/templates/*", "deploy/templates/**/*", "lab/templates/*"],
        f"{SHIPPED}.recipes": ["configs/**/*", "data/**/*"],
        f"{SHIPPED}.accelerate_configs": ["*.yaml"],
    },
    exclude_package_data={f"{SHIPPED}.recipes": ["data/**/__pycache__/*"]},
)
