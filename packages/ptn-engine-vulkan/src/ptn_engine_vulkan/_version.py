"""The release number, the same for every package of the project."""

__version__ = "0.1.0"
