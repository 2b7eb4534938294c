"""Tags of messages: numbers of 64 bits that say what they are."""
from ._lib.tag import UCXXTag, UCXXTagMask, UCXXTagMaskFull

Tag = UCXXTag
TagMask = UCXXTagMask
TagMaskFull = UCXXTagMaskFull

__all__ = ["Tag", "TagMask", "TagMaskFull", "UCXXTag", "UCXXTagMask", "UCXXTagMaskFull"]
