"""Training. It knows the Method protocol and no concrete method."""

from meanteacher.records import Alarm, Evaluation
from meanteacher.train.callbacks import Callback, LogEntry, MetricsFile
from meanteacher.train.checkpoint import Checkpoints, TrainState
from meanteacher.train.loggers import ScalarLogger, TensorBoardLogger, WandbLogger
from meanteacher.train.loop import Intervals, Pace, start, take_step, train
from meanteacher.train.optim import AdamSpec, MuonSpec, OptimSpec, SgdSpec
from meanteacher.train.vitals import Declared, Vitals

__all__ = [
    "AdamSpec",
    "Alarm",
    "Callback",
    "Checkpoints",
    "Declared",
    "Evaluation",
    "Intervals",
    "LogEntry",
    "MetricsFile",
    "MuonSpec",
    "OptimSpec",
    "Pace",
    "ScalarLogger",
    "SgdSpec",
    "TensorBoardLogger",
    "TrainState",
    "Vitals",
    "WandbLogger",
    "start",
    "take_step",
    "train",
]
