"""On-line learning: examples arrive one batch at a time, and unlabelled ones are seen once."""

from meanteacher.online.arrivals import Arrivals, Arrived, Examples, Replay
from meanteacher.online.trainer import OnlineStep, OnlineTrainer

__all__ = ["Arrivals", "Arrived", "Examples", "OnlineStep", "OnlineTrainer", "Replay"]
