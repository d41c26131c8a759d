"""The scikit-learn front door: classifiers for tables and image arrays, with y == -1 where a label is unknown."""

from meanteacher.estimator.classifier import MeanTeacherClassifier, SemiSupervisedClassifier

__all__ = ["MeanTeacherClassifier", "SemiSupervisedClassifier"]
