"""A recipe of your own: Mean Teacher on handwritten digits, of which 40 show their label.

    meanteacher run examples/own_recipe.py:recipe --seed 0

Fields change on the command line (--set steps=100) or with `varied`, as `less_noise` shows.
"""

from meanteacher.data import Fixed
from meanteacher.data.toy import Digits
from meanteacher.experiment import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import MeanTeacher
from meanteacher.models import MlpSpec
from meanteacher.schedules import Constant, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Noise, PerChannel, Translate

recipe = Recipe(
    name="own/digits",
    data=DataSpec(source=Digits(), n_labelled=40),
    training=TrainingSpec(
        model=MlpSpec(hidden=(128, 128)),
        method=MeanTeacher(decay=Constant(0.97), buffers="own", weight=SigmoidRampUp(value=20.0, steps=100)),
        normalise=PerChannel(),
        views={"student": Chain((Translate(1), Noise(0.5))), "teacher": Noise(0.5)},
        batch=Fixed(size=140, labelled=40, unlabelled_pool="all"),
        optim=AdamSpec(learning_rate=Constant(0.003), beta1=Constant(0.9), beta2=Constant(0.99)),
        steps=300,
        evaluate_every=100,
    ),
    seeds=(0, 1, 2),
)

less_noise = recipe.varied(name="own/digits-less-noise", views={"student": Noise(0.2), "teacher": Noise(0.2)})
