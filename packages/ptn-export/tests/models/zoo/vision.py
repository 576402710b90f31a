"""Models of images: what is on them, where, how far away, and other images."""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn

from zoo.entry import Entry, floats, integers
from zoo.vision_modules import Detector, Mixer, SpatialTransformer, SuperResolution, UNet

WIDTH = {"hidden_size": 32, "num_attention_heads": 4}
ENCODER = {**WIDTH, "intermediate_size": 48, "num_hidden_layers": 1}


def fixed(size: int, parameter: str = "pixel_values") -> dict[str, Any]:
    """What an entry says of images of one size."""
    inputs = {parameter: floats("batch", 3, size, size)}
    return {"inputs": inputs, "sizes": ({"batch": 2}, {"batch": 1}, {"batch": 5})}


def varied(least: int, step: int = 1, parameter: str = "pixel_values") -> dict[str, Any]:
    """What an entry says of images whose sides are at least `least` and multiples of `step`."""
    low = least // step
    height, width = ("height", "width") if step == 1 else (f"{step} * height", f"{step} * width")
    return {
        "inputs": {parameter: floats("batch", 3, height, width)},
        "sizes": (
            {"batch": 2, "height": low, "width": low + 1},
            {"batch": 1, "height": low + 2, "width": low},
            {"batch": 3, "height": low, "width": low + 3},
        ),
        "bounds": {"height": (low, 4 * low), "width": (low, 4 * low)},
    }


def huggingface(name: str, model: str, images: dict[str, Any], **settings: Any) -> Entry:
    """A class of `transformers` with a configuration."""

    def build() -> nn.Module:
        cls = getattr(transformers, model)
        return cls(cls.config_class(**settings))

    return Entry(name, f"transformers.{model}", build, **images)


def diffusion() -> nn.Module:
    """Stable Diffusion's network: ResNet blocks that take the time, group norm, cross-attention, down and up."""
    from diffusers import UNet2DConditionModel  # takes seconds

    return UNet2DConditionModel(
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        mid_block_type=None,
        cross_attention_dim=24,
        attention_head_dim=8,
        norm_num_groups=4,
    )


CLASSIFIERS = (
    huggingface(
        "ViT",
        "ViTForImageClassification",
        fixed(32),
        **{**ENCODER, "num_hidden_layers": 2},
        image_size=32,
        patch_size=8,
    ),
    huggingface("DINOv3", "DINOv3ViTModel", varied(24, 8), **ENCODER, patch_size=8, num_register_tokens=2),
    huggingface(
        "BEiT",
        "BeitForImageClassification",
        fixed(32),
        **ENCODER,
        image_size=32,
        patch_size=8,
        use_relative_position_bias=True,
    ),
    huggingface(
        "Swin",
        "SwinForImageClassification",
        fixed(32),
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    huggingface(
        "ResNet",
        "ResNetForImageClassification",
        varied(32, 8),
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 2],
    ),
    huggingface(
        "EfficientNet",
        "EfficientNetForImageClassification",
        fixed(32),
        width_coefficient=0.25,
        depth_coefficient=0.5,
        kernel_sizes=[3, 3, 5, 3],
        in_channels=[32, 16, 24, 40],
        out_channels=[16, 24, 40, 48],
        strides=[1, 2, 2, 2],
        num_block_repeats=[1, 2, 1, 1],
        expand_ratios=[1, 6, 6, 6],
        hidden_dim=320,
    ),
    huggingface(
        "ConvNeXt",
        "ConvNextForImageClassification",
        varied(32, 8),
        num_stages=2,
        depths=[1, 1],
        hidden_sizes=[8, 16],
    ),
    Entry("MLP-Mixer", "an own class: linear layers over patches and over channels", Mixer, **fixed(32, "images")),
    Entry(
        "Spatial-transformer",
        "an own class: `affine_grid` and `grid_sample`",
        SpatialTransformer,
        **fixed(28, "images"),
    ),
)
DETECTORS = (
    Entry(
        "YOLO",
        "an own class after YOLOv8: backbone, neck, boxes from distributions, the best ones by `topk`",
        Detector,
        **varied(32, 16, "images"),
    ),
    huggingface(
        "YOLOS",
        "YolosForObjectDetection",
        varied(32, 8),
        **{**ENCODER, "num_hidden_layers": 2},
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=10,
        num_labels=5,
    ),
    huggingface(
        "DETR",
        "DetrForObjectDetection",
        varied(32, 8),
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        ),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=7,
        num_labels=5,
    ),
)
MAPS = (
    huggingface(
        "SegFormer",
        "SegformerForSemanticSegmentation",
        fixed(32),
        num_encoder_blocks=2,
        depths=[1, 1],
        hidden_sizes=[8, 16],
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=5,
    ),
    Entry(
        "U-Net",
        "an own class: up by transposed convolutions",
        lambda: UNet(transposed=True),
        **varied(16, 4, "images"),
    ),
    Entry(
        "U-Net-interpolate",
        "an own class: up by interpolation to the size of the skipped features",
        lambda: UNet(transposed=False),
        **varied(16, parameter="images"),
    ),
    huggingface(
        "Depth-Anything",
        "DepthAnythingForDepthEstimation",
        fixed(28),
        backbone_config=transformers.Dinov2Config(
            **WIDTH,
            num_hidden_layers=4,
            image_size=28,
            patch_size=7,
            out_indices=[1, 2, 3, 4],
            reshape_hidden_states=False,
        ),
        patch_size=7,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
    ),
)
IMAGES = (
    huggingface(
        "Swin2SR",
        "Swin2SRForImageSuperResolution",
        fixed(16),
        image_size=16,
        patch_size=1,
        embed_dim=16,
        depths=[2],
        num_heads=[2],
        window_size=4,
    ),
    Entry(
        "Super-resolution",
        "an own class: residual blocks, `pixel_shuffle`, bicubic enlargement",
        SuperResolution,
        **varied(8, parameter="image"),
    ),
    Entry(
        "Diffusion-U-Net",
        "diffusers.UNet2DConditionModel",
        diffusion,
        {
            "sample": floats("batch", 4, 8, 8),
            "timestep": integers("batch", low=0, high=1000),
            "encoder_hidden_states": floats("batch", "words", 24),
        },
        ({"batch": 2, "words": 3}, {"batch": 1, "words": 7}, {"batch": 5, "words": 1}),
        {"words": (1, 77)},
    ),
)
ENTRIES: tuple[Entry, ...] = (*CLASSIFIERS, *DETECTORS, *MAPS, *IMAGES)
