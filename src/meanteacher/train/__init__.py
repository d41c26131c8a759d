"""Training. It knows the Method protocol and no concrete method."""

from meanteacher.records import Alarm, Evaluation
from meanteacher.train.callbacks import Callback, EarlyStop, LogEntry, MetricsFile, StopWhen
from meanteacher.train.checkpoint import Checkpoints, TrainState
from meanteacher.train.execution import RunOptions
from meanteacher.train.loggers import ScalarLogger, TensorBoardLogger, WandbLogger
from meanteacher.train.loop import Intervals, start, take_step, train
from meanteacher.train.optim import AdamSpec, MuonSpec, OptimSpec, SgdSpec
from meanteacher.train.pace import Pace
from meanteacher.train.vitals import Declared, Vitals
from meanteacher.train.watch import Audit, Watch, audit

__all__ = [
    "AdamSpec",
    "Alarm",
    "Audit",
    "Callback",
    "Checkpoints",
    "Declared",
    "EarlyStop",
    "Evaluation",
    "Intervals",
    "LogEntry",
    "MetricsFile",
    "MuonSpec",
    "OptimSpec",
    "Pace",
    "RunOptions",
    "ScalarLogger",
    "SgdSpec",
    "StopWhen",
    "TensorBoardLogger",
    "TrainState",
    "Vitals",
    "WandbLogger",
    "Watch",
    "audit",
    "start",
    "take_step",
    "train",
]
