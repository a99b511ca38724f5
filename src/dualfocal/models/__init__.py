"""The nets of the paper's tables, by name: ``make_model("resnet50", num_classes=100)``.

Image nets take (N, channels, height, width), ``text_cnn`` takes embedded words (N, width, length); all give logits
(N, num_classes). They have no pretrained weights, and ``make_model`` takes a factory of your own as well.
"""

from dualfocal.models.registry import MODELS, make_model

__all__ = ["MODELS", "make_model"]
