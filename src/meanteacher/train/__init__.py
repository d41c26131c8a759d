"""Training: knows the Method protocol and no concrete method."""

from meanteacher.train.callbacks import Callback, LogEntry, MetricsFile
from meanteacher.train.checkpoint import Checkpoints
from meanteacher.train.loop import start, train
from meanteacher.train.optim import Adam, Muon, OptimSpec, Sgd
from meanteacher.train.state import Evaluation, TrainState
from meanteacher.train.vitals import Alarm, Declared, Vitals

__all__ = [
    "Adam",
    "Alarm",
    "Callback",
    "Checkpoints",
    "Declared",
    "Evaluation",
    "LogEntry",
    "MetricsFile",
    "Muon",
    "OptimSpec",
    "Sgd",
    "TrainState",
    "Vitals",
    "start",
    "train",
]
