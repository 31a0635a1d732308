"""Parsers of bytes from elsewhere, each with its samples and its documented errors, for two ways to change the samples:
hypothesis in the suite, and atheris, which is led by coverage (``make fuzz-bytes``).
"""

from . import answers, data_dirs, files, messages, requests, tokens
from .target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (requests, messages, files, data_dirs, answers, tokens)
    for target in module.TARGETS
}
