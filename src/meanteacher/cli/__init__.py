"""The command line. Importing it does not import torch: help is instant."""

from meanteacher.cli.app import main

__all__ = ["main"]
