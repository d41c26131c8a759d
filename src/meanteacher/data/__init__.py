"""Images and labels: where they come from, which are labelled, what batch t holds."""

from meanteacher.data.dataset import Dataset, Source, TrainTest
from meanteacher.data.encoded import EncodedDataset, Files
from meanteacher.data.mapstyle import MapStyle
from meanteacher.data.split import BatchSpec, Fixed, Mixed, Sampler, Split, make_split, read_label_list
from meanteacher.data.stream import ImageStream

__all__ = [
    "BatchSpec",
    "Dataset",
    "EncodedDataset",
    "Files",
    "Fixed",
    "ImageStream",
    "MapStyle",
    "Mixed",
    "Sampler",
    "Source",
    "Split",
    "TrainTest",
    "make_split",
    "read_label_list",
]
