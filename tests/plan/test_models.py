"""Known models: their shapes add up to the published numbers of parameters."""

from math import prod

import pytest

from fastreduce.plan import models
from fastreduce.plan.parameters import parameters

# As their authors or hubs publish them: torchvision's table of weights; the numbers of parameters
# that Hugging Face shows for the checkpoints.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-1b": 1_235_814_400,
    "llama-8b": 8_030_261_248,
    "resnet50": 25_557_032,
}


@pytest.mark.parametrize("name", models.names())
def test_the_shapes_add_up(name):
    found = models.model(name)
    assert sum(map(prod, found.shapes)) == PUBLISHED[name]
    assert found.source


def test_shapes_are_in_the_order_of_the_model():
    shapes = models.model("llama-8b").shapes
    assert shapes[0] == shapes[-1] == (128256, 4096)
    assert shapes[1:5] == ((4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096))
    assert models.model("resnet50").shapes[-2:] == ((1000, 2048), (1000,))


def test_gradients_are_as_large_as_the_dtype_says():
    assert sum(x.nbytes for x in parameters("llama-8b")) == 2 * PUBLISHED["llama-8b"]
    assert sum(x.nbytes for x in parameters("llama-8b", "fp32")) == 4 * PUBLISHED["llama-8b"]


def test_an_unknown_one_names_the_near():
    with pytest.raises(ValueError, match=r"unknown model 'lama-8b'.*did you mean 'llama-8b'"):
        models.model("lama-8b")
