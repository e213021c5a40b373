from numpy import int64
from numpy.typing import NDArray

def longest(
    source: NDArray[int64], weight: NDArray[int64], other: NDArray[int64], more: NDArray[int64], /
) -> bytes: ...
