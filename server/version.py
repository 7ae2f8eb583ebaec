"""The package's version, as pyproject.toml has it: the log must know it where the package is not installed too."""

VERSION = "0.1.0"
