"""Colours of the report's curves: they stand out from their ground, and apart, in both schemes and for every sight."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import combinations

import pytest

from loradock.analysis.report.html import render

Matrix = Sequence[Sequence[float]]
# Machado, Oliveira and Fernandes (2009), severity 1.
SIGHTS: dict[str, Matrix] = {
    "common": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def test_colours_of_curves_stand_out_from_their_ground_in_both_schemes() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", render.asset("style.css"), re.DOTALL)[:2]
    for scheme in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", scheme))
        for ground in (colours["ground"], colours["panel"]):
            for slot in range(render.SLOTS):
                assert contrast(colours[f"c{slot}"], ground) >= 3, (slot, ground)
            for text in ("ink", "soft", "bad", "warn", "focus"):
                assert contrast(colours[text], ground) >= 4.5, (text, ground)


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_stay_apart_for_every_sight(sight: str) -> None:
    for scheme in re.findall(r":root \{(.*?)\}", render.asset("style.css"), re.DOTALL)[:2]:
        colours = re.findall(r"--c\d: (#[0-9a-f]{6})", scheme)
        assert len(colours) == render.SLOTS
        seen = [perceived(times(SIGHTS[sight], linear(colour))) for colour in colours]
        assert min(math.dist(*pair) for pair in combinations(seen, 2)) > 0.08


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def linear(colour: str) -> list[float]:
    """Red, green and blue of an sRGB colour in linear light."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [sum(weight * part for weight, part in zip(row, vector, strict=True)) for row in matrix]


def perceived(light: Sequence[float]) -> list[float]:
    """Linear light in OKLab (Ottosson, 2020), in which distances are about those that are seen."""
    return times(TO_OKLAB, [max(0.0, part) ** (1 / 3) for part in times(TO_CONES, [max(0.0, part) for part in light])])
