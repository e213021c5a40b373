from collections.abc import Mapping
from typing import Final

READS_SHAPES: Final[int]
READS_LAUNCH: Final[int]
READS_BYTES: Final[int]
READS_NAMED: Final[int]
ON_DEVICE: Final[int]
IGNORED: Final[int]
IGNORED_BUT_MODULES: Final[int]
UNSUPPORTED: Final[int]
VERSION: Final[int]
COLUMNS: Final[str]

_NewTexts = tuple[list[bytes], list[bytes], list[bytes], list[bytes]]

class Scanner:
    def __init__(self, categories: Mapping[bytes, int], module_prefix: bytes, /) -> None: ...
    def scan(self, text: bytes | memoryview, /) -> tuple[int, int, tuple[bytes, ...], bytes, _NewTexts] | None: ...
