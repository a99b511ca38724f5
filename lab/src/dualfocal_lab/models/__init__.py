"""Networks of the paper's tables by name: ``make_model("resnet50", num_classes=100)``.

Image networks take (N, channels, height, width), ``text_cnn`` takes embedded words (N, width, length); all return
logits (N, num_classes). There are no pretrained weights. ``make_model`` also accepts custom factories.
"""

from dualfocal_lab.models.registry import MODELS, make_model

__all__ = ["MODELS", "make_model"]
